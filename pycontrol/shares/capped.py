"""Shares within demand: devices that a user cannot use go to the others."""

from __future__ import annotations

import numpy as np

from pycontrol.shares.problem import Matrix, Scheme, ShareProblem, Vector

SLACK = 1e-9


def within_demand(scheme: Scheme, problem: ShareProblem) -> Matrix:
    """(n, k): the scheme's shares, with no user above its demand.

    A user with more devices than its demand keeps its fastest ones, up to its demand. The other users share the rest by
    the same scheme, and so on until no further user exceeds its demand. The scheme's promises hold among the users that
    were not cut.
    """
    x: Matrix = np.zeros(problem.speedups.shape)
    open_ = problem.demands > SLACK
    left: Vector = problem.devices.astype(np.float64)
    while open_.any() and left.sum() > SLACK:
        found = scheme.shares(_among(problem, open_, left))
        x[open_] = found
        over = np.zeros(problem.users, dtype=bool)
        over[open_] = found.sum(axis=1) > problem.demands[open_] * (1 + SLACK) + SLACK
        if not over.any():
            break
        for user in np.flatnonzero(over):
            x[user] = _fastest(x[user], problem.speedups[user], float(problem.demands[user]))
            left = np.maximum(left - x[user], 0.0)
        left[left <= SLACK * problem.devices] = 0.0  # what rounding leaves is no device to share
        open_ &= ~over
        x[open_] = 0.0
    return x


def _among(problem: ShareProblem, open_: np.ndarray, left: Vector) -> ShareProblem:
    todo = None if problem.left is None else problem.left[open_]
    since_s = None if problem.since_s is None else problem.since_s[open_]
    return ShareProblem(problem.speedups[open_], left, problem.weights[open_], problem.demands[open_], todo, since_s)


def _fastest(share: Vector, speedups: Vector, demand: float) -> Vector:
    """`demand` devices of a share, those of the fastest types."""
    kept = np.zeros_like(share)
    for j in np.argsort(-speedups, kind="stable"):
        kept[j] = min(float(share[j]), demand)
        demand -= kept[j]
    return kept
