"""Elastic jobs: their speed by number of GPUs, and how many GPUs are worth having (Themis, section 4.3).

A job runs on `least_gpus` to `most_gpus` GPUs. The efficiency E(n) is the speed of n GPUs on one machine relative to
linear speedup. It is measured like S(G); unmeasured, it is 1, as in the paper.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from pycontrol.model.auction import gang_sizes
from pycontrol.model.topology import Scope
from pycontrol.model.value import value

WORTH = 0.5
"""A further GPU must add at least this fraction of the speed per GPU of the smallest gang."""
EFFICIENCY_LEAST = 1e-3


@value
class Elastic:
    """How an app's jobs scale. `efficiency`: E by number of GPUs, 1 at `least_gpus`; `slowdown`: S by scope;
    `restart_s`: seconds that a change of size costs."""

    least_gpus: int
    most_gpus: int
    slowdown: tuple[float, float, float]
    restart_s: float
    efficiency: Mapping[int, float] = field(default_factory=dict)

    def speed(self, gpus: int, scope: Scope = Scope.MACHINE) -> float:
        """The speed of a gang, in serial seconds per second."""
        return gpus * efficiency_at(self.efficiency, gpus) / self.slowdown[scope - 1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """GPUs that a gang may have, ascending; sizes that add too little speed are left out."""
        found: list[int] = []
        for n in gang_sizes(self.least_gpus, self.most_gpus):
            if found:
                more = (self.speed(n) - self.speed(found[-1])) / (n - found[-1])
                if more < WORTH * self.speed(found[0]) / found[0]:
                    break
            found.append(n)
        return tuple(found)


def efficiency_at(known: Mapping[int, float], gpus: int) -> float:
    """E of `gpus` GPUs: that of the largest measured number up to `gpus`; 1 if there is none."""
    below = [n for n in known if n <= gpus]
    return known[max(below)] if below else 1.0


def measured_efficiency(jobs: Sequence[Mapping[int, float]], base: int) -> dict[int, float]:
    """E by number of GPUs. `jobs`: for each job, number of GPUs -> GPU-seconds of an iteration.

    E(n) is the median over jobs of each job's ratio to its next smaller known number; it never rises with n.
    """
    known = {base: 1.0}
    for n in sorted({n for serial_s in jobs for n in serial_s if n > base}):
        ratios = []
        for serial_s in jobs:
            fewer = [m for m in serial_s if m < n and m in known]
            if n in serial_s and fewer:
                ratios.append(known[max(fewer)] * serial_s[max(fewer)] / serial_s[n])
        if ratios:
            known[n] = max(EFFICIENCY_LEAST, min(known[max(known)], statistics.median(ratios)))
    return known


def efficiency_of(kept: Mapping[str, Any]) -> dict[int, float]:
    """Efficiencies stored by an earlier app; raises ValueError or TypeError for other data."""
    found = {int(n): float(e) for n, e in kept.items()}
    if any(n < 1 or not EFFICIENCY_LEAST <= e <= 1 for n, e in found.items()):
        raise ValueError(f"{dict(kept)} are not efficiencies")
    return found
