"""OEF for cooperative users: the most efficient envy-free shares (OEF, section 4.2.2, equation 10).

Per weight, y = x / pi: max sum_l pi_l u_l, u_l = w_l.y_l, sum_l pi_l y_l <= m, u_l >= w_l.y_i for all l, i.

The result is exact. Users with equal vectors are merged into one with the sum of their weights, since the mean over the
members of an optimum is an optimum. Of the n^2 envy rows, those between neighbours (users ordered by fastest / slowest)
are added first and violated ones on demand; in the end all n^2 hold, so the order affects only speed. If the users are
ratio-ordered, a coarse problem (groups of neighbours with their mean vector) chooses the columns for the first run;
then all columns are freed, so that the optimum is that of the whole problem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pycontrol.shares.problem import Matrix, Merged, ShareProblem, Vector
from pycontrol.shares.rows import DUAL_SIMPLEX, INFINITY, PRIMAL_SIMPLEX, IncrementalLp

ENVY = 1e-8
"""Tolerated envy, relative to the larger of the user's own efficiency and the mean."""
GROUP = 10
"""Users per group of the coarse problem."""
COARSE_FROM = 100
"""The number of users from which the coarse problem saves time."""


@dataclass(frozen=True)
class OefCooperative:
    """The most efficient envy-free shares, which are also sharing-incentive; not Pareto-efficient in general.

    A user that can use no type gets nothing, and a type that no user can use is not allocated.
    """

    def shares(self, problem: ShareProblem) -> Matrix:
        """(n, k): devices by user and type."""
        return self.solve(problem)[0]

    def solve(self, problem: ShareProblem) -> tuple[Matrix, int]:
        """The shares, and the number of envy rows that they needed."""
        merged = Merged.of(problem)
        small = merged.problem
        w = small.speedups
        fastest = np.divide(w[:, -1], w[:, 0], out=np.full(small.users, np.inf), where=w[:, 0] > 0)
        order = np.argsort(fastest, kind="stable")
        sorted_problem = ShareProblem(w[order], small.devices, small.weights[order], small.demands[order])
        columns = None
        if small.users >= COARSE_FROM and ratio_ordered(sorted_problem.speedups):
            columns = _likely(sorted_problem)
        envy_free = _EnvyFree(sorted_problem, columns)
        y = np.empty_like(w)
        y[order] = envy_free.run()
        x = merged.proportional(y * small.weights[:, None], problem.weights)
        return x * (problem.speedups.max(axis=1) > 0)[:, None], envy_free.rows


def ratio_ordered(w: Matrix) -> bool:
    """Whether the ratio of each row to the one before never falls from a type to the next (the paper's order)."""
    if w.shape[0] < 2:
        return True
    return bool((w > 0).all() and (np.diff(np.diff(np.log(w), axis=0), axis=1) >= -1e-12).all())


def _likely(problem: ShareProblem) -> npt.NDArray[np.bool_]:
    """(n, k): columns for the first run: the types used by a user's group and its neighbours, and adjacent types."""
    group = np.arange(problem.users) // GROUP
    weights = np.bincount(group, problem.weights).astype(np.float64)
    weighted = problem.weights[:, None] * problem.speedups
    means = np.stack([np.bincount(group, column) for column in weighted.T], axis=1) / weights[:, None]
    used = _EnvyFree(ShareProblem(means, problem.devices, weights, weights), None).run() > 0
    near = used.copy()
    near[:, 1:] |= used[:, :-1]
    near[:, :-1] |= used[:, 1:]
    wide = near.copy()
    wide[1:] |= near[:-1]
    wide[:-1] |= near[1:]
    return np.asarray(wide[group])


class _EnvyFree:
    """The growing linear program; its columns are y row by row, then u."""

    def __init__(self, problem: ShareProblem, likely: npt.NDArray[np.bool_] | None) -> None:
        self.problem, self.likely = problem, likely
        n, k = problem.speedups.shape
        self.scale = max(float(problem.devices.sum()), 1e-300) / problem.weights.sum()
        upper = np.full(n * k + n, INFINITY)
        if likely is not None:
            upper[: n * k][~likely.ravel()] = 0.0
        self.lp = IncrementalLp(np.concatenate([np.zeros(n * k), problem.weights / problem.weights.mean()]), upper)
        columns = np.arange(n * k).reshape(n, k)
        weights = np.tile(problem.weights, (k, 1))
        self.lp.add(columns.T, weights, -INFINITY, problem.devices / self.scale)
        self.known = np.zeros((n, n), dtype=bool)
        everyone = np.arange(n)
        self._add(everyone, everyone, 0.0)
        self._add(everyone[:-1], everyone[1:])
        self._add(everyone[1:], everyone[:-1])
        self.rows = 2 * (n - 1)

    def _add(self, who: npt.NDArray[np.intp], whom: npt.NDArray[np.intp], high: float = INFINITY) -> None:
        """Adds rows u_who - w_who.y_whom >= 0; with high = 0 and who = whom they define u."""
        n, k = self.problem.speedups.shape
        if len(who):
            columns = np.concatenate([whom[:, None] * k + np.arange(k), n * k + who[:, None]], axis=1)
            values = np.concatenate([-self.problem.speedups[who], np.ones((len(who), 1))], axis=1)
            self.lp.add(columns, values, 0.0, high)
        self.known[who, whom] = True

    def run(self) -> Matrix:
        """The optimal y: shares per weight."""
        if self.likely is not None:
            self.lp.option("presolve", "on")
            self.lp.solve()
            self.lp.option("presolve", "off")
            self.lp.free_columns()
            self.lp.option("simplex_strategy", PRIMAL_SIMPLEX)
        n, k = self.problem.speedups.shape
        each = 4 if self.likely is not None else 1  # rows per user and run: ordered users have many binding neighbours
        while True:
            y = np.maximum(self.lp.solve()[: n * k].reshape(n, k), 0.0)
            self.lp.option("simplex_strategy", DUAL_SIMPLEX)
            who, whom = self._envious(y, each)
            if not len(who):
                return np.asarray(y * self.scale)
            self._add(who, whom)
            self.rows += len(who)

    def _envious(self, y: Matrix, each: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """(envious users, envied users) of the `each` most violated rows of each user."""
        worth = self.problem.speedups @ y.T
        own: Vector = np.diag(worth).copy()
        envy = worth - own[:, None] - ENVY * np.maximum(own, own.mean())[:, None]
        envy[self.known] = -1.0
        whom = np.argpartition(-envy, min(each, len(own)) - 1, axis=1)[:, :each]
        who = np.repeat(np.arange(len(own)), whom.shape[1])
        flat = whom.ravel()
        bad = envy[who, flat] > 0
        return who[bad], flat[bad]
