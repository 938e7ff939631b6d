"""Gavel: the largest common ratio of throughput to the equal split's, within each tenant's demand (OSDI '20)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pycontrol.policies.sharing import Sharing
from pycontrol.shares import gavel
from pycontrol.shares.problem import Scheme


@dataclass(frozen=True)
class Gavel(Sharing):
    """Gavel's shares, with the placer of all policies by shares. `max_sum` is pure efficiency; `finish_time` and
    `min_duration` go by the work that apps say they have left."""

    objective: gavel.Objective = "water_filling"

    name: ClassVar[str] = "gavel"

    def scheme(self) -> Scheme:
        """The linear programmes."""
        return gavel.GavelShares(self.objective)
