"""What the Agent needs of an app scheduler: the usual suggest / on_result, and the methods of Themis' Figure 7."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Protocol

from pycontrol.fairness.figure7 import JobInfo

__all__ = ["AppScheduler", "JobInfo", "Profile", "SchedulerError", "Verdict"]


class SchedulerError(Exception):
    """The scheduler that the user asked for cannot run here; says what to do."""


class Verdict(enum.StrEnum):
    """What becomes of a job, after a step or once it trained as far as it was told."""

    CONTINUE = "continue"
    """It trains on (from its checkpoint, to the next rung, if it trained as far as it was told)."""
    PAUSE = "pause"
    """It waits: others decide whether it continues."""
    STOP = "stop"
    """It has ended."""


class Profile(Protocol):
    """What is known of jobs' speed and progress."""

    def step(self, job_id: str) -> int:
        """The job's global step."""

    def serial_s(self, job_id: str | None = None) -> float:
        """Serial GPU-seconds of an iteration, of this job or of the median job."""

    def sensitivity(self) -> float:
        """S across machines: 1 where jobs do not mind."""


class AppScheduler(Protocol):
    """Deterministic for a seed and the order of events; all of its state is in dump()."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to run."""

    def suggest(self) -> tuple[str, dict[str, str]]:
        """A new job: its id and its configuration."""

    def configuration(self, job_id: str) -> dict[str, str]:
        """The configuration of a job."""

    def runnable(self) -> list[str]:
        """Jobs that may run now, those that run included, in order."""

    def until_step(self, job_id: str) -> int:
        """The global step to which a runnable job trains; 0 where only the training script knows."""

    def rung(self, job_id: str) -> int:
        """The rung that a runnable job trains in; 0 where there are none."""

    def on_progress(self, job_id: str, step: int, value: float) -> Verdict:
        """A runnable job did a step, with this value of the metric: STOP if it need not continue, else CONTINUE."""

    def on_result(self, job_id: str, value: float) -> Verdict:
        """A job trained as far as it was told, to this value of the metric."""

    def on_failure(self, job_id: str) -> None:
        """A job failed for good; the others continue."""

    def waits(self, job_id: str) -> bool:
        """Whether a job is paused and may yet continue."""

    def best(self) -> str | None:
        """The best job so far; None without any result."""

    def widest(self) -> int:
        """Most jobs at once in any phase."""

    def num_phases(self) -> int:
        """Phases left, the present one included (getNumPhases)."""

    def jobs_in_phase(self, phase: int, profile: Profile) -> list[JobInfo]:
        """The jobs of a phase, 0 being the present one (getJobsInPhase); later ones are the median job."""

    def jobs_remaining(self, profile: Profile) -> list[JobInfo]:
        """The runnable jobs, each with the most iterations that it may still do now (getJobsRemaining)."""

    def dump(self) -> dict[str, Any]:
        """All state, JSON-able."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Takes the state of an earlier dump()."""
