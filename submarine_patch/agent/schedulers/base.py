"""App schedulers: their interface, with what most of them share."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pycontrol.fairness.figure7 import JobInfo
from submarine_patch.agent.schedulers.port import Profile, Verdict
from submarine_patch.agent.schedulers.search_space import sample
from submarine_patch.agent.spec import AppSpec


class Scheduler(ABC):
    """An app scheduler: suggest and on_result as usual, and the methods of Themis' Figure 7; here without rungs.

    It is deterministic for a seed and an order of events. `scores`: by job, the step of its last value and how good the
    value was.
    """

    kept: ClassVar[tuple[str, ...]] = ("configurations", "scores", "failed")
    """The attributes that are its state, for `dump`: numbers, lists, sets and dicts of plain values."""

    def __init__(self, spec: AppSpec) -> None:
        self.spec = spec
        self.configurations: dict[str, dict[str, str]] = {}
        self.scores: dict[str, tuple[int, float]] = {}
        """Larger is better."""
        self.failed: set[str] = set()

    # ---- abstract

    @abstractmethod
    def runnable(self) -> list[str]:
        """Jobs that may run now, including those that run, in order of preference."""

    @abstractmethod
    def on_result(self, job_id: str, value: float) -> Verdict:
        """Handle a job that reached its `until_step`, with this value of the metric."""

    @abstractmethod
    def widest(self) -> int:
        """The most jobs that run at the same time in any phase."""

    # ---- jobs

    @property
    def finished(self) -> bool:
        """Whether nothing is left to run."""
        return not self.runnable()

    def suggest(self) -> str:
        """Create a job; returns its id."""
        index = len(self.configurations)
        job_id = f"job{index:03d}"
        self.configurations[job_id] = self._draw(index)
        return job_id

    def _draw(self, index: int) -> dict[str, str]:
        return sample(self.spec.search_space, random.Random(f"{self.spec.seed}/{index}"))

    def configuration(self, job_id: str) -> dict[str, str]:
        """The configuration of a job."""
        return self.configurations[job_id]

    def until_step(self, job_id: str) -> int:
        """The global step to which a runnable job trains; 0 if only the training script knows its end."""
        return self.spec.max_iterations

    def rung(self, job_id: str) -> int:
        """The rung of a runnable job; 0 if there are no rungs."""
        return 0

    def on_progress(self, job_id: str, step: int, value: float) -> Verdict:
        """Handle a runnable job's step and its value of the metric; STOP if it need not continue, else CONTINUE."""
        return Verdict.CONTINUE

    def on_failure(self, job_id: str) -> None:
        """Handle a job that failed for good; the others continue."""
        self.failed.add(job_id)

    def waits(self, job_id: str) -> bool:
        """Whether a job is paused and may still continue."""
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
        """(jobs, iterations each) of the phases after the present one."""
        return []

    def num_phases(self) -> int:
        """The number of phases left, including the present one (getNumPhases)."""
        return 0 if self.finished else 1 + len(self.later())

    def jobs_in_phase(self, phase: int, profile: Profile) -> list[JobInfo]:
        """The jobs of a phase, where 0 is the present one (getJobsInPhase); in later phases each is the median job."""
        if phase == 0:
            return self.jobs_remaining(profile)
        jobs, iterations = self.later()[phase - 1]
        return [JobInfo(iterations, profile.serial_s(), profile.sensitivity())] * jobs

    def jobs_remaining(self, profile: Profile) -> list[JobInfo]:
        """The runnable jobs, each with the most iterations that it may still do now (getJobsRemaining)."""
        return infos({j: self.until_step(j) for j in self.runnable()}, profile)

    # ---- as plain values

    def dump(self) -> dict[str, Any]:
        """All state as JSON values."""
        return {name: plain(getattr(self, name)) for name in self.kept}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The inverse of `dump`; what an older version did not keep stays as it is."""
        for name in saved.keys() & set(self.kept):
            setattr(self, name, type(getattr(self, name))(plain(saved[name])))


class WholeRuns(Scheduler):
    """Base of schedulers without rungs: a job is `open` until it has trained to its end, failed or was stopped."""

    kept = (*Scheduler.kept, "open")

    def __init__(self, spec: AppSpec) -> None:
        super().__init__(spec)
        self.open: list[str] = []

    def runnable(self) -> list[str]:
        return list(self.open)

    def on_result(self, job_id: str, value: float) -> Verdict:
        self.scores[job_id] = (self.spec.max_iterations, self.good(value))
        self.close(job_id)
        return Verdict.STOP

    def on_failure(self, job_id: str) -> None:
        super().on_failure(job_id)
        self.close(job_id)

    def close(self, job_id: str) -> None:
        """End a job, if it has not ended."""
        if job_id in self.open:
            self.open.remove(job_id)


def plain(value: Any) -> Any:
    """A deep copy of a value as JSON has it: sets are sorted lists."""
    kind = type(value)
    if kind is dict:
        return {k: plain(x) for k, x in value.items()}
    if kind in (list, tuple, set):
        return [plain(x) for x in (sorted(value) if kind is set else value)]
    return value


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
