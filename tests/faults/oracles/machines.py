"""A machine that refuses an app again and again is left alone."""

from __future__ import annotations

from typing import Any

from tests.faults.agreement import Refused
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle


class Machines(Oracle):
    """Kind `refused`."""

    def __init__(self, oracles: Any) -> None:
        super().__init__(oracles)
        self._refused = Refused()

    def answered(self, rm: Any, app_id: str, host: str, refusal: str) -> None:
        """A placement was carried out, or refused: a machine that refuses an app again and again is left alone."""
        if rm is not self.world.rm:
            return
        if not refusal:
            self._refused.placed(app_id, host)
        elif self._refused.refused(app_id, host, self.sim.now, self.oracles.calm_s):
            raise Violation("refused", f"{host} goes on refusing {app_id}: {refusal}", app_id)
