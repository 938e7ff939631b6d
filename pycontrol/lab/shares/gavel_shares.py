"""Gavel's policies (Narayanan et al., OSDI '20) as linear programs over time shares.

Rows are jobs of one GPU, or users with many jobs. A row's shares sum to at most its demand, a type's to at most its
devices. Gavel compares throughput with that of the equal split scaled so that a row sums to 1, which changes the unit
of its max-min objective but not the shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import csr_array, hstack, vstack

from pycontrol.lab.shares.simple import capacity_rows, common_level, efficiency_rows, optimum, sum_rows
from pycontrol.shares.problem import Matrix, ShareError, ShareProblem, Vector

Objective = Literal["max_min", "water_filling", "max_sum", "finish_time", "min_duration"]
CLOSE = 1e-9


@dataclass(frozen=True)
class GavelShares:
    """Gavel's shares for one objective.

    `max_min` maximizes the smallest ratio of throughput to the equal split's, per weight; `water_filling` then the next
    smallest, and so on. `max_sum` maximizes total throughput. `finish_time` minimizes the largest ratio of the finish
    time to that with 1/n of the cluster. `min_duration` minimizes the last finish time. The last two ignore weights.

    If the equal split exceeds a demand, sharing incentive refers to the part of the split that the demand allows.
    """

    objective: Objective = "max_min"

    def shares(self, problem: ShareProblem) -> Matrix:
        """(n, k): devices by user and type."""
        if self.objective == "max_sum":
            return max_sum(problem)
        if self.objective in ("finish_time", "min_duration"):
            return _by_finish(problem, self.objective)
        unit = problem.weights * problem.efficiency(proportional(problem))
        if self.objective == "max_min":
            return common_level(problem.speedups, problem.devices, unit, problem.demands)[0]
        return water_filling(problem, unit)[0]


def isolated(problem: ShareProblem) -> Matrix:
    """(n, k): the cluster divided by the number of rows, scaled down to the rows' demands."""
    split = np.tile(problem.devices / problem.users, (problem.users, 1))
    return np.asarray(split * np.minimum(1.0, problem.demands / np.maximum(split.sum(axis=1), 1e-300))[:, None])


def proportional(problem: ShareProblem) -> Matrix:
    """(n, k): one device per row in the cluster's mix of types."""
    return np.tile(problem.devices / max(float(problem.devices.sum()), 1e-300), (problem.users, 1))


def max_sum(problem: ShareProblem) -> Matrix:
    """(n, k): the shares with the largest total throughput."""
    n, k = problem.speedups.shape
    rows = vstack([capacity_rows(n, k), sum_rows(n, k)])
    x, _ = optimum(problem.speedups.ravel(), csr_array(rows), np.concatenate([problem.devices, problem.demands]))
    return x.reshape(n, k)


def min_total_duration(problem: ShareProblem, steps_remaining: Vector) -> tuple[Matrix, float]:
    """(shares that end the last row soonest if they are kept, its end in seconds); exact, where Gavel stops at 5 %."""
    x, rate = common_level(problem.speedups, problem.devices, steps_remaining, problem.demands)
    return x, 1.0 / rate if rate > 0 else float("inf")


def finish_time_fairness(problem: ShareProblem, since_start_s: Vector, steps_remaining: Vector) -> tuple[Matrix, float]:
    """(shares, rho): minimizes the maximum over rows of (time since start + steps / throughput) /
    (steps / isolated throughput).

    By bisection on rho: each rho requires a throughput of each row, and one linear program tells if all can have it.
    Raises ShareError if a row can use no type.
    """
    w, m, demands = problem.speedups, problem.devices, problem.demands
    alone_s = steps_remaining / np.maximum(problem.efficiency(isolated(problem)), 1e-300)

    def at(rho: float) -> tuple[Matrix, float]:
        return common_level(w, m, steps_remaining / (rho * alone_s - since_start_s), demands)

    low = float((since_start_s / alone_s).max())  # a lower bound: even infinite speed is no better
    high = 2 * low + 1.0
    while at(high)[1] < 1.0:
        low, high = high, 2 * high
        if high > 1e12:
            raise ShareError("steps_remaining: somebody can use no type")
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if at(middle)[1] >= 1.0 else (middle, high)
    return at(high)[0], high


def _by_finish(problem: ShareProblem, objective: Objective) -> Matrix:
    """(n, k): the shares by finish times; rows that cannot run get nothing."""
    fits = ((problem.speedups * (problem.devices > 0)).sum(axis=1) > 0) & (problem.demands > 0)
    x = np.zeros(problem.speedups.shape)
    if not fits.any():
        return x
    left = np.ones(problem.users) if problem.left is None else problem.left
    since_s = np.zeros(problem.users) if problem.since_s is None else problem.since_s
    some = ShareProblem(problem.speedups[fits], problem.devices, problem.weights[fits], problem.demands[fits])
    if objective == "finish_time":
        x[fits] = finish_time_fairness(some, since_s[fits], left[fits])[0]
    else:
        x[fits] = min_total_duration(some, left[fits])[0]
    return x


def water_filling(problem: ShareProblem, unit: Vector) -> tuple[Matrix, Vector]:
    """(shares, ratios): the lexicographic max-min of w.x / unit.

    A row with a positive price in a level's linear program has exactly that level in every optimum, and is fixed there.
    """
    w, (n, k) = problem.speedups, problem.speedups.shape
    levels, open_ = np.zeros(n), unit > 0
    x = np.zeros((n, k))
    rows = csr_array(vstack([capacity_rows(n, k), sum_rows(n, k), -efficiency_rows(w)]))
    objective = np.zeros(n * k + 1)
    objective[-1] = 1.0
    while open_.any():
        scale = 2.0 ** (20 * round(np.log2(unit[open_].max()) / 20))  # the solver takes small coefficients for 0
        scaled = np.where(open_, unit / scale, 0.0)
        column = csr_array(np.concatenate([np.zeros(k + n), scaled])[:, None])
        fixed = -levels * unit * (1 - 1e-12) * ~open_
        bound = np.concatenate([problem.devices, problem.demands, fixed])
        found, prices = optimum(objective, csr_array(hstack([rows, column])), bound)
        x = found[:-1].reshape(n, k)
        paid = prices[k + n :] * scaled
        stuck = open_ & (paid >= min(1e-9, paid[open_].max()))
        levels[stuck] = found[-1] / scale
        open_ &= ~stuck
    return x, levels
