"""From an app's work to rho and to a bid, the same for real Agents and simulated ones (Themis, 4.3 and 4.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pycontrol.fairness.elastic import Elastic
from pycontrol.fairness.gangs import AppWork, PhaseWork, projected_rho, rho_with_gangs, t_id, t_sh
from pycontrol.model.auction import Bid, BidRow, Gang
from pycontrol.model.topology import Scope, Topology
from pycontrol.model.value import value

ROWS_MAX = 64
SIZES_MAX = 12
"""Different numbers of gangs that a bid tries, at most; small ones are all tried."""
TYPES_MAX = 6
"""GPU types for which a bid has rows enough of its own."""
EQUAL = 1e-9


@value
class OwnGang:
    """A gang of the app on offer, with its slowdown: S over the speed of its GPUs' type."""

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
    """The app as rho sees it now; `widest`: most jobs at once; `speed`: of the cluster's mix of types, for it;
    `job_gpus_max`: GPUs of an elastic job, at most."""
    left_gpu_s = sum(sum(p.job_serial_s) for p in phases)
    most_gpus = widest * max(gang_gpus, job_gpus_max)
    ideal_s = t_id(done_gpu_s + left_gpu_s, cluster_gpus, most_gpus, max(1.0, n_avg)) / speed
    return AppWork(phases, gang_gpus, max(0.0, elapsed_s), max(1e-3, ideal_s), job_gpus_max)


def rho_of(app: AppWork, slots: Sequence[float], lease_s: float) -> float:
    """rho with one gang for each slowdown in `slots`; the projected one with none."""
    return rho_with_gangs(app, slots) if slots else projected_rho(app, lease_s)


def capacity(free: Mapping[str, int], gang_gpus: int, scope: Scope, topology: Topology) -> int:
    """How many gangs fit on free GPUs, each within the scope."""
    if scope is Scope.MACHINE:
        return sum(n // gang_gpus for n in free.values())
    if scope is Scope.CLUSTER:
        return sum(free.values()) // gang_gpus
    racks: dict[str, int] = {}
    for host, n in free.items():
        racks[topology.rack_of(host)] = racks.get(topology.rack_of(host), 0) + n
    return sum(n // gang_gpus for n in racks.values())


def narrowest(gang_gpus: int, topology: Topology) -> Scope:
    """The narrowest scope that could hold a gang if all GPUs were free."""
    if any(n >= gang_gpus for n in topology.gpus_by_host.values()):
        return Scope.MACHINE
    whole = topology.gpus_by_host
    racks = (sum(whole[host] for host in hosts) for hosts in topology.racks.values())
    return Scope.RACK if any(n >= gang_gpus for n in racks) else Scope.CLUSTER


def speed_of(speedups: Mapping[str, float], hosts: Iterable[str], topology: Topology) -> float:
    """Of a gang on these hosts: the slowest GPU sets the pace; 1 where nothing is known."""
    return min((speedups.get(topology.type_of(h), 1.0) for h in hosts), default=1.0)


def mean_speed(speedups: Mapping[str, float], topology: Topology) -> float:
    """Of all GPUs, for an app: what a part of each type alike is worth to it."""
    if not speedups or not topology.gpus:
        return 1.0
    return sum(m.gpus * speedups.get(m.gpu_type, 1.0) for m in topology.machines.values()) / topology.gpus


@value
class _TypePool:
    """GPUs on offer of one type, or all of them where types do not matter or may be mixed."""

    gpu_type: str
    speed: float
    free: Mapping[str, int]
    mixes: bool = False


def sizes(most: int) -> list[int]:
    """0..most; beyond the small ones in growing steps."""
    found, n = [0], 1
    while n < most and len(found) < SIZES_MAX - 1:
        found.append(n)
        n = max(n + 1, n * 5 // 4, most // SIZES_MAX if n > 4 else 0)
    return found if most == 0 else [*found, most]


class Bidder:
    """Writes the bid for one offer.

    The rows: some of its own gangs and nothing else; all of its own and some new ones; or new ones alone (which
    may well be placed where its own are). Where fewer new gangs, or a wider scope, are worth as much, only those
    are bid for. Where GPUs of several types are on offer, new gangs are bid for type by type, each by the app's speed
    there; of several types only where the app says that it can mix them, at the speed of the slowest. New gangs of
    elastic jobs are bid for size by size.
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
        """`kept`: slowdowns of the gangs not on offer (S over the speed of their type); `room_gangs`: gangs it can use
        of the offer; `speedups`: its speed by GPU type, 1 where it has none."""
        least = app.gang_gpus
        self.sizes = {least: 1.0}
        if elastic is not None:
            self.sizes = {n: elastic.speed(n) / elastic.speed(least) for n in elastic.sizes}
        """GPUs of a new gang -> how many smallest ones it is as fast as."""
        self.speedups: Mapping[str, float] = speedups or {}
        self.mixes = mixes
        self.app, self.kept, self.offered, self.topology = app, tuple(kept), offered, topology
        self.ending = sorted(ending, key=lambda g: (g.slowdown, g.gang))[: max(0, room_gangs)]
        self.room, self.restart_s = room_gangs, restart_s
        self.slowdowns = slowdowns
        self.baseline_rho = rho_with_gangs(app, self.kept) if self.kept else self._projected(lease_s)

    def _projected(self, lease_s: float) -> float:
        """rho if it waits one lease and starts then: a later start costs what one costs now, on as close a place as
        there is for its gang, on the slowest type, lest waiting for a fast one look better than having a slow one.
        Without that an app whose start takes longer than a lease would never bid."""
        closest = narrowest(self.app.gang_gpus, self.topology)
        slowest = min((self.speedups.get(t, 1.0) for t in self.topology.types), default=1.0)
        return projected_rho(self.app, lease_s + self.restart_s, self.slowdowns.get(closest, 1.0) / slowest)

    def _lots(self, free: Mapping[str, int]) -> list[_TypePool]:
        """What is on offer, type by type."""
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
        """At most 64 rows for each type on offer, best first."""
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
        """Rows with so many own gangs and new ones: better than `floor`, the rho with none of these."""
        free = dict(self.offered)
        for own in self.ending[:keep]:
            for host, n in own.gang:
                free[host] = free.get(host, 0) - n
        for lot in self._lots(free):
            for gpus in self.sizes:
                yield from self._of_lot(lot, gpus, keep, floor)

    def _of_lot(self, lot: _TypePool, gpus: int, keep: int, floor: float) -> Iterator[BidRow]:
        """New gangs of so many GPUs."""
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
        """A new gang costs a restart, spread over all gangs."""
        slots = [*self.kept, *(g.slowdown for g in self.ending[:keep]), *[slowdown] * new]
        return (t_sh(self.app, slots) + self.restart_s * new / len(slots)) / self.app.t_id_s

    def _row(self, rho: float, keep: int) -> BidRow:
        return BidRow(rho, tuple(own.gang for own in self.ending[:keep]), 0, self.app.gang_gpus, Scope.MACHINE)
