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

from pycontrol.auction.placing import Want, place_all, split_gangs, take
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


_Key = tuple[str, int, Scope]
"""App, GPUs of a gang, scope: rows that agree in these share the variables of their new gangs."""


class _Model:
    """The integer program of one auction; it grows with hosts x bidders, not with the rows."""

    def __init__(self, bids: Sequence[Bid], market: Market, seed: int) -> None:
        self.bids = random.Random(seed).sample(list(bids), len(bids))  # no bidder is favoured by its name
        self.market = market
        self.free = {h: n for h, n in sorted(market.free.items()) if n > 0}
        self.racks: dict[str, list[str]] = {}
        for host in self.free:
            self.racks.setdefault(market.topology.rack_of(host), []).append(host)
        self.lp = pulp.LpProblem("winners", pulp.LpMaximize)
        self.use: dict[str, list[pulp.LpAffineExpression]] = {h: [] for h in self.free}
        self.rows: dict[str, list[tuple[BidRow, pulp.LpVariable]]] = {}
        self.gpus_at: dict[_Key, dict[str, pulp.LpAffineExpression]] = {}
        objective: list[pulp.LpAffineExpression] = []
        for i, bid in enumerate(self.bids):
            objective += self._add_bid(i, bid)
        self.lp += pulp.lpSum(objective)
        for host, terms in self.use.items():
            if terms:
                self.lp += pulp.lpSum(terms) <= self.free[host]
        for limit in market.limits:
            terms = [row.gpus * x for a in sorted(limit.app_ids) for row, x in self.rows.get(a, [])]
            if terms:
                self.lp += pulp.lpSum(terms) <= limit.gpus

    def _add_bid(self, i: int, bid: Bid) -> list[pulp.LpAffineExpression]:
        chosen = [
            (row, self.lp.add_variable(f"x{i}_{k}", cat="Binary"))
            for k, row in enumerate(rows_that_matter(bid, self.free))
        ]
        if not chosen:
            return []
        self.rows[bid.app_id] = chosen
        self.lp += pulp.lpSum(x for _, x in chosen) <= 1
        gangs: dict[_Key, list[pulp.LpAffineExpression]] = {}
        for row, x in chosen:
            for gang in row.keep:
                for host, n in gang:
                    self.use[host].append(n * x)
            if row.new_gangs:
                gangs.setdefault(_key(bid.app_id, row), []).append(row.new_gangs * x)
        for j, (key, terms) in enumerate(gangs.items()):
            self._add_gangs(f"{i}_{j}", key, pulp.lpSum(terms))
        return [(math.log(bid.rho_nothing) - math.log(row.rho)) * x for row, x in chosen]

    def _add_gangs(self, name: str, key: _Key, count: pulp.LpAffineExpression) -> None:
        """GPUs by host for `count` gangs of one size and scope."""
        _, size, scope = key
        at: dict[str, pulp.LpAffineExpression] = {}
        if scope is Scope.MACHINE:
            hosts = [(j, h) for j, h in enumerate(self.free) if self.free[h] >= size]
            on = {h: self.lp.add_variable(f"m{name}_{j}", 0, self.free[h] // size, cat="Integer") for j, h in hosts}
            self.lp += pulp.lpSum(on.values()) == count
            at = {h: size * y for h, y in on.items()}
        else:
            groups = list(self.racks.values()) if scope is Scope.RACK else [list(self.free)]
            totals = []
            for j, group in enumerate(groups):
                most = sum(self.free[h] for h in group) // size
                gangs = self.lp.add_variable(f"g{name}_{j}", 0, most, cat="Integer")
                gpus = {h: self.lp.add_variable(f"u{name}_{j}_{k}", 0, self.free[h], cat="Integer")
                        for k, h in enumerate(group)}  # fmt: skip
                self.lp += pulp.lpSum(gpus.values()) == size * gangs
                totals.append(gangs)
                at.update(gpus)
            self.lp += pulp.lpSum(totals) == count
        self.gpus_at[key] = at
        for host, term in at.items():
            self.use[host].append(term)

    def solve(self, budget_s: float) -> tuple[bool, float]:
        """Solves to a zero gap within the budget; returns (proved, gap)."""
        if not self.rows:
            return True, 0.0
        engine = pulp.HiGHS(msg=False, gapRel=0.0, gapAbs=0.0, timeLimit=max(LEAST_BUDGET_S, budget_s), threads=1)
        self.lp.solve(engine)
        if self.lp.sol_status == pulp.LpSolutionOptimal:
            return True, 0.0
        info = self.lp.solverModel.getInfo()
        if self.lp.sol_status != pulp.LpSolutionIntegerFeasible:  # nobody wins, which always fits
            for variable in self.lp.variables():
                variable.varValue = 0
        found = self.lp.objective.value() or 0.0
        return False, max(0.0, -float(info.mip_dual_bound) - found)  # PuLP hands HiGHS the negated objective

    def wins(self, place: bool) -> dict[str, Win]:
        """What each bidder won; with `place`, the gangs by host too."""
        chosen = {
            bid.app_id: next((row for row, x in self.rows.get(bid.app_id, []) if (x.value() or 0) > 0.5), None)
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
        """The new gangs of the winning rows: packed tightly, or else just where the model found room."""
        left = dict(self.free)
        for row in chosen.values():
            take(left, row.keep)
        wants = [Want(a, r.new_gangs, r.gang_gpus, r.scope) for a, r in chosen.items() if r.new_gangs]
        homes = {a: _others(self.market.homes.get(a, ()), r.keep) for a, r in chosen.items()}
        packed = place_all(wants, left, self.market.topology, homes)
        return packed if packed is not None else {w.app_id: self._found(w) for w in wants}

    def _found(self, want: Want) -> list[Gang]:
        row = next(r for r, x in self.rows[want.app_id] if (x.value() or 0) > 0.5)
        key = _key(want.app_id, row)
        gpus = {h: round(v.value() or 0) for h, v in self.gpus_at[key].items()}
        groups = list(self.racks.values()) if key[2] is Scope.RACK else [list(self.free)]
        return [
            gang for group in groups for gang in split_gangs({h: gpus[h] for h in group if gpus.get(h)}, want.gang_gpus)
        ]


def _others(gangs: Sequence[Gang], keep: Sequence[Gang]) -> list[Gang]:
    left = list(gangs)
    for gang in keep:
        if gang in left:
            left.remove(gang)
    return left


def _key(app_id: str, row: BidRow) -> _Key:
    return app_id, row.gang_gpus, Scope.MACHINE if row.gang_gpus == 1 else row.scope


def determine(bids: Sequence[Bid], market: Market, seed: int, budget_s: float = 2.0, place: bool = True) -> Winners:
    """The feasible rows, at most one a bidder, with the largest sum of -log rho.

    A solve past `budget_s` returns the best rows found and its gap. Ties fall by the seed alone.
    """
    model = _Model(bids, market, seed)
    proved, gap = model.solve(budget_s)
    wins = model.wins(place)
    objective_log = -sum(math.log(wins[b.app_id].rho) for b in bids)
    return Winners({b.app_id: wins[b.app_id] for b in bids}, objective_log, proved, gap)
