"""Sia (SOSP '23) and Gavel as Sia's own simulator runs them, and our policies on the same jobs and cluster."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pycontrol.lab.beside.figures import Played, beside, played
from pycontrol.lab.kit import Claim, Findings, Setup, Table
from pycontrol.lab.runs import SimulationRun, run_many
from pycontrol.model.topology import Machine, Topology
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

RUNS = tuple(f"golden/sia/philly-{k}.json" for k in (1, 2, 3))
"""What its simulator says of each job of a workload (docs/workloads.md); those that are there are played."""
SIA = "Sia"
NAMES = {"mean_s": "mean completion", "makespan_s": "makespan"}


@dataclass(frozen=True)
class Ours:
    """A policy of ours; `elastic`: jobs run on one GPU up to the number that they ask for."""

    label: str
    policy: str
    elastic: bool = False
    lease_s: float = ARBITER.lease_s


OURS = (
    Ours("isonomy", "isonomy"),
    Ours("isonomy, leases of 60 s", "isonomy", lease_s=60.0),
    Ours("isonomy, elastic jobs", "isonomy", True),
    Ours("themis", "themis"),
    Ours("tiresias", "tiresias"),
)


def sia(setup: Setup) -> Findings:
    """Sia's trace on its cluster of three GPU types: its simulator's runs by job, and our policies beside them."""
    claims, tables, about = list[Claim](), list[Table](), list[str]()
    seeds, restarts_s = setup.seeds_of(3, 1), list[float]()
    for path in filter(None, map(setup.trace, RUNS)):
        found = json.loads(path.read_text(encoding="utf-8"))
        jobs, sizes = found["jobs"], {name: tuple(of) for name, of in found["cluster"].items()}
        theirs = {label: _theirs(label, jobs, run, sizes) for label, run in found["runs"].items()}
        ours = _ours(setup, jobs, sizes, theirs[SIA].alone_s, seeds)
        about, restarts_s = [*about, found["about"]], [*restarts_s, restart_of(jobs)]
        claims += [_claim(path.stem, what, theirs, ours) for what in ("mean_s", "makespan_s")]
        title = f"{found['about']}: {len(jobs)} jobs on {gpus_of(sizes)} GPUs"
        tables.append(beside(title, [*([x] for x in theirs.values()), *ours.values()]))
    if not tables:
        return Findings((Claim("Sia's runs, and ours.", "-", "-", None, f"{RUNS[0]} is not in the public data."),))
    return Findings(
        tuple(claims),
        tuple(tables),
        (),
        (
            "Sia chooses each job's batch size, GPUs and type anew each minute; its Gavel runs a job on the GPUs and "
            "with the batch size that the trace asks for, as ours does; elastic jobs here keep that batch size",
            "a job's work is how long it takes alone on each type in Sia's simulator, machines filled one after "
            "another; how its GPUs lie is not modelled beyond that",
            f"a change of allocation costs {np.mean(restarts_s):.0f} s, the mean of Sia's by application; leases of "
            f"{ARBITER.lease_s:.0f} s unless stated, at whose ends GPUs change hands; each job is a user of its own",
            "fairness: completion / time alone on the GPUs that it asks for at the cluster's mean speed, while there "
            "are fewer jobs than GPUs",
        ),
        len(seeds),
        size="; ".join(about),
    )


def gpus_of(sizes: Mapping[str, tuple[int, int]]) -> int:
    """Of the cluster; `sizes`: GPU type -> machines, and the GPUs of each."""
    return sum(machines * each for machines, each in sizes.values())


def topology(sizes: Mapping[str, tuple[int, int]]) -> Topology:
    """Each type's machines are a rack."""
    return Topology.of(
        Machine(f"{name.lower().replace(' ', '-')}-{k}", f"rack-{r}", each, name)
        for r, (name, (machines, each)) in enumerate(sizes.items())
        for k in range(machines)
    )


