"""Who waits while its virtual cluster has own GPUs left gets them, whoever borrows them."""

from __future__ import annotations

from typing import Any

from tests.faults.clock import Violation
from tests.faults.oracles.guarantees import used
from tests.faults.oracles.oracle import Oracle, Waiting


class Served(Oracle):
    """Kind `guarantee`, in the quiet end."""

    def quiet(self, plane: Any, waiting: Waiting) -> None:
        """Compares what is owned with what is used."""
        a = plane.arbiter
        if any(n.refuses for n in self.world.nms.values()):
            return
        limit_s = 2 * a.settings.lease_s + a.settings.grant_timeout_s + 60
        for app_id, gang, together in waiting:
            record = a.durable.live.get(app_id)
            vc = record.vc if record is not None else ""
            kept_off = any(app == app_id for app, _ in self.world.blacklist)
            owed = vc in self.world.vc_policies and not together and not kept_off
            owed = owed and a.holdings.gpus_of(vc) - used(a, vc) >= gang
            owed = owed and a.holdings.full(app_id, gang, a.holdings.event_s) is None  # a limit of its user binds
            if self.lasts(app_id, owed, limit_s):
                raise Violation(
                    "guarantee",
                    f"{vc} uses {used(a, vc)} of {a.holdings.gpus_of(vc)} own GPUs, and {app_id} waits for {gang}",
                    app_id,
                )
