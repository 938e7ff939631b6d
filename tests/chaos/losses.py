"""Losses of jobs undisturbed and disturbed: the same job with the same configuration has one loss at a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

TOLERANCE = 1e-3
"""Relative; logs have six digits."""
Point = tuple[str, str, tuple[tuple[str, str], ...], int]
"""(app, job, its configuration, step)"""


class Losses:
    """What was seen of both kinds of run."""

    def __init__(self) -> None:
        self._calm: dict[Point, float] = {}
        self._disturbed: dict[Point, set[float]] = {}

    def note(self, app: str, jobs: Iterable[Mapping[str, Any]], calm: bool) -> None:
        """The Agent's report on the jobs of an app."""
        for job in jobs:
            if job["step"] > 0 and job["loss"] > 0:
                point = (app, job["job_id"], tuple(sorted(job["configuration"].items())), job["step"])
                if calm:
                    self._calm[point] = job["loss"]
                else:
                    self._disturbed.setdefault(point, set()).add(job["loss"])

    @property
    def known(self) -> int:
        """Points of the undisturbed run."""
        return len(self._calm)

    @property
    def compared(self) -> int:
        """Points that both have."""
        return len(self._calm.keys() & self._disturbed.keys())

    @property
    def largest(self) -> float:
        """The largest relative difference."""
        return max((d for _, d in self._differences()), default=0.0)

    def different(self) -> list[str]:
        """A line for each point whose losses are not the same."""
        return [f"{p[0]} {p[1]} at step {p[3]}: the loss differs by {d:.2%}" for p, d in self._differences()
                if d > TOLERANCE]  # fmt: skip

    def _differences(self) -> list[tuple[Point, float]]:
        found = []
        for point in sorted(self._calm.keys() & self._disturbed.keys()):
            calm = self._calm[point]
            off = max(abs(x - calm) for x in self._disturbed[point])
            found.append((point, off / max(abs(calm), math.ulp(1.0))))
        return found
