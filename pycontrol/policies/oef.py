"""OEF: efficient and fair shares of GPUs of several types (Middleware '24).

`cooperative`: envy-free and sharing-incentive, for measured or trusted speedups.
`noncooperative`: the same efficiency for all, so that overstating speedups does not pay; some tenants get less than
with an equal split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pycontrol.policies.sharing import Sharing
from pycontrol.shares.cooperative import OefCooperative
from pycontrol.shares.noncooperative import OefNoncooperative
from pycontrol.shares.problem import Scheme


@dataclass(frozen=True)
class Oef(Sharing):
    """OEF's shares, and whole gangs by carried deviation."""

    mode: Literal["cooperative", "noncooperative"] = "cooperative"

    name: ClassVar[str] = "oef"

    def scheme(self) -> Scheme:
        """OEF's allocation in the configured mode."""
        return OefCooperative() if self.mode == "cooperative" else OefNoncooperative()
