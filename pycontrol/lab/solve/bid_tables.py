"""The auction over explicit bid tables {GPUs on each machine -> rho}: one binary variable a row (Themis, section 4.4).

For what-if questions, and to check compact bids; the tables grow with the number of splits of the offer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pulp

from pycontrol.model.value import value

Row = tuple[int, ...]
"""GPUs on machine 0, 1, ..."""


@value
class TableOutcome:
    """G_pf with its rho by app, and each app's fraction c."""

    rows: tuple[Row, ...]
    rho: tuple[float, ...]
    c: tuple[float, ...]
    proved_optimal: bool

    @property
    def objective(self) -> float:
        """The product of 1/rho."""
        return math.exp(-sum(math.log(r) for r in self.rho))


def auction_tables(tables: Sequence[Mapping[Row, float]], machines: Sequence[int]) -> TableOutcome:
    """The exact proportionally fair winners and payments; a table's all-zero row has its app's rho without a win."""
    chosen, proved = _solve(tables, machines)
    rho = [table[row] for table, row in zip(tables, chosen, strict=True)]
    c = []
    for i, row in enumerate(chosen):
        if not any(row):
            c.append(1.0)  # it takes nothing from the others
            continue
        others = [t for j, t in enumerate(tables) if j != i]
        without, ok = _solve(others, machines)
        proved = proved and ok
        best = -sum(math.log(t[r]) for t, r in zip(others, without, strict=True))
        with_it = -sum(math.log(r) for j, r in enumerate(rho) if j != i)
        c.append(math.exp(min(0.0, with_it - best)))
    return TableOutcome(tuple(chosen), tuple(rho), tuple(c), proved)


def _solve(tables: Sequence[Mapping[Row, float]], machines: Sequence[int]) -> tuple[list[Row], bool]:
    if not tables:
        return [], True
    lp = pulp.LpProblem("tables", pulp.LpMaximize)
    x = [
        {row: lp.add_variable(f"x{i}_{k}", cat="Binary") for k, row in enumerate(table) if _fits(row, machines)}
        for i, table in enumerate(tables)
    ]
    lp += pulp.lpSum(-math.log(tables[i][row]) * v for i, rows in enumerate(x) for row, v in rows.items())
    for rows in x:
        lp += pulp.lpSum(rows.values()) == 1
    for m, gpus in enumerate(machines):
        lp += pulp.lpSum(row[m] * v for rows in x for row, v in rows.items()) <= gpus
    lp.solve(pulp.HiGHS(msg=False, gapRel=0.0, gapAbs=0.0, threads=1))
    chosen = [max(rows, key=lambda row: rows[row].value() or 0) for rows in x]
    return chosen, lp.sol_status == pulp.LpSolutionOptimal


def _fits(row: Row, machines: Sequence[int]) -> bool:
    return all(n <= gpus for n, gpus in zip(row, machines, strict=True))
