"""What is free, what is being revoked and whose it is are what the leases say."""

from __future__ import annotations

from typing import Any

from pycontrol.arbiter.ledger.lease import REVOKING
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle


class Conservation(Oracle):
    """Kinds `conservation` and `two owners`."""

    def look(self, plane: Any) -> None:
        """Compares the index with the leases."""
        a = plane.arbiter
        if not plane.endpoint.connected:
            return
        usable = {g for g in a.holdings.usable_gpus() if g not in a.durable.leases and g not in a.cluster.container_at}
        if set(a.gpus.free) != usable or a.gpus.free.count != len(usable):
            raise Violation("conservation", f"free are {sorted(map(str, set(a.gpus.free) ^ usable))} wrongly or not")
        if a.gpus.revoking != {g for g, x in a.durable.leases.items() if x.state == REVOKING}:
            raise Violation("conservation", "GPUs being revoked are not those that are known to be")
        for gpu, coming in a.durable.reservations.items():
            if a.durable.leases[gpu].state != REVOKING:
                raise Violation("two owners", f"{gpu} is promised to {coming.app_id} and not taken back", str(gpu))
        for app_id, mine in a.durable.leases.by_app.items():
            known = all(a.durable.leases.get(g) is x for x in mine.values() for g in x.gpus)
            if not known or app_id not in a.durable.apps:
                raise Violation("conservation", f"leases of {app_id} are not what they are", app_id)
