"""Shortest remaining service first: the least GPU-time left, known beforehand (Themis, section 6.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pycontrol.model.auction import AppView
from pycontrol.policies.filling import Filling, Offered


@dataclass(frozen=True)
class Srsf(Filling):
    """Least GPU-time left first."""

    name: ClassVar[str] = "srsf"
    measure: ClassVar[tuple[str, str]] = ("work left", "GPU-s")

    def key(self, view: AppView, gpus: int, pool: Offered) -> float:
        """Work left, in serial GPU-seconds."""
        return view.demand.work_left_gpu_s

    def why(self, view: AppView, pool: Offered) -> str:
        """Names its work left."""
        return f"among the least service left: {view.demand.work_left_gpu_s:.0f} GPU-s"
