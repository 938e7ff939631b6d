"""Early stopping: all jobs train concurrently, and those that cannot win are stopped.

The median stopping rule of Vizier (Golovin et al., KDD 2017, section 3.2) and performance-curve stopping
(Themis, section 4.3.2; HyperDrive, Rasley et al., Middleware 2017).
"""

from __future__ import annotations

import statistics
from abc import abstractmethod
from collections.abc import Sequence

from pycontrol.fairness.curves import Curve, add, best_possible, fit, longest_run
from pycontrol.fairness.figure7 import JobInfo
from submarine_patch.agent.schedulers.base import WholeRuns, infos, whole_runs
from submarine_patch.agent.schedulers.port import Profile, Verdict
from submarine_patch.agent.spec import AppSpec

POINTS_MAX = 100
"""The most values kept per job."""
CHECKS = 50
"""The most times that a job is judged before its end."""
GRACE = 10
"""A job is first judged after max_iterations / GRACE, unless the user sets min_iterations."""
SMOOTH = 3
OTHERS_LEAST = 3


class Stopping(WholeRuns):
    """Base of stopping rules: all jobs are runnable until they end, fail or are hopeless."""

    kept = (*WholeRuns.kept, "seen", "peaks", "judged")

    def __init__(self, spec: AppSpec) -> None:
        super().__init__(spec)
        self.open = [self.suggest() for _ in range(whole_runs(spec))]
        self.seen: dict[str, list[Sequence[float]]] = {}
        """By job: (step, how good) in order of steps."""
        self.peaks: dict[str, float] = {}
        """By job: how good it was at best."""
        self.judged: dict[str, int] = {}
        """The step at which a job was last judged."""
        self.grace = spec.min_iterations if spec.min_iterations > 1 else max(1, spec.max_iterations // GRACE)
        self.every = max(1, spec.max_iterations // CHECKS)

    @abstractmethod
    def hopeless(self, job_id: str) -> bool:
        """Whether the job cannot win."""

    def on_progress(self, job_id: str, step: int, value: float) -> Verdict:
        """Record a value, and judge the job from time to time."""
        if job_id not in self.open:
            return Verdict.STOP
        self._note(job_id, step, self.good(value))
        if step < max(self.grace, self.judged.get(job_id, 0) + self.every):
            return Verdict.CONTINUE
        self.judged[job_id] = step
        if self.hopeless(job_id):
            self.close(job_id)
            return Verdict.STOP
        return Verdict.CONTINUE

    def _note(self, job_id: str, step: int, good: float) -> None:
        seen = self.seen.setdefault(job_id, [])
        if job_id not in self.peaks:  # an older version did not keep them
            self.peaks[job_id] = max((g for _, g in seen), default=good)
        self.peaks[job_id] = max(good, self.peaks[job_id])
        if seen and step <= seen[-1][0]:
            return
        add(seen, (step, good), POINTS_MAX, SMOOTH)
        self.scores[job_id] = (step, statistics.median(g for _, g in seen[-SMOOTH:]))

    def on_result(self, job_id: str, value: float) -> Verdict:
        self._note(job_id, self.spec.max_iterations, self.good(value))
        return super().on_result(job_id, value)

    def widest(self) -> int:
        return len(self.configurations)


class MedianStopping(Stopping):
    """Stops a job whose best value so far is worse than the median of the others' running averages."""

    def hopeless(self, job_id: str) -> bool:
        """Whether its best value is below the median of the others' running averages.

        The averages end at the job's step, or at an earlier step that enough of the others have reached. The job's
        later values count in its favour.
        """
        others = [points for other, points in self.seen.items() if other != job_id]
        came = sorted((points[-1][0] for points in others), reverse=True)
        if len(came) < OTHERS_LEAST:
            return False
        at = min(self.seen[job_id][-1][0], came[OTHERS_LEAST - 1])
        averages = [
            statistics.fmean(g for n, g in points if n <= at)
            for points in others
            if points[0][0] <= at <= points[-1][0]
        ]
        if at < self.grace or len(averages) < OTHERS_LEAST:
            return False
        return self.peaks[job_id] < statistics.median(averages)


class CurveStopping(Stopping):
    """Stops a job whose most optimistic plausible curve ends below the best seen, or below the target."""

    def __init__(self, spec: AppSpec) -> None:
        super().__init__(spec)
        self.target = None if spec.target is None else -spec.target if spec.lower_is_better else spec.target
        """The target on the scale where larger is better; None: none."""
        self._curves: dict[str, tuple[int, tuple[Curve, ...]]] = {}
        """By job: the step at which its curves were fitted, and the curves."""

    def on_progress(self, job_id: str, step: int, value: float) -> Verdict:
        """As any other; at the target all is done."""
        verdict = super().on_progress(job_id, step, value)
        return Verdict.STOP if self._met(job_id) else verdict

    def on_result(self, job_id: str, value: float) -> Verdict:
        verdict = super().on_result(job_id, value)
        self._met(job_id)
        return verdict

    def _met(self, job_id: str) -> bool:
        met = self.target is not None and job_id in self.scores and self.scores[job_id][1] >= self.target
        if met:
            self.open.clear()
        return met

    def curves(self, job_id: str) -> tuple[Curve, ...]:
        """The job's plausible curves as of its last check, fitted to the negated score."""
        judged = self.judged.get(job_id, 0)
        if self._curves.get(job_id, (-1, ()))[0] != judged:
            points = [p for p in self.seen.get(job_id, []) if p[0] <= judged]
            self._curves[job_id] = judged, fit([n for n, _ in points], [-g for _, g in points])
        return self._curves[job_id][1]

    def hopeless(self, job_id: str) -> bool:
        """Whether its best plausible end misses the target or the best score of the others."""
        best_end = -best_possible(self.curves(job_id), self.spec.max_iterations)
        if self.target is not None and best_end < self.target:
            return True
        return best_end < max((good for j, (_, good) in self.scores.items() if j != job_id), default=best_end)

    def jobs_remaining(self, profile: Profile) -> list[JobInfo]:
        """Each open job up to the end of its longest-running plausible curve (getJobsRemaining)."""
        target = None if self.target is None else -self.target
        ends = {j: longest_run(self.curves(j), target, self.spec.max_iterations) for j in self.open}
        return infos(ends, profile)
