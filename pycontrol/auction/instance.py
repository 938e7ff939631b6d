"""What an auction is about: the GPUs on offer, who wins what, and what a solver found out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from pycontrol.model.auction import Bid, BidRow, Gang, gangs_by_host
from pycontrol.model.topology import Scope, Topology
from pycontrol.model.value import value


@value
class Limit:
    """These apps may win at most so many GPUs together (a queue's limit)."""

    app_ids: frozenset[str]
    gpus: int


@value
class Instance:
    """What is on offer: GPUs by host, where the hosts are, and which limits hold."""

    free: Mapping[str, int]
    topology: Topology
    limits: tuple[Limit, ...] = ()
    homes: Mapping[str, Sequence[Gang]] = field(default_factory=dict)
    """App id -> its gangs on offer, where it would rather stay."""

    @property
    def types(self) -> tuple[str, ...]:
        """GPU types on offer, by name."""
        return tuple(sorted({self.topology.type_of(h) for h, n in self.free.items() if n > 0}))

    def free_of(self, gpu_type: str) -> dict[str, int]:
        """GPUs of one type by host; all where it is empty."""
        free = {h: n for h, n in self.free.items() if n > 0}
        return {h: n for h, n in free.items() if self.topology.type_of(h) == gpu_type} if gpu_type else free


@value
class Win:
    """What a bidder wins before the payment: its row (None: nothing) and the row's gangs by host."""

    row: BidRow | None
    rho: float
    gangs: tuple[Gang, ...] = ()


@value
class Winners:
    """A solution of the winner determination."""

    wins: Mapping[str, Win]
    objective_log: float
    """Sum of -log rho over the bidders."""
    proved_optimal: bool
    gap: float
    """Bound on (optimum - objective_log); 0 where proved."""


Size = tuple[int, Scope, str]
"""GPUs of a gang, its scope and GPU type: new gangs that agree in these are alike, whoever gets them."""

Rooms = Mapping[Size, Sequence[str]]
"""The host (MACHINE) or rack (RACK) of each gang of a size that a solver found room for."""


@value
class Without:
    """The optimum of an auction without one of its winners: the others' sum of -log rho."""

    objective_log: float
    gap: float = 0.0


@value
class Solved:
    """What an engine found: each bidder's row (None: nothing), and the optimum without each winner if asked."""

    rows: Mapping[str, BidRow | None]
    gap: float
    without: Mapping[str, Without]
    rooms: Rooms
    """Room for all new gangs of the rows; empty where packing tightly is sure to find it."""

    @property
    def worst_gap(self) -> float:
        """0 if all was proved."""
        return max([self.gap, *(w.gap for w in self.without.values())])


def scope_of(row: BidRow) -> Scope:
    """The widest scope that means the same."""
    return Scope.CLUSTER if row.gang_gpus == 1 or not row.new_gangs else row.scope


def typed(bid: Bid, instance: Instance) -> Bid:
    """The bid as engines read it: where GPUs of several types are on offer, a row for each type that it may have, and
    no type named where there is one only. A gang of one GPU, and one that may mix types, needs no type."""
    types = instance.types
    rows: list[BidRow] = []
    for row in bid.rows:
        if not row.new_gangs or (not row.gpu_type and (len(types) < 2 or row.mixes or row.gang_gpus == 1)):
            rows.append(row)
        elif not row.gpu_type:
            rows += [replace(row, gpu_type=t) for t in types]
        elif row.gpu_type in types:
            rows.append(row if len(types) > 1 else replace(row, gpu_type=""))
    return bid if rows == list(bid.rows) else replace(bid, rows=tuple(rows))


def rows_that_matter(bid: Bid, free: Mapping[str, int], total_gpus: int) -> list[BidRow]:
    """The rows that an optimum may need, in the bid's order; `total_gpus` are free.

    Left out: rows worth no more than nothing, rows larger than the offer, and rows for which another gives
    as good a rho with the same gangs kept, no more new ones of that type and no narrower a scope.
    """
    rows = []
    for k, row in enumerate(bid.rows):
        gpus = row.gpus if row.keep else row.new_gangs * row.gang_gpus
        if row.rho < bid.rho_nothing and 0 < gpus <= total_gpus and (not row.keep or _keeps_fit(row, free)):
            rows.append((row.new_gangs, -scope_of(row), row.rho, k))
    groups: dict[tuple[tuple[Gang, ...], int, str], list[tuple[int, float]]] = {}
    needed = set()
    rows.sort()  # cheapest first, so that a row is only ever beaten by one that is already there
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
