"""A round ends in time even if Agents are silent, and no lease is without an end while an app could have its GPUs."""

from __future__ import annotations

import math
from typing import Any

from pycontrol.arbiter import leases
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle

ROUND_SLACK_S = 3.0


class RoundsEnd(Oracle):
    """Kind `round without end`."""

    def look(self, plane: Any) -> None:
        """Checks the present round."""
        current, s = plane.arbiter.rounds.current, plane.arbiter.settings
        for round_id in [current.round_id] if current is not None else []:
            if self.lasts(("round", round_id), True, s.rho_s + s.bid_s + s.solve_s + ROUND_SLACK_S):
                raise Violation("round without end", f"{round_id} is held for more than {s.rho_s + s.bid_s:.0f} s")


class OpenEnded(Oracle):
    """Kind `lease without end`."""

    def look(self, plane: Any) -> None:
        """Checks the leases of the virtual clusters in which apps want GPUs."""
        a, s = plane.arbiter, plane.arbiter.settings
        vc_of = {app_id: a.durable.apps[app_id].vc for app_id in a.rounds.candidates.wanting()}
        without_end = {a.durable.apps[x.app_id].vc for x in a.durable.leases.each() if x.end_s == math.inf}
        suspended = leases.suspended(a.holdings, a.holdings.event_s)
        limit_s = 2 * s.round_retry_s + s.rho_s + s.bid_s + 10 * s.solve_s + ROUND_SLACK_S
        for app_id, vc in vc_of.items():
            if self.lasts(app_id, vc in without_end and not suspended, limit_s):
                raise Violation("lease without end", f"{app_id} waits, and leases of {vc or 'the cluster'} have no end")
