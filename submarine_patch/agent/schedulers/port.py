"""What app schedulers know of their jobs, and what they decide."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from pycontrol.fairness.slowdown import Profiler


class SchedulerError(Exception):
    """The user's app scheduler cannot run here; the message says what to do."""


class Verdict(enum.StrEnum):
    """The decision about a job, after a step or at its `until_step`."""

    CONTINUE = "continue"
    """The job trains on; after `on_result`, from its checkpoint to its next `until_step`."""
    PAUSE = "pause"
    """The job waits: other jobs' results decide whether it continues."""
    STOP = "stop"
    """The job has ended."""


@dataclass(frozen=True)
class Profile:
    """The jobs' measured speed and progress."""

    profiler: Profiler
    steps: Mapping[str, int]

    def step(self, job_id: str) -> int:
        """The job's global step."""
        return self.steps.get(job_id, 0)

    def serial_s(self, job_id: str | None = None) -> float:
        """Serial GPU-seconds of an iteration, of this job or of the median job."""
        return self.profiler.serial_s(job_id)

    def sensitivity(self) -> float:
        """S across machines; 1 if locality does not matter."""
        return self.profiler.sensitivity()
