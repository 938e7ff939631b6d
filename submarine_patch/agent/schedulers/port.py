"""What the Agent needs of an app scheduler: the usual suggest / on_result, and the methods of Themis' Figure 7."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class Verdict(enum.StrEnum):
    """What becomes of a job that trained as far as it was told."""

    CONTINUE = "continue"
    """It trains on, from its checkpoint, to the next rung."""
    PAUSE = "pause"
    """It waits until the others of its rung are done."""
    STOP = "stop"
    """It is over."""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job of a phase as rho sees it (Figure 7); time in serial GPU-seconds."""

    iters_remaining: float
    avg_time_per_iter_s: float
    locality_sensitivity: float = 1.0
    """S across machines: 1 for a job that does not mind."""

    @property
    def serial_s(self) -> float:
        """Work left, in serial GPU-seconds."""
        return self.iters_remaining * self.avg_time_per_iter_s


class Profile(Protocol):
    """What is known of jobs' speed and progress."""

    def step(self, job_id: str) -> int:
        """The job's global step."""

    def serial_s(self, job_id: str | None = None) -> float:
        """Serial GPU-seconds of an iteration, of this job or of the median job."""

    def sensitivity(self) -> float:
        """S across machines."""


class AppScheduler(Protocol):
    """Deterministic for a seed; all of its state is in dump()."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to run."""

    @property
    def rung(self) -> int:
        """The present rung of the present bracket."""

    def suggest(self) -> tuple[str, dict[str, str]]:
        """A new job: its id and its configuration."""

    def configuration(self, job_id: str) -> dict[str, str]:
        """The configuration of a job."""

    def runnable(self) -> list[str]:
        """Jobs that may run now, those that run included, in order."""

    def until_step(self) -> int:
        """The global step to which runnable jobs train; 0 where only the training script knows."""

    def on_result(self, job_id: str, loss: float, accuracy: float) -> Verdict:
        """A job trained as far as it was told."""

    def on_failure(self, job_id: str) -> None:
        """A job failed for good; the others go on."""

    def waits(self, job_id: str) -> bool:
        """Whether a job is paused until its rung is over."""

    def best(self) -> str | None:
        """The best job so far."""

    def widest(self) -> int:
        """Most jobs at once in any phase."""

    def num_phases(self) -> int:
        """Phases left, the present one included (getNumPhases)."""

    def jobs_in_phase(self, phase: int, profile: Profile) -> list[JobInfo]:
        """The jobs of a phase, 0 being the present one (getJobsInPhase); later ones are the median job."""

    def dump(self) -> dict[str, Any]:
        """All state, JSON-able."""

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Takes the state of an earlier dump()."""
