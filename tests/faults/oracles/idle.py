"""No GPU is free for long while an app (gang, on one machine) could use it."""

from __future__ import annotations

from typing import Any

from pycontrol.model.topology import Gpu
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle, Waiting


class Idle(Oracle):
    """Kind `idle gpus`."""

    def quiet(self, plane: Any, waiting: Waiting) -> None:
        """Counts what is free, as machines see it."""
        a = plane.arbiter
        free: dict[str, int] = {}
        for nm in self.world.nms.values():
            busy = {i for r in nm.runs.values() if r.state != "ended" for i in r.gpus}
            node = a.cluster.node_at.get(nm.host)
            good = node.good_gpus if node else ()
            free[nm.host] = (
                0 if nm.partition else sum(i not in busy and Gpu(nm.host, i) not in a.durable.leases for i in good)
            )
        limit_s = 2 * a.settings.lease_s + a.settings.grant_timeout_s + 60
        for app_id, gang, together in waiting:
            here = [n for host, n in free.items() if (app_id, host) not in self.world.blacklist]
            fits = max(here, default=0) >= gang if together else sum(here) >= gang
            fits = fits and (app_id not in a.durable.apps or a.holdings.full(app_id, gang, a.holdings.event_s) is None)
            if self.lasts(app_id, fits, limit_s):
                raise Violation("idle gpus", f"{free} are free and {app_id} waits for {gang}", app_id)
