"""Themis: finish-time fairness by partial-allocation auctions (NSDI '20, Pseudocode 1).

The offer goes to the worst 1-f of the apps that could use it; they bid; each winner keeps the fraction c of
what it won; the rest goes to apps outside the auction at random, gang by gang.

What the paper leaves open: the rho of an app with nothing is the projected one (its Agent's `rho_nothing`);
payments are rounded to whole gangs without bias; an app whose rho is not known is not asked, for else silence
would pay, but leftovers may reach it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pycontrol.auction.limits import queue_limits, room_gpus, within
from pycontrol.auction.market import Market
from pycontrol.auction.partial import Outcome, auction, leftovers
from pycontrol.auction.placing import take
from pycontrol.model.auction import Award, Bid, BidReceipt, Offer, Plan, Snapshot


@dataclass(frozen=True)
class Themis:
    """`budget_s`: seconds for all solves of a round; what is not proved by then stands, with its gap."""

    budget_s: float = 2.0
    name: str = "themis"
    asks_agents: bool = True

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """The max(1, ceil((1-f) n)) apps with the worst rho among the n that could use the offer.

        Equal rho: who came first.
        """
        room = room_gpus(snapshot, queue_limits(snapshot))
        able = [(v.rho, v) for v in snapshot.apps if room[v.app_id] > 0 and v.rho is not None]
        if not able or not any(snapshot.free.values()):
            return None
        able.sort(key=lambda item: (-item[0], item[1].submitted_s, item[1].app_id))
        n = max(1, math.ceil((1 - snapshot.f) * len(able) - 1e-9))
        return Offer(tuple(v.app_id for _, v in able[:n]))

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """Auction among the bidders, then leftovers to the apps outside it."""
        started_s = time.perf_counter()
        seed = rng.randrange(1 << 30)
        rng = random.Random(seed)
        limits = queue_limits(snapshot)
        room = room_gpus(snapshot, limits)
        ordered = [within(bids[a], room.get(a, 0)) for a in sorted(bids)]
        market = Market(snapshot.free, snapshot.topology, limits, {v.app_id: v.ending_gangs for v in snapshot.apps})
        outcome = auction(ordered, market, rng, self.budget_s)
        free = dict(snapshot.free)
        for gangs in outcome.kept.values():
            take(free, gangs)
        left = {h: n for h, n in free.items() if n}
        outsiders = [v for v in snapshot.apps if v.app_id not in bids]
        awards = [Award(a, gangs) for a, gangs in outcome.kept.items() if gangs]
        awards += leftovers(free, outsiders, market, outcome.kept, rng)
        return Plan(
            round_id=snapshot.round_id,
            awards=tuple(awards),
            bids=tuple(_receipt(bids[b.app_id], outcome) for b in ordered),
            leftover_gpus=left,
            unused_gpus={h: n for h, n in free.items() if n},
            objective_log=outcome.objective_log,
            proved_optimal=outcome.proved_optimal,
            gap=outcome.gap,
            solve_s=time.perf_counter() - started_s,
            seed=seed,
        )


def _receipt(bid: Bid, outcome: Outcome) -> BidReceipt:
    win = outcome.wins[bid.app_id]
    won: dict[str, int] = {}
    for gang in win.gangs:
        for host, n in gang:
            won[host] = won.get(host, 0) + n
    return BidReceipt(
        app_id=bid.app_id,
        rho_nothing=bid.rho_nothing,
        rows=len(bid.rows),
        won=won,
        rho_won=win.rho if win.row is not None else None,
        c=outcome.c[bid.app_id],
        kept_gangs=len(outcome.kept[bid.app_id]),
        paid_gangs=len(outcome.paid[bid.app_id]),
    )
