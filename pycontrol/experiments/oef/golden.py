"""Compares Gavel and Gandiva_fair with published results by job: Shockwave's runs of 120 jobs on 32 GPUs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pycontrol.experiments.kit import Claim, Figure, Findings, Series, Setup, Table
from pycontrol.policies.gandiva_fair import GandivaFair
from pycontrol.policies.gavel import Gavel
from pycontrol.policies.sharing import Sharing
from pycontrol.simulation import clusters
from pycontrol.simulation.apps import TraceApp, Workload
from pycontrol.simulation.metrics import metrics
from pycontrol.simulation.runs import simulate
from pycontrol.simulation.settings import ARBITER, SimulationSettings

FOLDER = "golden/shockwave"
TRACE = "job_traces/shockwave/120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace"
SCALE, ARRIVAL = 6, 11
"""Columns of the trace."""
ROUND_S, RESTART_S = 120.0, 20.0
"""Gavel's round, and the part of it that a restarted job loses (published run times of such rounds: 100 s)."""
CLOSE = 0.1
"""Relative difference of mean completion times that counts as equal."""


@dataclass(frozen=True)
class Pair:
    """A published run and our policy for it; each job is a tenant."""

    published: str
    policy: Sharing


PAIRS = (
    Pair("max_min_fairness", Gavel(tenant="app", objective="water_filling")),
    Pair("max_sum_throughput_perf", Gavel(tenant="app", objective="max_sum")),
    Pair("gandiva_fair", GandivaFair(tenant="app")),
)
UNTRIED = ("allox", "finish_time_fairness", "min_total_duration", "shockwave")


def golden(setup: Setup) -> Findings:
    """Gavel and Gandiva_fair against published results, job by job."""
    trace = setup.trace(TRACE)
    claims: list[Claim] = []
    rows: list[tuple[Any, ...]] = []
    points: list[Series] = []
    for pair in PAIRS:
        path = setup.trace(f"{FOLDER}/tacc_32gpus__{pair.published}__simulation.json")
        name = f"{pair.policy.name} as published {pair.published}"
        if path is None or trace is None:
            claims.append(Claim(f"{name}: mean completion time.", "-", "-", None, "The public data is not there."))
            continue
        setup.note(name)
        theirs = json.loads(path.read_text(encoding="utf-8"))
        ours, restarts = _run(pair.policy, _workload(trace, theirs))
        jct = np.array(theirs["jct_list"])
        off = float(ours.mean() / jct.mean() - 1)
        rank = float(np.corrcoef(ours.argsort().argsort(), jct.argsort().argsort())[0, 1])
        middle = float(np.median(np.abs(ours / jct - 1)))
        claims.append(
            Claim(f"{name}: mean completion time within {CLOSE:.0%}.", f"{jct.mean():.0f} s (Shockwave's artifact)",
                  f"{ours.mean():.0f} s ({off:+.1%})", abs(off) <= CLOSE,
                  f"Job by job: rank correlation {rank:.3f}, median difference {middle:.1%}.")
        )  # fmt: skip
        rows.append((pair.published, f"{pair.policy.name}", float(jct.mean()), float(ours.mean()), f"{off:+.1%}",
                     f"{rank:.3f}", f"{middle:.1%}", float(np.percentile(jct, 95)), float(np.percentile(ours, 95)),
                     restarts))  # fmt: skip
        points.append(Series(pair.published, jct.tolist(), ours.tolist()))
    table = Table("Completion times of 120 jobs, seconds",
                  ("published", "policy", "published mean", "our mean", "difference", "rank correlation",
                   "median difference by job", "published p95", "our p95", "our restarts"), tuple(rows))  # fmt: skip
    title = "Completion times job by job"
    figure = Figure("golden", title, "published, s", "ours, s", tuple(points), "scatter", True, True)
    return Findings(tuple(claims), (table,), (figure,) if points else (), (
        "32 GPUs of one type, 8 machines of 4; a job's work is the GPU time that it had in the published run, so what "
        "is compared is who waits for whom, not how a batch size that changes moves a job's speed",
        f"rounds of {ROUND_S:.0f} s, a restart costs {RESTART_S:.0f} s, no locality; our placer, which fills a GPU "
        "as soon as it is free, where Gavel's rounds leave it idle to their end",
    ), 0, (
        f"Published runs of {', '.join(UNTRIED)} have no policy here to hold them against.",
        "Where every GPU is alike, max-sum is indifferent between jobs, so who waits is up to each implementation.",
    ))  # fmt: skip


def _workload(trace: Path, theirs: dict[str, Any]) -> Workload:
    """A workload of the trace's jobs, with the work that they did in the published run."""
    rows = [line.split("\t") for line in trace.read_text(encoding="utf-8").splitlines() if line.strip()]
    served = [sum(by_worker.values()) for by_worker in theirs["job_run_time"].values()]
    apps = []
    for i, (row, gpu_s) in enumerate(zip(rows, served, strict=True)):
        gang = int(row[SCALE])
        apps.append(TraceApp(f"j{i:03d}", float(row[ARRIVAL]), gang, ((float(gpu_s),),), user=f"j{i:03d}",
                             slowdown=(1.0, 1.0, 1.0)))  # fmt: skip
    return Workload("shockwave-120", tuple(apps), str(trace.name))


def _run(policy: Sharing, workload: Workload) -> tuple[np.ndarray, float]:
    """(completion times in the trace's order, number of restarts)."""
    arbiter = dataclasses.replace(ARBITER, lease_s=ROUND_S)
    settings = SimulationSettings(arbiter=arbiter, checkpoint_s=0.0, restart_s=RESTART_S)
    result = simulate(workload, clusters.uniform(8, 4), policy, settings)
    by_app = {a.app_id: a.completion_s for a in result.apps}
    return np.array([by_app[a.app_id] for a in workload.apps]), metrics(result)["restarts"]
