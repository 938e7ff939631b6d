"""Gavel: the largest common ratio of throughput to the equal split's, within each tenant's demand (OSDI '20)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pycontrol.lab.shares import gavel_shares
from pycontrol.policies.sharing import Sharing
from pycontrol.shares.problem import Scheme


@dataclass(frozen=True)
class Gavel(Sharing):
    """Gavel's shares, with the placer that all policies by shares use.

    The objective `max_sum` considers only efficiency; `finish_time` and `min_duration` use the work that apps report
    to have left.
    """

    objective: gavel_shares.Objective = "water_filling"

    name: ClassVar[str] = "gavel"

    def scheme(self) -> Scheme:
        """Gavel's linear programs for the objective."""
        return gavel_shares.GavelShares(self.objective)
