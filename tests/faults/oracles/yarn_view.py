"""The Arbiter's view of YARN is right."""

from __future__ import annotations

from typing import Any

from tests.faults.agreement import view_differs
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle, Waiting


class YarnView(Oracle):
    """Kind `view`."""

    def quiet(self, plane: Any, waiting: Waiting) -> None:
        """Compares, unless events are on their way."""
        rm = self.world.rm
        if not plane.endpoint.connected or rm.plugin.queue.events:
            return
        differs = view_differs(plane, rm)
        if self.lasts("view", bool(differs), 20.0):
            raise Violation("view", differs)
