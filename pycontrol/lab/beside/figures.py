"""What a run comes to, theirs or ours, by one set of formulas: completion, fairness, GPU-hours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pycontrol.lab.kit import Table
from pycontrol.simulation.result import Result

Floats = np.ndarray
COLUMNS = (
    "scheduler",
    "mean, s",
    "p99, s",
    "makespan, s",
    "worst fairness, all jobs",
    "worst fairness, jobs at the time",
    "GPU-hours",
    "restarts",
)
DIGITS = (0, 0, 0, 2, 2, 1, 0)


@dataclass(frozen=True)
class Played:
    """One run; arrays have a value for each job, in the trace's order. Times in seconds."""

    label: str
    submitted_s: Floats
    finished_s: Floats
    alone_s: Floats
    """How long the job takes if it never waits and never restarts."""
    gpus: int
    """Of the cluster."""
    gpu_h: float
    """GPU-hours in which jobs held GPUs."""
    restarts: float | None = None
    """None: not published."""

    @property
    def completion_s(self) -> Floats:
        """From submission to end."""
        return np.asarray(self.finished_s - self.submitted_s)

    @property
    def mean_s(self) -> float:
        """Mean completion time."""
        return float(self.completion_s.mean())

    @property
    def makespan_s(self) -> float:
        """From the first submission to the last end."""
        return float(self.finished_s.max() - self.submitted_s.min())

    @property
    def fairness(self) -> Floats:
        """Finish-time fairness against all jobs of the trace at once (Shockwave, section 8.1; at most 1 is fair)."""
        crowd = max(1.0, len(self.alone_s) / self.gpus)
        return np.asarray(self.completion_s / (self.alone_s * crowd))

    @property
    def fairness_now(self) -> Floats:
        """The same against the mean number of jobs in the job's own life, as its artifact has it for Themis' rho."""
        begin, end = self.submitted_s, self.finished_s
        shared_s = np.minimum(end[:, None], end[None, :]) - np.maximum(begin[:, None], begin[None, :])
        jobs = np.clip(shared_s, 0.0, None).sum(axis=1) / self.completion_s
        return np.asarray(self.completion_s / (self.alone_s * np.maximum(1.0, jobs / self.gpus)))

    @property
    def worst(self) -> float:
        """The worst fairness against all jobs."""
        return float(self.fairness.max())

    @property
    def numbers(self) -> tuple[float, ...]:
        """Those of the table, restarts last."""
        p99_s, restarts = float(np.percentile(self.completion_s, 99)), self.restarts
        worst = self.worst, float(self.fairness_now.max())
        return self.mean_s, p99_s, self.makespan_s, *worst, self.gpu_h, math.nan if restarts is None else restarts


def played(label: str, result: Result, order: Sequence[str], alone_s: Floats) -> Played:
    """A simulation here; `order`: the apps as the trace has them."""
    by_id = {a.app_id: a for a in result.apps}
    apps = [by_id[name] for name in order]
    begin, end = (np.array([getattr(a, f"{name}_s") for a in apps], float) for name in ("submitted", "finished"))
    gpu_h = sum(a.gpu_s for a in apps) / 3600
    return Played(label, begin, end, alone_s, result.cluster_gpus, gpu_h, float(sum(a.restarts for a in apps)))


def beside(title: str, runs: Iterable[Sequence[Played]]) -> Table:
    """One row a scheduler: means over its runs."""
    rows = []
    for of_one in runs:
        means = np.mean([r.numbers for r in of_one], axis=0)
        said = (f"{x:.{digits}f}" for x, digits in zip(means, DIGITS, strict=True))
        rows.append((of_one[0].label, *("-" if x == "nan" else x for x in said)))
    return Table(title, COLUMNS, tuple(rows))
