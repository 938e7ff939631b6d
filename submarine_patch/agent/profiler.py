"""The jobs' speed and progress, as app schedulers read them."""

from __future__ import annotations

from collections.abc import Mapping

from pycontrol.fairness.slowdown import Profiler


class JobProfile:
    """The profiler together with the jobs' steps; implements `Profile`."""

    def __init__(self, profiler: Profiler, steps: Mapping[str, int]) -> None:
        self.profiler, self.steps = profiler, steps

    def step(self, job_id: str) -> int:
        """The job's global step."""
        return self.steps.get(job_id, 0)

    def serial_s(self, job_id: str | None = None) -> float:
        """Serial GPU-seconds per iteration, of this job or of the median job."""
        return self.profiler.serial_s(job_id)

    def sensitivity(self) -> float:
        """S across machines."""
        return self.profiler.sensitivity()
