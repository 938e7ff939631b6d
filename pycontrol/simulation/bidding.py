"""From the app's work to rho and to a bid (Themis, sections 4.3 and 4.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pycontrol.fairness.gangs import AppWork, Phase, projected_rho, rho_with_gangs, t_id, t_sh
from pycontrol.model.auction import Bid, BidRow, Gang
from pycontrol.model.topology import Scope, Topology

ROWS_MAX = 64
SIZES_MAX = 12
"""Different numbers of gangs that a bid tries, at most; small ones are all tried."""
EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class OwnGang:
    """A gang of the app on offer, with its slowdown S."""

    gang: Gang
    slowdown: float


def app_work(
    phases: tuple[Phase, ...], gang_gpus: int, widest: int, cluster_gpus: int, n_avg: float, elapsed_s: float,
    done_gpu_s: float,
) -> AppWork:
    """The app as rho sees it now; `widest`: most jobs at once."""
    left_gpu_s = sum(sum(p.job_serial_s) for p in phases)
    ideal_s = t_id(done_gpu_s + left_gpu_s, cluster_gpus, widest * gang_gpus, max(1.0, n_avg))
    return AppWork(phases, gang_gpus, max(0.0, elapsed_s), max(1e-3, ideal_s))


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


def _sizes(most: int) -> list[int]:
    """0..most; beyond the small ones in growing steps."""
    sizes, n = [0], 1
    while n < most and len(sizes) < SIZES_MAX - 1:
        sizes.append(n)
        n = max(n + 1, n * 5 // 4, most // SIZES_MAX if n > 4 else 0)
    return sizes if most == 0 else [*sizes, most]


@dataclass(frozen=True, slots=True)
class _Row:
    rho: float
    keep: int
    """How many of the own gangs, the fastest first."""
    new: int
    scope: Scope

    def serves(self, other: _Row) -> bool:
        """Whether it asks for no more than the other and is worth as much."""
        return (
            self.keep <= other.keep
            and self.new <= other.new
            and (self.scope >= other.scope or self.new == 0)
            and self.rho <= other.rho * (1 + EQUAL)
        )


class Bidder:
    """Writes the bid for one offer."""

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
    ) -> None:
        """`kept`: slowdowns of the gangs not on offer; `room_gangs`: gangs it can use of the offer."""
        self.app, self.kept, self.offered, self.topology = app, tuple(kept), offered, topology
        self.ending = sorted(ending, key=lambda g: (g.slowdown, g.gang))
        self.room, self.restart_s = room_gangs, restart_s
        self.slowdowns = slowdowns
        self.nothing = rho_of(app, self.kept, lease_s)

    def bid(self, app_id: str) -> Bid:
        """At most 64 rows, best first, none of which another one serves."""
        rows = sorted(self._rows(), key=lambda r: (r.rho, r.keep + r.new, r.keep, -r.scope))
        chosen: list[_Row] = []
        for row in rows:
            if not any(c.serves(row) for c in chosen):
                chosen = [c for c in chosen if not row.serves(c)]
                chosen.append(row)
        if len(chosen) > ROWS_MAX:  # spread over the whole range
            chosen = [chosen[i * (len(chosen) - 1) // (ROWS_MAX - 1)] for i in range(ROWS_MAX)]
        return Bid(app_id, self.nothing, tuple(self._message(r) for r in chosen))

    def _rows(self) -> list[_Row]:
        rows = []
        for keep in _sizes(min(len(self.ending), self.room)):
            free = dict(self.offered)
            for own in self.ending[:keep]:
                for host, n in own.gang:
                    free[host] = free.get(host, 0) - n
            most = {s: capacity(free, self.app.gang_gpus, s, self.topology) for s in self.slowdowns}
            rows += [r for new in _sizes(self.room - keep) for r in self._with(keep, new, most)]
        return [r for r in rows if r.rho < self.nothing * (1 - EQUAL)]

    def _with(self, keep: int, new: int, most: Mapping[Scope, int]) -> list[_Row]:
        if keep + new == 0:
            return []
        held = [*self.kept, *(g.slowdown for g in self.ending[:keep])]
        if new == 0:
            return [_Row(self._rho(held, 0), keep, 0, Scope.MACHINE)]
        return [
            _Row(self._rho([*held, *[self.slowdowns[scope]] * new], new), keep, new, scope)
            for scope in self.slowdowns
            if new <= most[scope]
        ]

    def _rho(self, slots: Sequence[float], new: int) -> float:
        """A new gang costs a restart, spread over all gangs."""
        return (t_sh(self.app, slots) + self.restart_s * new / len(slots)) / self.app.t_id_s

    def _message(self, row: _Row) -> BidRow:
        keep = tuple(own.gang for own in self.ending[: row.keep])
        return BidRow(row.rho, keep, row.new, self.app.gang_gpus, row.scope)
