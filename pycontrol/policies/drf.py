"""Dominant resource fairness by progressive filling (Ghodsi et al., NSDI '11, Algorithm 1).

Only GPUs are scarce here, so the dominant share is an app's fraction of all GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pycontrol.model.auction import AppView
from pycontrol.policies.filling import Filling, Offered


@dataclass(frozen=True)
class Drf(Filling):
    """Smallest part of the cluster's GPUs first."""

    name: ClassVar[str] = "drf"
    by_progress: ClassVar[bool] = False
    measure: ClassVar[tuple[str, str]] = ("dominant share", "")

    def key(self, view: AppView, gpus: int, pool: Offered) -> float:
        """The dominant share, 0 to 1."""
        return gpus / max(1, pool.cluster_gpus)

    def why(self, view: AppView, pool: Offered) -> str:
        """Names its share before the round."""
        return f"among the smallest dominant shares: it kept {view.retained_gpus} of {pool.cluster_gpus} GPUs"
