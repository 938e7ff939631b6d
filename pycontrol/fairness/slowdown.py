"""S(G): how much an app's placement slows it down, by the widest distance in it (Themis, section 4.3.1)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pycontrol.model.auction import SLOWDOWN_PRIOR as PRIOR
from pycontrol.model.topology import Scope

WINDOW = 32
ENOUGH = 5
"""Samples before a measurement replaces the prior."""

_Place = tuple[Scope, int]


@dataclass(frozen=True, slots=True)
class SlowdownProfile:
    """Iteration times by scope and number of GPUs; a value, `observe` gives the next one.

    Medians of the newest samples, so that a stall or a warm-up counts for little. `serial_iter_s`: from
    offline profiling; where it is None the narrowest scope measured, at its prior, stands for it.
    """

    prior: tuple[float, float, float] = PRIOR
    serial_iter_s: float | None = None
    samples: Mapping[_Place, tuple[float, ...]] = field(default_factory=dict)

    def observe(self, scope: Scope, gpus: int, iter_time_s: float) -> SlowdownProfile:
        """One measured iteration of a job on `gpus` GPUs that lie `scope` apart."""
        if not iter_time_s > 0 or gpus < 1:
            return self
        newest = (*self.samples.get((scope, gpus), ()), iter_time_s)[-WINDOW:]
        return replace(self, samples={**self.samples, (scope, gpus): newest})

    def gpu_seconds(self, scope: Scope) -> float | None:
        """Serial seconds x S of one iteration in this scope, over all numbers of GPUs; None if unmeasured."""
        times = [
            statistics.median(window) * gpus
            for (measured, gpus), window in self.samples.items()
            if measured is scope and len(window) >= ENOUGH
        ]
        return statistics.median(times) if times else None

    def slowdown(self, scope: Scope) -> float:
        """S of a placement of this scope: measured, else the prior; at least 1."""
        own, serial = self.gpu_seconds(scope), self.serial_s()
        if own is None or serial is None:
            return self.prior[scope - 1]
        return max(1.0, own / serial)

    def serial_s(self) -> float | None:
        """Seconds of one iteration on one GPU; None if neither profiled nor measured."""
        if self.serial_iter_s is not None:
            return self.serial_iter_s
        for scope in Scope:
            measured = self.gpu_seconds(scope)
            if measured is not None:
                return measured / self.prior[scope - 1]
        return None
