"""The rho and bids that an app's own figures allow: what an Agent reports beyond them is replaced by the nearest limit.

rho and the rows of a bid follow from the work left, S, the speeds and the GPUs held. The Arbiter has all of these, so
it computes the range in which rho must lie. The range has a width because an Agent may count a gang that has just
been granted, or not yet: `certain` gangs train, `possible` ones are all that the app could count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pycontrol.fairness.bidding import narrowest, speed_of
from pycontrol.fairness.gang_rho import AppWork, PhaseWork, projected_rho, t_sh
from pycontrol.model.auction import Bid, BidRow, Demand, Gang, gang_gpus
from pycontrol.model.topology import Topology
from pycontrol.model.value import value

TOLERANCE = 1.05
"""A report within this factor of the range is taken as it is: an Agent's clock and its newest steps differ a little."""
JOBS_MAX = 4096
"""With more jobs than this the work left counts as divisible, which costs no time."""
Range = tuple[float, float]
Slots = tuple[float, ...]
"""Slowdowns of gangs: S over the app's speed on their type."""


@value
class Standing:
    """An app at the begin of a round: its work, and slowdowns of the gangs that stay (S over the speed on their type).

    `certain` gangs train, `possible` ones may; `lease_s`: the length of a lease.
    """

    work: AppWork
    demand: Demand
    certain: Slots
    possible: Slots
    topology: Topology
    lease_s: float


def app_left(
    phases: Sequence[Sequence[float]],
    demand: Demand,
    cluster_gpus: int,
    n_avg: float,
    most_gpus: int,
    elapsed_s: float,
    speed: float,
) -> AppWork:
    """The app's work for rho, serial GPU-s by phase and job; `most_gpus`: the most GPUs that it can use at once."""
    left_gpu_s = sum(map(sum, phases))
    total_gpu_s = max(demand.work_total_gpu_s, left_gpu_s)
    ideal_s = total_gpu_s / max(1, min(cluster_gpus, most_gpus)) * max(1.0, n_avg) / speed
    elastic = demand.job_demand_max if demand.job_demand_max > demand.gang_gpus else 0
    work = tuple(PhaseWork(tuple(jobs)) for jobs in phases)
    if sum(map(len, phases)) > JOBS_MAX:
        work, elastic = tuple(PhaseWork((sum(jobs),)) for jobs in phases), max(most_gpus, demand.gang_gpus + 1)
    return AppWork(work, max(1, demand.gang_gpus), max(0.0, elapsed_s), max(1e-3, ideal_s), elastic)


def slowdowns_of(gang: Gang, demand: Demand, topology: Topology) -> Range:
    """(least, most) slowdown of a gang where it is; the scaling of an elastic job's larger gang is not known."""
    hosts = [h for h, _ in gang if h in topology.machines]
    s = demand.slowdown[topology.scope_of(hosts) - 1] / speed_of(demand.speedups, hosts, topology)
    return s * min(1.0, demand.gang_gpus / max(1, gang_gpus(gang))), s


def rho_range(x: Standing) -> Range:
    """(least, most) rho with the gangs that stay; projected with none."""
    return _over(x, lambda: (projected_rho(x.work, x.lease_s),) * 2)


def _over(x: Standing, projected: Callable[[], Range]) -> Range:
    if x.certain:
        return _t_sh_range(x.work, x.possible, x.certain, 1.0 / x.work.t_id_s)
    low, high = projected()
    if not x.possible:
        return low, high
    fewest = (max(x.possible),)
    best, worst = _t_sh_range(x.work, x.possible, fewest, 1.0 / x.work.t_id_s)
    return min(low, best), max(high, worst)


def _t_sh_range(work: AppWork, fast: Slots, slow: Slots, times: float = 1.0) -> Range:
    """(least, most) T_sh x `times` with any gangs between these two lists of slowdowns, of which `fast` has no fewer.

    One more, slower gang may make T_sh longer, as each job has one gang. So the bounds are as many gangs all of the
    least, and as few all of the most slowdown. Jobs that share divisible GPUs only gain by more.
    """
    if fast != slow and work.job_gpus_max <= work.gang_gpus:
        least, most = min(fast), max(*fast, *slow)
        fast, slow = (least,) * len(fast), (most,) * len(slow)
    best_s = t_sh(work, fast)
    return best_s * times, (best_s if fast == slow else max(best_s, t_sh(work, slow))) * times


def bid_ranges(x: Standing, bid: Bid) -> tuple[Range, list[Range]]:
    """The ranges of `rho_nothing` and of each row's rho. `bid.restart_s` counts up to one lease."""
    restart_s = min(max(0.0, bid.restart_s), x.lease_s)

    def projected() -> Range:
        s = x.demand.slowdown[narrowest(x.work.gang_gpus, x.topology) - 1]
        s /= min((x.demand.speedups.get(t, 1.0) for t in x.topology.types), default=1.0)
        return projected_rho(x.work, x.lease_s, s), projected_rho(x.work, x.lease_s + restart_s, s)

    return _over(x, projected), [_row_range(x, row, restart_s) for row in bid.rows]


def _row_range(x: Standing, row: BidRow, restart_s: float) -> Range:
    kept = [slowdowns_of(gang, x.demand, x.topology) for gang in row.keep]
    jobs = max((len(p.job_serial_s) for p in x.work.phases), default=0)  # a gang more than jobs has no effect
    most = x.topology.gpus // row.gang_gpus if x.work.job_gpus_max else jobs
    new = [_new_gang(x, row)] * min(row.new_gangs, max(1, most))
    fast = (*x.possible, *(least for least, _ in (*kept, *new)))
    slow = (*x.certain, *(most for _, most in (*kept, *new)))
    best_s, worst_s = _t_sh_range(x.work, fast, slow)
    return best_s / x.work.t_id_s, (worst_s + restart_s * row.new_gangs / max(1, len(slow))) / x.work.t_id_s


def _new_gang(x: Standing, row: BidRow) -> Range:
    """(least, most) slowdown of a new gang of the row."""
    known = [x.demand.speedups.get(t, 1.0) for t in ((row.gpu_type,) if row.gpu_type else x.topology.types)] or [1.0]
    s = x.demand.slowdown[row.scope - 1]
    return s / max(known) * min(1.0, x.work.gang_gpus / max(1, row.gang_gpus)), s / min(known)


def within(reported: float, allowed: Range) -> float:
    """The report if it is in the range, or close to it, else the nearest limit of the range."""
    low, high = allowed
    if reported > high * TOLERANCE:
        return high
    return low if reported < low / TOLERANCE else reported


def held_bid(x: Standing, bid: Bid) -> Bid:
    """The bid with each rho held within its range; the same object if none is outside."""
    nothing, ranges = bid_ranges(x, bid)
    rows = tuple(
        row if (rho := within(row.rho, r)) == row.rho else replace(row, rho=rho)
        for row, r in zip(bid.rows, ranges, strict=True)
    )
    rho_nothing = within(bid.rho_nothing, nothing)
    if rho_nothing == bid.rho_nothing and all(a is b for a, b in zip(rows, bid.rows, strict=True)):
        return bid
    return replace(bid, rho_nothing=rho_nothing, rows=rows)


def alike(demand: Demand) -> tuple[tuple[float, ...], ...]:
    """The work left of an Agent that does not say how it is divided: one phase of jobs alike."""
    jobs = max(1, min(demand.gangs, JOBS_MAX))
    return ((demand.work_left_gpu_s / jobs,) * jobs,) if demand.work_left_gpu_s > 0 else ()
