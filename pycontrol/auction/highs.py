"""The portable engine: solves the compact form with HiGHS, where no C compiler was found.

The relaxation is solved once and kept warm. Rows with a reduced cost above the gap to a known choice are dropped, which
leaves a small integer program (Themis, section 4.4, solved n + 1 times).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import highspy
import numpy as np
import numpy.typing as npt

from pycontrol.auction.compact import Compact, compact
from pycontrol.auction.instance import Instance, Solved, Without, scope_of
from pycontrol.auction.placing import Want, place_all, take
from pycontrol.model.auction import Bid
from pycontrol.model.topology import Scope
from pycontrol.model.value import value

EPS = 1e-9
FIRST_SHARE = 0.5

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
_Entries = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
"""(constraints, columns, coefficients)."""


def solve(bids: Sequence[Bid], instance: Instance, budget_s: float, payments: bool) -> Solved:
    """Solves the whole auction; a gap remains if time ran out or no packing was found."""
    if not bids or not any(instance.free.values()):
        return Solved({b.app_id: None for b in bids}, 0.0, {}, {})
    end_s = time.monotonic() + budget_s
    model = _Relaxation(compact(bids, instance), instance)
    main = model.best(None, model.no_rows, budget_s * FIRST_SHARE if payments else budget_s)
    rows = {b.app_id: model.c.rows[j] for b, j in zip(bids, main.choice, strict=True)}
    winners = [i for i, b in enumerate(bids) if rows[b.app_id] is not None] if payments else []
    objective = -float(np.log([b.rho_nothing for b in bids]).sum())
    without = {}
    for k, i in enumerate(winners):
        share_s = (end_s - time.monotonic()) / (len(winners) - k)
        start = main.choice.copy()
        start[i] = model.no_rows[i]
        found = model.best(i, start, share_s)
        others = objective + float(np.log(bids[i].rho_nothing))
        without[bids[i].app_id] = Without(others + found.value, found.bound - found.value)
    return Solved(rows, main.bound - main.value, without, {})


@value
class _Found:
    choice: Rows
    value: float
    bound: float


class _Relaxation:
    """The linear relaxation, and small integer programs on subsets of its columns."""

    def __init__(self, c: Compact, instance: Instance) -> None:
        self.c, self.instance = c, instance
        self.n = len(c.bids)
        self.app = np.repeat(np.arange(self.n), np.diff(c.first))
        self.no_rows: Rows = c.first[1:].astype(np.int64) - 1
        self.breaks = _Breaks(c)
        self.all = np.arange(len(c.rows))
        self.lp = _program(c, self.all, self.app, self.breaks, integer=False)
        self.lp.run()

    def best(self, without: int | None, start: Rows, budget_s: float) -> _Found:
        """The best choice (without one bidder), starting from a choice that fits."""
        c, end_s = self.c, time.monotonic() + budget_s
        banned = np.zeros(len(c.rows), bool)
        if without is not None:
            banned[c.first[without] : self.no_rows[without]] = True
        upper = np.where(banned, 0.0, 1.0)
        self.lp.changeColsBounds(len(self.all), self.all.astype(np.int32), np.zeros(len(self.all)), upper)
        self.lp.run()
        bound = float(self.lp.getInfo().objective_function_value)
        loss = -np.array(self.lp.getSolution().col_dual)[: len(c.rows)]
        value = float(c.gain[start].sum())
        start, value = self._better(start, start, value, banned)
        x = np.array(self.lp.getSolution().col_value)[: len(c.rows)]
        rounded = self.no_rows.copy()
        whole = self.all[x > 1 - 1e-6]
        rounded[self.app[whole]] = whole
        start, value = self._better(rounded, start, value, banned)
        if bound <= value + EPS:
            return _Found(start, value, value)
        left = self.all[~banned & ((loss <= bound - value + EPS) | np.isin(self.all, start))]
        mip = _program(c, left, self.app, self.breaks, integer=True)
        mip.setOptionValue("time_limit", max(0.01, end_s - time.monotonic()))
        mip.run()
        info = mip.getInfo()
        if info.primal_solution_status != 2:  # no solution found in time
            return _Found(start, value, bound)
        x = np.array(mip.getSolution().col_value)[: len(left)]
        chosen = self.no_rows.copy()
        chosen[self.app[left[x > 0.5]]] = left[x > 0.5]
        proved = mip.getModelStatus() == highspy.HighsModelStatus.kOptimal
        found = float(c.gain[chosen].sum())
        bound = max(value, found if proved else min(bound, float(info.mip_dual_bound)))
        if found > value and self._has_room(chosen):
            start, value = chosen, found
        return _Found(start, value, value if bound <= value + EPS else bound)

    def _better(self, choice: Rows, start: Rows, value: float, banned: npt.NDArray[np.bool_]) -> tuple[Rows, float]:
        """(choice, value): the choice with better rows added if it fits and beats the start, else the start."""
        c, choice = self.c, choice.copy()
        load = c.use[choice].sum(axis=0)
        for i in range(self.n):
            first, old = c.first[i], choice[i]
            fits = (c.use[first:old] <= c.room - load + c.use[old]).all(axis=1) & ~banned[first:old]
            if fits.any():
                choice[i] = first + int(fits.argmax())  # rows are sorted, best first
                load += c.use[choice[i]] - c.use[old]
        found = float(c.gain[choice].sum())
        return (choice, found) if found > value and self._has_room(choice) else (start, value)

    def _has_room(self, choice: Rows) -> bool:
        c = self.c
        if (c.use[choice].sum(axis=0) > c.room).any():
            return False
        if c.exact:
            return True
        free = {h: n for h, n in self.instance.free.items() if n > 0}
        wants = []
        for i, j in enumerate(choice):
            row = c.rows[j]
            if row is None:
                continue
            take(free, row.keep)
            if row.new_gangs:
                wants.append(Want(c.bids[i].app_id, row.new_gangs, row.gang_gpus, scope_of(row), row.gpu_type))
        return min(free.values()) >= 0 and place_all(wants, free, self.instance.topology) is not None


class _Breaks:
    """Machines and racks where several bidders may keep gangs: the units left there need an integer variable each.

    u units of s GPUs are left with s u <= free - kept, which is exact while `Compact.use` is only a bound.
    """

    def __init__(self, c: Compact) -> None:
        free = {"host": c.free.astype(np.int64), "rack": np.bincount(c.rack, c.free).astype(np.int64)}
        number = {h: k for k, h in enumerate(c.hosts)}
        app = np.repeat(np.arange(len(c.bids)), np.diff(c.first)).tolist()
        kept: dict[tuple[int, int], dict[int, int]] = {}
        for j, pins in enumerate(c.pins):
            for host, n in pins.items():
                for dim, level in enumerate(c.level.tolist()):
                    if level and c.dim_type[dim] == c.host_type[number[host]]:
                        by_row = kept.setdefault((dim, number[host] if level > 0 else int(c.rack[number[host]])), {})
                        by_row[j] = by_row.get(j, 0) + n
        self.at: list[tuple[int, int, int]] = []
        """(dim, place, free GPUs)"""
        self.kept: dict[tuple[int, int], dict[int, int]] = {}
        self.instead = {j: np.where(c.level != 0, c.use[j] - _new_units(c, j), 0) for j, p in enumerate(c.pins) if p}
        """Row -> the part of its use that these integers replace."""
        for (dim, place), by_row in kept.items():
            gpus = int(free["host" if c.level[dim] > 0 else "rack"][place])
            if len({app[j] for j in by_row}) > 1:
                self.at.append((dim, place, gpus))
                self.kept[dim, place] = by_row
                continue
            s = abs(int(c.level[dim]))
            for j, n in by_row.items():
                self.instead[j][dim] -= gpus // s - (gpus - n) // s


def _program(c: Compact, rows: Rows, app: npt.NDArray[np.int64], breaks: _Breaks, integer: bool) -> highspy.Highs:
    """The linear or integer program of some rows.

    Columns: the rows, then the units left at each of `breaks.at`. Constraints: bidders, dims, breaks.
    """
    n = len(c.bids)
    position = {j: k for k, j in enumerate(rows.tolist())}
    kept = np.zeros((len(rows), len(c.room)), np.int64)
    for j, instead in breaks.instead.items():
        if j in position:
            kept[position[j]] = instead
    use = c.use[rows] - kept
    r, d = np.nonzero(use)
    entries: list[_Entries] = [(app[rows], np.arange(len(rows)), np.ones(len(rows))), (n + d, r, use[r, d])]
    upper = np.concatenate([np.ones(n), c.room.astype(float), [float(f) for _, _, f in breaks.at]])
    for k, (dim, place, free) in enumerate(breaks.at):
        s = abs(int(c.level[dim]))
        upper[n + dim] -= free // s
        kept_here = [(position[j], g) for j, g in breaks.kept[dim, place].items() if j in position]
        inside = np.array(kept_here, np.int64).reshape(-1, 2)
        column, at = len(rows) + k, n + len(c.room) + k
        entries.append((np.array([n + dim, at]), np.full(2, column), np.array([-1.0, float(s)])))
        entries.append((np.full(len(inside), at), inside[:, 0], inside[:, 1].astype(float)))
    return _highs(entries, c.gain[rows], upper, n, [f // abs(int(c.level[d])) for d, _, f in breaks.at], integer)


def _new_units(c: Compact, j: int) -> npt.NDArray[np.int64]:
    """[dims]: units that the new gangs of a row use."""
    s = np.maximum(1, np.abs(c.level))
    inside = np.where(c.level > 0, c.scope[j] == Scope.MACHINE, c.scope[j] != Scope.CLUSTER)
    inside &= c.dim_type == c.size_type[c.size[j]]
    return np.where(inside, c.gangs[j] * (c.sizes[c.size[j]] // s), 0)


def _highs(
    entries: Sequence[_Entries], gain: Floats, upper: Floats, equal: int, units: list[int], integer: bool
) -> highspy.Highs:
    at, column, value = (np.concatenate([e[k] for e in entries]) for k in range(3))
    order = np.lexsort((at, column))
    columns = len(gain) + len(units)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, len(upper)
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = np.concatenate([gain, np.zeros(len(units))])
    lp.col_lower_ = np.zeros(columns)
    lp.col_upper_ = np.concatenate([np.ones(len(gain)), np.array(units, float)])
    lp.row_lower_ = np.concatenate([np.ones(equal), np.full(len(upper) - equal, -highspy.kHighsInf)])
    lp.row_upper_ = upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.searchsorted(column[order], np.arange(columns + 1)).astype(np.int32)
    lp.a_matrix_.index_ = at[order].astype(np.int32)
    lp.a_matrix_.value_ = value[order].astype(float)
    if integer:
        lp.integrality_ = [highspy.HighsVarType.kInteger] * columns
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, setting in (("output_flag", False), ("mip_rel_gap", 0.0), ("mip_abs_gap", 0.0), ("threads", 1)):
        solver.setOptionValue(option, setting)
    solver.passModel(lp)
    return solver
