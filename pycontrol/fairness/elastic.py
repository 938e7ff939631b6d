"""Elastic jobs: how fast one runs on how many GPUs, and how many are worth having (Themis, section 4.3).

A job runs on `least_gpus` to `most_gpus` GPUs. What is lost by more GPUs on one machine is the efficiency E(n),
measured as S(G) is for placements; without it n GPUs are n times as fast as one, as the paper has it.
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
"""A GPU more must bring this part of what the first ones do."""
EFFICIENCY_LEAST = 1e-3


@value
class Elastic:
    """How an app's jobs run on more GPUs and fewer. `efficiency`: E by number of GPUs, 1 at `least_gpus`;
    `slowdown`: S by scope; `restart_s`: what a change costs."""

    least_gpus: int
    most_gpus: int
    slowdown: tuple[float, float, float]
    restart_s: float
    efficiency: Mapping[int, float] = field(default_factory=dict)

    def speed(self, gpus: int, scope: Scope = Scope.MACHINE) -> float:
        """Serial seconds a second of a gang."""
        return gpus * efficiency_at(self.efficiency, gpus) / self.slowdown[scope - 1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """GPUs that a gang may have; the largest are left out where they bring too little."""
        found: list[int] = []
        for n in gang_sizes(self.least_gpus, self.most_gpus):
            if found:
                more = (self.speed(n) - self.speed(found[-1])) / (n - found[-1])
                if more < WORTH * self.speed(found[0]) / found[0]:
                    break
            found.append(n)
        return tuple(found)


def efficiency_at(known: Mapping[int, float], gpus: int) -> float:
    """E of so many GPUs: as measured, else that of the next smaller number measured; 1 where there is none."""
    below = [n for n in known if n <= gpus]
    return known[max(below)] if below else 1.0


def measured_efficiency(jobs: Sequence[Mapping[int, float]], base: int) -> dict[int, float]:
    """E by number of GPUs, from the serial GPU-seconds of an iteration by number of GPUs, job by job.

    Ratios within one job, to the next fewer GPUs that are known, the median over jobs; E never rises with the number.
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
    """What an earlier app measured; ValueError or TypeError for what is no such thing."""
    found = {int(n): float(e) for n, e in kept.items()}
    if any(n < 1 or not EFFICIENCY_LEAST <= e <= 1 for n, e in found.items()):
        raise ValueError(f"{dict(kept)} are no efficiencies")
    return found
