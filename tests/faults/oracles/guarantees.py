"""No virtual cluster has more of its own than it owns."""

from __future__ import annotations

from typing import Any

from pycontrol.arbiter.ledger.lease import gpus_in, is_revoking
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import SLACK_S, Oracle


def used(a: Any, vc: str) -> int:
    """A virtual cluster's own GPUs that its apps hold or have reserved."""
    d = a.durable
    mine = [x for x in d.claims() if not is_revoking(x) and x.guaranteed and d.apps[x.app_id].vc == vc]
    return len(gpus_in(mine))


class Guarantees(Oracle):
    """Kind `guarantee`."""

    def look(self, plane: Any) -> None:
        """Checks that no virtual cluster has more guaranteed GPUs than it owns."""
        a = plane.arbiter
        for vc in self.world.vc_policies if plane.endpoint.connected else ():
            over = used(a, vc) - a.holdings.gpus_of(vc)
            if self.lasts(("owns", vc), over > 0, 2 * a.settings.lease_s + SLACK_S):
                raise Violation("guarantee", f"{vc} has {over} GPUs more as its own than it owns")
