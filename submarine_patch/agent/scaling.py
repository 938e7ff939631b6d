"""How much faster an app's elastic jobs are on more GPUs: E(n), measured while they run, kept by job type."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pycontrol.fairness.elastic import efficiency_at, efficiency_of, measured_efficiency
from pycontrol.fairness.slowdown import ENOUGH, WINDOW


class Scaling:
    """Of one app's jobs, the fewest GPUs of which are `least_gpus`."""

    def __init__(self, least_gpus: int) -> None:
        self._least_gpus = least_gpus
        self._samples: dict[tuple[str, int], deque[float]] = {}
        self._recalled: dict[int, float] = {}
        self._known: dict[int, float] | None = None

    def add(self, job_id: str, gpus: int, serial_s: float) -> None:
        """One measured iteration: seconds x GPUs, at S = 1."""
        if 0 < serial_s < float("inf"):
            self._samples.setdefault((job_id, gpus), deque(maxlen=WINDOW)).append(serial_s)
            self._known = None

    def efficiency(self) -> Mapping[int, float]:
        """E by number of GPUs, as measured, else as recalled."""
        if self._known is None:
            jobs: dict[str, dict[int, float]] = {}
            for (job_id, gpus), samples in self._samples.items():
                if len(samples) >= ENOUGH:
                    jobs.setdefault(job_id, {})[gpus] = statistics.median(samples)
            self._known = self._recalled | measured_efficiency(list(jobs.values()), self._least_gpus)
        return self._known

    def of(self, gpus: int) -> float:
        """E of a gang."""
        return efficiency_at(self.efficiency(), gpus)

    def kept(self) -> dict[str, float]:
        """For later apps of the job type; empty where nothing but the fewest GPUs was measured."""
        known = self.efficiency()
        return {str(n): known[n] for n in sorted(known)} if len(known) > 1 else {}

    def recall(self, kept: Mapping[str, Any]) -> None:
        """What earlier apps measured, until this one measures; ValueError or TypeError for what is no such thing."""
        self._recalled, self._known = efficiency_of(kept), None

    def dump(self) -> list[Any]:
        """All samples, JSON-able."""
        return [[job_id, gpus, list(v)] for (job_id, gpus), v in self._samples.items()]

    def restore(self, saved: Sequence[Any]) -> None:
        """Takes the samples of an earlier dump()."""
        self._samples = {(j, int(n)): deque(v, maxlen=WINDOW) for j, n, v in saved}
        self._known = None
