"""The base of all app schedulers: configurations, results, failures, and the methods of Themis' Figure 7."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from submarine_patch.agent.schedulers.port import JobInfo, Profile, Verdict
from submarine_patch.agent.schedulers.space import sample
from submarine_patch.agent.spec import AppSpec


class Scheduler(ABC):
    """Base of app schedulers, with the defaults of one without rungs.

    `scores`: by job, the step of its last value and how good the value was.
    """

    def __init__(self, spec: AppSpec) -> None:
        self.spec = spec
        self.configurations: dict[str, dict[str, str]] = {}
        self.scores: dict[str, tuple[int, float]] = {}
        """Larger is better."""
        self.failed: set[str] = set()

    # ---- abstract

    @abstractmethod
    def runnable(self) -> list[str]:
        """Jobs that may run now."""

    @abstractmethod
    def on_result(self, job_id: str, value: float) -> Verdict:
        """Handle the result of a job that reached its `until_step`."""

    @abstractmethod
    def widest(self) -> int:
        """The most jobs that run at the same time in any phase."""

    # ---- jobs

    @property
    def finished(self) -> bool:
        """Whether nothing is left to run."""
        return not self.runnable()

    def suggest(self) -> tuple[str, dict[str, str]]:
        """Create a job; returns its id and configuration."""
        index = len(self.configurations)
        job_id = f"job{index:03d}"
        self.configurations[job_id] = self._draw(index)
        return job_id, self.configurations[job_id]

    def _draw(self, index: int) -> dict[str, str]:
        return sample(self.spec.search_space, random.Random(f"{self.spec.seed}/{index}"))

    def configuration(self, job_id: str) -> dict[str, str]:
        """The configuration of a job."""
        return self.configurations[job_id]

    def until_step(self, job_id: str) -> int:
        """The step to which the job trains: max_iterations."""
        return self.spec.max_iterations

    def rung(self, job_id: str) -> int:
        """The job's rung: 0, as there are no rungs."""
        return 0

    def on_progress(self, job_id: str, step: int, value: float) -> Verdict:
        """Handle a value on the way; never stops a job."""
        return Verdict.CONTINUE

    def on_failure(self, job_id: str) -> None:
        """Handle a job that failed for good: the others continue without it."""
        self.failed.add(job_id)

    def waits(self, job_id: str) -> bool:
        """Whether the job is paused: never, as there are no barriers."""
        return False

    def good(self, value: float) -> float:
        """A value of the metric on a scale where larger is better; -inf if it is not finite."""
        better = -value if self.spec.lower_is_better else value
        return better if math.isfinite(better) else -math.inf

    def best(self) -> str | None:
        """The best job so far, at whatever step; None without a result."""
        return min(self.scores, key=lambda j: (-self.scores[j][1], j), default=None)

    def furthest(self) -> str | None:
        """The best of the jobs that trained furthest, because results of different rungs do not compare."""
        return min(self.scores, key=lambda j: (-self.scores[j][0], -self.scores[j][1], j), default=None)

    # ---- Figure 7

    def later(self) -> list[tuple[int, int]]:
        """(jobs, iterations each) of the phases after the present one: none."""
        return []

    def num_phases(self) -> int:
        """The number of phases left, including the present one."""
        return 0 if self.finished else 1 + len(self.later())

    def jobs_in_phase(self, phase: int, profile: Profile) -> list[JobInfo]:
        """The jobs of a phase, where 0 is the present one; in later phases each is the median job."""
        if phase == 0:
            return self.jobs_remaining(profile)
        jobs, iterations = self.later()[phase - 1]
        return [JobInfo(iterations, profile.serial_s(), profile.sensitivity())] * jobs

    def jobs_remaining(self, profile: Profile) -> list[JobInfo]:
        """The runnable jobs with their iterations left up to `until_step`."""
        return infos({j: self.until_step(j) for j in self.runnable()}, profile)

    # ---- as plain values

    def dump(self) -> dict[str, Any]:
        """All state as JSON values."""
        return {
            "configurations": {j: dict(c) for j, c in self.configurations.items()},
            "scores": {j: list(s) for j, s in self.scores.items()},
            "failed": sorted(self.failed),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The inverse of `dump`."""
        self.configurations = {j: dict(c) for j, c in saved["configurations"].items()}
        self.scores = {j: (step, good) for j, (step, good) in saved["scores"].items()}
        self.failed = set(saved["failed"])


JOBS = 20
"""Configurations to try if neither rungs nor the user set their number."""


def infos(until: Mapping[str, float], profile: Profile) -> list[JobInfo]:
    """`JobInfo` of Themis' Figure 7 for jobs that train to these steps."""
    s = profile.sensitivity()
    return [JobInfo(max(1.0, end - profile.step(j)), profile.serial_s(j), s) for j, end in until.items()]


def whole_runs(spec: AppSpec) -> int:
    """The number of jobs that can train to max_iterations within the budget; at least one."""
    wanted = spec.jobs or JOBS
    return max(1, min(wanted, spec.budget_iterations // spec.max_iterations)) if spec.budget_iterations else wanted
