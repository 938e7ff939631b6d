"""rho of an app whose jobs run on whole gangs (Themis, section 4.3): T_sh by phases, T_id by contention.

A phase is a set of jobs that must all finish before the next begins (successive halving); T_sh is the time
that has passed plus the makespan of each phase left. With fewer gangs than jobs the jobs are serialised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pycontrol.fairness.packing import least_end, longest_first, pack

PACK_STEPS = 300
"""Search steps for one packing: a bid asks for many, and longest-first is nearly always optimal."""
SEARCHED_JOBS_MAX = 24
CLOSE = 1.005
"""A packing that ends so close to what no packing can beat is not searched on."""


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

    With a gang for each job, the longest job on the fastest gang, which is optimal. With fewer gangs: the best
    packing that a short search finds on as many equal gangs, at their mean speed; for gangs of one speed that is
    within half a percent of the optimum or what longest-first gives (at most 4/3 of it).
    """
    work = tuple(w for w in jobs if w > 0)
    if not work:
        return 0.0
    if not speeds:
        return math.inf
    if len(speeds) >= len(work):
        fastest = sorted(speeds, reverse=True)
        return max(w / v for w, v in zip(sorted(work, reverse=True), fastest, strict=False))
    return _makespan(work, len(speeds)) * len(speeds) / sum(speeds)


@lru_cache(maxsize=4096)
def _makespan(work: tuple[float, ...], gangs: int) -> float:
    """Of jobs on fewer equal gangs. Cached: an Agent asks for the same packing in many rows of many bids."""
    longest = max(work)
    if longest == min(work):
        return -(-len(work) // gangs) * longest
    end_s = longest_first(work, gangs)
    if len(work) > SEARCHED_JOBS_MAX or end_s <= CLOSE * least_end(work, gangs):
        return end_s
    return pack(work, gangs, PACK_STEPS).end_s


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