def app_of(job: Mapping[str, Any], elastic: bool) -> TraceApp:
    """A job as an app; its work is that on the slowest type."""
    asked = int(job["gpus"])
    least = 1 if elastic else asked
    alone_s = {name: float(by_gpus[str(least)]) for name, by_gpus in job["alone_s"].items()}
    slowest = max(alone_s, key=alone_s.__getitem__)
    faster = {name: alone_s[slowest] / s for name, s in alone_s.items()}
    scaling = 1.0
    if elastic and asked > 1:
        gains = [math.log(float(by["1"]) / float(by[str(asked)])) / math.log(asked) for by in job["alone_s"].values()]
        scaling = min(1.0, max(0.0, float(np.mean(gains))))
    return TraceApp(
        job["name"],
        float(job["submitted_s"]),
        least,
        ((alone_s[slowest] * least,),),
        user=job["name"],
        slowdown=(1.0, 1.0, 1.0),
        speedups=faster,
        job_gpus_max=asked if elastic else 0,
        scaling=scaling,
    )


def restart_of(jobs: Sequence[Mapping[str, Any]]) -> float:
    """Mean seconds that a change of allocation costs a job."""
    return float(np.mean([job["restart_s"] for job in jobs]))


def _alone_s(job: Mapping[str, Any], sizes: Mapping[str, tuple[int, int]]) -> float:
    """On the GPUs that it asks for, at the mean speed of the cluster's."""
    part = {name: machines * each / gpus_of(sizes) for name, (machines, each) in sizes.items()}
    return 1 / sum(part[name] / float(by_gpus[str(job["gpus"])]) for name, by_gpus in job["alone_s"].items())


def _theirs(
    label: str,
    jobs: Sequence[Mapping[str, Any]],
    run: Sequence[Mapping[str, float]],
    sizes: Mapping[str, tuple[int, int]],
) -> Played:
    begin, end = (np.array([x[name] for x in of], float) for of, name in ((jobs, "submitted_s"), (run, "finished_s")))
    alone = np.array([_alone_s(job, sizes) for job in jobs])
    gpu_h, restarts = (sum(x[name] for x in run) for name in ("gpu_s", "restarts"))
    return Played(label, begin, end, alone, gpus_of(sizes), gpu_h / 3600, restarts)


def _ours(
    setup: Setup,
    jobs: Sequence[Mapping[str, Any]],
    sizes: Mapping[str, tuple[int, int]],
    alone_s: np.ndarray,
    seeds: Sequence[int],
) -> dict[str, list[Played]]:
    """Label -> a run for each seed."""
    tried, restart_s, runs = OURS[:1] if setup.quick else OURS, restart_of(jobs), list[SimulationRun]()
    for x in tried:
        workload = Workload("sia", tuple(app_of(job, x.elastic) for job in jobs))
        arbiter = replace(ARBITER, lease_s=x.lease_s)
        settings = SimulationSettings(arbiter=arbiter, checkpoint_s=0.0, start_s=restart_s, restart_s=restart_s)
        runs += [SimulationRun(workload, topology(sizes), x.policy, settings=settings, seed=seed) for seed in seeds]
    setup.note(f"{len(runs)} runs")
    results, order = iter(run_many(runs, setup.processes)), [job["name"] for job in jobs]
    return {x.label: [played(x.label, next(results), order, alone_s) for _ in seeds] for x in tried}


def _claim(run: str, name: str, theirs: Mapping[str, Played], ours: Mapping[str, Sequence[Played]]) -> Claim:
    """Whether `isonomy` is at least as good as Sia."""
    means = {label: float(np.mean([getattr(x, name) for x in runs])) for label, runs in ours.items()}
    return Claim(
        f"{run}: {NAMES[name]} under `isonomy` is at most Sia's.",
        "; ".join(f"{label}: {getattr(x, name):.0f} s" for label, x in theirs.items()),
        "; ".join(f"{label}: {x:.0f} s" for label, x in means.items()),
        means["isonomy"] <= getattr(theirs[SIA], name),
        "Sia raises batch sizes, and gives more GPUs than asked for where they bring most; we run jobs as they ask.",
    )
