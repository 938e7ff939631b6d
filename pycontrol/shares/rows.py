"""A growing linear program: HiGHS with rows added between runs, each run starting from the last one's basis."""

from __future__ import annotations

import highspy
import numpy as np
import numpy.typing as npt

from pycontrol.shares.problem import Matrix, ShareError, Vector

INFINITY = float(highspy.kHighsInf)
TOLERANCE = 1e-9
"""Primal and dual feasibility tolerance of HiGHS."""
PRIMAL_SIMPLEX = 4
DUAL_SIMPLEX = 1

Index = npt.NDArray[np.integer]


class IncrementalLp:
    """max objective.x with 0 <= x <= upper and the rows added so far."""

    def __init__(self, objective: Vector, upper: Vector | None = None) -> None:
        self.columns = len(objective)
        h = self._highs = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in (
            ("output_flag", False),
            ("threads", 1),
            ("presolve", "off"),
            ("primal_feasibility_tolerance", TOLERANCE),
            ("dual_feasibility_tolerance", TOLERANCE),
            ("simplex_dual_edge_weight_strategy", 1),  # devex: steepest edge costs more than it saves here
        ):
            h.setOptionValue(option, value)
        free = np.full(self.columns, INFINITY)
        h.addVars(self.columns, np.zeros(self.columns), free if upper is None else upper)
        h.changeColsCost(self.columns, np.arange(self.columns, dtype=np.int32), -objective)

    def option(self, name: str, value: str | int) -> None:
        """Sets an option of HiGHS."""
        self._highs.setOptionValue(name, value)

    def free_columns(self) -> None:
        """Removes all upper bounds."""
        n = self.columns
        self._highs.changeColsBounds(n, np.arange(n, dtype=np.int32), np.zeros(n), np.full(n, INFINITY))

    def add(self, columns: Index, values: Matrix, low: float | Vector, high: float | Vector) -> None:
        """Adds rows with bounds; `columns` and `values` have shape (rows, length)."""
        rows, length = columns.shape
        self._highs.addRows(
            rows,
            np.broadcast_to(np.asarray(low, dtype=float), rows).copy(),
            np.broadcast_to(np.asarray(high, dtype=float), rows).copy(),
            rows * length,
            (np.arange(rows) * length).astype(np.int32),
            columns.astype(np.int32).ravel(),
            values.astype(float).ravel(),
        )

    def solve(self) -> Vector:
        """The optimal x; raises ShareError if HiGHS finds none."""
        self._highs.run()
        status = self._highs.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise ShareError(f"the linear programme has no optimum: {self._highs.modelStatusToString(status)}")
        return np.array(self._highs.getSolution().col_value)

    def prices(self) -> Vector:
        """The rows' dual prices after `solve`; >= 0 for a binding upper bound."""
        return -np.array(self._highs.getSolution().row_dual)
