"""The Arbiter knows an app's queue."""

from __future__ import annotations

from typing import Any

from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle


class Queues(Oracle):
    """Kind `queue`."""

    def look(self, plane: Any) -> None:
        """Checks each app."""
        for app_id, record in plane.arbiter.durable.live.items():
            app = self.world.store.get(app_id)
            wrong = app is not None and not app.final and record.queue != app.queue
            if self.lasts(("queue", app_id), wrong, 15.0):
                raise Violation("queue", f"{app_id} is in {app.queue}, the Arbiter says {record.queue}", app_id)
