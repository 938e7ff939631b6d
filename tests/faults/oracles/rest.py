"""After the end of all apps nothing is left of them."""

from __future__ import annotations

from typing import Any

from tests.faults.agreement import left_of_apps
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle

WAITING_BYTES = 64 << 10
"""For ended Agents, at the end: their workers' last messages."""


class Rest(Oracle):
    """Kind `rest`."""

    def rest(self, plane: Any) -> None:
        """Looks through all that remembers."""
        a, endpoint = plane.arbiter, plane.endpoint
        left: dict[str, Any] = {
            "leases": a.durable.leases,
            "promises": a.durable.reservations,
            "live apps": a.durable.live,
            "workers": list(a.workers),
            "asks": a.cluster.asks.apps(),
            "directives": plane.directives,
            "processes": [r for n in self.world.nms.values() for r in n.runs.values()],
        }
        service = plane.agents.service
        parts = {"arbiter": a, "agents": service, "bridge": endpoint, "driver": plane.driver.inbox}
        for where, part in parts.items():  # whatever they remember by app, container or attempt
            for name, text in left_of_apps(part):
                left.setdefault(f"{where}.{name}", []).append(text)
        waiting = service.sessions.ledger.in_all
        if waiting > WAITING_BYTES:
            left["bytes that wait"] = waiting
        for what, rest in left.items():
            if rest:
                raise Violation("rest", f"{what} are left: {str(rest)[:300]}")
        if a.rounds.current is not None:
            raise Violation("rest", "a round is held though nobody is there")
