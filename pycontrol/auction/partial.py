"""Partial allocation: hidden payments, unbiased rounding, leftovers (Themis, Pseudocode 1; Cole et al., EC'13)."""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pycontrol.auction.market import Limit, Market, Solved, Win, Winners
from pycontrol.auction.placing import place_gang, take
from pycontrol.auction.winners import solve, winners
from pycontrol.model.auction import AppView, Award, Bid, Gang, gang_gpus
from pycontrol.model.topology import Topology


class Rounding(enum.Enum):
    """How the fraction c of k gangs becomes whole gangs."""

    UNBIASED = "unbiased"
    """floor(c k), and one more with probability frac(c k): c k on average."""
    FLOOR = "floor"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole auction: what each bidder won (`wins`), its c, and the gangs that it keeps and pays."""

    wins: Mapping[str, Win]
    c: Mapping[str, float]
    kept: Mapping[str, tuple[Gang, ...]]
    paid: Mapping[str, tuple[Gang, ...]]
    objective_log: float
    proved_optimal: bool
    gap: float


def auction(
    bids: Sequence[Bid],
    market: Market,
    rng: random.Random,
    budget_s: float = 2.0,
    engine: str = "",
    rounding: Rounding = Rounding.UNBIASED,
) -> Outcome:
    """Proportionally fair winners, then each keeps the fraction c of what it won, rounded to whole gangs.

    `budget_s` is for all solves together (each gets a little at least); what is not proved says its gap.
    """
    seed = rng.randrange(1 << 30)
    found = solve(bids, market, seed, budget_s, True, engine)
    best = winners(found, bids, market)
    c, kept, paid = {}, {}, {}
    for bid in bids:
        win = best.wins[bid.app_id]
        c[bid.app_id] = share(bid, best, found)
        kept[bid.app_id], paid[bid.app_id] = _pay(
            win, c[bid.app_id], market.homes.get(bid.app_id, ()), market.topology, rng, rounding
        )
    return Outcome(best.wins, c, kept, paid, best.objective_log, found.worst_gap == 0.0, found.worst_gap)


def share(bid: Bid, best: Winners, found: Solved) -> float:
    """c_i = prod_{j != i} 1/rho_j(G_pf) / prod_{j != i} 1/rho_j(G_pf without i).

    Who wins nothing takes nothing from the others: c = 1 without a solve.
    """
    without = found.without.get(bid.app_id)
    if without is None:
        return 1.0
    with_it = best.objective_log + math.log(best.wins[bid.app_id].rho)
    return math.exp(min(0.0, with_it - without.objective_log))


def _pay(
    win: Win, c: float, homes: Sequence[Gang], topology: Topology, rng: random.Random, rounding: Rounding
) -> tuple[tuple[Gang, ...], tuple[Gang, ...]]:
    """Rounding in gangs: of k gangs keep floor(c k), and if unbiased one more with probability frac(c k).

    New gangs are paid before those that it runs on (which would stop), and wide ones before compact ones.
    """
    if win.row is None:
        return (), ()
    k = len(win.gangs)
    whole = math.floor(c * k + 1e-9)
    more = rounding is Rounding.UNBIASED and rng.random() < c * k - whole
    n = min(k, whole + more)
    stays = [*win.row.keep, *homes]

    def cost(i: int) -> tuple[bool, int, int, int]:
        hosts = [h for h, _ in win.gangs[i]]
        return win.gangs[i] not in stays, topology.scope_of(hosts), len(hosts), i

    order = sorted(range(k), key=cost)
    return tuple(win.gangs[i] for i in order[:n]), tuple(win.gangs[i] for i in order[n:])


def leftovers(
    free: dict[str, int],
    outsiders: Sequence[AppView],
    market: Market,
    kept: Mapping[str, Sequence[Gang]],
    rng: random.Random,
) -> list[Award]:
    """Gives free GPUs to apps outside the auction at random, gang by gang; changes `free`.

    An app that gets a gang keeps one of its own ending gangs in place first, if it is still free. Nobody
    gets more than it can use, nor more than its limit leaves after what the auction gave (`kept`).
    """
    views = sorted(outsiders, key=lambda v: v.app_id)
    got: dict[str, list[Gang]] = {}
    own = {v.app_id: list(v.ending_gangs) for v in views}
    room = _Room(views, market.limits, kept)
    open_ = [v for v in views if room.of(v.app_id) > 0]
    while open_:
        view = rng.choice(open_)
        left = room.of(view.app_id)
        gang = next((g for g in own[view.app_id] if _fits(g, left, free)), None)
        if gang is not None:
            own[view.app_id].remove(gang)
        elif 0 < view.demand.gang_gpus <= left:
            gang = place_gang(view.demand.gang_gpus, view.demand.scope, free, market.topology)
        if gang is None:  # and never will: free GPUs and room only shrink
            open_.remove(view)
            continue
        take(free, [gang])
        room.use(view.app_id, gang_gpus(gang))
        got.setdefault(view.app_id, []).append(gang)
    return [Award(app_id, tuple(gangs), leftover=True) for app_id, gangs in got.items()]


def _fits(gang: Gang, room_gpus: int, free: Mapping[str, int]) -> bool:
    return gang_gpus(gang) <= room_gpus and all(free.get(h, 0) >= n for h, n in gang)


class _Room:
    """GPUs that each app may still get: its own demand, and the limits that it shares."""

    def __init__(self, views: Sequence[AppView], limits: Sequence[Limit], kept: Mapping[str, Sequence[Gang]]) -> None:
        self.app = {v.app_id: v.demand.gpus - v.kept_gpus for v in views}
        self.limits = limits
        self.left = [x.gpus - sum(gang_gpus(g) for a in x.app_ids for g in kept.get(a, ())) for x in limits]

    def of(self, app_id: str) -> int:
        shared = [n for x, n in zip(self.limits, self.left, strict=True) if app_id in x.app_ids]
        return max(0, min([self.app[app_id], *shared]))

    def use(self, app_id: str, gpus: int) -> None:
        self.app[app_id] -= gpus
        self.left = [n - gpus * (app_id in x.app_ids) for x, n in zip(self.limits, self.left, strict=True)]
