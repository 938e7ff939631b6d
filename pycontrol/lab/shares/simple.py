"""Max-min fairness and pure efficiency, as baselines for the other schemes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, hstack, identity, kron, vstack

from pycontrol.shares.problem import Matrix, ShareError, ShareProblem, Vector


def equal_split(problem: ShareProblem) -> Matrix:
    """(n, k): each user's part of each type by weight, which is max-min fairness for each type on its own."""
    return np.outer(problem.weights / problem.weights.sum(), problem.devices)


def capacity_rows(n: int, k: int) -> csr_array:
    """(k, n k): rows that sum each type over users, for x in row-major order."""
    return csr_array(kron(np.ones((1, n)), identity(k)))


def efficiency_rows(weights: Matrix) -> csr_array:
    """(n, n k): rows that give w.x of each user."""
    n, k = weights.shape
    return csr_array((weights.ravel(), np.arange(n * k), np.arange(0, n * k + 1, k)), shape=(n, n * k))


def sum_rows(n: int, k: int) -> csr_array:
    """(n, n k): rows that sum all devices of each user."""
    return efficiency_rows(np.ones((n, k)))


def optimum(objective: Vector, upper: csr_array, bound: Vector) -> tuple[Vector, Vector]:
    """(x, prices): the x >= 0 that maximizes objective.x with upper.x <= bound, and the rows' prices (>= 0).

    Raises ShareError if there is no optimum.
    """
    from scipy.optimize import linprog

    finite = np.isfinite(bound)
    done = linprog(-objective, A_ub=upper[finite], b_ub=bound[finite], method="highs-ds")
    if done.status != 0:
        raise ShareError(f"the linear programme has no optimum: {done.message}")
    prices = np.zeros(len(bound))
    prices[finite] = -done.ineqlin.marginals
    return np.maximum(done.x, 0.0), prices


@dataclass(frozen=True)
class MaxMinShares:
    """The equal split by weight: each user gets the same fraction of each type."""

    def shares(self, problem: ShareProblem) -> Matrix:
        """(n, k): devices by user and type."""
        return equal_split(problem)


@dataclass(frozen=True)
class MaxEfficiency:
    """Gives each type to the user that it speeds up most, ties by weight; with `sharing_incentive` no user falls below
    the equal split."""

    sharing_incentive: bool = False

    def shares(self, problem: ShareProblem) -> Matrix:
        """(n, k): devices by user and type."""
        w, m = problem.speedups, problem.devices
        if not self.sharing_incentive:
            best = (w == w.max(axis=0)) & (w > 0)
            part = best * problem.weights[:, None]
            return np.asarray(m * part / np.maximum(part.sum(axis=0), np.finfo(float).tiny))
        floor = problem.efficiency(equal_split(problem))
        rows = vstack([capacity_rows(*w.shape), -efficiency_rows(w)], format="csr")
        x, _ = optimum(w.ravel(), csr_array(rows), np.concatenate([m, -floor]))
        return x.reshape(w.shape)


@dataclass(frozen=True)
class MaxMinRatio:
    """The largest common ratio of w.x to that of the equal split, without a limit on one user's devices."""

    def shares(self, problem: ShareProblem) -> Matrix:
        """(n, k): devices by user and type."""
        floor = problem.efficiency(equal_split(problem))
        return common_level(problem.speedups, problem.devices, floor, np.full(problem.users, np.inf))[0]


def common_level(w: Matrix, m: Vector, unit: Vector, caps: Vector) -> tuple[Matrix, float]:
    """(x, level): the largest level with w.x >= level x unit for all users, and at most caps[l] devices for user l.

    Users with a unit of 0 get nothing.
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
