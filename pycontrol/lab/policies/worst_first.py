"""Worst rho first, gang by gang: finish-time fairness without an auction.

Every app that could use the offer bids. The next gang goes to the app with the worst present rho, by its own bid, until
no app gains. It is simple and not truthful: a baseline for the auction.
"""

from __future__ import annotations

import bisect
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pycontrol.auction.handout import ByKey, Caps, gangs_of, hand_out, leftovers, taker
from pycontrol.auction.placing import FreeIndex
from pycontrol.auction.round_limits import limits_of, room_gpus
from pycontrol.lab.policies.variants import Ranking
from pycontrol.model.auction import Award, Bid, BidReceipt, Gang, Offer, Plan, Snapshot, gang_gpus, gangs_by_host
from pycontrol.model.topology import Scope, Topology
from pycontrol.policies.classes import in_classes


@dataclass(frozen=True)
class WorstFirst:
    """The worst rho first, gang by gang, by the apps' own bids."""

    name: str = "worst_first"
    asks_agents: bool = True
    one_type: ClassVar[bool] = True
    """True: a gang gets GPUs of one type, unless its app may mix types."""

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """All apps with a known rho that could use the offer, by rho (worst first), then by submission."""
        room = room_gpus(snapshot, limits_of(snapshot))
        able = [(v.rho, v) for v in snapshot.apps if room[v.app_id] > 0 and v.rho is not None]
        if not able or not any(snapshot.free.values()):
            return None
        able.sort(key=lambda item: (-item[0], item[1].submitted_s, item[1].app_id))
        return Offer(tuple(v.app_id for _, v in able))

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """The plan: gang by gang to the bidder with the worst rho; what is left goes to the other apps the same way.

        Each priority is decided in turn, the highest first.
        """
        return in_classes(lambda s, theirs: self._decide(s, theirs, rng), snapshot, bids)

    def _decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        started_s = time.perf_counter()
        views = {v.app_id: v for v in snapshot.apps}
        room, caps = FreeIndex(snapshot.free, snapshot.topology), Caps(snapshot.apps)
        apps = {a: _Bidder(bids[a], snapshot.topology) for a in sorted(bids) if a in views}
        takers = [taker(views[a], (), snapshot.topology) for a in reversed(apps)]
        worst = ByKey(takers, lambda to: apps[to.view.app_id].key(to.view.submitted_s))
        for to, gang in hand_out(worst, gangs_of(room, caps)):
            apps[to.view.app_id].give(gang)
        got = {a: tuple(app.got) for a, app in apps.items() if app.got}
        left = room.unused
        others = [v for v in snapshot.apps if v.app_id not in apps]
        more = leftovers(room, others, caps, got, Ranking("worst_first", snapshot, rng).order)
        return Plan(
            round_id=snapshot.round_id,
            awards=(*(Award(a, gangs) for a, gangs in got.items()), *more),
            bids=tuple(app.receipt() for app in apps.values()),
            leftover_gpus=left,
            unused_gpus=room.unused,
            solve_s=time.perf_counter() - started_s,
            why={a: f"rho {app.bid.rho_nothing:.3g} without, {app.rho:.3g} with it" for a, app in apps.items()},
        )


class _Bidder:
    """A bidder: the gangs that it got, and its rho with them by the rows of its bid."""

    def __init__(self, bid: Bid, topology: Topology) -> None:
        self.bid, self.topology = bid, topology
        self.got: list[Gang] = []
        self.gpus, self.rho, self.widest = 0, bid.rho_nothing, Scope.MACHINE
        self.points = self._points()

    def _points(self) -> list[tuple[int, float]]:
        """(GPUs, rho) of the rows that are still possible with the gangs so far; rho never rises with GPUs."""
        best = {0: self.bid.rho_nothing}
        for row in self.bid.rows:
            if not row.new_gangs or row.scope >= self.widest or row.gang_gpus == 1:
                best[row.gpus] = min(row.rho, best.get(row.gpus, row.rho))
        points: list[tuple[int, float]] = []
        for gpus, rho in sorted(best.items()):
            points.append((gpus, min(rho, points[-1][1]) if points else rho))
        return points

    def key(self, submitted_s: float) -> tuple[float, float] | None:
        """Its place in the order: the worst rho first; None if no row with more GPUs has a better one."""
        gains = any(rho < self.rho for gpus, rho in self.points if gpus > self.gpus)
        return (-self.rho, submitted_s) if gains else None

    def give(self, gang: Gang) -> None:
        """Adds a gang and updates rho, interpolated linearly between rows."""
        self.got.append(gang)
        self.gpus += gang_gpus(gang)
        scope = self.topology.scope_of(h for h, _ in gang)
        if scope > self.widest:
            self.widest = scope
            self.points = self._points()
        k = bisect.bisect_right([gpus for gpus, _ in self.points], self.gpus)
        low, high = self.points[k - 1], self.points[min(k, len(self.points) - 1)]
        part = (self.gpus - low[0]) / (high[0] - low[0]) if high[0] > low[0] else 0.0
        self.rho = low[1] + part * (high[1] - low[1])

    def receipt(self) -> BidReceipt:
        """The bidder's receipt; there are no payments."""
        won = gangs_by_host(self.got)
        return BidReceipt(
            self.bid.app_id,
            self.bid.rho_nothing,
            len(self.bid.rows),
            won,
            self.rho if self.got else None,
            kept_gangs=len(self.got),
        )
