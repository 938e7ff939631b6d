"""The paper's metrics: rho, GPU time, placement, completion times, Jain's index (Themis, section 8)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pycontrol.model.value import value
from pycontrol.simulation.result import Result

SHARING_INCENTIVE = 1.0 + 1e-9


@value
class Metric:
    """A figure of a run."""

    name: str
    label: str


METRICS = (
    Metric("rho_max", "max rho"),
    Metric("rho_p95", "p95 rho"),
    Metric("rho_p90", "p90 rho"),
    Metric("rho_p75", "p75 rho"),
    Metric("rho_p50", "median rho"),
    Metric("rho_p25", "p25 rho"),
    Metric("rho_p10", "p10 rho"),
    Metric("rho_path_max", "max rho, longest path in T_cluster"),
    Metric("rho_path_p95", "p95 rho, longest path in T_cluster"),
    Metric("si_share", "share of apps with rho <= 1"),
    Metric("jain", "Jain's index of rho"),
    Metric("gpu_h", "GPU time, hours"),
    Metric("placement", "placement score, GPU time's mean"),
    Metric("placement_p5", "placement score, 5th percentile of apps"),
    Metric("completion_mean_s", "completion time, mean, s"),
    Metric("completion_p50_s", "completion time, median, s"),
    Metric("completion_p95_s", "completion time, p95, s"),
    Metric("wait_mean_s", "queueing delay, mean, s"),
    Metric("makespan_s", "makespan, s"),
    Metric("utilisation", "utilisation"),
    Metric("restarts", "restarts"),
    Metric("lost_gpu_h", "work lost, GPU hours"),
    Metric("unfinished", "apps that did not finish"),
    Metric("rounds", "rounds"),
    Metric("events", "events"),
)

OF_FINISHED = frozenset(
    m.name for m in METRICS if m.name.startswith(("rho_", "completion_", "wait_")) or m.name in ("si_share", "jain")
)
"""Figures of finished apps only, in which a policy that starves apps would look better than it is."""


def metrics(result: Result) -> dict[str, float]:
    """All figures of a run, by the names of METRICS; of finished apps, but GPU time and work lost of all apps."""
    apps, done = result.apps, [a for a in result.apps if a.finished_s is not None]
    rho = np.array([a.rho for a in done]) if done else np.array([np.nan])
    path = np.array([a.rho_path for a in done]) if done else np.array([np.nan])
    completion = np.array([a.completion_s for a in done]) if done else np.array([np.nan])
    wait = np.array([a.waited_s for a in done]) if done else np.array([np.nan])
    gpu_s = np.array([a.gpu_s for a in apps]) if apps else np.zeros(1)
    score = np.array([a.placement for a in apps]) if apps else np.ones(1)
    begin_s = min((a.submitted_s for a in apps), default=0.0)
    end_s = max((a.finished_s or 0.0 for a in done), default=0.0) if len(done) == len(apps) else result.end_s
    makespan_s = max(end_s - begin_s, 1e-9)
    return {
        "rho_max": float(rho.max()),
        **{f"rho_p{q}": float(np.percentile(rho, q)) for q in (95, 90, 75, 50, 25, 10)},
        "rho_path_max": float(path.max()),
        "rho_path_p95": float(np.percentile(path, 95)),
        "si_share": float((rho <= SHARING_INCENTIVE).mean()),
        "jain": jain(rho),
        "gpu_h": float(gpu_s.sum()) / 3600,
        "placement": float((score * gpu_s).sum() / gpu_s.sum()) if gpu_s.sum() > 0 else 1.0,
        "placement_p5": float(np.percentile(score, 5)),
        "completion_mean_s": float(completion.mean()),
        "completion_p50_s": float(np.percentile(completion, 50)),
        "completion_p95_s": float(np.percentile(completion, 95)),
        "wait_mean_s": float(wait.mean()),
        "makespan_s": makespan_s,
        "utilisation": float(gpu_s.sum()) / (result.cluster_gpus * makespan_s),
        "restarts": float(sum(a.restarts for a in apps)),
        "lost_gpu_h": sum(a.lost_gpu_s for a in apps) / 3600,
        "unfinished": float(len(apps) - len(done)),
        "rounds": float(result.counters.rounds),
        "events": float(result.counters.events),
    }


def jain(values: Sequence[float] | np.ndarray) -> float:
    """Jain's fairness index: 1 if all values are equal, 1/n if one has everything."""
    x = np.asarray(values, dtype=float)
    return float(x.sum() ** 2 / (len(x) * (x**2).sum())) if len(x) and (x**2).sum() > 0 else 1.0
