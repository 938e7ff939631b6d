"""What an auction is about: the GPUs on offer, who wins what, and what a solver found out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from pycontrol.model.auction import Bid, BidRow, Gang
from pycontrol.model.topology import Scope, Topology
from pycontrol.model.value import value


@value
class Limit:
    """These apps may win at most so many GPUs together (a queue's limit)."""

    app_ids: frozenset[str]
    gpus: int


@value
class Market:
    """What is on offer: GPUs by host, where the hosts are, and which limits hold."""

    free: Mapping[str, int]
    topology: Topology
    limits: tuple[Limit, ...] = ()
    homes: Mapping[str, Sequence[Gang]] = field(default_factory=dict)
    """App id -> its gangs on offer, where it would rather stay."""


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


Size = tuple[int, Scope]
"""GPUs of a gang and its scope: new gangs that agree in these are alike, whoever gets them."""

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


def rows_that_matter(bid: Bid, free: Mapping[str, int], total_gpus: int) -> list[BidRow]:
    """The rows that an optimum may need, in the bid's order; `total_gpus` are free.

    Left out: rows worth no more than nothing, rows larger than the offer, and rows for which another gives
    as good a rho with the same gangs kept, no more new ones and no narrower a scope.
    """
    rows = []
    for k, row in enumerate(bid.rows):
        gpus = row.gpus if row.keep else row.new_gangs * row.gang_gpus
        if row.rho < bid.rho_nothing and 0 < gpus <= total_gpus and (not row.keep or _keeps_fit(row, free)):
            rows.append((row.new_gangs, -scope_of(row), row.rho, k))
    groups: dict[tuple[tuple[Gang, ...], int], list[tuple[int, float]]] = {}
    needed = set()
    rows.sort()  # cheapest first, so that a row is only ever beaten by one that is already there
    for new, scope, rho, k in rows:
        row = bid.rows[k]
        keep = row.keep if len(row.keep) < 2 else tuple(sorted(row.keep))
        better = groups.setdefault((keep, row.gang_gpus if new else 0), [])
        for other, other_rho in better:
            if other_rho <= rho and other <= scope:
                break
        else:
            better.append((scope, rho))
            needed.add(k)
    return [row for k, row in enumerate(bid.rows) if k in needed]


def _keeps_fit(row: BidRow, free: Mapping[str, int]) -> bool:
    need: dict[str, int] = {}
    for gang in row.keep:
        for host, n in gang:
            need[host] = need.get(host, 0) + n
    return all(free.get(h, 0) >= n for h, n in need.items())
