"""The auction instance and results of auctions: the GPUs on offer, wins, and what solvers return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from pycontrol.model.auction import Bid, BidRow, Gang, gangs_by_host
from pycontrol.model.topology import Scope, Topology
from pycontrol.model.value import value


@value
class Limit:
    """The most GPUs that these apps may win together (the limit of a queue, group or user)."""

    app_ids: frozenset[str]
    gpus: int


@value
class Instance:
    """An auction instance: GPUs on offer by host, where the hosts are, and the limits."""

    free: Mapping[str, int]
    topology: Topology
    limits: tuple[Limit, ...] = ()
    homes: Mapping[str, Sequence[Gang]] = field(default_factory=dict)
    """App id -> its gangs on offer, which it would rather keep."""

    @property
    def types(self) -> tuple[str, ...]:
        """GPU types on offer, sorted by name."""
        return tuple(sorted({self.topology.type_of(h) for h, n in self.free.items() if n > 0}))

    def free_of(self, gpu_type: str) -> dict[str, int]:
        """GPUs of one type by host; of all types if `gpu_type` is empty."""
        free = {h: n for h, n in self.free.items() if n > 0}
        return {h: n for h, n in free.items() if self.topology.type_of(h) == gpu_type} if gpu_type else free


@value
class Win:
    """What a bidder wins before the payment: its row (None: nothing) and the row's gangs."""

    row: BidRow | None
    rho: float
    gangs: tuple[Gang, ...] = ()


Size = tuple[int, Scope, str]
"""(GPUs of a gang, its scope, its GPU type): new gangs with the same size are interchangeable."""

Rooms = Mapping[Size, Sequence[str]]
"""Size -> the host (MACHINE) or rack (RACK) of each gang that a solver found room for."""


@value
class Without:
    """The optimum of an auction without one of its winners: the sum of -log rho over the others."""

    objective_log: float
    gap: float = 0.0


@value
class Solved:
    """An engine's result: each bidder's row (None: nothing), and if asked for, the optimum without each winner."""

    rows: Mapping[str, BidRow | None]
    gap: float
    without: Mapping[str, Without]
    rooms: Rooms
    """Room for all new gangs of the rows; empty if tight packing is certain to find room."""

    @property
    def worst_gap(self) -> float:
        """The largest gap of all solves; 0 if all were proved optimal."""
        return max([self.gap, *(w.gap for w in self.without.values())])


def scope_of(row: BidRow) -> Scope:
    """The widest scope equivalent to the row's: CLUSTER for gangs of one GPU and for rows without new gangs."""
    return Scope.CLUSTER if row.gang_gpus == 1 or not row.new_gangs else row.scope


def in_members(row: BidRow) -> BidRow:
    """The row with its new gangs' members as gangs, where these are alike and may lie anywhere: it needs the same room.

    Gangs within a rack whose members must each lie on one machine stay; the engines count what they need at least.
    """
    sizes = set(row.members)
    if len(sizes) != 1 or row.scope is not Scope.CLUSTER or sum(map(abs, row.members)) != row.gang_gpus:
        return row
    (size,) = sizes
    scope = Scope.MACHINE if size > 0 else Scope.RACK
    return replace(row, new_gangs=row.new_gangs * len(row.members), gang_gpus=abs(size), scope=scope)


def typed(bid: Bid, instance: Instance) -> Bid:
    """The bid in the form for engines.

    Gangs of members are gangs each, where that is the same (`in_members`). With several GPU types on offer, a row
    without a type becomes one row per type, unless its gangs have one GPU in all or may mix types. With one type on
    offer, rows name none. Rows for types that are not on offer are dropped.
    """
    types = instance.types
    rows: list[BidRow] = []
    for row in map(in_members, bid.rows):
        single = row.gang_gpus == 1 and len(row.members) < 2
        if not row.new_gangs or (not row.gpu_type and (len(types) < 2 or row.mixes or single)):
            rows.append(row)
        elif not row.gpu_type:
            rows += [replace(row, gpu_type=t) for t in types]
        elif row.gpu_type in types:
            rows.append(row if len(types) > 1 else replace(row, gpu_type=""))
    return bid if rows == list(bid.rows) else replace(bid, rows=tuple(rows))


def rows_that_matter(bid: Bid, free: Mapping[str, int], total_gpus: int) -> list[BidRow]:
    """The rows that an optimum may need, in the bid's order; `total_gpus`: free GPUs.

    Left out are rows that are no better than nothing, rows larger than the offer, and rows for which another row has a
    rho that is as good with the same kept gangs, no more new gangs of the type and no narrower scope.
    """
    rows = []
    for k, row in enumerate(bid.rows):
        gpus = row.gpus if row.keep else row.new_gangs * row.gang_gpus
        if row.rho < bid.rho_nothing and 0 < gpus <= total_gpus and (not row.keep or _keeps_fit(row, free)):
            rows.append((row.new_gangs, -scope_of(row), row.rho, k))
    groups: dict[tuple[tuple[Gang, ...], int, str], list[tuple[int, float]]] = {}
    needed = set()
    rows.sort()  # cheapest first: only an earlier row can dominate a later one
    for new, scope, rho, k in rows:
        row = bid.rows[k]
        keep = row.keep if len(row.keep) < 2 else tuple(sorted(row.keep))
        better = groups.setdefault((keep, row.gang_gpus if new else 0, row.gpu_type if new else ""), [])
        for other, other_rho in better:
            if other_rho <= rho and other <= scope:
                break
        else:
            better.append((scope, rho))
            needed.add(k)
    return [row for k, row in enumerate(bid.rows) if k in needed]


def _keeps_fit(row: BidRow, free: Mapping[str, int]) -> bool:
    return all(free.get(h, 0) >= n for h, n in gangs_by_host(row.keep).items())
