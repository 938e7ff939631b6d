"""Partial allocation: hidden payments, unbiased rounding, leftovers (Themis, Pseudocode 1; Cole et al., EC'13)."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pycontrol.auction.placing import place_gang, take
from pycontrol.auction.winners import Limit, Market, Win, Winners, determine
from pycontrol.model.auction import AppView, Award, Bid, Gang, gang_gpus
from pycontrol.model.topology import Topology

FIRST_SHARE = 0.5
"""Part of the time budget that the winner determination may use; the rest is for the payments."""


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


def auction(bids: Sequence[Bid], market: Market, rng: random.Random, budget_s: float = 2.0) -> Outcome:
    """Proportionally fair winners, then each keeps the fraction c of what it won, rounded to whole gangs.

    `budget_s` is for all solves together (each gets a little at least); what is not proved says its gap.
    """
    end_s = time.monotonic() + budget_s
    seed = rng.randrange(1 << 30)
    best = determine(bids, market, seed, budget_s * FIRST_SHARE)
    c, proved, gap = _payments(bids, market, best, seed, end_s)
    kept, paid = {}, {}
    for bid in bids:
        win = best.wins[bid.app_id]
        kept[bid.app_id], paid[bid.app_id] = _pay(
            win, c[bid.app_id], market.homes.get(bid.app_id, ()), market.topology, rng
        )
    return Outcome(best.wins, c, kept, paid, best.objective_log, best.proved_optimal and proved, max(best.gap, gap))


def _payments(
    bids: Sequence[Bid], market: Market, best: Winners, seed: int, end_s: float
) -> tuple[dict[str, float], bool, float]:
    """c_i = prod_{j != i} 1/rho_j(G_pf) / prod_{j != i} 1/rho_j(G_pf without i), for each bidder.

    Who wins nothing takes nothing from the others: c = 1 without a solve.
    """
    c = {bid.app_id: 1.0 for bid in bids}
    proved, gap = True, 0.0
    winners = [b for b in bids if best.wins[b.app_id].row is not None]
    for k, bid in enumerate(winners):
        others = [b for b in bids if b.app_id != bid.app_id]
        share_s = (end_s - time.monotonic()) / (len(winners) - k)
        without = determine(others, market, seed, share_s, place=False)
        proved, gap = proved and without.proved_optimal, max(gap, without.gap)
        with_it = -sum(math.log(best.wins[b.app_id].rho) for b in others)
        c[bid.app_id] = math.exp(min(0.0, with_it - without.objective_log))
    return c, proved, gap


def _pay(
    win: Win, c: float, homes: Sequence[Gang], topology: Topology, rng: random.Random
) -> tuple[tuple[Gang, ...], tuple[Gang, ...]]:
    """Unbiased rounding in gangs: of k gangs keep floor(c k), and one more with probability frac(c k).

    New gangs are paid before those that it runs on (which would stop), and wide ones before compact ones.
    """
    if win.row is None:
        return (), ()
    k = len(win.gangs)
    whole = math.floor(c * k + 1e-9)
    n = min(k, whole + (rng.random() < c * k - whole))
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
