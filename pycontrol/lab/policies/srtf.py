"""Shortest remaining time first, each app with all of the offer that it can use (Themis, section 6.1).

This is what Themis' first version (arXiv v1) called Optimus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pycontrol.model.auction import AppView
from pycontrol.policies.filling import Filling, Offered


@dataclass(frozen=True)
class Srtf(Filling):
    """Least time left, given the whole offer, first."""

    name: ClassVar[str] = "srtf"
    measure: ClassVar[tuple[str, str]] = ("time left", "s")

    def key(self, view: AppView, gpus: int, pool: Offered) -> float:
        """Seconds left with the whole offer: work x S / GPUs, in the narrowest scope with room for its gangs."""
        d = view.demand
        most = max(1, min(d.gpus, view.retained_gpus + pool.gpus))
        return d.work_left_gpu_s * pool.slowdown(d) / most

    def why(self, view: AppView, pool: Offered) -> str:
        """Names its remaining time."""
        return f"among the shortest time left with the whole offer: {self.key(view, 0, pool):.0f} s"
