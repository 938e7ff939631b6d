"""Losses of undisturbed and disturbed jobs, by the workers' logs: faults must not change the loss at a step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.logs import EVALUATION, read

TOLERANCE = 1e-3
"""Relative; logs have six digits."""
CALM = "calm"
Point = tuple[str, str, str, int]
"""(app, job, training or evaluation, step)"""


class Losses:
    """The losses that both kinds of run logged."""

    def __init__(self) -> None:
        self._calm: dict[Point, set[float]] = {}
        self._disturbed: dict[Point, set[float]] = {}
        self._evaluated: dict[str, set[int]] = {}
        """Steps by app, `chaos-plain-2`: where a job was evaluated."""

    def read(self, folder: Path) -> None:
        """All workers' logs below a folder."""
        for file in sorted(folder.rglob("stderr")):
            self.note(file.read_text(errors="replace"))

    def note(self, text: str) -> None:
        """Adds a worker's log."""
        for log in read(text):
            seen = self._calm if log.run == CALM else self._disturbed
            for kind, step, loss in log.losses:
                seen.setdefault((log.app, log.job, kind, step), set()).add(loss)
                if kind == EVALUATION:
                    self._evaluated.setdefault(f"{log.run}-{log.app}-{log.number}", set()).add(step)

    @property
    def compared(self) -> int:
        """The number of points that both have."""
        return len(self._calm.keys() & self._disturbed.keys())

    @property
    def largest(self) -> float:
        """The largest relative difference."""
        return max((d for _, d in self._differences()), default=0.0)

    def different(self) -> list[str]:
        """A line for each point whose losses are not the same."""
        return [
            f"{p[0]} {p[1]} at step {p[3]}: the loss of {p[2]} differs by {d:.2%}"
            for p, d in self._differences()
            if d > TOLERANCE
        ]

    def unfinished(self, names: Iterable[str]) -> list[str]:
        """A line for each of these apps without a job that got as far as the best undisturbed one."""
        lines = []
        for name in names:
            app = name.split("-")[1]
            goal = max((p[3] for p in self._calm if p[0] == app and p[2] == EVALUATION), default=0)
            if not goal or goal not in self._evaluated.get(name, ()):
                lines.append(f"{name}: no job was evaluated at step {goal}, where the undisturbed one's was")
        return lines

    def _differences(self) -> list[tuple[Point, float]]:
        found = []
        for point in sorted(self._calm.keys() & self._disturbed.keys()):
            all_of_it = self._calm[point] | self._disturbed[point]
            off = max(all_of_it) - min(all_of_it)
            found.append((point, off / max(abs(min(all_of_it)), math.ulp(1.0))))
        return found
