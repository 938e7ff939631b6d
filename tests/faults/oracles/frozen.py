"""Leases never stand still without a reason."""

from __future__ import annotations

from typing import Any

from pycontrol.arbiter import leases as lease_rules
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle


class Frozen(Oracle):
    """Kind `frozen`."""

    def look(self, plane: Any) -> None:
        """Checks that leases go on."""
        a = plane.arbiter
        frozen = (
            lease_rules.suspended(a.holdings, plane.driver.clock.now_s())
            and not a.holdings.paused
            and self.world.rm.ready
        )
        unknown = self.world.schedule.get("standby") and self.world.hdfs.away  # who served before
        lossy = bool(self.world.net.loss)  # a snapshot that gets lost is sent again only after its patience
        if self.lasts("frozen", frozen and not lossy and not unknown, a.settings.recovery_s + 20):
            raise Violation(
                "frozen",
                f"leases stand still, ready={a.cluster.ready}, for {self.oracles.calm_s:.0f} s without a reason",
            )
