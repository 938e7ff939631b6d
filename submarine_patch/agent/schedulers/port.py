"""The interface of app schedulers: the usual suggest / on_result, and the methods of Themis' Figure 7."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Protocol

from pycontrol.fairness.figure7 import JobInfo

__all__ = ["AppScheduler", "JobInfo", "Profile", "SchedulerError", "Verdict"]


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


class Profile(Protocol):
    """The jobs' measured speed and progress."""

    def step(self, job_id: str) -> int:
        """The job's global step."""

    def serial_s(self, job_id: str | None = None) -> float:
        """Serial GPU-seconds of an iteration, of this job or of the median job."""

    def sensitivity(self) -> float:
        """S across machines; 1 if locality does not matter."""


class AppScheduler(Protocol):
    """An app scheduler. It is deterministic for a seed and an order of events, and `dump` has all its state."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to run."""

    def suggest(self) -> tuple[str, dict[str, str]]:
        """Create a job; returns its id and configuration."""

    def configuration(self, job_id: str) -> dict[str, str]:
        """The configuration of a job."""

    def runnable(self) -> list[str]:
        """Jobs that may run now, including those that run, in order of preference."""

    def until_step(self, job_id: str) -> int:
        """The global step to which a runnable job trains; 0 if only the training script knows its end."""

    def rung(self, job_id: str) -> int:
        """The rung of a runnable job; 0 if there are no rungs."""

    def on_progress(self, job_id: str, step: int, value: float) -> Verdict:
        """Handle a runnable job's step and its value of the metric; STOP if it need not continue, else CONTINUE."""

    def on_result(self, job_id: str, value: float) -> Verdict:
        """Handle a job that reached its `until_step`, with this value of the metric."""

    def on_failure(self, job_id: str) -> None:
        """Handle a job that failed for good; the others continue."""

    def waits(self, job_id: str) -> bool:
        """Whether a job is paused and may still continue."""

    def best(self) -> str | None:
        """The best job so far; None without any result."""

    def widest(self) -> int:
        """The most jobs that run at the same time in any phase."""

    def num_phases(self) -> int:
        """The number of phases left, including the present one (getNumPhases)."""

    def jobs_in_phase(self, phase: int, profile: Profile) -> list[JobInfo]:
        """The jobs of a phase, where 0 is the present one (getJobsInPhase); in later phases each is the median job."""

    def jobs_remaining(self, profile: Profile) -> list[JobInfo]:
        """The runnable jobs, each with the most iterations that it may still do now (getJobsRemaining)."""

    def dump(self) -> dict[str, Any]:
        """All state as JSON values."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The inverse of `dump`."""
