"""Computes rho and bids from an app's work, for real and simulated Agents (Themis, sections 4.3 and 4.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pycontrol.fairness.elastic import Elastic
from pycontrol.fairness.gang_rho import AppWork, PhaseWork, projected_rho, rho_with_gangs, t_id, t_sh
from pycontrol.model.auction import Bid, BidRow, Gang
from pycontrol.model.grouping import summed
from pycontrol.model.topology import Scope, Topology
from pycontrol.model.value import value

ROWS_MAX = 64
SIZES_MAX = 12
"""The most different numbers of gangs that a bid tries; all small numbers are tried."""
TYPES_MAX = 6
"""The most GPU types that increase a bid's limit of rows."""
EQUAL = 1e-9


@value
class OwnGang:
    """A gang of the app that is on offer, with its slowdown: S over the app's speed on the GPUs' type."""

    gang: Gang
    slowdown: float


def app_work(
    phases: tuple[PhaseWork, ...],
    gang_gpus: int,
    widest: int,
    cluster_gpus: int,
    n_avg: float,
    elapsed_s: float,
    done_gpu_s: float,
    speed: float = 1.0,
    job_gpus_max: int = 0,
) -> AppWork:
    """The app's work for computing rho.

    `widest`: the most jobs that run at the same time. `speed`: the app's mean speed on the cluster's GPUs.
    `job_gpus_max`: the most GPUs of an elastic job.
    """
    left_gpu_s = sum(sum(p.job_serial_s) for p in phases)
    most_gpus = widest * max(gang_gpus, job_gpus_max)
    ideal_s = t_id(done_gpu_s + left_gpu_s, cluster_gpus, most_gpus, max(1.0, n_avg)) / speed
    return AppWork(phases, gang_gpus, max(0.0, elapsed_s), max(1e-3, ideal_s), job_gpus_max)


def rho_of(app: AppWork, slots: Sequence[float], lease_s: float) -> float:
    """rho with one gang for each slowdown in `slots`; the projected rho if there are none."""
    return rho_with_gangs(app, slots) if slots else projected_rho(app, lease_s)


