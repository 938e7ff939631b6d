"""OEF for users who may lie: the largest common efficiency per weight (OEF, section 4.2.1, equation 9).

max c with w_l.x_l = c pi_l for all l and sum_l x_l <= m. By duality, with prices p >= 0, p.m = 1:
c = 1 / max_p g(p), g(p) = sum_l pi_l min_j p_j / w_lj, which is concave in k variables; cutting planes find p.
Almost every user has one cheapest type at p and takes only that; the few with ties share what is left by a linear
program over the ties. Its result is feasible and 1 / g(p) bounds c from above, so the gap is known; the search ends at
a relative gap of 1e-10. If rows are ratio-ordered, the shares form a staircase, which gives c directly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pycontrol.shares.cooperative import ratio_ordered
from pycontrol.shares.problem import Matrix, Merged, ShareError, ShareProblem, Vector
from pycontrol.shares.rows import INFINITY, IncrementalLp

GAP = 1e-10
MOST_CUTS = 2000
STEP = 0.3
"""Step from the best prices towards the cuts' optimum for the next cut; it halves the number of cuts of full steps."""
TRY_AT = 1e-5
"""Below this gap the ties are likely to be those of the optimum."""


@dataclass(frozen=True)
class OefNoncooperative:
    """All users have the same efficiency per weight, so overstating speedups does not pay. Not sharing-incentive: some
    users get less than with max-min.

    The paper claims full strategy-proofness (Theorem 5.4), but proves it only for overstated speedups; a user can gain
    by understating. A user that can use no type gets nothing.
    """

    def shares(self, problem: ShareProblem) -> Matrix:
        """(n, k): devices by user and type."""
        merged = Merged.of(problem)
        w, m = merged.problem.speedups, merged.problem.devices
        there = (m > 0) & (w > 0).any(axis=0)
        served = (w[:, there] > 0).any(axis=1)
        x = np.zeros_like(w)
        if served.any():
            small, pi = w[np.ix_(served, there)], merged.problem.weights[served]
            x[np.ix_(served, there)] = common_efficiency(small, m[there], pi)
        return _in_turn(problem, merged, x)


def common_efficiency(w: Matrix, m: Vector, pi: Vector) -> Matrix:
    """The shares x, for positive m and users that can each use a type."""
    order = np.argsort(np.divide(w[:, -1], w[:, 0], out=np.full(len(w), np.inf), where=w[:, 0] > 0), kind="stable")
    if ratio_ordered(w[order]):
        x = np.empty_like(w)
        x[order] = _staircase(w[order], m, pi[order])
        return x
    return by_prices(w, m, pi)


def _staircase(w: Matrix, m: Vector, pi: Vector) -> Matrix:
    """The shares for ratio-ordered users: in order, they take types in order until each has c pi.

    Newton's method finds c: the end of the walk is piecewise affine in c, so c is exact once the walk stays the same.
    """
    n, k = w.shape
    rows, devices, weights = w.tolist(), m.tolist(), pi.tolist()
    c = float((w.max(axis=0) * m).sum() / pi.sum())  # an upper bound
    while True:
        # At c: the walk's position as (constant, slope) in c, until users or devices end.
        j, left, left_slope = 0, devices[0], 0.0
        short = 0.0
        for row, weight in zip(rows, weights, strict=True):
            need, need_slope = 0.0, weight
            while j < k - 1 and need + need_slope * c > (left + left_slope * c) * row[j]:
                need, need_slope = need - left * row[j], need_slope - left_slope * row[j]
                j += 1
                left, left_slope = devices[j], 0.0
            left, left_slope = left - need / row[j], left_slope - need_slope / row[j]
            short = left + left_slope * c
        better = -left / left_slope
        if not better < c * (1 - 1e-14) or short >= 0:
            break
        c = better
    x = np.zeros((n, k))
    j, here = 0, devices[0]
    for i, (row, weight) in enumerate(zip(rows, weights, strict=True)):
        need = weight * c
        while j < k - 1 and need > here * row[j]:
            x[i, j] = here
            need -= here * row[j]
            j, here = j + 1, devices[j + 1]
        x[i, j] = need / row[j]
        here -= x[i, j]
    return x


