"""The scaling efficiency E(n) of an app's elastic jobs on n GPUs, measured while they run, stored by job type."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pycontrol.fairness.elastic import efficiency_at, efficiency_of, measured_efficiency
from pycontrol.fairness.slowdown import ENOUGH, WINDOW


class Scaling:
    """E(n) of one app's jobs; `least_gpus` is the smallest size of a gang."""

    def __init__(self, least_gpus: int) -> None:
        self._least_gpus = least_gpus
        self._samples: dict[tuple[str, int], deque[float]] = {}
        self._recalled: dict[int, float] = {}
        self._known: dict[int, float] | None = None

    def add(self, job_id: str, gpus: int, serial_s: float) -> None:
        """Add one measured iteration, in seconds x GPUs at S = 1."""
        if 0 < serial_s < float("inf"):
            self._samples.setdefault((job_id, gpus), deque(maxlen=WINDOW)).append(serial_s)
            self._known = None

    def efficiency(self) -> Mapping[int, float]:
        """{GPUs: E}, measured or else recalled from earlier apps."""
        if self._known is None:
            jobs: dict[str, dict[int, float]] = {}
            for (job_id, gpus), samples in self._samples.items():
                if len(samples) >= ENOUGH:
                    jobs.setdefault(job_id, {})[gpus] = statistics.median(samples)
            self._known = self._recalled | measured_efficiency(list(jobs.values()), self._least_gpus)
        return self._known

    def of(self, gpus: int) -> float:
        """E of a gang with this many GPUs."""
        return efficiency_at(self.efficiency(), gpus)

    def kept(self) -> dict[str, float]:
        """E(n) for later apps of the job type; empty if only the smallest size was measured."""
        known = self.efficiency()
        return {str(n): known[n] for n in sorted(known)} if len(known) > 1 else {}

    def recall(self, kept: Mapping[str, Any]) -> None:
        """Use what earlier apps measured until this app measures; raises ValueError or TypeError if malformed."""
        self._recalled, self._known = efficiency_of(kept), None

    def dump(self) -> list[Any]:
        """All samples as JSON values."""
        return [[job_id, gpus, list(v)] for (job_id, gpus), v in self._samples.items()]

    def restore(self, saved: Sequence[Any]) -> None:
        """The inverse of `dump`."""
        self._samples = {(j, int(n)): deque(v, maxlen=WINDOW) for j, n, v in saved}
        self._known = None
