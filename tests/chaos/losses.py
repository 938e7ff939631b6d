"""Losses of jobs undisturbed and disturbed, by the workers' logs: a job has one loss at a step, come what may."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

TOLERANCE = 1e-3
"""Relative; logs have six digits."""
WHERE = re.compile(r"jobs/(\w+)-(\w+)-\d+/staging/checkpoint_path/application_\d+_\d+/(job\d+)")
TRAINING = re.compile(r"loss = (\S+), step = (\d+)")
EVALUATION = re.compile(r"for global step (\d+): .*?loss = ([^,\s]+)")
Point = tuple[str, str, str, int]
"""(app, job, training or evaluation, step)"""


class Losses:
    """What both kinds of run logged."""

    def __init__(self) -> None:
        self._calm: dict[Point, set[float]] = {}
        self._disturbed: dict[Point, set[float]] = {}

    def read(self, folder: Path) -> None:
        """All workers' logs below a folder."""
        for file in sorted(folder.rglob("stderr")):
            self.note(file.read_text(errors="replace"))

    def note(self, log: str) -> None:
        """A worker's log; its checkpoints' names tell the app and the job, `calm-APP-1` being undisturbed."""
        where = WHERE.search(log)
        if where is None:
            return
        seen = self._calm if where[1] == "calm" else self._disturbed
        for kind, step, loss in _losses(log):
            if math.isfinite(loss):
                seen.setdefault((where[2], where[3], kind, step), set()).add(loss)

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
        return [f"{p[0]} {p[1]} at step {p[3]}: the loss of {p[2]} differs by {d:.2%}"
                for p, d in self._differences() if d > TOLERANCE]  # fmt: skip

    def _differences(self) -> list[tuple[Point, float]]:
        found = []
        for point in sorted(self._calm.keys() & self._disturbed.keys()):
            all_of_it = self._calm[point] | self._disturbed[point]
            off = max(all_of_it) - min(all_of_it)
            found.append((point, off / max(abs(min(all_of_it)), math.ulp(1.0))))
        return found


def _losses(log: str) -> Iterator[tuple[str, int, float]]:
    for loss, step in TRAINING.findall(log):
        yield "training", int(step), float(loss)
    for step, loss in EVALUATION.findall(log):
        yield "evaluation", int(step), float(loss)
