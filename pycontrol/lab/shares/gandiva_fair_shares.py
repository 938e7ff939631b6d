"""Gandiva_fair: the equal split, then trades of slow for fast devices (as OEF 2.3 describes it).

In each trade, the two users with the largest difference in speedup between two types trade: the one that gains most
from the fast type buys it with all its slow devices, or as many as the seller has fast ones for. The price, in slow
devices for a fast one, is the second-highest speedup among possible buyers; if that is the seller's, the seller would
gain nothing, so the price is the mean of the buyer's and the seller's speedups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pycontrol.lab.shares.simple import equal_split
from pycontrol.shares.problem import Matrix, ShareError, ShareProblem

NOTHING = 1e-12
"""A fraction of a type's devices up to this counts as none."""


@dataclass(frozen=True)
class Trade:
    """`buyer` gave `sold` devices of type `slow` for `sold / price` devices of type `fast`."""

    buyer: int
    seller: int
    slow: int
    fast: int
    price: float
    sold: float


@dataclass(frozen=True)
class GandivaFairShares:
    """The equal split with trades. No user loses by a trade, so it is sharing-incentive; with two types it is also
    Pareto-efficient."""

    def shares(self, problem: ShareProblem) -> Matrix:
        """(n, k): devices by user and type."""
        return self.trades(problem)[0]

    def trades(self, problem: ShareProblem) -> tuple[Matrix, list[Trade]]:
        """The shares, and the trades in order; raises ShareError if trading does not end."""
        x, done = equal_split(problem), list[Trade]()
        least = NOTHING * np.maximum(problem.devices, 1.0)
        most = 50 * problem.users * problem.types**2
        while (trade := _widest(problem, x, least)) is not None:
            if len(done) == most:
                raise ShareError(f"no end of trading after {most} trades")
            bought = trade.sold / trade.price
            x[trade.buyer, trade.slow] -= trade.sold
            x[trade.seller, trade.slow] += trade.sold
            x[trade.buyer, trade.fast] += bought
            x[trade.seller, trade.fast] -= bought
            x[x < least] = 0.0
            done.append(trade)
        return x, done


def _widest(problem: ShareProblem, x: Matrix, least: Matrix) -> Trade | None:
    """The trade between the two users with the largest difference in speedup, the first of equals; None if none."""
    w = problem.speedups
    best: tuple[float, Trade] | None = None
    for slow in range(problem.types):
        for fast in range(slow + 1, problem.types):
            ratio = np.divide(w[:, fast], w[:, slow], out=np.full(problem.users, np.inf), where=w[:, slow] > 0)
            wants = (w[:, fast] > 0) | (w[:, slow] > 0)
            buys, sells = wants & (x[:, slow] > least[slow]), wants & (x[:, fast] > least[fast])
            if not buys.any() or not sells.any():
                continue
            buyer = int(np.argmax(np.where(buys, ratio, -1.0)))
            selling = np.where(sells, ratio, np.inf)
            seller = int(np.argmin(selling))
            high, low = float(ratio[buyer]), float(selling[seller])  # inf if no seller can use the slow type
            gap = high - low
            if buyer == seller or not gap > 1e-9 * max(1.0, low) or (best is not None and gap <= best[0]):
                continue
            others = np.delete(np.where(buys, ratio, low), buyer)
            price = _price(high, float(others.max()), low)
            sold = min(float(x[buyer, slow]), float(x[seller, fast]) * price)
            best = gap, Trade(buyer, seller, slow, fast, price, sold)
    return None if best is None else best[1]


def _price(buyer: float, second: float, seller: float) -> float:
    """A price between the seller's speedup and the buyer's.

    If the buyer cannot use the slow type: twice the seller's speedup, or 1 if that is 0.
    """
    if second > seller * (1 + 1e-12) and math.isfinite(second):
        return second
    return (buyer + seller) / 2 if math.isfinite(buyer) else 2 * seller if seller > 0 else 1.0
