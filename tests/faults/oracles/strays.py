"""What runs is leased to its app."""

from __future__ import annotations

from typing import Any

from pycontrol.model.topology import Gpu
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import SLACK_S, Oracle


class Strays(Oracle):
    """Kind `container without lease`."""

    def look(self, plane: Any) -> None:
        """Checks each container that runs."""
        a = plane.arbiter
        for nm in self.world.nms.values():
            reached = nm.up and self.world.rm.knows(nm.node_id) and self.world.connected(nm.host)
            for run in nm.runs.values():
                for i in run.gpus:
                    gpu = Gpu(nm.host, i)
                    lease = a.durable.leases.get(gpu)
                    stray = run.state == "running" and reached and (lease is None or lease.app_id != run.app_id)
                    if self.lasts(("stray", run.container_id, gpu), stray and not a.holdings.paused, SLACK_S):
                        raise Violation(
                            "container without lease",
                            f"{run.container_id} of {run.app_id} runs on {gpu}, lease: {lease and lease.app_id}",
                            str(gpu),
                        )
