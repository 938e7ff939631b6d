"""Partial allocation: hidden payments and their rounding (Themis, Pseudocode 1; Cole et al., EC'13)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from pycontrol.auction import reference
from pycontrol.auction.instance import Instance, Win, Without
from pycontrol.auction.winners import solve, winners
from pycontrol.model.auction import Bid, Gang
from pycontrol.model.topology import Scope, Topology
from pycontrol.model.value import value


@value
class AuctionOutcome:
    """The outcome of an auction: each bidder's win, its c, and the gangs that it keeps and pays."""

    wins: Mapping[str, Win]
    c: Mapping[str, float]
    kept: Mapping[str, tuple[Gang, ...]]
    paid: Mapping[str, tuple[Gang, ...]]
    objective_log: float
    proved_optimal: bool
    gap: float


def auction(
    bids: Sequence[Bid],
    instance: Instance,
    rng: random.Random,
    budget_s: float = 2.0,
    engine: str = "",
) -> AuctionOutcome:
    """Determines proportionally fair winners; each keeps the fraction c of its win, rounded to whole gangs.

    The fraction c of k gangs is floor(c k), and one more with probability frac(c k), so that the mean is c k.

    `budget_s` is for all solves together, with a small minimum for each; the outcome's gap is 0 if all were proved.
    """
    seed = rng.randrange(1 << 30)
    found = solve(bids, instance, seed, budget_s, True, engine)
    wins, objective_log = winners(found, bids, instance), reference.objective_log(bids, found.rows)
    c, kept, paid = {}, {}, {}
    for bid in bids:
        win = wins[bid.app_id]
        c[bid.app_id] = share(win, objective_log, found.without.get(bid.app_id))
        kept[bid.app_id], paid[bid.app_id] = _pay(
            win, c[bid.app_id], instance.homes.get(bid.app_id, ()), instance.topology, rng
        )
    return AuctionOutcome(wins, c, kept, paid, objective_log, found.worst_gap == 0.0, found.worst_gap)


def share(win: Win, objective_log: float, without: Without | None) -> float:
    """c_i = prod_{j != i} 1/rho_j(G_pf) / prod_{j != i} 1/rho_j(G_pf without i).

    A bidder that wins nothing takes nothing from the others, so its c is 1 without a solve.
    """
    return 1.0 if without is None else math.exp(min(0.0, objective_log + math.log(win.rho) - without.objective_log))


def _pay(
    win: Win, c: float, homes: Sequence[Gang], topology: Topology, rng: random.Random
) -> tuple[tuple[Gang, ...], tuple[Gang, ...]]:
    """(gangs kept, gangs paid): the fraction c of the win rounded to whole gangs.

    New gangs are paid before those that the app runs on, which would stop, and wide gangs before narrow ones.
    """
    if win.row is None:
        return (), ()
    k = len(win.gangs)
    whole = math.floor(c * k + 1e-9)
    more = rng.random() < c * k - whole
    n = min(k, whole + more)
    if n == k:
        return win.gangs, ()
    stays = [*win.row.keep, *homes]

    def cost(i: int) -> tuple[bool, int, int, int]:
        gang = win.gangs[i]
        scope = topology.scope_of(h for h, _ in gang) if len(gang) > 1 else Scope.MACHINE
        return gang not in stays, scope, len(gang), i

    order = sorted(range(k), key=cost)
    return tuple(win.gangs[i] for i in order[:n]), tuple(win.gangs[i] for i in order[n:])
