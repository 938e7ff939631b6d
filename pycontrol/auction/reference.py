"""The reference engine: winner determination as a readable PuLP model with a zero gap (Themis, Pseudocode 1).

It is the oracle of the tests, and decides auctions for which a faster engine could not prove its answer.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pulp

from pycontrol.auction.instance import Instance, Rooms, Size, Solved, Without, rows_that_matter, scope_of
from pycontrol.model.auction import Bid, BidRow
from pycontrol.model.grouping import grouped, summed
from pycontrol.model.topology import Scope

LEAST_BUDGET_S = 0.05
VARIABLE_S = 5e-5
"""Approximate seconds to build one variable."""
FIRST_SHARE = 0.5
"""Fraction of the time budget for the first solve; the rest is for the payments."""


class IntegerProgram:
    """The integer program of one auction.

    A gang on one machine uses room there. A gang within a rack may be split over its machines, so only the rack's total
    matters, and for a gang anywhere only the cluster's. Gangs of one size and scope share variables: the model has a
    binary variable for each row and an integer one for each size and machine (or rack).
    """

    def __init__(self, bids: Sequence[Bid], instance: Instance) -> None:
        self.bids, self.instance = bids, instance
        self.free = {h: n for h, n in sorted(instance.free.items()) if n > 0}
        self.racks = grouped((instance.topology.rack_of(host), host) for host in self.free)
        self.lp = pulp.LpProblem("winners", pulp.LpMaximize)
        self.rows: dict[str, list[tuple[BidRow, pulp.LpVariable]]] = {}
        self.places: dict[Size, dict[str, pulp.LpVariable]] = {}
        """Size -> host (MACHINE) or rack (RACK) -> the number of gangs there."""
        self._add_rows()
        self._add_capacity()
        for limit in instance.limits:
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
            rows = rows_that_matter(bid, self.free, sum(self.free.values()))
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
        in_rack: defaultdict[tuple[str, str], list[pulp.LpAffineExpression]] = defaultdict(list)
        anywhere: list[pulp.LpAffineExpression] = []
        of_type: dict[str, list[pulp.LpAffineExpression]] = {}
        type_of = self.instance.topology.type_of
        gangs: dict[Size, list[pulp.LpAffineExpression]] = {}
        for row, x in (pair for rows in self.rows.values() for pair in rows):
            anywhere.append(row.gpus * x)
            for gang in row.keep:
                for host, n in gang:
                    on_host[host].append(n * x)
                    of_type.setdefault(type_of(host), []).append(n * x)
            if row.new_gangs:
                gangs.setdefault((row.gang_gpus, scope_of(row), row.gpu_type), []).append(row.new_gangs * x)
                of_type.setdefault(row.gpu_type, []).append(row.new_gangs * row.gang_gpus * x)
        for j, ((size, scope, gpu_type), terms) in enumerate(gangs.items()):
            if scope is Scope.CLUSTER:
                continue
            rooms = self.instance.free_of(gpu_type) if scope is Scope.MACHINE else self._rack_gpus(gpu_type)
            at = {
                place: self.lp.add_variable(f"y{j}_{k}", 0, n // size, cat="Integer")
                for k, (place, n) in enumerate(rooms.items())
                if n >= size
            }
            self.places[size, scope, gpu_type] = at
            self.lp += pulp.lpSum(at.values()) == pulp.lpSum(terms)
            for place, y in at.items():
                (on_host[place] if scope is Scope.MACHINE else in_rack[place, gpu_type]).append(size * y)
        for host, terms in on_host.items():
            self._at_most(terms, self.free[host])
        for (rack, gpu_type), terms in in_rack.items():
            hosts = [h for h in self.racks[rack] if not gpu_type or type_of(h) == gpu_type]
            self._at_most(terms + [t for h in hosts for t in on_host[h]], sum(self.free[h] for h in hosts))
        for gpu_type, terms in of_type.items():
            if gpu_type and any(of == gpu_type for _, _, of in gangs):
                self._at_most(terms, sum(self.instance.free_of(gpu_type).values()))
        self._at_most(anywhere, sum(self.free.values()))

    def _rack_gpus(self, gpu_type: str) -> dict[str, int]:
        rack_of = self.instance.topology.rack_of
        return summed((rack_of(host), n) for host, n in self.instance.free_of(gpu_type).items())

    def solve(self, budget_s: float) -> float:
        """Solves to a zero gap within the budget; returns the gap that remains."""
        if not self.rows:
            return 0.0
        limit_s = max(LEAST_BUDGET_S, budget_s)
        self.lp.solve(pulp.HiGHS(msg=False, gapRel=0.0, gapAbs=0.0, timeLimit=limit_s, threads=1))
        if self.lp.sol_status == pulp.LpSolutionOptimal:
            return 0.0
        if self.lp.sol_status != pulp.LpSolutionIntegerFeasible:  # the solution without winners always fits
            for variable in self.lp.variables():
                variable.varValue = 0
        # PuLP passes HiGHS the negated objective
        bound = min(self.most_gained, -float(self.lp.solverModel.getInfo().mip_dual_bound))
        return max(0.0, bound - (self.lp.objective.value() or 0.0))

    def chosen(self) -> dict[str, BidRow | None]:
        """App id -> its row; None if it wins nothing."""
        return {
            bid.app_id: next((row for row, x in self._of(bid.app_id) if (x.value() or 0) > 0.5), None)
            for bid in self.bids
        }

    def rooms(self) -> Rooms:
        """The room that the model found for new gangs."""
        return {
            size: [place for place, y in at.items() for _ in range(round(y.value() or 0))]
            for size, at in self.places.items()
        }


def building_s(bids: Sequence[Bid], instance: Instance) -> float:
    """Estimated seconds to build the model; with less time left, a solve is pointless."""
    sizes = {(r.gang_gpus, r.scope, r.gpu_type) for b in bids for r in b.rows if r.new_gangs}
    return LEAST_BUDGET_S + VARIABLE_S * (sum(len(b.rows) for b in bids) + len(sizes) * len(instance.free))


def solve(bids: Sequence[Bid], instance: Instance, budget_s: float, payments: bool) -> Solved:
    """The feasible rows, at most one per bidder, with the largest sum of -log rho; with `payments` also the optimum
    without each winner."""
    end_s = time.monotonic() + budget_s
    model = IntegerProgram(bids, instance)
    gap = model.solve(budget_s * FIRST_SHARE if payments else budget_s)
    rows = model.chosen()
    winners = [a for a, row in rows.items() if row is not None] if payments else []
    without = {}
    for k, app_id in enumerate(winners):
        share_s = (end_s - time.monotonic()) / (len(winners) - k)
        without[app_id] = solve_without(app_id, bids, instance, share_s)
    return Solved(rows, gap, without, model.rooms())


def solve_without(app_id: str, bids: Sequence[Bid], instance: Instance, budget_s: float) -> Without:
    """The optimum of the auction without one bidder."""
    others = [b for b in bids if b.app_id != app_id]
    model = IntegerProgram(others, instance)
    gap = model.solve(budget_s)
    return Without(objective_log(others, model.chosen()), gap)


def objective_log(bids: Sequence[Bid], rows: Mapping[str, BidRow | None]) -> float:
    """The sum of -log rho over the bidders with these rows."""
    return -sum(math.log(r.rho if (r := rows[b.app_id]) is not None else b.rho_nothing) for b in bids)
