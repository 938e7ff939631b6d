"""What the Arbiter's driver needs of the world: the cluster and the simulator each supply these."""

from __future__ import annotations

from typing import Protocol

from pycontrol.model.events import AgentEffect, Directive


class Clock(Protocol):
    """Time as the Arbiter sees it."""

    def now_s(self) -> float:
        """Unix seconds that never run backwards."""

    def step_s(self) -> float:
        """By how much it was set forward since this was asked last."""


class AgentPort(Protocol):
    """The way to the Agents."""

    def send(self, effect: AgentEffect) -> None:
        """Sends without blocking; an app that is not connected misses it."""


class ClusterPort(Protocol):
    """The way to YARN."""

    def carry_out(self, directive: Directive) -> None:
        """Hands a directive over without blocking; its end comes back as DirectiveDone."""
