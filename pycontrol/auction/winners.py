"""Winner determination: the bid rows that maximise the product of 1/rho, exactly (Themis, Pseudocode 1).

The reference engine: a PuLP model solved by HiGHS with a zero gap. Gangs of equal size and scope of one
bidder share their placement variables, so the model grows with hosts x bidders, not with the rows.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulp

from pycontrol.model.auction import Bid, BidRow, Gang, gang_of
from pycontrol.model.topology import Scope, Topology


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


_Key = tuple[str, int, Scope]


class _Model:
    """The integer program of one auction."""

    def __init__(self, bids: Sequence[Bid], free: Mapping[str, int], topology: Topology, seed: int) -> None:
        rng = random.Random(seed)
        self.bids = rng.sample(list(bids), len(bids))  # no bidder is favoured by its name
        self.free = {h: n for h, n in sorted(free.items()) if n > 0}
        self.topology = topology
        self.lp = pulp.LpProblem("winners", pulp.LpMaximize)
        self.use: dict[str, list[pulp.LpAffineExpression]] = {h: [] for h in self.free}
        self.row_vars: dict[tuple[str, int], pulp.LpVariable] = {}
        self.chunks: dict[tuple[_Key, str], pulp.LpVariable] = {}
        objective = []
        for i, bid in enumerate(self.bids):
            objective += self._add_bid(i, bid)
        self.lp += pulp.lpSum(objective)
        for host, terms in self.use.items():
            if terms:
                self.lp += pulp.lpSum(terms) <= self.free[host]

    def _add_bid(self, i: int, bid: Bid) -> list[pulp.LpAffineExpression]:
        base, objective = math.log(bid.rho_nothing), []
        gangs_of: dict[tuple[int, Scope], list[pulp.LpAffineExpression]] = {}
        chosen = []
        for k, row in enumerate(bid.rows):
            if row.rho >= bid.rho_nothing or not self._fits(row):
                continue  # worth no more than nothing, so never needed for an optimum
            x = pulp.LpVariable(f"x{i}_{k}", cat="Binary")
            self.row_vars[bid.app_id, k] = x
            chosen.append(x)
            objective.append((base - math.log(row.rho)) * x)
            for gang in row.keep:
                for host, n in gang:
                    self.use[host].append(n * x)
            if row.new_gangs:
                gangs_of.setdefault((row.gang_gpus, row.scope), []).append(row.new_gangs * x)
        if chosen:
            self.lp += pulp.lpSum(chosen) <= 1
        for (size, scope), terms in gangs_of.items():
            self._add_gangs(i, (bid.app_id, size, scope), pulp.lpSum(terms))
        return objective

    def _fits(self, row: BidRow) -> bool:
        return all(self.free.get(h, 0) >= n for gang in row.keep for h, n in gang)

    def _add_gangs(self, i: int, key: _Key, count: pulp.LpAffineExpression) -> None:
        """GPUs by host for `count` gangs of one size and scope."""
        _, size, scope = key
        if scope is Scope.MACHINE:
            on_host = {
                h: pulp.LpVariable(f"m{i}_{size}_{j}", 0, n // size, cat="Integer")
                for j, (h, n) in enumerate(self.free.items())
                if n >= size
            }
            self.lp += pulp.lpSum(on_host.values()) == count
            for h, y in on_host.items():
                self.chunks[key, h] = y
                self.use[h].append(size * y)
            return
        groups = self._racks() if scope is Scope.RACK else {"": list(self.free)}
        totals = []
        for j, hosts in enumerate(groups.values()):
            gangs = pulp.LpVariable(f"g{i}_{size}_{int(scope)}_{j}", 0, None, cat="Integer")
            gpus = {h: pulp.LpVariable(f"u{i}_{size}_{int(scope)}_{j}_{k}", 0, self.free[h], cat="Integer")
                    for k, h in enumerate(hosts)}  # fmt: skip
            self.lp += pulp.lpSum(gpus.values()) == size * gangs
            totals.append(gangs)
            for h, u in gpus.items():
                self.chunks[key, h] = u
                self.use[h].append(u)
        self.lp += pulp.lpSum(totals) == count

    def _racks(self) -> dict[str, list[str]]:
        racks: dict[str, list[str]] = {}
        for host in self.free:
            racks.setdefault(self.topology.rack_of(host), []).append(host)
        return racks

    def solve(self, budget_s: float) -> tuple[bool, float]:
        """Solves to a zero gap within the budget; returns (proved, gap)."""
        self.lp.solve(pulp.HiGHS(msg=False, gapRel=0.0, timeLimit=max(0.05, budget_s), threads=1))
        if self.lp.status == pulp.LpStatusOptimal and self.lp.sol_status == pulp.LpSolutionOptimal:
            return True, 0.0
        info = self.lp.solverModel.getInfo()
        return False, max(0.0, float(info.mip_dual_bound) - float(info.objective_function_value))

    def pack(self, budget_s: float) -> None:
        """Among the placements of the rows chosen, one that touches the fewest hosts."""
        chosen = {key: _on(x) for key, x in self.row_vars.items()}
        for key, x in self.row_vars.items():
            x.lowBound = x.upBound = int(chosen[key])
        touched = []
        for j, (key_host, y) in enumerate(self.chunks.items()):
            t = pulp.LpVariable(f"t{j}", cat="Binary")
            touched.append(t)
            self.lp += y <= self.free[key_host[1]] * t
        before = {name: v.value() for name, v in self.chunks.items()}
        # A host that is left untouched is best; among equals the smaller host, so that large ones stay whole.
        weights = [1 + 0.01 * self.free[h] for (_, h) in self.chunks]
        self.lp.sense = pulp.LpMinimize
        self.lp.setObjective(pulp.lpSum(w * t for w, t in zip(weights, touched, strict=True)))
        self.lp.solve(pulp.HiGHS(msg=False, timeLimit=max(0.05, budget_s), threads=1))
        if self.lp.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            for name, value in before.items():
                self.chunks[name].varValue = value

    def win(self, bid: Bid) -> Win:
        """What this bidder won."""
        for k, row in enumerate(bid.rows):
            x = self.row_vars.get((bid.app_id, k))
            if x is not None and _on(x):
                return Win(row, row.rho, (*row.keep, *self._new_gangs(bid.app_id, row)))
        return Win(None, bid.rho_nothing)

    def _new_gangs(self, app_id: str, row: BidRow) -> list[Gang]:
        key = (app_id, row.gang_gpus, row.scope)
        here = {h: round(v.value() or 0) for (k, h), v in self.chunks.items() if k == key}
        if row.scope is Scope.MACHINE:
            return [gang_of({h: row.gang_gpus}) for h, n in here.items() for _ in range(n)]
        groups = self._racks().values() if row.scope is Scope.RACK else [list(self.free)]
        gangs: list[Gang] = []
        for hosts in groups:
            gangs += split_gangs({h: here[h] for h in hosts if here.get(h)}, row.gang_gpus)
        return gangs


def _on(x: pulp.LpVariable) -> bool:
    return (x.value() or 0) > 0.5


def split_gangs(gpus: Mapping[str, int], size: int) -> list[Gang]:
    """Cuts GPUs by host (a multiple of `size` in all) into gangs, whole machines first, then as few as can be."""
    left, gangs = dict(gpus), []
    for host in sorted(left):
        while left[host] >= size:
            left[host] -= size
            gangs.append(gang_of({host: size}))
    while any(left.values()):
        need, gang = size, {}
        for host in sorted(left, key=lambda h: (-left[h], h)):
            take = min(need, left[host])
            if take:
                gang[host] = take
                left[host] -= take
                need -= take
        gangs.append(gang_of(gang))
    return gangs


def determine(
    bids: Sequence[Bid],
    free: Mapping[str, int],
    topology: Topology,
    seed: int,
    budget_s: float = 2.0,
    pack: bool = True,
) -> Winners:
    """The feasible rows, at most one a bidder, with the largest sum of -log rho.

    `free`: GPUs on offer by host. A solve past `budget_s` returns the best rows found and its gap.
    """
    started_s = time.monotonic()
    model = _Model(bids, free, topology, seed)
    proved, gap = (True, 0.0) if not model.row_vars else model.solve(budget_s)
    if pack and model.chunks:
        model.pack(budget_s - (time.monotonic() - started_s))
    wins = {b.app_id: model.win(b) for b in bids}
    return Winners(wins, -sum(math.log(w.rho) for w in wins.values()), proved, gap)
