"""Themis: finish-time fairness by partial-allocation auctions (NSDI '20, Pseudocode 1).

The offer goes to the worst 1-f of the apps that could use it; they bid; each winner keeps the fraction c of
what it won; the rest goes to apps outside the auction at random, gang by gang.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pycontrol.auction.partial import Outcome, auction, leftovers, take
from pycontrol.model.auction import Award, Bid, BidReceipt, Offer, Plan, Snapshot, gang_gpus


@dataclass(frozen=True)
class Themis:
    """`budget_s`: seconds for each winner determination before the best found stands, with its gap."""

    budget_s: float = 2.0
    name: str = "themis"

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """The max(1, ceil((1-f) n)) apps with the worst rho among the n that could use the offer."""
        able = [v for v in snapshot.apps if v.unmet_gpus > 0 and v.rho is not None]
        if not able:
            return None
        able.sort(key=lambda v: (-(v.rho or 0.0), v.submitted_s, v.app_id))
        n = max(1, math.ceil((1 - snapshot.f) * len(able) - 1e-9))
        return Offer(tuple(v.app_id for v in able[:n]))

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """Auction among the bidders, then leftovers to the apps outside it."""
        started_s = time.perf_counter()
        seed = rng.randrange(1 << 30)
        rng = random.Random(seed)
        ordered = [bids[a] for a in sorted(bids)]
        outcome = auction(ordered, snapshot.free, snapshot.topology, rng, self.budget_s)
        free = dict(snapshot.free)
        for gangs in outcome.kept.values():
            take(free, gangs)
        left = {h: n for h, n in free.items() if n}
        outsiders = [v for v in snapshot.apps if v.app_id not in bids]
        awards = [Award(a, gangs) for a, gangs in outcome.kept.items() if gangs]
        awards += leftovers(free, outsiders, snapshot.topology, rng)
        return Plan(
            round_id=snapshot.round_id,
            awards=tuple(awards),
            bids=tuple(_receipt(b, outcome) for b in ordered),
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
    assert sum(won.values()) == sum(gang_gpus(g) for g in win.gangs)
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
