"""An app's fairness clock runs from its arrival, through every crash and takeover."""

from __future__ import annotations

from typing import Any

from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle


class Clocks(Oracle):
    """Kind `clock`."""

    def __init__(self, oracles: Any) -> None:
        super().__init__(oracles)
        self._arrived: dict[str, float] = {}

    def forget(self) -> None:
        """Forgets arrivals: the journal was lost without a stored state, or HDFS kept no state of late."""
        self._arrived.clear()

    def took_over(self, plane: Any) -> None:
        """Forgets arrivals that the restored state of an empty journal does not have: those apps arrive again."""
        live = plane.arbiter.durable.live
        self._arrived = {k: v for k, v in self._arrived.items() if k in live}

    def look(self, plane: Any) -> None:
        """Checks each app's start."""
        for app_id, record in plane.arbiter.durable.live.items() if plane.endpoint.connected else ():
            since = self._arrived.setdefault(app_id, record.arrived_s)
            if since != record.arrived_s:
                raise Violation("clock", f"{app_id} arrived at {since:.3f}, now at {record.arrived_s:.3f}", app_id)
