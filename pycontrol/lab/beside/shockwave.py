"""Shockwave (NSDI '23) and what its artifact publishes by job, and our policies on the same trace and cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pycontrol.lab import clusters
from pycontrol.lab.beside.figures import Played, beside, played
from pycontrol.lab.kit import Claim, Findings, Setup
from pycontrol.lab.oef.golden import FOLDER, GPUS, RESTART_S, ROUND_S, TRACE, published_workload
from pycontrol.lab.runs import SimulationRun, run_many
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings

PUBLISHED: Mapping[str, str] = {
    "shockwave": "Shockwave",
    "finish_time_fairness": "Themis, by Shockwave's authors",
    "max_min_fairness": "Gavel, by Shockwave's authors",
    "allox": "AlloX, by Shockwave's authors",
    "gandiva_fair": "Gandiva-fair, by Shockwave's authors",
    "max_sum_throughput_perf": "MST, by Shockwave's authors",
    "min_total_duration": "OSSP, by Shockwave's authors",
}
"""The name in the artifact -> what its script calls it."""
MACHINES, EACH = 8, 4
WRONG = 0.4
"""Shockwave predicts batch sizes that change; we are told each job's work, or in one row up to this wrong."""


@dataclass(frozen=True)
class Ours:
    """A policy of ours on its terms."""

    label: str
    policy: str
    lease_s: float = ROUND_S
    world: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


OURS = (
    Ours("isonomy", "isonomy"),
    Ours("isonomy, work known to 40 %", "isonomy", world={"error": WRONG}),
    Ours("isonomy, leases of 600 s", "isonomy", ARBITER.lease_s),
    Ours("themis", "themis"),
    Ours("themis, leases of 600 s", "themis", ARBITER.lease_s),
    Ours("tiresias", "tiresias"),
    Ours("gavel", "gavel", options={"tenant": "app", "objective": "water_filling"}),
)


def shockwave(setup: Setup) -> Findings:
    """Shockwave's 120 jobs on 32 GPUs: its published runs by job, and our policies beside them."""
    trace, theirs = setup.trace(TRACE), _published(setup)
    if trace is None or "shockwave" not in theirs:
        left_out = Claim("Shockwave's published runs, and ours.", "-", "-", None, "The public data is not there.")
        return Findings((left_out,))
    first, seeds = theirs["shockwave"], setup.seeds_of(5, 1)
    rows = {name: _theirs(PUBLISHED[name], trace, found) for name, found in theirs.items()}
    ours = _ours(setup, trace, first, rows["shockwave"].alone_s, seeds)
    mean, worst, makespan = (_by(rows, ours, name) for name in ("mean_s", "worst", "makespan_s"))
    return Findings(
        (
            _claim("mean completion time", mean),
            _claim("worst finish-time fairness", worst, 2),
            _claim(
                "makespan",
                makespan,
                why="Shockwave plans the makespan: it runs long jobs early, so that no few of them run at the end on a "
                "cluster that is else empty. Our order is by who would end first; it puts long jobs last.",
            ),
        ),
        (beside(f"{len(first['jct_list'])} jobs on {GPUS} GPUs", [*([x] for x in rows.values()), *ours.values()]),),
        (),
        (
            f"{GPUS} GPUs of one type in {MACHINES} machines; a job's work is the GPU time that it had in Shockwave's "
            "published run, at one speed: there its batch size changes with time",
            f"a launch costs {RESTART_S:.0f} s, as there; leases of {ROUND_S:.0f} s as their rounds, unless stated; "
            "each job is a user of its own, as theirs has shares by job",
            "there a job's end leaves its GPUs idle until the round ends; here they are given on at once: our "
            "`gavel` beside theirs shows how much that is",
            "fairness: completion / (time alone x jobs / GPUs), with all jobs of the trace, or with the mean number of "
            "those in the job's life; times alone are those of the artifact",
        ),
        len(seeds),
    )


def _published(setup: Setup) -> dict[str, Any]:
    paths = {name: setup.trace(f"{FOLDER}/tacc_32gpus__{name}__simulation.json") for name in PUBLISHED}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path is not None}


def _theirs(label: str, trace: Path, found: Mapping[str, Any]) -> Played:
    """A published run; the time alone follows from the fairness that it prints for each job."""
    submitted = np.array([a.submitted_s for a in published_workload(trace, found).apps])
    completion, fairness = (np.array(found[f"{name}_list"], float) for name in ("jct", "finish_time_fairness"))
    alone = completion / (fairness * max(1.0, len(submitted) / GPUS))
    rounds = sum(len(on) for shared in found["per_round_schedule"] for on in shared.values())
    return Played(label, submitted, submitted + completion, alone, GPUS, rounds * found["time_per_iteration"] / 3600)


def _ours(
    setup: Setup, trace: Path, of: Mapping[str, Any], alone_s: np.ndarray, seeds: Sequence[int]
) -> dict[str, list[Played]]:
    """Label -> a run for each seed."""
    workload, cluster = published_workload(trace, of), clusters.uniform(MACHINES, EACH)
    tried = OURS[:1] if setup.quick else OURS
    jobs = []
    for x in tried:
        arbiter = replace(ARBITER, lease_s=x.lease_s)
        settings = SimulationSettings(
            arbiter=arbiter, checkpoint_s=0.0, start_s=RESTART_S, restart_s=RESTART_S, **x.world
        )
        jobs += [SimulationRun(workload, cluster, x.policy, x.options, settings, seed) for seed in seeds]
    setup.note(f"{len(jobs)} runs")
    results, order = iter(run_many(jobs, setup.processes)), [a.app_id for a in workload.apps]
    return {x.label: [played(x.label, next(results), order, alone_s) for _ in seeds] for x in tried}


def _by(rows: Mapping[str, Played], ours: Mapping[str, Sequence[Played]], name: str) -> dict[str, float]:
    """Label -> a figure: Shockwave's, and the means of ours over the seeds."""
    found = {label: float(np.mean([getattr(x, name) for x in runs])) for label, runs in ours.items()}
    return {PUBLISHED["shockwave"]: getattr(rows["shockwave"], name), **found}


def _claim(what: str, values: Mapping[str, float], digits: int = 0, why: str = "") -> Claim:
    """Whether `isonomy` is at least as good as Shockwave."""
    theirs, *others = values.items()
    ours = values["isonomy"]
    return Claim(
        f"{what[0].upper()}{what[1:]} under `isonomy` is at most Shockwave's.",
        f"{theirs[1]:.{digits}f} (its artifact)",
        "; ".join(f"{label}: {x:.{digits}f}" for label, x in others),
        ours <= theirs[1],
        why,
    )
