"""Winner determination: the bid rows that maximise the product of 1/rho, exactly (Themis, Pseudocode 1).

The reference engine: a PuLP model solved by HiGHS with a zero gap. It decides which rows win and proves that
their gangs have room; where they go is then a matter of tight packing, which the bids do not pay for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pulp

from pycontrol.auction.placing import Want, fill, place_all, take
from pycontrol.model.auction import Bid, BidRow, Gang
from pycontrol.model.topology import Scope, Topology

LEAST_BUDGET_S = 0.05


@dataclass(frozen=True, slots=True)
class Limit:
    """These apps may win at most so many GPUs together (a queue's limit)."""

    app_ids: frozenset[str]
    gpus: int


@dataclass(frozen=True, slots=True)
class Market:
    """What is on offer: GPUs by host, where the hosts are, and which limits hold."""

    free: Mapping[str, int]
    topology: Topology
    limits: tuple[Limit, ...] = ()
    homes: Mapping[str, Sequence[Gang]] = field(default_factory=dict)
    """App id -> its gangs on offer, where it would rather stay."""


@dataclass(frozen=True, slots=True)
class Win:
    """What a bidder wins before the payment: its row (None: nothing) and the row's gangs by host."""

    row: BidRow | None
    rho: float
    gangs: tuple[Gang, ...] = ()


@dataclass(frozen=True, slots=True)
class Winners:
    """A solution of the winner determination."""

    wins: Mapping[str, Win]
    objective_log: float
    """Sum of -log rho over the bidders."""
    proved_optimal: bool
    gap: float
    """Bound on (optimum - objective_log); 0 where proved."""


def rows_that_matter(bid: Bid, free: Mapping[str, int]) -> list[BidRow]:
    """The rows that an optimum may need, in the bid's order.

    Left out: rows worth no more than nothing, rows larger than the offer, and rows for which another gives
    as good a rho with the same gangs kept, no more new ones and no narrower a scope.
    """
    total = sum(free.values())
    rows = [r for r in bid.rows if r.rho < bid.rho_nothing and 0 < r.gpus <= total and _keeps_fit(r, free)]
    groups: dict[tuple[tuple[Gang, ...], int], list[BidRow]] = {}
    # Cheapest first, so that a row is only ever beaten by one that is already there.
    for row in sorted(rows, key=lambda r: (r.new_gangs, -_scope(r), r.rho)):
        group = groups.setdefault((tuple(sorted(row.keep)), row.gang_gpus if row.new_gangs else 0), [])
        if not any(_scope(o) >= _scope(row) and o.rho <= row.rho for o in group):
            group.append(row)
    needed = {id(r) for group in groups.values() for r in group}
    return [r for r in rows if id(r) in needed]


def _scope(row: BidRow) -> Scope:
    """The widest scope that means the same."""
    return Scope.CLUSTER if row.gang_gpus == 1 or not row.new_gangs else row.scope


def _keeps_fit(row: BidRow, free: Mapping[str, int]) -> bool:
    need: dict[str, int] = {}
    for gang in row.keep:
        for host, n in gang:
            need[host] = need.get(host, 0) + n
    return all(free.get(h, 0) >= n for h, n in need.items())


_Size = tuple[int, Scope]
"""GPUs of a gang and its scope: new gangs that agree in these are alike, whoever gets them."""


class _Model:
    """The integer program of one auction.

    A gang on one machine takes room there; a gang within a rack may be cut at will inside it, so only the
    rack's total matters, and for a gang anywhere only the cluster's. Gangs of one size and scope share their
    variables, so the model has a binary for each row and an integer for each size and machine (or rack).
    """

    def __init__(self, bids: Sequence[Bid], market: Market, seed: int) -> None:
        self.bids = random.Random(seed).sample(list(bids), len(bids))  # no bidder is favoured by its name
        self.market = market
        self.free = {h: n for h, n in sorted(market.free.items()) if n > 0}
        self.racks: dict[str, list[str]] = {}
        for host in self.free:
            self.racks.setdefault(market.topology.rack_of(host), []).append(host)
        self.lp = pulp.LpProblem("winners", pulp.LpMaximize)
        self.rows: dict[str, list[tuple[BidRow, pulp.LpVariable]]] = {}
        self.places: dict[_Size, dict[str, pulp.LpVariable]] = {}
        """How many gangs go to each host (MACHINE) or rack (RACK)."""
        self._add_rows()
        self._add_capacity()
        for limit in market.limits:
            self._at_most([row.gpus * x for a in sorted(limit.app_ids) for row, x in self._of(a)], limit.gpus)

    def _of(self, app_id: str) -> list[tuple[BidRow, pulp.LpVariable]]:
        return self.rows.get(app_id, [])

    def _at_most(self, terms: list[pulp.LpAffineExpression], most: int) -> None:
        if terms:
            self.lp += pulp.lpSum(terms) <= most

    def _add_rows(self) -> None:
        objective: list[pulp.LpAffineExpression] = []
        self.most_gained = 0.0
        for i, bid in enumerate(self.bids):
            rows = rows_that_matter(bid, self.free)
            if not rows:
                continue
            chosen = [(row, self.lp.add_variable(f"x{i}_{k}", cat="Binary")) for k, row in enumerate(rows)]
            gains = [math.log(bid.rho_nothing) - math.log(row.rho) for row in rows]
            self.rows[bid.app_id] = chosen
            self.lp += pulp.lpSum(x for _, x in chosen) <= 1
            objective += [gain * x for gain, (_, x) in zip(gains, chosen, strict=True)]
            self.most_gained += max(gains)
        self.lp += pulp.lpSum(objective)

    def _add_capacity(self) -> None:
        on_host: dict[str, list[pulp.LpAffineExpression]] = {h: [] for h in self.free}
        in_rack: dict[str, list[pulp.LpAffineExpression]] = {r: [] for r in self.racks}
        anywhere: list[pulp.LpAffineExpression] = []
        gangs: dict[_Size, list[pulp.LpAffineExpression]] = {}
        for row, x in (pair for rows in self.rows.values() for pair in rows):
            anywhere.append(row.gpus * x)
            for gang in row.keep:
                for host, n in gang:
                    on_host[host].append(n * x)
            if row.new_gangs:
                gangs.setdefault(_size(row), []).append(row.new_gangs * x)
        for j, ((size, scope), terms) in enumerate(gangs.items()):
            if scope is Scope.CLUSTER:
                continue
            rooms = self.free if scope is Scope.MACHINE else self._rack_gpus()
            at = {
                place: self.lp.add_variable(f"y{j}_{k}", 0, n // size, cat="Integer")
                for k, (place, n) in enumerate(rooms.items())
                if n >= size
            }
            self.places[size, scope] = at
            self.lp += pulp.lpSum(at.values()) == pulp.lpSum(terms)
            taken = on_host if scope is Scope.MACHINE else in_rack
            for place, y in at.items():
                taken[place].append(size * y)
        for host, terms in on_host.items():
            self._at_most(terms, self.free[host])
        for rack, hosts in self.racks.items():
            if in_rack[rack]:
                self._at_most(in_rack[rack] + [t for h in hosts for t in on_host[h]], self._rack_gpus()[rack])
        self._at_most(anywhere, sum(self.free.values()))

    def _rack_gpus(self) -> dict[str, int]:
        return {rack: sum(self.free[h] for h in hosts) for rack, hosts in self.racks.items()}

    def solve(self, budget_s: float) -> tuple[bool, float]:
        """Solves to a zero gap within the budget; returns (proved, gap)."""
        if not self.rows:
            return True, 0.0
        engine = pulp.HiGHS(msg=False, gapRel=0.0, gapAbs=0.0, timeLimit=max(LEAST_BUDGET_S, budget_s), threads=1)
        self.lp.solve(engine)
        if self.lp.sol_status == pulp.LpSolutionOptimal:
            return True, 0.0
        if self.lp.sol_status != pulp.LpSolutionIntegerFeasible:  # nobody wins, which always fits
            for variable in self.lp.variables():
                variable.varValue = 0
        found = self.lp.objective.value() or 0.0
        bound = -float(self.lp.solverModel.getInfo().mip_dual_bound)  # PuLP hands HiGHS the negated objective
        return False, max(0.0, min(bound, self.most_gained) - found)

    def wins(self, place: bool) -> dict[str, Win]:
        """What each bidder won; with `place`, the gangs by host too."""
        chosen = {
            bid.app_id: next((row for row, x in self._of(bid.app_id) if (x.value() or 0) > 0.5), None)
            for bid in self.bids
        }
        new = self._place({a: r for a, r in chosen.items() if r is not None}) if place else {}
        return {
            bid.app_id: Win(row, row.rho, (*row.keep, *new.get(bid.app_id, ())))
            if (row := chosen[bid.app_id]) is not None
            else Win(None, bid.rho_nothing)
            for bid in self.bids
        }

    def _place(self, chosen: Mapping[str, BidRow]) -> dict[str, list[Gang]]:
        """The new gangs of the winning rows: packed tightly, or else where the model found room."""
        left = dict(self.free)
        for row in chosen.values():
            take(left, row.keep)
        wants = [Want(a, r.new_gangs, *_size(r)) for a, r in chosen.items() if r.new_gangs]
        homes = {a: _others(self.market.homes.get(a, ()), r.keep) for a, r in chosen.items()}
        packed = place_all(wants, left, self.market.topology, homes)
        return packed if packed is not None else self._place_as_found(wants, left)

    def _place_as_found(self, wants: Sequence[Want], left: dict[str, int]) -> dict[str, list[Gang]]:
        rooms = {
            size: [place for place, y in at.items() for _ in range(round(y.value() or 0))]
            for size, at in self.places.items()
        }
        placed: dict[str, list[Gang]] = {w.app_id: [] for w in wants}
        for want in sorted(wants, key=lambda w: w.scope):  # the narrow ones first: the others fill the gaps
            for _ in range(want.gangs):
                hosts = list(left)
                if want.scope is not Scope.CLUSTER:
                    place = rooms[want.gang_gpus, want.scope].pop()
                    hosts = [place] if want.scope is Scope.MACHINE else self.racks[place]
                gang = fill(want.gang_gpus, {h: left[h] for h in hosts})
                take(left, [gang])
                placed[want.app_id].append(gang)
        return placed


def _size(row: BidRow) -> _Size:
    return row.gang_gpus, Scope.CLUSTER if row.gang_gpus == 1 else row.scope


def _others(gangs: Sequence[Gang], keep: Sequence[Gang]) -> list[Gang]:
    left = list(gangs)
    for gang in keep:
        if gang in left:
            left.remove(gang)
    return left


def determine(bids: Sequence[Bid], market: Market, seed: int, budget_s: float = 2.0, place: bool = True) -> Winners:
    """The feasible rows, at most one a bidder, with the largest sum of -log rho.

    A solve past `budget_s` returns the best rows found and its gap. Ties fall by the seed alone.
    """
    model = _Model(bids, market, seed)
    proved, gap = model.solve(budget_s)
    wins = model.wins(place)
    objective_log = -sum(math.log(wins[b.app_id].rho) for b in bids)
    return Winners({b.app_id: wins[b.app_id] for b in bids}, objective_log, proved, gap)
