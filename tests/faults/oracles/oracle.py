"""What every oracle has: the world, and conditions that may hold only for a time."""

from __future__ import annotations

from typing import Any

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import Fact

SLACK_S = 25.0
"""Time for heartbeats, repeated kills, and a NodeManager's SIGKILL."""
Waiting = list[tuple[str, int, bool]]
"""(app, GPUs of its gang, whether on one machine) of apps that wait."""


class Oracle:
    """Checks one kind of promise, and raises Violation. Each hook is called at its moment."""

    def __init__(self, oracles: Any) -> None:
        self.oracles, self.world, self.sim = oracles, oracles.world, oracles.world.sim
        self._since: dict[Any, float] = {}
        self._seen: set[Any] = set()

    def lasts(self, key: Any, holds: bool, limit_s: float) -> bool:
        """Whether a condition has held for longer than the limit without disturbance."""
        self._seen.add(key)
        if not holds:
            self._since.pop(key, None)
            return False
        since = self._since.setdefault(key, self.sim.now)
        return bool(min(self.sim.now - since, self.oracles.calm_s) > limit_s)

    def looked(self) -> None:
        """Forgets conditions that this look did not ask about."""
        self._since = {k: v for k, v in self._since.items() if k in self._seen}
        self._seen = set()

    def recovered(self, plane: Any, durable: Durable) -> None:
        """A life begins with this state."""

    def before(self, plane: Any, fact: Fact) -> None:
        """A fact is now durable; `Oracles.shadow_of` does not know it yet."""

    def after(self, plane: Any, fact: Fact, facts: list[Fact]) -> None:
        """It knows it now; `facts`: all of the transaction."""

    def effect(self, plane: Any, e: Any) -> None:
        """An effect is about to be carried out."""

    def look(self, plane: Any) -> None:
        """Once a second, while a control plane and a ResourceManager are there."""

    def quiet(self, plane: Any, waiting: Waiting) -> None:
        """Every five seconds after the last fault."""

    def rest(self, plane: Any) -> None:
        """All apps have ended, and some time has passed."""
