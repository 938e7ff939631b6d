"""rho of an app whose jobs run on whole gangs (Themis, section 4.3): T_sh by phases, T_id by contention.

A phase is a set of jobs that must all finish before the next begins (successive halving); T_sh is the time
that has passed plus the makespan of each phase left. With fewer gangs than jobs the jobs are serialised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pycontrol.fairness.packing import pack

PACK_STEPS = 300
"""Search steps for one packing: a bid asks for many, and longest-first is nearly always optimal."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Remaining work of each job of a phase, in serial seconds (seconds on one GPU, S = 1)."""

    job_serial_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AppWork:
    """What an app has left. `gang_gpus`: GPUs of one job; `elapsed_s`: since its submission."""

    phases: tuple[Phase, ...]
    gang_gpus: int
    elapsed_s: float
    t_id_s: float

    @property
    def left_gpu_s(self) -> float:
        """Serial GPU-seconds left in all phases."""
        return sum(sum(p.job_serial_s) for p in self.phases)


def t_id(total_gpu_s: float, cluster_gpus: int, app_demand_max: int, n_avg: float) -> float:
    """T_id = B / min(R_C, app_demand_max) * N_avg, in seconds (section 4.3.2)."""
    return total_gpu_s / max(1, min(cluster_gpus, app_demand_max)) * n_avg


def phase_s(jobs: Sequence[float], speeds: Sequence[float]) -> float:
    """Makespan in seconds of jobs (serial seconds) on gangs of these speeds (serial seconds per second).

    On gangs of one speed: the best packing that a short search finds. Else longest job first, each to the
    gang where it ends soonest.
    """
    work = [w for w in jobs if w > 0]
    if not work:
        return 0.0
    if not speeds:
        return math.inf
    if len(set(speeds)) == 1:
        return pack(work, len(speeds), PACK_STEPS).end_s / speeds[0]
    finish = [0.0] * len(speeds)
    for w in sorted(work, reverse=True):
        best = min(range(len(speeds)), key=lambda i: finish[i] + w / speeds[i])
        finish[best] += w / speeds[best]
    return max(finish)


def t_sh(app: AppWork, slots: Sequence[float]) -> float:
    """T_sh in seconds with one gang for each slowdown S in `slots`, kept until the app ends; inf with none."""
    speeds = [app.gang_gpus / s for s in slots]
    return app.elapsed_s + sum(phase_s(p.job_serial_s, speeds) for p in app.phases)


def rho_with_gangs(app: AppWork, slots: Sequence[float]) -> float:
    """rho = T_sh / T_id with one gang for each slowdown S in `slots`; inf with none and work left."""
    return t_sh(app, slots) / app.t_id_s if app.t_id_s > 0 else math.inf


def projected_rho(app: AppWork, lease_s: float, slowdown: float = 1.0) -> float:
    """rho of an app that holds nothing: it waits one lease, then runs on its smallest gang."""
    waited = AppWork(app.phases, app.gang_gpus, app.elapsed_s + lease_s, app.t_id_s)
    return rho_with_gangs(waited, [slowdown])
