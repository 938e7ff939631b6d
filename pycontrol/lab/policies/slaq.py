"""SLAQ: the largest decrease of loss per GPU-second first (SoCC '17; as Themis' baseline, its section 6.1).

The decrease is the present one; apps that report none come last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pycontrol.model.auction import AppView
from pycontrol.policies.filling import Filling, Offered


@dataclass(frozen=True)
class Slaq(Filling):
    """Largest decrease of loss per GPU-second first."""

    name: ClassVar[str] = "slaq"

    def key(self, view: AppView, gpus: int, pool: Offered) -> float:
        """Minus the decrease of loss per GPU-second."""
        return -view.demand.loss_rate

    def why(self, view: AppView, pool: Offered) -> str:
        """Names its decrease of loss."""
        return f"among the largest decreases of loss: {view.demand.loss_rate:.3g} a GPU-s"
