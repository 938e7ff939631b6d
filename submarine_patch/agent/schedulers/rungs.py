"""Single jobs, successive halving and Hyperband: brackets of rungs, each rung a barrier.

Li et al., Hyperband (JMLR 2018), Algorithm 1; promoted jobs continue from their checkpoints, so a rung costs only
the iterations that it adds. Each rung is a phase of Themis, section 4.3.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from submarine_patch.agent.schedulers.base import Scheduler
from submarine_patch.agent.schedulers.port import Verdict
from submarine_patch.agent.spec import AppSpec


@dataclass
class Bracket:
    """Successive halving: in rung i, `counts[i]` jobs train to global step `steps[i]`; the best continue."""

    counts: list[int]
    steps: list[int]
    jobs: list[str] = field(default_factory=list)
    """Jobs of the present rung."""
    rung: int = 0

    @property
    def iterations(self) -> int:
        """Iterations of all its jobs, if none fails."""
        before = [0, *self.steps]
        return sum(n * (self.steps[i] - before[i]) for i, n in enumerate(self.counts))


def rungs(spec: AppSpec) -> list[int]:
    """The steps of successive halving: eta times as many in each rung, from the first; in the last, all."""
    last, first = spec.max_iterations, min(spec.max_iterations, max(1, spec.min_iterations))
    more = math.floor(math.log(last / first, spec.eta) + 1e-9)
    return [*(first * spec.eta**k for k in range(more)), last]


def halving(n: int, steps: Sequence[int], eta: int) -> Bracket:
    """A bracket: n jobs train to the first of `steps`, the best 1/eta to the next, and so on; a last job to the end."""
    counts: list[int] = []
    while n > 1 and len(counts) < len(steps) - 1:
        counts.append(n)
        n = max(1, n // eta)
    return Bracket([*counts, max(1, n)], [*steps[: len(counts)], steps[-1]])


def within(budget: int, n: int, steps: Sequence[int], eta: int) -> Bracket | None:
    """The largest bracket of at most n jobs within the budget (iterations); None if there is none."""
    for jobs in range(n, 0, -1):
        bracket = halving(jobs, steps, eta)
        if bracket.iterations <= budget:
            return bracket
    return None


def brackets_of(spec: AppSpec) -> list[Bracket]:
    """The brackets of an app, limited by its budget (iterations of all jobs) and its number of jobs."""
    last, eta = spec.max_iterations, spec.eta
    if spec.app_scheduler == "single":
        return [Bracket([1], [last])]
    ladder = rungs(spec)
    k = len(ladder)
    if spec.app_scheduler == "successive_halving":
        sizes = [(spec.jobs or eta ** (k - 1), ladder)]
    else:
        ladder = [last // eta**s for s in range(k - 1, -1, -1)]
        sizes = [(math.ceil(k / (s + 1) * eta**s), ladder[k - 1 - s :]) for s in range(k - 1, -1, -1)]
    jobs_left = spec.jobs or sum(n for n, _ in sizes)
    budget = spec.budget_iterations or math.inf
    result: list[Bracket] = []
    for n, steps in sizes:
        bracket = within(int(min(budget, 1 << 60)), min(n, jobs_left), steps, eta)
        if bracket is not None:
            result.append(bracket)
            budget -= bracket.iterations
            jobs_left -= bracket.counts[0]
    return result or [Bracket([1], [max(1, min(last, spec.budget_iterations or last))])]


class RungScheduler(Scheduler):
    """Runs brackets one after another."""

    kept = (*Scheduler.kept, "current", "arrived")

    def __init__(self, spec: AppSpec) -> None:
        super().__init__(spec)
        self.brackets = brackets_of(spec)
        self.current = 0
        self.arrived: set[str] = set()
        """Jobs that finished the present rung."""
        self._fill()

    @property
    def bracket(self) -> Bracket | None:
        """The present bracket; None after the last one."""
        return self.brackets[self.current] if self.current < len(self.brackets) else None

    @property
    def finished(self) -> bool:
        return self.bracket is None

    def rung(self, job_id: str) -> int:
        return self.bracket.rung if self.bracket else 0

    def _fill(self) -> None:
        bracket = self.bracket
        if bracket is not None and not bracket.jobs:
            bracket.jobs = [self.suggest() for _ in range(bracket.counts[0])]

    def runnable(self) -> list[str]:
        bracket = self.bracket
        return [j for j in bracket.jobs if j not in self.arrived and j not in self.failed] if bracket else []

    def waits(self, job_id: str) -> bool:
        return job_id in self.arrived

    def until_step(self, job_id: str) -> int:
        return self.bracket.steps[self.bracket.rung] if self.bracket else 0

    def on_result(self, job_id: str, value: float) -> Verdict:
        """Handle a job that finished its rung; the last one of a rung starts the next."""
        self.scores[job_id] = (self.until_step(job_id), self.good(value))
        self.arrived.add(job_id)
        self._rung_over()
        if job_id in self.arrived:
            return Verdict.PAUSE
        return Verdict.CONTINUE if job_id in self.runnable() else Verdict.STOP

    def on_failure(self, job_id: str) -> None:
        super().on_failure(job_id)
        self._rung_over()

    def _rung_over(self) -> None:
        bracket = self.bracket
        if bracket is None or self.runnable():
            return
        done = sorted((j for j in bracket.jobs if j in self.arrived), key=lambda j: (-self.scores[j][1], j))
        self.arrived.clear()
        bracket.rung += 1
        if done and bracket.rung < len(bracket.counts):
            bracket.jobs = done[: bracket.counts[bracket.rung]]
            return
        bracket.rung -= 1
        self.current += 1
        self._fill()

    def best(self) -> str | None:
        return self.furthest()

    # ---- Figure 7

    def widest(self) -> int:
        return max(b.counts[0] for b in self.brackets)

    def later(self) -> list[tuple[int, int]]:
        phases = []
        for k, bracket in enumerate(self.brackets[self.current :]):
            for i in range(bracket.rung + 1 if k == 0 else 0, len(bracket.counts)):
                phases.append((bracket.counts[i], bracket.steps[i] - (bracket.steps[i - 1] if i else 0)))
        return phases

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "brackets": [asdict(b) for b in self.brackets]}

    def restore(self, saved: Mapping[str, Any]) -> None:
        super().restore(saved)
        self.brackets = [Bracket(**b) for b in saved["brackets"]]
