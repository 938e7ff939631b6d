"""A round ends in time even if Agents are silent."""

from __future__ import annotations

from typing import Any

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
