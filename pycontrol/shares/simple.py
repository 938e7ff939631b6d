"""Max-min fairness and pure efficiency: what the other schemes are compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack, identity, kron, vstack

from pycontrol.shares.problem import Matrix, SchemeProperty, ShareError, ShareProblem, Vector


def capacity_rows(n: int, k: int) -> csr_array:
    """(k, n k): sum over users of each type, x in row-major order."""
    return csr_array(kron(np.ones((1, n)), identity(k)))


def efficiency_rows(weights: Matrix) -> csr_array:
    """(n, n k): w.x of each user."""
    n, k = weights.shape
    return csr_array((weights.ravel(), np.arange(n * k), np.arange(0, n * k + 1, k)), shape=(n, n * k))


def sum_rows(n: int, k: int) -> csr_array:
    """(n, n k): all devices of each user."""
    return efficiency_rows(np.ones((n, k)))


def optimum(objective: Vector, upper: csr_array, bound: Vector) -> tuple[Vector, Vector]:
    """The x >= 0 that maximises objective.x with upper.x <= bound, and the rows' prices (>= 0)."""
    finite = np.isfinite(bound)
    done = linprog(-objective, A_ub=upper[finite], b_ub=bound[finite], method="highs-ds")
    if done.status != 0:
        raise ShareError(f"the linear programme has no optimum: {done.message}")
    prices = np.zeros(len(bound))
    prices[finite] = -done.ineqlin.marginals
    return np.maximum(done.x, 0.0), prices


@dataclass(frozen=True)
class MaxMinShares:
    """The equal split by weight: each user alike on each type."""

    promises: frozenset[SchemeProperty] = frozenset({SchemeProperty.SP, SchemeProperty.EF, SchemeProperty.SI})

    def shares(self, problem: ShareProblem) -> Matrix:
        """(n, k)."""
        return problem.equal_split()


@dataclass(frozen=True)
class MaxEfficiency:
    """All of a type to whom it speeds up most, ties by weight; `sharing_incentive`: nobody below the equal split."""

    sharing_incentive: bool = False

    @property
    def promises(self) -> frozenset[SchemeProperty]:
        """Pareto-efficient always, since the sum is maximal."""
        return frozenset({SchemeProperty.PE, SchemeProperty.SI} if self.sharing_incentive else {SchemeProperty.PE})

    def shares(self, problem: ShareProblem) -> Matrix:
        """(n, k)."""
        w, m = problem.speedups, problem.devices
        if not self.sharing_incentive:
            best = (w == w.max(axis=0)) & (w > 0)
            part = best * problem.weights[:, None]
            return np.asarray(m * part / np.maximum(part.sum(axis=0), np.finfo(float).tiny))
        floor = problem.efficiency(problem.equal_split())
        rows = vstack([capacity_rows(*w.shape), -efficiency_rows(w)], format="csr")
        x, _ = optimum(w.ravel(), csr_array(rows), np.concatenate([m, -floor]))
        return x.reshape(w.shape)


@dataclass(frozen=True)
class MaxMinRatio:
    """The largest common ratio of w.x to the equal split's, without a limit on what one user holds."""

    promises: frozenset[SchemeProperty] = frozenset({SchemeProperty.SI, SchemeProperty.PE})

    def shares(self, problem: ShareProblem) -> Matrix:
        """(n, k)."""
        floor = problem.efficiency(problem.equal_split())
        return common_level(problem.speedups, problem.devices, floor, np.full(problem.users, np.inf))[0]


def common_level(w: Matrix, m: Vector, unit: Vector, caps: Vector) -> tuple[Matrix, float]:
    """x and the largest level with w.x >= level x unit for all; at most caps[l] devices for user l.

    Users whose unit is 0 get nothing.
    """
    n, k = w.shape
    level = csr_array(np.concatenate([np.zeros(k), unit, np.zeros(n)])[:, None])
    rows = vstack([capacity_rows(n, k), -efficiency_rows(w), sum_rows(n, k)])
    objective = np.zeros(n * k + 1)
    objective[-1] = 1.0
    if not (unit > 0).any():
        return np.zeros((n, k)), 0.0
    bound = np.concatenate([m, np.zeros(n), caps])
    found, _ = optimum(objective, csr_array(hstack([rows, level])), bound)
    return found[:-1].reshape(n, k) * (unit > 0)[:, None], float(found[-1])
