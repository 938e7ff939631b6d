"""Time moves: a virtual second takes no endless number of events."""

from __future__ import annotations

from typing import Any

from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle

WAKES_PER_S = 200


class Pace(Oracle):
    """Kind `time`; `cost` is a signal (`world.py`)."""

    def __init__(self, oracles: Any) -> None:
        super().__init__(oracles)
        self._steps_at: tuple[float, int] = (0.0, 0)

    def spin(self) -> None:
        """Checks, also while no control plane is there."""
        at, steps = self._steps_at
        if self.sim.now - at >= 5.0:
            if at and (self.sim.steps - steps) / (self.sim.now - at) > WAKES_PER_S * (4 + len(self.world.store)):
                raise Violation("time", f"{self.sim.steps - steps} events in {self.sim.now - at:.1f} s")
            self._steps_at = (self.sim.now, self.sim.steps)
