"""The port that every policy implements: pure, so that cluster and simulator run the same code."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

from pycontrol.model.auction import Bid, Offer, Plan, Snapshot


class Policy(Protocol):
    """A pure function from frozen values to frozen values: no I/O, logging or global state, and a clock only to time
    solves."""

    @property
    def name(self) -> str:
        """The policy's name in isonomy.yaml and in receipts."""

    @property
    def asks_agents(self) -> bool:
        """Whether its rounds ask Agents for rho and bids; else it decides by the snapshot alone."""

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """The apps that are asked for bids; None if the policy needs none."""

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """The plan of the round. `bids`: app id -> its bid, for valid bids that came in time."""
