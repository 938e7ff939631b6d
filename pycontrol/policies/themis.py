"""Themis: finish-time fairness by partial-allocation auctions (NSDI '20, Pseudocode 1).

The offer goes to the worst 1 - f of the apps that could use it. They bid, and each winner keeps the fraction c of what
it won; the rest goes to apps outside the auction, gang by gang. An app with unknown rho is not asked, as silence would
pay otherwise, but it may get leftovers.

Choices that the paper leaves open are options; their defaults did best in trials (docs/themis.md).
"""

from __future__ import annotations

import bisect
import math
import random
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pycontrol.auction.handout import Caps
from pycontrol.auction.instance import Instance
from pycontrol.auction.leftovers import Rank, Ranking, leftovers
from pycontrol.auction.limits import limits_of, room_gpus, within
from pycontrol.auction.partial import AuctionOutcome, Rounding, auction
from pycontrol.auction.placing import FreeIndex
from pycontrol.auction.winners import engine_name
from pycontrol.model.auction import AppView, Award, Bid, BidReceipt, Offer, Plan, Snapshot, gangs_by_host
from pycontrol.policies.classes import in_classes

HUGE = 1e6
"""With `rho_nothing` "huge": rho of an app with nothing, as a multiple of the worst rho in the auction."""


Nothing = Literal["projected", "twice_worst", "huge"]


@dataclass(frozen=True)
class Themis:
    """Themis' partial-allocation auction among the apps with the worst rho."""

    budget_s: float = 2.0
    """Seconds for all solves of a round; after that the best solution found counts, with its gap."""
    leftovers: Rank = "random"
    """Order of apps for leftovers: random (the paper), the worst rho first, or the largest cut of log rho by a gang."""
    participants: bool = False
    """Whether bidders may get leftovers too, which returns payments to them."""
    rounding: Rounding = "unbiased"
    """How payments are rounded to whole gangs."""
    rho_nothing: Nothing = "projected"
    """rho of an app that would hold nothing: as bid, twice the largest rho in the auction, or HUGE times it."""
    cached_tables: bool = False
    """Whether `offer` uses rho from an app's last bid instead of the rho that it reports."""
    ties: Literal["arrival", "random"] = "arrival"
    """Order of apps with equal rho."""
    engine: str = ""
    """The solver: compiled, highs or reference; empty: the fastest that is available."""
    name: str = "themis"
    asks_agents: bool = True
    one_type: ClassVar[bool] = True
    """True: a gang gets GPUs of one type, unless its app may mix types."""

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """The max(1, ceil((1 - f) n)) apps with the worst rho among the n apps of each priority that could use the
        offer; None if there are none."""
        room = room_gpus(snapshot, limits_of(snapshot))
        able = [(rho, v) for v in snapshot.apps if room[v.app_id] > 0 and (rho := self._rho(v, snapshot)) is not None]
        if not able or not any(snapshot.free.values()):
            return None
        able.sort(key=lambda item: (-item[0], self._tie(item[1], snapshot), item[1].submitted_s, item[1].app_id))
        classes: dict[int, list[str]] = {}
        for _, v in able:
            classes.setdefault(v.priority, []).append(v.app_id)
        offered: list[str] = []
        for _, app_ids in sorted(classes.items(), reverse=True):
            offered += app_ids[: max(1, math.ceil((1 - snapshot.f) * len(app_ids) - 1e-9))]
        return Offer(tuple(offered))

    def _tie(self, view: AppView, snapshot: Snapshot) -> float:
        return random.Random(f"{snapshot.round_id} {view.app_id}").random() if self.ties == "random" else 0.0

    def _rho(self, view: AppView, snapshot: Snapshot) -> float | None:
        table = snapshot.memory.get("tables", {}).get(view.app_id) if self.cached_tables else None
        if view.rho is None or not table:
            return view.rho
        known = bisect.bisect_right([gpus for gpus, _ in table], view.retained_gpus)
        return float(table[max(0, known - 1)][1])

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """The plan: an auction among the bidders, then leftovers; for each priority in turn, the highest first."""
        started_s = time.perf_counter()

        def decide(s: Snapshot, theirs: Mapping[str, Bid]) -> Plan:
            left_s = max(0.1, self.budget_s - (time.perf_counter() - started_s))
            return replace(self, budget_s=left_s)._decide(s, theirs, rng)

        return replace(in_classes(decide, snapshot, bids), memory=self._remember(snapshot, bids))

    def _decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        started_s = time.perf_counter()
        seed = rng.randrange(1 << 30)
        rng = random.Random(seed)
        limits = limits_of(snapshot)
        room = room_gpus(snapshot, limits)
        holding = {v.app_id for v in snapshot.apps if v.retained_gpus}
        ordered = with_nothing([within(bids[a], room.get(a, 0)) for a in sorted(bids)], holding, self.rho_nothing)
        instance = Instance(snapshot.free, snapshot.topology, limits, {v.app_id: v.ending_gangs for v in snapshot.apps})
        outcome = auction(ordered, instance, rng, self.budget_s, self.engine, self.rounding)
        free = FreeIndex(snapshot.free, snapshot.topology)
        for gang in (g for gangs in outcome.kept.values() for g in gangs):
            free.take(gang)
        left = free.unused
        open_ = [v for v in snapshot.apps if self.participants or v.app_id not in bids]
        more = leftovers(
            free, open_, Caps(snapshot.apps, outcome.kept), outcome.kept, Ranking(self.leftovers, snapshot, rng)
        )
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

    def _remember(self, snapshot: Snapshot, bids: Mapping[str, Bid]) -> dict[str, Any]:
        """With `cached_tables`: app -> its last bid as a table of (GPUs held, rho)."""
        if not self.cached_tables:
            return {}
        tables = snapshot.memory.get("tables", {})
        views = {v.app_id: v for v in snapshot.apps}
        kept = {a: table for a, table in tables.items() if a in views}
        return {"tables": kept | {a: _table(bid, views[a].retained_gpus) for a, bid in bids.items() if a in views}}


def with_nothing(bids: Sequence[Bid], holding: Container[str], convention: Nothing) -> list[Bid]:
    """The bids with `rho_nothing` replaced by the convention, for apps that hold nothing."""
    known = [b.rho_nothing for b in bids if b.app_id in holding] + [r.rho for b in bids for r in b.rows]
    if convention == "projected" or not known:
        return list(bids)
    rho = max(known) * (2.0 if convention == "twice_worst" else HUGE)
    return [b if b.app_id in holding else replace(b, rho_nothing=rho) for b in bids]


def _table(bid: Bid, retained_gpus: int) -> list[list[float]]:
    best = {retained_gpus: bid.rho_nothing}
    for row in bid.rows:
        gpus = retained_gpus + row.gpus
        best[gpus] = min(row.rho, best.get(gpus, math.inf))
    return [[gpus, rho] for gpus, rho in sorted(best.items())]


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