def by_prices(w: Matrix, m: Vector, pi: Vector) -> Matrix:
    """The shares by cutting planes.

    The cuts are z <= sum_l pi_l p_s(l) / w_ls(l) with the cheapest types s at each price tried.
    Raises ShareError if the gap does not close within MOST_CUTS cuts.
    """
    n, k = w.shape
    cost = np.divide(1.0, w, out=np.full_like(w, np.inf), where=w > 0)

    def charged(price: Vector) -> Matrix:
        return np.multiply(price, cost, out=np.full_like(w, np.inf), where=w > 0)  # also where the price is 0

    everyone = np.arange(n)
    lp = IncrementalLp(np.concatenate([np.zeros(k), [1.0]]))
    lp.add(np.arange(k)[None], np.ones((1, k)), 1.0, 1.0)  # columns: p m, which have similar magnitudes
    price, best, best_price = np.full(k, 1.0 / k) / m, 0.0, np.zeros(k)
    for cut in range(MOST_CUTS):
        charge = charged(price)
        cheapest = charge.argmin(axis=1)
        value = float(pi @ charge[everyone, cheapest])
        if value > best:
            best, best_price = value, price
        slope = np.bincount(cheapest, pi * cost[everyone, cheapest], minlength=k) / m
        lp.add(np.arange(k + 1)[None], np.concatenate([-slope, [1.0]])[None], -INFINITY, 0.0)
        found = lp.solve()
        gap = (float(found[k]) - best) / float(found[k])
        if gap < TRY_AT and cut % 4 == 0:
            x, c, exact = _from_ties(w, m, pi, charged(best_price), 1e3 * gap + 1e-9)
            bound = 1 / max(best, float(pi @ charged(exact).min(axis=1)))
            if c >= bound * (1 - GAP):
                return x
        step = STEP if gap > 1e-9 else 1.0
        price = best_price + step * (np.maximum(found[:k], 0.0) / m - best_price)
    raise ShareError(f"no proved optimum after {MOST_CUTS} cuts")


def _from_ties(w: Matrix, m: Vector, pi: Vector, charge: Matrix, slack: float) -> tuple[Matrix, float, Vector]:
    """(x, c, prices): the best x on types within `slack` of the cheapest, its c, and its dual prices."""
    close = charge <= charge.min(axis=1, keepdims=True) * (1 + slack)
    single = close.sum(axis=1) == 1
    who, what = np.nonzero(close & ~single[:, None])
    sure, its = np.nonzero(close & single[:, None])
    load = np.bincount(its, pi[sure] / w[sure, its], minlength=len(m))
    shared, row = np.unique(who, return_inverse=True)
    ties, types, users = np.arange(len(who)), np.arange(len(m)), np.arange(len(shared))
    lp = IncrementalLp(np.append(np.zeros(len(who)), 1.0))  # columns: the ties, then c
    for j in types:
        mine = ties[what == j]
        lp.add(np.append(mine, len(ties))[None], np.append(np.ones(len(mine)), load[j])[None], -INFINITY, m[j])
    for i in users:
        mine = ties[row == i]
        lp.add(np.append(mine, len(ties))[None], np.append(w[who[mine], what[mine]], -pi[shared[i]])[None], 0.0, 0.0)
    found = lp.solve()
    c = float(found[-1])
    x = np.zeros_like(w)
    x[who, what] = np.maximum(found[:-1], 0.0)
    x[sure, its] = c * pi[sure] / w[sure, its]
    price = np.maximum(lp.prices()[: len(m)], 0.0)
    return x, c, price / max(float(price @ m), 1e-300)


def _in_turn(problem: ShareProblem, merged: Merged, x: Matrix) -> Matrix:
    """Divides a merged row's types among its members one after another: they get equal efficiency per weight, and at
    most n + k - 1 shares are not 0."""
    result = merged.proportional(x, problem.weights)
    counts = np.bincount(merged.member)
    for group in np.flatnonzero((counts > 1) & ((x > 0).sum(axis=1) > 1)):
        members: npt.NDArray[np.intp] = np.flatnonzero(merged.member == group)
        types = np.flatnonzero(x[group] > 0)
        worth = merged.problem.speedups[group, types]
        ends = np.concatenate([[0.0], np.cumsum(x[group, types] * worth)])
        parts = np.concatenate([[0.0], np.cumsum(problem.weights[members])]) / merged.problem.weights[group] * ends[-1]
        low, high = np.maximum(parts[:-1, None], ends[:-1]), np.minimum(parts[1:, None], ends[1:])
        result[np.ix_(members, types)] = np.where(high - low > 1e-12 * ends[-1], high - low, 0.0) / worth
    return result
