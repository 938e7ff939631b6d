"""Gandiva_fair: the equal split by weight, then trades of slow for fast GPUs between tenants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pycontrol.lab.shares import gandiva_fair_shares
from pycontrol.policies.sharing import Sharing
from pycontrol.shares.problem import Scheme


@dataclass(frozen=True)
class GandivaFair(Sharing):
    """Gandiva_fair's shares, with the placer that all policies by shares use."""

    name: ClassVar[str] = "gandiva_fair"

    def scheme(self) -> Scheme:
        """The equal split with trades of slow for fast devices."""
        return gandiva_fair_shares.GandivaFairShares()
