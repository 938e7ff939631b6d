"""Themis: finish-time fairness by partial-allocation auctions (NSDI '20, Pseudocode 1).

The offer goes to the worst 1 - f of the apps that could use it. They bid, and each winner keeps the fraction c of what
it won; the rest goes to apps outside the auction, gang by gang. An app with unknown rho is not asked, as silence would
pay otherwise, but it may get leftovers.

Choices that the paper leaves open are options; their defaults did best in trials (docs/themis.md).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pycontrol.auction.handout import AtRandom, Caps, leftovers
from pycontrol.auction.instance import Instance
from pycontrol.auction.partial import AuctionOutcome, auction
from pycontrol.auction.placing import FreeIndex
from pycontrol.auction.round_limits import limits_of, room_gpus, within
from pycontrol.auction.winners import engine_name
from pycontrol.model.auction import Award, Bid, BidReceipt, Gang, Offer, Plan, Snapshot, gangs_by_host
from pycontrol.model.grouping import grouped
from pycontrol.policies.classes import in_classes


@dataclass(frozen=True)
class Themis:
    """Themis' partial-allocation auction among the apps with the worst rho."""

    budget_s: float = 2.0
    """Seconds for all solves of a round; after that the best solution found counts, with its gap."""
    engine: Literal["", "compiled", "highs", "reference"] = ""
    """The solver: compiled, highs or reference; empty: the fastest that is available."""
    name: str = "themis"
    asks_agents: bool = True
    one_type: ClassVar[bool] = True
    """True: a gang gets GPUs of one type, unless its app may mix types."""

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """The max(1, ceil((1 - f) n)) apps with the worst rho among the n apps of each priority that could use the
        offer; None if there are none."""
        room = room_gpus(snapshot, limits_of(snapshot))
        able = [(v.rho, v) for v in snapshot.apps if room[v.app_id] > 0 and v.rho is not None]
        if not able or not any(snapshot.free.values()):
            return None
        able.sort(key=lambda item: (-item[0], item[1].submitted_s, item[1].app_id))
        offered: list[str] = []
        for _, app_ids in sorted(grouped((v.priority, v.app_id) for _, v in able).items(), reverse=True):
            offered += app_ids[: max(1, math.ceil((1 - snapshot.f) * len(app_ids) - 1e-9))]
        return Offer(tuple(offered))

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """The plan: an auction among the bidders, then leftovers; for each priority in turn, the highest first."""
        started_s = time.perf_counter()

        def decide(s: Snapshot, theirs: Mapping[str, Bid]) -> Plan:
            left_s = max(0.1, self.budget_s - (time.perf_counter() - started_s))
            return replace(self, budget_s=left_s)._decide(s, theirs, rng)

        return in_classes(decide, snapshot, bids)

    def draws(self, seed: int) -> random.Random:
        """What rounds payments, and orders the apps that get leftovers."""
        return random.Random(seed)

    def left_over(
        self, snapshot: Snapshot, bids: Mapping[str, Bid], free: FreeIndex, kept: Mapping[str, Sequence[Gang]],
        rng: random.Random,
    ) -> list[Award]:  # fmt: skip
        """Gives the free GPUs that the auction leaves to apps outside it, at random; `kept`: what it gave."""
        others = [v for v in snapshot.apps if v.app_id not in bids]
        return leftovers(free, others, Caps(snapshot.apps, kept), kept, lambda takers, _: AtRandom(takers, rng))

    def _decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        started_s = time.perf_counter()
        seed = rng.randrange(1 << 30)
        rng = self.draws(seed)
        limits = limits_of(snapshot)
        room = room_gpus(snapshot, limits)
        ordered = [within(bids[a], room.get(a, 0)) for a in sorted(bids)]
        instance = Instance(snapshot.free, snapshot.topology, limits, {v.app_id: v.ending_gangs for v in snapshot.apps})
        outcome = auction(ordered, instance, rng, self.budget_s, self.engine)
        free = FreeIndex(snapshot.free, snapshot.topology)
        for gang in (g for gangs in outcome.kept.values() for g in gangs):
            free.take(gang)
        left = free.unused
        more = self.left_over(snapshot, bids, free, outcome.kept, rng)
        return Plan(
            round_id=snapshot.round_id,
            awards=_together(outcome, more),
            bids=tuple(_receipt(b, len(bids[b.app_id].rows), outcome) for b in ordered),
            leftover_gpus=left,
            unused_gpus=free.unused,
            objective_log=outcome.objective_log,
            proved_optimal=outcome.proved_optimal,
            gap=outcome.gap,
            solve_s=time.perf_counter() - started_s,
            seed=seed,
            note="" if engine_name(self.engine) == "compiled" else f"solved by the engine {engine_name(self.engine)}",
        )


def _together(outcome: AuctionOutcome, more: Sequence[Award]) -> tuple[Award, ...]:
    """One award per app; it is marked as leftover only if the auction gave the app nothing."""
    extra = {a.app_id: a for a in more}
    awards = [
        Award(a, (*gangs, *(extra.pop(a).gangs if a in extra else ()))) for a, gangs in outcome.kept.items() if gangs
    ]
    return (*awards, *extra.values())


def _receipt(bid: Bid, rows: int, outcome: AuctionOutcome) -> BidReceipt:
    win = outcome.wins[bid.app_id]
    return BidReceipt(
        app_id=bid.app_id,
        rho_nothing=bid.rho_nothing,
        rows=rows,
        won=gangs_by_host(win.gangs),
        rho_won=win.rho if win.row is not None else None,
        c=outcome.c[bid.app_id],
        kept_gangs=len(outcome.kept[bid.app_id]),
        paid_gangs=len(outcome.paid[bid.app_id]),
    )
