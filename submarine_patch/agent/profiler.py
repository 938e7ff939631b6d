"""Iteration times from TensorFlow's logs: serial time per job and the slowdown S(G) of each scope (Themis, 4.3).

A sample is iteration time x GPUs, in serial GPU-seconds x S; medians resist the noise of the first steps.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pycontrol.model.topology import Scope

WINDOW = 32
ENOUGH = 5
"""Samples before a measurement replaces what was declared."""


class Profiler:
    """Keeps the newest samples of each job in each scope."""

    def __init__(self, iteration_s: float | None, prior: Sequence[float]) -> None:
        self.declared_s, self.prior = iteration_s, tuple(prior)
        self._samples: dict[tuple[str, Scope], deque[float]] = {}
        self._medians: dict[tuple[str, Scope], float] | None = None

    def add(self, job_id: str, iter_time_s: float, gpus: int, scope: Scope) -> None:
        """One measured iteration."""
        if iter_time_s > 0:
            samples = self._samples.setdefault((job_id, scope), deque(maxlen=WINDOW))
            samples.append(iter_time_s * max(1, gpus))
            self._medians = None

    def _known(self) -> dict[tuple[str, Scope], float]:
        if self._medians is None:
            self._medians = {k: statistics.median(v) for k, v in self._samples.items() if len(v) >= ENOUGH}
        return self._medians

    def _base(self, job_id: str, below: Scope) -> float | None:
        """The job's serial time by its placements narrower than this scope, else the declared one."""
        known = self._known()
        for scope in Scope:
            if scope < below and (job_id, scope) in known:
                return known[job_id, scope] / self.prior[scope - 1]
        return self.declared_s

    def slowdown(self, scope: Scope) -> float:
        """S of this scope, at least 1: the median job's against its own narrower placements, else the prior."""
        if scope is Scope.MACHINE:
            return self.prior[0]
        ratios = [
            median / base
            for (job_id, s), median in self._known().items()
            if s is scope and (base := self._base(job_id, scope))
        ]
        return max(1.0, statistics.median(ratios)) if ratios else self.prior[scope - 1]

    def sensitivity(self) -> float:
        """S across machines."""
        return self.slowdown(Scope.RACK)

    def serial_s(self, job_id: str | None = None) -> float:
        """Serial GPU-seconds of an iteration of this job, else of the median job, else declared, else one."""
        known = self._known()
        for scope in Scope:
            if job_id is not None and (job_id, scope) in known:
                return known[job_id, scope] / self.slowdown(scope)
        if self.declared_s:
            return self.declared_s
        all_s = [median / self.slowdown(scope) for (_, scope), median in known.items()]
        return statistics.median(all_s) if all_s else 1.0

    def dump(self) -> list[Any]:
        """All samples, JSON-able."""
        return [[job_id, int(scope), list(v)] for (job_id, scope), v in self._samples.items()]

    def restore(self, saved: Sequence[Any]) -> None:
        """Takes the samples of an earlier dump()."""
        self._samples = {(j, Scope(scope)): deque(v, maxlen=WINDOW) for j, scope, v in saved}
        self._medians = None


class JobProfile:
    """The profiler with the jobs' steps, as app schedulers read it."""

    def __init__(self, profiler: Profiler, steps: Mapping[str, int]) -> None:
        self.profiler, self.steps = profiler, steps

    def step(self, job_id: str) -> int:
        """The job's global step."""
        return self.steps.get(job_id, 0)

    def serial_s(self, job_id: str | None = None) -> float:
        """Serial GPU-seconds of an iteration."""
        return self.profiler.serial_s(job_id)

    def sensitivity(self) -> float:
        """S across machines."""
        return self.profiler.sensitivity()
