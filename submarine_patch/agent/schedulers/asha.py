"""ASHA: successive halving without barriers (Li et al., MLSys 2020, Algorithm 2).

A job continues to the next rung as soon as it is among the best 1/eta of the jobs that have finished its rung.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from submarine_patch.agent.schedulers.base import Scheduler, plain
from submarine_patch.agent.schedulers.port import Verdict
from submarine_patch.agent.schedulers.rungs import rungs, within
from submarine_patch.agent.spec import AppSpec


class Asha(Scheduler):
    """ASHA: all jobs may run concurrently; if GPUs are short, those of higher rungs go first."""

    kept = (*Scheduler.kept, "committed", "at", "results")

    def __init__(self, spec: AppSpec) -> None:
        super().__init__(spec)
        last, self.steps = spec.max_iterations, rungs(spec)
        wanted, budget = spec.jobs or spec.eta ** (len(self.steps) - 1), spec.budget_iterations or math.inf
        plan = within(int(min(budget, 1 << 60)), wanted, self.steps, spec.eta)
        if plan is None or plan.counts == [1]:
            self.steps, wanted = [max(1, int(min(budget, last)))], 1
        else:
            wanted = plan.counts[0]
        self.committed = wanted * self.steps[0]
        """Iterations assigned to all jobs so far."""
        self.at = {self.suggest(): 0 for _ in range(wanted)}
        """Runnable jobs and their rungs."""
        self.results: list[dict[str, float]] = [{} for _ in self.steps]
        """By rung: {job: how good it was} of the jobs that finished it."""
        self.promoted: set[tuple[str, int]] = set()
        """(job, rung) of each promotion, with the rung that the job left."""

    def runnable(self) -> list[str]:
        return sorted(self.at, key=lambda j: (-self.at[j], j))

    def until_step(self, job_id: str) -> int:
        return self.steps[self.rung(job_id)]

    def rung(self, job_id: str) -> int:
        """The job's present rung, or the last one that it finished."""
        done = max((k for k, found in enumerate(self.results) if job_id in found), default=0)
        return self.at.get(job_id, done)

    def waits(self, job_id: str) -> bool:
        """Whether the job is idle and may still be promoted, if others of its rung turn out worse or fail."""
        idle = job_id in self.scores and job_id not in self.at and job_id not in self.failed
        return idle and not self.finished and job_id not in self.results[-1]

    def on_result(self, job_id: str, value: float) -> Verdict:
        """Handle a job that finished its rung; this job or others may be promoted."""
        rung = self.at.pop(job_id)
        good = self.good(value)
        self.scores[job_id] = (self.steps[rung], good)
        self.results[rung][job_id] = good
        self._promote()
        if job_id in self.at:
            return Verdict.CONTINUE
        return Verdict.PAUSE if self.waits(job_id) else Verdict.STOP

    def on_failure(self, job_id: str) -> None:
        """Handle a job that failed for good; others may be promoted instead."""
        super().on_failure(job_id)
        self.at.pop(job_id, None)
        self._promote()

    def _promote(self) -> None:
        for rung in range(len(self.steps) - 2, -1, -1):
            ranked = self._ranked(rung)
            for job_id in ranked[: len(ranked) // self.spec.eta]:
                self._go_on(job_id, rung)
        if self.at or self.results[-1]:
            return
        for rung in range(len(self.steps) - 2, -1, -1):  # too few for a best 1/eta: promote the best one
            for job_id in self._ranked(rung):
                if self._go_on(job_id, rung):
                    return

    def _ranked(self, rung: int) -> list[str]:
        found = self.results[rung]
        return sorted((j for j in found if j not in self.failed), key=lambda j: (-found[j], j))

    def _go_on(self, job_id: str, rung: int) -> bool:
        more = self.steps[rung + 1] - self.steps[rung]
        highest = max([rung + 1, *(k + 1 for _, k in self.promoted)])
        reserve = self.steps[-1] - self.steps[highest]  # so that one job can train all the way
        affordable = self.committed + more + reserve <= (self.spec.budget_iterations or math.inf)
        if (job_id, rung) in self.promoted or not affordable:
            return False
        self.promoted.add((job_id, rung))
        self.at[job_id] = rung + 1
        self.committed += more
        return True

    def best(self) -> str | None:
        return self.furthest()

    # ---- Figure 7

    def widest(self) -> int:
        return len(self.configurations)

    def later(self) -> list[tuple[int, int]]:
        """(jobs, iterations each) left in each higher rung, if 1/eta of each rung is promoted."""
        phases, expected = [], len(self.configurations)
        for rung in range(1, len(self.steps)):
            expected = max(1, expected // self.spec.eta)
            left = expected - sum((j, rung - 1) in self.promoted for j in self.configurations)
            if left > 0:
                phases.append((left, self.steps[rung] - self.steps[rung - 1]))
        return phases

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "promoted": plain(self.promoted)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        super().restore(saved)
        self.promoted = {(j, rung) for j, rung in saved["promoted"]}
