"""The port that every policy implements: pure, so that cluster and simulator run the same code."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

from pycontrol.model.auction import Bid, Offer, Plan, Snapshot


class Policy(Protocol):
    """Frozen values in, frozen values out: no I/O, clock, log or global inside."""

    @property
    def name(self) -> str:
        """The name in isonomy.yaml and in receipts."""

    @property
    def asks_agents(self) -> bool:
        """Whether its rounds ask Agents for rho and bids; else it decides on the snapshot alone."""

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """Who is asked for bids; None where the policy needs none."""

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """The round's outcome. `bids` holds the valid ones that came in time, by app id."""
