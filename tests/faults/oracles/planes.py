"""Of two control planes one acts."""

from __future__ import annotations

from typing import Any

from pycontrol.model import events as ev
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle

BELIEVES_S = 10.0
"""After its ResourceManager is gone, at most, a control plane acts as before."""


class Planes(Oracle):
    """Kind `two control planes`."""

    def effect(self, plane: Any, e: Any) -> None:
        """Checks that this control plane is the one that serves."""
        acts = isinstance(e, ev.SendGrant | ev.SendRevoke | ev.Place | ev.Kill | ev.Preempt)
        over = self.world.rm is not None and self.sim.now > self.world.deposed_until_s
        if acts and plane is not self.world.plane and over and self.oracles.calm_s > BELIEVES_S:
            raise Violation("two control planes", f"{plane.name} acts, {self.world.plane.name} serves: {e}")
