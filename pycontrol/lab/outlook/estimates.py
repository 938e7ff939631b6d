"""Compares estimated with real starts in simulations whose forecaster is queried while apps wait."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.lab.kit import Claim, Findings, Setup, Table
from pycontrol.lab.runs import CellsOf
from pycontrol.lab.themis.sweeps import Scene
from pycontrol.lab.workloads import load
from pycontrol.policies import registry
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.policy_port import Policy
from pycontrol.simulation.calibration import Calibration, Range
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.outlook import NoOutlook, outlooks
from pycontrol.simulation.scene import own_policies, scene_of
from pycontrol.simulation.simulation_settings import SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

EVERY_S = 60.0
"""Time between two forecasts. Each app counts once, with the first estimate made while it waited."""
RUNS = 12
ERROR = 0.2
"""Largest relative error of declared work, in the simulation and in the forecast."""
LEAST, MOST = 0.75, 0.90
SCENES = (Scene("w1", apps=40), Scene("w2", apps=40))
"""As often as the whole trace has them: with many more, apps wait for the end of arrivals, which nobody foresees."""
JOBS = "philly/philly_jobs_reconstructed.csv.gz"


@dataclass(frozen=True)
class PhillySizes(Scene):
    """Jobs with sizes and run times drawn from Philly's (up to LONGEST_S), with Poisson arrivals at `LOAD`."""

    path: Path | None = None
    cells: bool = False
    """Whether half of the machines and of the jobs are each of two virtual clusters."""

    LONGEST_S = 14_400.0
    LOAD = 2.0
    QUEUES = ("root.a", "root.b")

    def load(self, seed: int) -> Workload:
        """The workload: apps of one job each."""
        assert self.path is not None
        rng = random.Random(f"philly {seed}")
        most = max(m.gpus for m in self.topology().machines.values())
        known = [
            (x.gang_gpus, x.work_gpu_s)
            for x in load(f"philly-jobs:{self.path}", 0, {"limit": 5000}).apps
            if x.gang_gpus <= most and 60 <= x.work_gpu_s / x.gang_gpus <= self.LONGEST_S
        ]
        gap_s = statistics.mean(w for _, w in known) / self.topology().gpus / self.LOAD
        at_s, apps = 0.0, []
        for i in range(self.apps):
            at_s += rng.expovariate(1 / gap_s)
            gang, work_gpu_s = rng.choice(known)
            queue = self.QUEUES[i % 2] if self.cells else "root.default"
            apps.append(TraceApp(f"j{i}", at_s, gang, ((work_gpu_s,),), queue))
        return Workload("philly-sizes", tuple(apps), f"sizes of {self.path.name}")

    def owned(self) -> CellsOf | None:
        """The cells of the virtual clusters; None if there are none."""
        if not self.cells:
            return None
        machines = self.topology().machines
        nodes = len(machines) // len(self.QUEUES)
        file = CellsFile.model_validate(
            {
                "levels": {"node": max(m.gpus for m in machines.values())},
                "hosts": list(machines),
                "virtual_clusters": {queue: {"cells": {"node": nodes}} for queue in self.QUEUES},
            }
        )
        return CellsOf(layout(file))

    @property
    def label(self) -> str:
        """In words."""
        return f"Philly's sizes, {self.cluster}, {self.apps} jobs, load {self.LOAD:g}" + ", cells" * self.cells


@dataclass(frozen=True)
class Estimate:
    """The estimate of one start: when it was made, the raw range, the calibrated range, and the real start."""

    made_s: float
    raw: Range
    given: Range
    waited_s: float
    """Seconds from the app's submission to its start."""
    real_s: float

    def hit(self, which: Range) -> bool:
        """Whether the start is within the range."""
        low, _, high = which
        return low is not None and low - 1 <= self.real_s and (high is None or self.real_s <= high + 1)


