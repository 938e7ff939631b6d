"""rho of an app with jobs that run on whole gangs (Themis, section 4.3): T_sh by phases, T_id by contention.

A phase is a set of jobs that must all finish before the next begins (successive halving). T_sh is the elapsed time plus
the makespan of each phase left. With fewer gangs than jobs, jobs run one after another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import truediv

from pycontrol.fairness.makespan import least_end, longest_first, pack
from pycontrol.model.value import value

PACK_STEPS = 300
"""Search steps for one packing: a bid needs many packings, and longest-first is nearly always optimal."""
SEARCHED_JOBS_MAX = 24
CLOSE = 1.005
"""A packing within this factor of the lower bound is not improved further."""


@value
class PhaseWork:
    """Remaining work of each job of a phase, in serial seconds (seconds on one GPU, S = 1)."""

    job_serial_s: tuple[float, ...]


@value
class AppWork:
    """The work that an app has left. `gang_gpus`: the fewest GPUs of one job; `elapsed_s`: since its submission."""

    phases: tuple[PhaseWork, ...]
    gang_gpus: int
    elapsed_s: float
    t_id_s: float
    job_gpus_max: int = 0
    """The most GPUs of one job; if larger than `gang_gpus`, its jobs are elastic."""

    @property
    def left_gpu_s(self) -> float:
        """Serial GPU-seconds left in all phases."""
        return sum(sum(p.job_serial_s) for p in self.phases)


def t_id(total_gpu_s: float, cluster_gpus: int, app_demand_max: int, n_avg: float) -> float:
    """T_id = B / min(R_C, app_demand_max) * N_avg, in seconds (section 4.3.2)."""
    return total_gpu_s / max(1, min(cluster_gpus, app_demand_max)) * n_avg


class _Jobs:
    """A phase's jobs, prepared for computing their makespan many times."""

    __slots__ = ("ends_s", "work")

    def __init__(self, jobs: Sequence[float]) -> None:
        self.work = sorted((w for w in jobs if w > 0), reverse=True)
        self.ends_s: dict[int, float] = {}
        """Number of equal gangs of speed 1, fewer than jobs -> makespan."""

    def makespan_s(self, fastest: Sequence[float], speed: float) -> float:
        """The makespan (s) on gangs of these speeds (serial seconds per second), the fastest first; `speed`: their sum.

        With a gang for each job, the longest job runs on the fastest gang, which is optimal. With fewer gangs, it is
        the best packing that a short search finds on as many equal gangs of their mean speed; for gangs of one speed
        it is within half a percent of the optimum, or that of longest-first (at most 4/3 of the optimum).
        """
        work, gangs = self.work, len(fastest)
        if not work:
            return 0.0
        if not gangs:
            return math.inf
        if gangs < len(work):
            end_s = self.ends_s.get(gangs)
            if end_s is None:
                end_s = self.ends_s[gangs] = _equal_gangs_s(work, gangs)
            return end_s * gangs / speed
        slowest = fastest[len(work) - 1]
        if fastest[0] == slowest or work[0] == work[-1]:
            return work[0] / slowest
        last_s: float = max(map(truediv, work, fastest))
        return last_s


def _equal_gangs_s(work: Sequence[float], gangs: int) -> float:
    """The makespan of jobs, the longest first, on fewer equal gangs of speed 1."""
    if work[0] == work[-1]:
        return -(-len(work) // gangs) * work[0]
    end_s = longest_first(work, gangs)
    if len(work) > SEARCHED_JOBS_MAX or end_s <= CLOSE * least_end(work, gangs):
        return end_s
    return pack(work, gangs, PACK_STEPS).end_s


@lru_cache(maxsize=1024)
def _jobs(jobs: tuple[float, ...]) -> _Jobs:
    """The prepared jobs, cached: many rows of many bids need the same packings."""
    return _Jobs(jobs)


def _elastic_s(jobs: Sequence[float], speed: float, job_gpus_max: int) -> float:
    """Makespan of jobs that share divisible GPUs with this total speed."""
    if not any(jobs):
        return 0.0
    return max(sum(jobs), max(jobs) * speed / min(speed, job_gpus_max)) / speed if speed > 0 else math.inf


def t_sh(app: AppWork, slots: Sequence[float]) -> float:
    """T_sh in seconds with one gang for each slowdown S in `slots`, kept until the app ends; inf with none.

    Elastic jobs share the GPUs of all slots in each phase, up to `job_gpus_max` per job (section 4.3.2); the S of a
    slot with more than `gang_gpus` GPUs must be reduced in proportion.
    """
    fastest = [app.gang_gpus / s for s in sorted(slots)]
    speed = sum(fastest)
    if app.job_gpus_max > app.gang_gpus:
        return app.elapsed_s + sum(_elastic_s(p.job_serial_s, speed, app.job_gpus_max) for p in app.phases)
    return app.elapsed_s + sum([_jobs(p.job_serial_s).makespan_s(fastest, speed) for p in app.phases])


def rho_with_gangs(app: AppWork, slots: Sequence[float]) -> float:
    """rho = T_sh / T_id with one gang for each slowdown S in `slots`; inf with none and work left."""
    return t_sh(app, slots) / app.t_id_s if app.t_id_s > 0 else math.inf


def projected_rho(app: AppWork, lease_s: float, slowdown: float = 1.0) -> float:
    """rho of an app that holds nothing: it waits one lease, then runs on its smallest gang."""
    waited = AppWork(app.phases, app.gang_gpus, app.elapsed_s + lease_s, app.t_id_s, app.job_gpus_max)
    return rho_with_gangs(waited, [slowdown])
