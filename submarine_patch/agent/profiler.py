"""Iteration times from TensorFlow's logs: serial time and the slowdown S(G) of each scope (Themis, 4.3)."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from pycontrol.model.topology import Scope

WINDOW = 64
ENOUGH = 5
"""Samples before a measurement replaces what was declared."""


class Profiler:
    """Keeps the newest samples of iteration time x GPUs by scope; medians resist noise."""

    def __init__(self, iteration_s: float | None, prior: Sequence[float]) -> None:
        self.declared_s, self.prior = iteration_s, tuple(prior)
        self._samples: dict[Scope, deque[float]] = {s: deque(maxlen=WINDOW) for s in Scope}

    def add(self, iter_time_s: float, gpus: int, scope: Scope) -> None:
        """One measured iteration."""
        if iter_time_s > 0:
            self._samples[scope].append(iter_time_s * max(1, gpus))

    def _median(self, scope: Scope) -> float | None:
        samples = self._samples[scope]
        return statistics.median(samples) if len(samples) >= ENOUGH else None

    def slowdown(self, scope: Scope) -> float:
        """S of this scope: measured against the narrowest measured one, else the prior; at least 1."""
        base = next(((s, m) for s in Scope if (m := self._median(s)) is not None), None)
        own = self._median(scope)
        if own is None or base is None:
            return self.prior[scope - 1]
        return max(1.0, own / base[1] * self.prior[base[0] - 1])

    def serial_s(self) -> float:
        """Serial GPU-seconds of one iteration: measured, else declared, else one second."""
        for scope in Scope:
            median = self._median(scope)
            if median is not None:
                return median / self.slowdown(scope)
        return self.declared_s or 1.0