class WatchedWorld(Simulator):
    """A simulation in which estimates are made periodically."""

    def __init__(self, scene: Scene, seed: int, policy: str, runs: int, calibration: Calibration) -> None:
        cells = scene.owned() if isinstance(scene, PhillySizes) else None
        supply = cells() if cells is not None else None
        chosen: Policy = registry.make(policy)
        if supply is not None:
            chosen = ByVirtualCluster(chosen, own_policies(supply, policy, {}))
        settings = SimulationSettings(error=ERROR)
        super().__init__(scene.load(seed), scene.topology(), chosen, settings, seed, supply=supply)
        self.runs = runs
        self.calibration = calibration
        self.submitted_s = {trace.app_id: trace.submitted_s for trace in self.workload.apps}
        self.first: dict[str, tuple[float, Range, Range]] = {}
        self.found: list[Estimate] = []
        self.at(EVERY_S, self._look, None)

    def _look(self, _: Any, stamp: int) -> None:
        if len(self.records) < len(self.workload.apps):
            self.at(self.now + EVERY_S, self._look, None)
        self.settle()
        new = [app_id for app_id, app in self.apps.items() if app_id not in self.first and app.started_s is None]
        if not new:
            return
        for app in self.apps.values():
            self._tell(app)
        self._drain()
        scene = scene_of(self.arbiter, self.now)
        sought = [app_id for app_id in scene.started if app_id in new]
        if not sought:
            return
        try:
            found = outlooks(scene, runs=self.runs, error=ERROR, seed=stamp, starts=True, sought=sought, run_s=math.inf)
        except NoOutlook:
            return
        for app_id, x in found.items():
            given = self.calibration.widened(self.now, x.start_s)
            self.calibration.estimated(app_id, self.now, x.start_s)
            self.first[app_id] = self.now, x.start_s, given

    def settle(self) -> None:
        """Compare the estimates of apps that have started with their starts."""
        for app_id in self.calibration.open:
            record, app = self.records.get(app_id), self.apps.get(app_id)
            started_s = record.started_s if record is not None else app.started_s if app is not None else None
            if started_s is None:
                continue
            self.calibration.happened(app_id, started_s)
            made_s, raw, given = self.first[app_id]
            self.found.append(Estimate(made_s, raw, given, started_s - self.submitted_s[app_id], started_s))


def watched(job: tuple[Scene, Sequence[int], str, int]) -> list[Estimate]:
    """Run simulations one after another; the calibration carries over from each to the next."""
    scene, seeds, policy, runs = job
    calibration, found = Calibration(), list[Estimate]()
    for seed in seeds:
        world = WatchedWorld(scene, seed, policy, runs, calibration)
        world.run()
        world.settle()
        calibration.forget(calibration.open)
        found += world.found
    return found


def estimates(setup: Setup) -> Findings:
    """Estimates of starts: how many fall into the range of 80 %, and how wide it is."""
    scenes: list[Scene] = [*SCENES]
    path: Path | None = setup.trace(JOBS)
    if path is not None:
        scenes += [PhillySizes("philly", "4x8", apps=200, path=path, cells=cells) for cells in (False, True)]
    seeds = setup.seeds_of(8, 1)
    jobs = [(scene, tuple(seeds), "isonomy", 6 if setup.quick else RUNS) for scene in scenes]
    found: dict[str, list[Estimate]] = {}
    for job, said in zip(jobs, setup.each(watched, jobs), strict=True):
        found[job[0].label] = said
        setup.note(f"{job[0].label}: {len(said)} starts")
    every = [x for said in found.values() for x in said]
    rows = tuple(_row(label, said) for label, said in [*found.items(), ("all", every)] if said)
    return Findings(
        _claims(every),
        (
            Table(
                "Starts in the range of 80 %",
                ("world", "starts", "runs alone", "as given", "median width, min", "median wait, min"),
                rows,
            ),
        ),
        seeds=len(seeds),
        conventions=(
            f"declared work and slowdowns are wrong by up to {ERROR:.0%}; {RUNS} runs each",
            "each app that waits counts once, with its first estimate; ranges are widened by what was learnt "
            "until then in worlds of the same kind, from nothing at the beginning of the first",
        ),
        values={
            row[0]: dict(zip(("starts", "raw", "given", "width_min", "wait_min"), row[1:], strict=True)) for row in rows
        },
    )


def _row(label: str, said: Sequence[Estimate]) -> tuple[Any, ...]:
    return (
        label,
        len(said),
        round(_share(said, "raw"), 3),
        round(_share(said, "given"), 3),
        round(_width_s(said) / 60, 1),
        round(statistics.median(x.waited_s for x in said) / 60, 1),
    )


def _share(said: Sequence[Estimate], which: str) -> float:
    return sum(x.hit(getattr(x, which)) for x in said) / max(1, len(said))


def _width_s(said: Sequence[Estimate]) -> float:
    """The median width of the ranges; ranges without an upper end count as infinite."""
    widths = [float("inf") if None in x.given else x.given[2] - x.given[0] for x in said]  # type: ignore[operator]
    return statistics.median(widths)


def _claims(said: Sequence[Estimate]) -> tuple[Claim, ...]:
    if not said:
        return (Claim("starts are estimated", "none", "no app waited", None),)
    share, width_s = _share(said, "given"), _width_s(said)
    wait_s = statistics.median(x.waited_s for x in said)
    return (
        Claim(
            f"{LEAST:.0%} to {MOST:.0%} of starts fall into the range of 80 %",
            "own",
            f"{share:.1%} of {len(said)}",
            LEAST <= share <= MOST,
            f"{_share(said, 'raw'):.1%} by the runs alone",
        ),
        Claim(
            "its median width is at most the median wait",
            "own",
            f"{width_s / 60:.1f} of {wait_s / 60:.1f} min",
            width_s <= wait_s,
        ),
    )
