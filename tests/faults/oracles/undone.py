"""What an Agent began goes on."""

from __future__ import annotations

from typing import Any

from tests.faults.agreement import undone
from tests.faults.clock import Violation
from tests.faults.oracles.oracle import Oracle

UNDONE_S = 8.0
"""For an answer to a plan, an ask, a launch: several times what they take where nobody is slow."""


class Undone(Oracle):
    """Kind `undone`."""

    def look(self, plane: Any) -> None:
        """Checks what is to be answered."""
        for key, problem, app_id in undone(self.world):
            if self.lasts(("undone", *key), True, UNDONE_S):
                raise Violation("undone", f"{problem} for {UNDONE_S:.0f} s", app_id)
