"""What all app schedulers share: configurations, results, failures, and one phase of jobs as Figure 7 has it."""

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
    """A scheduler without any barrier; `scores`: by job, the step of its last value and how good it was."""

    def __init__(self, spec: AppSpec) -> None:
        self.spec = spec
        self.configurations: dict[str, dict[str, str]] = {}
        self.scores: dict[str, tuple[int, float]] = {}
        """Larger is better."""
        self.failed: set[str] = set()

    # ---- to be said by each

    @abstractmethod
    def runnable(self) -> list[str]:
        """Jobs that may run now."""

    @abstractmethod
    def on_result(self, job_id: str, value: float) -> Verdict:
        """A job trained as far as it was told."""

    @abstractmethod
    def widest(self) -> int:
        """Most jobs at once in any phase."""

    # ---- jobs

    @property
    def finished(self) -> bool:
        """Whether nothing is left to run."""
        return not self.runnable()

    def suggest(self) -> tuple[str, dict[str, str]]:
        """A new job: its id and its configuration."""
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
        """All the way."""
        return self.spec.max_iterations

    def rung(self, job_id: str) -> int:
        """There are none."""
        return 0

    def on_progress(self, job_id: str, step: int, value: float) -> Verdict:
        """Nothing is decided before a job trained as far as it was told."""
        return Verdict.CONTINUE

    def on_failure(self, job_id: str) -> None:
        """A job failed for good: the others continue without it."""
        self.failed.add(job_id)

    def waits(self, job_id: str) -> bool:
        """Nobody waits for anybody."""
        return False

    def good(self, value: float) -> float:
        """How good a value of the metric is, larger being better; one that is no number is the worst."""
        better = -value if self.spec.lower_is_better else value
        return better if math.isfinite(better) else -math.inf

    def best(self) -> str | None:
        """The best job so far, whatever it took."""
        return min(self.scores, key=lambda j: (-self.scores[j][1], j), default=None)

    def furthest(self) -> str | None:
        """The best of those that trained furthest: results of different rungs do not compare."""
        return min(self.scores, key=lambda j: (-self.scores[j][0], -self.scores[j][1], j), default=None)

    # ---- Figure 7

    def later(self) -> list[tuple[int, int]]:
        """(jobs, iterations each) of the phases after the present one: none."""
        return []

    def num_phases(self) -> int:
        """Phases left, the present one included."""
        return 0 if self.finished else 1 + len(self.later())

    def jobs_in_phase(self, phase: int, profile: Profile) -> list[JobInfo]:
        """The jobs of a phase, 0 being the present one; later ones are the median job."""
        if phase == 0:
            return self.jobs_remaining(profile)
        jobs, iterations = self.later()[phase - 1]
        return [JobInfo(iterations, profile.serial_s(), profile.sensitivity())] * jobs

    def jobs_remaining(self, profile: Profile) -> list[JobInfo]:
        """The runnable jobs with all the iterations up to where they were told to train."""
        return infos({j: self.until_step(j) for j in self.runnable()}, profile)

    # ---- as plain values

    def dump(self) -> dict[str, Any]:
        """All state, JSON-able."""
        return {
            "configurations": {j: dict(c) for j, c in self.configurations.items()},
            "scores": {j: list(s) for j, s in self.scores.items()},
            "failed": sorted(self.failed),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Takes the state of an earlier dump()."""
        self.configurations = {j: dict(c) for j, c in saved["configurations"].items()}
        self.scores = {j: (step, good) for j, (step, good) in saved["scores"].items()}
        self.failed = set(saved["failed"])


JOBS = 20
"""Configurations that are tried where neither rungs nor the user say how many."""


def infos(until: Mapping[str, float], profile: Profile) -> list[JobInfo]:
    """Jobs that train to these steps, as Figure 7 has them."""
    s = profile.sensitivity()
    return [JobInfo(max(1.0, end - profile.step(j)), profile.serial_s(j), s) for j, end in until.items()]


def whole_runs(spec: AppSpec) -> int:
    """How many jobs the budget lets train all the way, of those wanted; at least one."""
    wanted = spec.jobs or JOBS
    return max(1, min(wanted, spec.budget_iterations // spec.max_iterations)) if spec.budget_iterations else wanted
