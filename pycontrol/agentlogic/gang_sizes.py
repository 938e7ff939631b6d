"""Assigns an elastic app's free GPUs: the sizes of new gangs, and which running gangs grow.

A gang changes its size by a restart from its checkpoint, so it grows only if it regains the restart's cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from pycontrol.agentlogic.allocation import Allocation, gang_near
from pycontrol.fairness.elastic import Elastic
from pycontrol.model.topology import Gpu, Scope, Topology
from pycontrol.model.value import value

REGAINS = 2.0
"""A gang grows if that saves more than this many times the restart's cost."""


@value
class Running:
    """A running gang, with the serial GPU-seconds that its job has left; a `settled` one may not grow."""

    job_id: str
    gpus: tuple[Gpu, ...]
    left_gpu_s: float
    settled: bool = False


@value
class Composition:
    """The use of an app's free GPUs; `grow`: jobs with gangs to be stopped, so that they start on more GPUs."""

    allocation: Allocation
    grow: tuple[str, ...] = ()


def compose(
    idle: Sequence[Gpu],
    waiting: Mapping[str, float],
    stopping: int,
    running: Sequence[Running],
    held: Mapping[Gpu, float],
    elastic: Elastic,
    scope: Scope,
    topology: Topology,
) -> Composition:
    """Gives gangs to the waiting jobs, with sizes that let them end together; then lets the jobs that end last grow.

    `waiting`: job without a gang -> serial GPU-seconds left. `stopping`: number of gangs that are about to end before
    their job is done; free GPUs are kept for them. `held`: the app's GPU -> when its previous owner is gone.
    """
    free = list(idle)
    launches = []
    jobs = sorted(waiting, key=lambda j: -waiting[j])[: len(free) // elastic.least_gpus]
    for job_id, gpus in _sizes([(waiting[j], j) for j in jobs], len(free), elastic):
        gang = _fastest(free, held, gpus, elastic, scope, topology)
        if gang is not None:
            free = [g for g in free if g not in gang]
            launches.append((job_id, gang))
    kept = min(len(free), stopping * elastic.most_gpus)
    grow = []
    for gang_now in sorted(running, key=lambda r: -r.left_gpu_s / _speed(r.gpus, elastic, topology)):
        more = [] if gang_now.settled else _growth(gang_now, free[kept:], held, elastic, scope, topology)
        if more:
            grow.append(gang_now.job_id)
            free = [g for g in free if g not in more]
    return Composition(Allocation(tuple(launches), tuple(free[kept:])), tuple(grow))


def wanted_gpus(waiting: int, running: Sequence[Running], elastic: Elastic, topology: Topology) -> int:
    """GPUs that an app of elastic jobs could use at the same time: the most for each waiting job and for each running
    one that would regain its restart's cost."""
    most = elastic.sizes[-1]
    wanted = waiting * most
    for r in running:
        at, best = _speed(r.gpus, elastic, topology), elastic.speed(most)
        grows = not r.settled and len(r.gpus) < most and _pays(r.left_gpu_s, at, best, elastic)
        wanted += most if grows else len(r.gpus)
    return wanted


def _speed(gpus: Sequence[Gpu], elastic: Elastic, topology: Topology) -> float:
    return elastic.speed(len(gpus), topology.scope_of({g.host for g in gpus}))


def _pays(left_gpu_s: float, now: float, then: float, elastic: Elastic) -> bool:
    """Whether a restart saves enough, given the speeds before and after it."""
    return left_gpu_s / now - left_gpu_s / then > REGAINS * elastic.restart_s


def _sizes(jobs: Sequence[tuple[float, str]], gpus: int, elastic: Elastic) -> list[tuple[str, int]]:
    """(job, its GPUs), the most first: GPUs go one step at a time to the job that would end last."""
    sizes = elastic.sizes
    rank = {job_id: 0 for _, job_id in jobs}
    gpus -= len(jobs) * sizes[0]
    last = [(-left / elastic.speed(sizes[0]), job_id, left) for left, job_id in jobs]
    heapq.heapify(last)
    while last:
        _, job_id, left = heapq.heappop(last)
        k = rank[job_id] + 1
        if k < len(sizes) and sizes[k] - sizes[k - 1] <= gpus:
            gpus -= sizes[k] - sizes[k - 1]
            rank[job_id] = k
            heapq.heappush(last, (-left / elastic.speed(sizes[k]), job_id, left))
    return sorted(((job_id, sizes[k]) for job_id, k in rank.items()), key=lambda x: -x[1])


def _fastest(
    free: list[Gpu], held: Mapping[Gpu, float], gpus: int, elastic: Elastic, scope: Scope, topology: Topology
) -> tuple[Gpu, ...] | None:
    """The GPUs of the fastest gang of at most `gpus` GPUs; fewer may be faster, if they lie closer together."""
    best: tuple[Gpu, ...] | None = None
    for n in reversed(elastic.sizes):
        if n <= gpus and (best is None or elastic.speed(n) > _speed(best, elastic, topology)):
            gang = gang_near(free, held, n, scope, topology)
            if gang is not None and (best is None or _speed(gang, elastic, topology) > _speed(best, elastic, topology)):
                best = gang
    return best


def _growth(
    r: Running, free: Sequence[Gpu], held: Mapping[Gpu, float], elastic: Elastic, scope: Scope, topology: Topology
) -> tuple[Gpu, ...]:
    """The larger gang on which a running one would regain its restart's cost; empty if there is none."""
    now = len(r.gpus)
    able = [*r.gpus, *free]
    if not free or len(able) < elastic.least_gpus or any(g not in held for g in r.gpus):
        return ()
    gang = _fastest(able, held, len(able), elastic, scope, topology)
    if gang is None or len(gang) <= now:
        return ()
    speed, then = _speed(r.gpus, elastic, topology), _speed(gang, elastic, topology)
    return gang if _pays(r.left_gpu_s, speed, then, elastic) else ()