def capacity(free: Mapping[str, int], gang_gpus: int, scope: Scope, topology: Topology) -> int:
    """The number of gangs that fit on free GPUs, each within the scope."""
    if scope is Scope.MACHINE:
        return sum(n // gang_gpus for n in free.values())
    if scope is Scope.CLUSTER:
        return sum(free.values()) // gang_gpus
    return sum(n // gang_gpus for n in summed((topology.rack_of(host), n) for host, n in free.items()).values())


def narrowest(gang_gpus: int, topology: Topology) -> Scope:
    """The narrowest scope that could hold a gang if all GPUs were free."""
    if any(n >= gang_gpus for n in topology.gpus_by_host.values()):
        return Scope.MACHINE
    whole = topology.gpus_by_host
    racks = (sum(whole[host] for host in hosts) for hosts in topology.racks.values())
    return Scope.RACK if any(n >= gang_gpus for n in racks) else Scope.CLUSTER


def speed_of(speedups: Mapping[str, float], hosts: Iterable[str], topology: Topology) -> float:
    """The speed of a gang on these hosts, that of its slowest GPU; 1 for types that are not known."""
    return min((speedups.get(topology.type_of(h), 1.0) for h in hosts), default=1.0)


def mean_speed(speedups: Mapping[str, float], topology: Topology) -> float:
    """The app's mean speed over all GPUs of the cluster."""
    if not speedups or not topology.gpus:
        return 1.0
    return sum(m.gpus * speedups.get(m.gpu_type, 1.0) for m in topology.machines.values()) / topology.gpus


@value
class _TypePool:
    """GPUs on offer of one type, or all of them if types do not matter or may be mixed."""

    gpu_type: str
    speed: float
    free: Mapping[str, int]
    mixes: bool = False


def sizes(most: int) -> list[int]:
    """Numbers from 0 to `most`, in growing steps; at most SIZES_MAX of them."""
    found, n = [0], 1
    while n < most and len(found) < SIZES_MAX - 1:
        found.append(n)
        n = max(n + 1, n * 5 // 4, most // SIZES_MAX if n > 4 else 0)
    return found if most == 0 else [*found, most]


class Bidder:
    """Writes the bid for one offer.

    A row keeps some of the app's own gangs, keeps all of them and adds new ones, or has only new ones (which may be
    placed where the app's own are). Rows that are no better than one with fewer new gangs or a wider scope are left
    out. If GPUs of several types are on offer, there are rows for each type, with the app's speed on it; and if the app
    can mix types, rows for mixed gangs with the speed of the slowest type. Elastic jobs have rows for each size of new
    gangs.
    """

    def __init__(
        self,
        app: AppWork,
        kept: Sequence[float],
        ending: Sequence[OwnGang],
        offered: Mapping[str, int],
        room_gangs: int,
        slowdowns: Mapping[Scope, float],
        topology: Topology,
        restart_s: float,
        lease_s: float,
        speedups: Mapping[str, float] | None = None,
        mixes: bool = False,
        elastic: Elastic | None = None,
    ) -> None:
        """`kept`: slowdowns of the gangs that are not on offer (S over the app's speed on their type). `ending`: its
        gangs on offer. `room_gangs`: gangs of the offer that it can use. `speedups`: GPU type -> its speed, 1 if
        missing."""
        least = app.gang_gpus
        self.sizes = {least: 1.0}
        if elastic is not None:
            self.sizes = {n: elastic.speed(n) / elastic.speed(least) for n in elastic.sizes}
        """GPUs of a new gang -> its speed relative to the smallest gang."""
        self.speedups: Mapping[str, float] = speedups or {}
        self.mixes = mixes
        self.app, self.kept, self.offered, self.topology = app, tuple(kept), offered, topology
        self.ending = sorted(ending, key=lambda g: (g.slowdown, g.gang))[: max(0, room_gangs)]
        self.room, self.restart_s = room_gangs, restart_s
        self.slowdowns = slowdowns
        self.baseline_rho = rho_with_gangs(app, self.kept) if self.kept else self._projected(lease_s)

    def _projected(self, lease_s: float) -> float:
        """rho if the app waits one lease and then starts one gang.

        The start costs a restart, else an app with a restart longer than a lease would never bid. The gang runs in the
        narrowest scope that can hold it and on the slowest type, so that waiting for a fast type does not look better
        than having a slow one.
        """
        closest = narrowest(self.app.gang_gpus, self.topology)
        slowest = min((self.speedups.get(t, 1.0) for t in self.topology.types), default=1.0)
        return projected_rho(self.app, lease_s + self.restart_s, self.slowdowns.get(closest, 1.0) / slowest)

    def _lots(self, free: Mapping[str, int]) -> list[_TypePool]:
        """The free GPUs by type, and all of them together if a gang may mix types."""
        by_type: dict[str, dict[str, int]] = {}
        for host, n in free.items():
            by_type.setdefault(self.topology.type_of(host), {})[host] = n
        if len(by_type) < 2:
            return [_TypePool("", self.speedups.get(t, 1.0), own) for t, own in by_type.items()]
        lots = [_TypePool(t, self.speedups.get(t, 1.0), own) for t, own in sorted(by_type.items())]
        if self.mixes or self.app.gang_gpus == 1:
            lots.append(_TypePool("", min(x.speed for x in lots), free, self.app.gang_gpus > 1))
        return lots

    def bid(self, app_id: str) -> Bid:
        """The bid: the best rows first, at most ROWS_MAX for each type on offer."""
        rows = sorted(self._rows(), key=lambda r: (r.rho, r.gpus, -r.scope, r.gpu_type))
        most = ROWS_MAX * min(TYPES_MAX, max(1, len({self.topology.type_of(h) for h in self.offered})))
        if len(rows) > most:  # spread over the whole range
            rows = [rows[i * (len(rows) - 1) // (most - 1)] for i in range(most)]
        return Bid(app_id, self.baseline_rho, tuple(rows), self.restart_s)

    def _rows(self) -> Iterator[BidRow]:
        best = self.baseline_rho
        for keep in sizes(len(self.ending))[1:]:
            rho = self._rho(keep, 0, 1.0)
            if rho < best * (1 - EQUAL):
                best = rho
                yield self._row(rho, keep)
        for keep, floor in {0: self.baseline_rho, len(self.ending): best}.items():
            yield from self._new(keep, floor)

    def _new(self, keep: int, floor: float) -> Iterator[BidRow]:
        """Rows that keep `keep` own gangs and add new ones, with a rho below `floor`."""
        free = dict(self.offered)
        for own in self.ending[:keep]:
            for host, n in own.gang:
                free[host] = free.get(host, 0) - n
        for lot in self._lots(free):
            for gpus in self.sizes:
                yield from self._of_lot(lot, gpus, keep, floor)

    def _of_lot(self, lot: _TypePool, gpus: int, keep: int, floor: float) -> Iterator[BidRow]:
        """Rows with new gangs of `gpus` GPUs from one lot."""
        best = {s: floor for s in self.slowdowns if s is Scope.CLUSTER or not lot.mixes}
        most = {s: capacity(lot.free, gpus, s, self.topology) for s in best}
        for new in sizes(max(0, min(self.room - keep, max(most.values(), default=0))))[1:]:
            for scope in sorted(s for s in best if new <= most[s])[::-1]:
                rho = self._rho(keep, new, self.slowdowns[scope] / lot.speed / self.sizes[gpus])
                if rho < min(b for s, b in best.items() if s >= scope) * (1 - EQUAL):
                    best[scope] = rho
                    row = replace(self._row(rho, keep), new_gangs=new, gang_gpus=gpus, scope=scope)
                    yield replace(row, gpu_type=lot.gpu_type, mixes=lot.mixes)

    def _rho(self, keep: int, new: int, slowdown: float) -> float:
        """rho with `keep` own and `new` new gangs; the restarts of new gangs are spread over all gangs."""
        slots = [*self.kept, *(g.slowdown for g in self.ending[:keep]), *[slowdown] * new]
        return (t_sh(self.app, slots) + self.restart_s * new / len(slots)) / self.app.t_id_s

    def _row(self, rho: float, keep: int) -> BidRow:
        return BidRow(rho, tuple(own.gang for own in self.ending[:keep]), 0, self.app.gang_gpus, Scope.MACHINE)
