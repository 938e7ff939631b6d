"""A lease that is over, revoked or unused is gone in time, whatever its Agent says."""

from __future__ import annotations

from typing import Any

from pycontrol.arbiter.ledger.lease import GRANTED, REVOKING
from pycontrol.arbiter.state import KILL_RETRY_S
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import SLACK_S, Oracle


class Leases(Oracle):
    """Kinds `overrun` and `unused lease`."""

    def __init__(self, oracles: Any) -> None:
        super().__init__(oracles)
        self._deadlines: dict[Any, float] = {}
        """The first deadline of each lease that is being revoked."""

    def _revoked_late(self, lease: Any, now_s: float) -> bool:
        """Whether a lease is still being revoked at the deadline that it had at first, by its control plane's clock."""
        key = ("deadline", lease.gpus[0], lease.grant_id)
        if lease.state != REVOKING:
            self._deadlines.pop(key, None)
            return False
        return bool(now_s >= self._deadlines.setdefault(key, lease.end_s))

    def look(self, plane: Any) -> None:
        """Checks each lease."""
        a, now_s = plane.arbiter, plane.driver.clock.now_s()
        lead_s = a.holdings.lead_s
        for gpu, lease in a.durable.leases.items():
            late = self._revoked_late(lease, now_s) and not a.holdings.paused
            reached = gpu.host in a.cluster.node_at and self.world.connected(gpu.host)
            if self.lasts(("revoking", gpu, lease.grant_id), late and reached, 2 * lead_s + 2 * KILL_RETRY_S + SLACK_S):
                raise Violation("overrun", f"{gpu} of {lease.app_id} is being revoked for too long", str(gpu))
            unused = lease.state == GRANTED and gpu not in a.cluster.container_at and not a.holdings.paused
            limit_s = a.settings.grant_timeout_s + SLACK_S
            if self.lasts(("unused", gpu, lease.grant_id, lease.unused_since_s), unused, limit_s):
                raise Violation(
                    "unused lease", f"{gpu} of {lease.app_id} has no container and does not lapse", str(gpu)
                )
            over = lease.end_s + SLACK_S < now_s and lease.state != REVOKING and not a.holdings.paused
            gone = gpu.host not in a.cluster.node_at
            if self.lasts(("over", gpu, lease.grant_id), over or gone, lead_s + SLACK_S):
                raise Violation(
                    "overrun",
                    f"{gpu} of {lease.app_id} ended {now_s - lease.end_s:.0f} s ago, node "
                    f"{'gone' if gone else 'there'}",
                    str(gpu),
                )
