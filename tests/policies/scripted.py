"""Policies that do as a test says."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pycontrol.model.auction import Bid, Offer, Plan, Snapshot


def nothing(snapshot: Snapshot) -> Plan:
    """Gives nothing."""
    return Plan(snapshot.round_id, ())


@dataclass(frozen=True)
class Scripted:
    """Decides as `plan` says; `asks_agents`: asks all apps for bids, and does not read them."""

    plan: Callable[[Snapshot], Plan] = nothing
    asks_agents: bool = False
    name: str = "scripted"

    def offer(self, snapshot: Snapshot) -> Offer | None:
        return Offer(tuple(v.app_id for v in snapshot.apps)) if self.asks_agents else None

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        return self.plan(snapshot)
