"""Gandiva: whoever gains most by a close placement is placed first, and bad placements move (OSDI '18).

As the baseline in Themis (section 6.1): greedy, highest placement preference first, with migration and without
time-slicing. An app's preference is its slowdown in its widest scope relative to the narrowest scope in which the offer
has room for one of its gangs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from pycontrol.model.auction import AppView, Gang
from pycontrol.policies.filling import Filling, Offered


@dataclass(frozen=True)
class Gandiva(Filling):
    """Highest placement preference first; at its lease's end a badly placed gang may move."""

    restart_s: Annotated[float, Field(ge=0)] = 40.0
    """Seconds that a move costs; it must be regained within a lease. 316224000, the most: never move."""

    name: ClassVar[str] = "gandiva"
    by_progress: ClassVar[bool] = False
    migrates: ClassVar[bool] = True

    def key(self, view: AppView, gpus: int, pool: Offered) -> float:
        """Minus the placement preference, which is at least 1."""
        return -_preference(view, pool)

    def moves(self, view: AppView, old: Gang, new: Gang, pool: Offered) -> bool:
        """Whether a gang makes more progress in a lease with the move: (lease - restart) / S_new > lease / S_old."""
        s_old, s_new = (pool.slowdown_in(gang, view.demand) for gang in (old, new))
        return (pool.lease_s - self.restart_s) * s_old > pool.lease_s * s_new

    def why(self, view: AppView, pool: Offered) -> str:
        """Names its placement preference."""
        return f"among the highest placement preferences: {_preference(view, pool):.2f} times slower far apart"


def _preference(view: AppView, pool: Offered) -> float:
    d = view.demand
    if d.gang_gpus <= 1:
        return 1.0
    return d.slowdown[d.scope - 1] / pool.slowdown(d)
