"""The paper's linear programs in PuLP, as the oracle of the tests; too slow for production."""

from __future__ import annotations

import numpy as np
import pulp

from pycontrol.shares.problem import Matrix, ShareError, ShareProblem


def noncooperative(problem: ShareProblem) -> Matrix:
    """Equation 9: the most efficient shares with the same efficiency per weight for all."""
    lp, x, own = _model(problem)
    for user in range(1, problem.users):
        lp += own[user] * (1 / problem.weights[user]) == own[0] * (1 / problem.weights[0])
    return _solved(lp, x)


def cooperative(problem: ShareProblem) -> Matrix:
    """Equation 10: the most efficient shares without envy, per weight."""
    lp, x, own = _model(problem)
    for user in range(problem.users):
        for i in range(problem.users):
            if i != user:
                other = pulp.lpSum(float(w) * v for w, v in zip(problem.speedups[user], x[i], strict=True))
                lp += own[user] * (1 / problem.weights[user]) >= other * (1 / problem.weights[i])
    return _solved(lp, x)


def pareto_gain(problem: ShareProblem, x: Matrix) -> float:
    """The largest possible increase of total efficiency with no user below its efficiency in x; 0 if x is
    Pareto-efficient."""
    lp, x_new, own = _model(problem)
    before = problem.efficiency(x)
    for user in range(problem.users):
        lp += own[user] >= float(before[user]) * (1 - 1e-9)
    found = _solved(lp, x_new)
    return float(problem.efficiency(found).sum() - before.sum())


def _model(problem: ShareProblem) -> tuple[pulp.LpProblem, list[list[pulp.LpVariable]], list[pulp.LpAffineExpression]]:
    """The linear program max sum of w.x within the devices, its variables, and each user's efficiency."""
    n, k = problem.speedups.shape
    lp = pulp.LpProblem("shares", pulp.LpMaximize)
    x = [[pulp.LpVariable(f"x_{i}_{j}", 0) for j in range(k)] for i in range(n)]
    own = [pulp.lpSum(float(problem.speedups[i, j]) * x[i][j] for j in range(k)) for i in range(n)]
    lp += pulp.lpSum(own)
    for j in range(k):
        lp += pulp.lpSum(x[i][j] for i in range(n)) <= float(problem.devices[j])
    return lp, x, own


def _solved(lp: pulp.LpProblem, x: list[list[pulp.LpVariable]]) -> Matrix:
    if lp.solve(pulp.PULP_CBC_CMD(msg=False)) != pulp.LpStatusOptimal:
        raise ShareError(f"the linear programme has no optimum: {pulp.LpStatus[lp.status]}")
    return np.array([[v.value() or 0.0 for v in row] for row in x])
