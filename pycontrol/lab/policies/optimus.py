"""Optimus: the next gang goes where it gains most (EuroSys '18, section 4.1; Themis, section 6.1).

One more gang raises an app's throughput from T to T'. Its gain is the ratio T'/T (`throughput`, as in the Themis paper)
or the cut of its remaining time per GPU, work (1/T - 1/T') / GPUs (`time`, as in the Optimus paper). An app without
GPUs has an infinite gain in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from pycontrol.model.auction import AppView, gang_gpus
from pycontrol.model.topology import Scope
from pycontrol.policies.filling import Filling, Offered


@dataclass(frozen=True)
class Optimus(Filling):
    """Largest gain of throughput by one more gang first."""

    gain: Literal["throughput", "time"] = "throughput"
    """The gain to maximize: the ratio of throughputs, or the cut of remaining time per GPU."""

    name: ClassVar[str] = "optimus"

    def key(self, view: AppView, gpus: int, pool: Offered) -> float:
        """Minus the gain by one more gang."""
        d, slowdown = view.demand, pool.slowdown(view.demand)
        old = _kept_throughput(view, slowdown, pool) + (gpus - view.retained_gpus) / slowdown
        if old <= 0:
            return -math.inf
        new = old + d.gang_gpus / slowdown
        if self.gain == "throughput":
            return -new / old
        return -d.work_left_gpu_s * (1 / old - 1 / new) / max(1, d.gang_gpus)

    def why(self, view: AppView, pool: Offered) -> str:
        """Names its gain by the first gang of the round."""
        gain = -self.key(view, view.retained_gpus, pool)
        if math.isinf(gain):
            return "it had no GPUs, so its first gang gains most"
        unit = "times its throughput" if self.gain == "throughput" else "s of remaining time a GPU"
        return f"among the largest gains by one more gang: {gain:.3g} {unit}"


def _kept_throughput(view: AppView, slowdown: float, pool: Offered) -> float:
    """Throughput of the app's retained gangs, in serial GPU-seconds per second."""
    if not view.retained_gangs:
        return view.retained_gpus / slowdown
    total = 0.0
    for gang in view.retained_gangs:
        scope = Scope.MACHINE if len(gang) == 1 else pool.snapshot.topology.scope_of(h for h, _ in gang)
        total += gang_gpus(gang) / view.demand.slowdown[scope - 1]
    return total
