"""The ports of the Arbiter's driver; production and the simulator each implement them."""

from __future__ import annotations

from typing import Protocol

from pycontrol.model.events import AgentEffect, Directive


class Clock(Protocol):
    """The Arbiter's clock."""

    def now_s(self) -> float:
        """The time in Unix seconds; never runs backwards."""

    def step_s(self) -> float:
        """Seconds by which the clock was set forward since the last call."""


class AgentPort(Protocol):
    """Sends messages to the Agents."""

    def send(self, effect: AgentEffect) -> None:
        """Send without blocking; an app that is not connected misses the message."""


class ClusterPort(Protocol):
    """Sends directives to YARN."""

    def carry_out(self, directive: Directive) -> None:
        """Queue a directive without blocking; its result arrives as DirectiveDone."""
