"""Tiresias: least attained service first (NSDI '19, sections 3.2 and 3.3; as Themis' baseline, its section 6.1).

Service is GPU-time. Each gang that an app wins counts immediately as the GPU-time of a lease, so apps with equal
service share a round; with `greedy`, the app with the least service first takes all that it can use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from pycontrol.model.auction import AppView
from pycontrol.policies.filling import Filling, Offered


@dataclass(frozen=True)
class Tiresias(Filling):
    """Least attained GPU service first, continuous or in two queues."""

    threshold_gpu_s: Annotated[float, Field(ge=0)] = 0.0
    """If above 0: two queues, first the apps with less service than this, each first come, first served."""
    greedy: bool = False
    """Whether the first app takes all that it can use before the next gets any."""

    name: ClassVar[str] = "tiresias"
    by_progress: ClassVar[bool] = False
    measure: ClassVar[tuple[str, str]] = ("attained service", "GPU-s")

    def key(self, view: AppView, gpus: int, pool: Offered) -> float:
        """Attained service in GPU-seconds, or with a threshold the number of the app's queue, 0 or 1."""
        served = view.attained_gpu_s
        if not self.greedy:
            served += (gpus - view.retained_gpus) * pool.lease_s
        return float(served >= self.threshold_gpu_s) if self.threshold_gpu_s else served

    def standing(self, view: AppView, pool: Offered) -> float:
        """Attained service, GPU-s."""
        return view.attained_gpu_s

    def why(self, view: AppView, pool: Offered) -> str:
        """Names its attained service."""
        if self.threshold_gpu_s:
            which = "first" if view.attained_gpu_s < self.threshold_gpu_s else "second"
            return f"its turn in the {which} queue: {view.attained_gpu_s:.0f} GPU-s of service"
        return f"among the least attained service: {view.attained_gpu_s:.0f} GPU-s"
