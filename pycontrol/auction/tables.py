"""The auction over explicit bid tables {GPUs on each machine -> rho}: one binary a row (Themis, section 4.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulp

Row = tuple[int, ...]
"""GPUs on machine 0, 1, ..."""


@dataclass(frozen=True, slots=True)
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


def _solve(tables: Sequence[Mapping[Row, float]], machines: Sequence[int]) -> tuple[list[Row], bool]:
    lp = pulp.LpProblem("tables", pulp.LpMaximize)
    x = {
        (i, k): pulp.LpVariable(f"x{i}_{k}", cat="Binary") for i, table in enumerate(tables) for k in range(len(table))
    }
    rows = [list(table) for table in tables]
    lp += pulp.lpSum(-math.log(tables[i][rows[i][k]]) * v for (i, k), v in x.items())
    for i in range(len(tables)):
        lp += pulp.lpSum(x[i, k] for k in range(len(rows[i]))) == 1
    for m, gpus in enumerate(machines):
        lp += pulp.lpSum(rows[i][k][m] * v for (i, k), v in x.items()) <= gpus
    lp.solve(pulp.HiGHS(msg=False, gapRel=0.0, threads=1))
    chosen = [next(rows[i][k] for k in range(len(rows[i])) if x[i, k].value() > 0.5) for i in range(len(tables))]
    return chosen, lp.sol_status == pulp.LpSolutionOptimal


def auction_tables(tables: Sequence[Mapping[Row, float]], machines: Sequence[int]) -> TableOutcome:
    """Exact proportionally fair winners and payments; the all-zero row is what an app has without the offer."""
    chosen, proved = _solve(tables, machines)
    rho = [tables[i][row] for i, row in enumerate(chosen)]
    c = []
    for i in range(len(tables)):
        if not any(chosen[i]) or len(tables) == 1:
            c.append(1.0)
            continue
        others = [t for j, t in enumerate(tables) if j != i]
        without, ok = _solve(others, machines)
        proved = proved and ok
        best = sum(-math.log(t[row]) for t, row in zip(others, without, strict=True))
        own = sum(-math.log(r) for j, r in enumerate(rho) if j != i)
        c.append(math.exp(min(0.0, own - best)))
    return TableOutcome(tuple(chosen), tuple(rho), tuple(c), proved)
