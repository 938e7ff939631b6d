"""App schedulers: which jobs run how far. Rungs are barriers, as in successive halving and Hyperband.

Li et al., Hyperband (JMLR 2018), Algorithm 1; the phases feed rho (Themis, section 4.3.2 and Figure 7).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from submarine_patch.agent.spec import AppSpec, sample

CONTINUE, PAUSE, STOP = "continue", "pause", "stop"


@dataclass
class Bracket:
    """Successive halving: `counts[i]` jobs train to global step `steps[i]`; the best go on."""

    counts: list[int]
    steps: list[int]
    jobs: list[str] = field(default_factory=list)
    """Jobs of the present rung."""
    rung: int = 0


def halving(n: int, first: int, last: int, eta: int) -> Bracket:
    """n jobs to `first` steps, then a 1/eta of them eta times as far, the last rung to `last` steps."""
    counts, steps = [max(1, n)], [max(1, first)]
    while steps[-1] < last and (counts[-1] > 1 or len(counts) == 1):
        counts.append(max(1, counts[-1] // eta))
        steps.append(min(last, steps[-1] * eta))
    if steps[-1] < last:
        counts.append(1)
        steps.append(last)
    return Bracket(counts, steps)


def brackets_of(spec: AppSpec) -> list[Bracket]:
    """The brackets of an app; a budget keeps as many as it pays for, at least one."""
    last, eta = spec.max_iterations, spec.eta
    if spec.app_scheduler == "single":
        return [Bracket([1], [last])]
    if spec.app_scheduler == "successive_halving":
        n = spec.jobs or eta**2
        rungs = max(1, math.ceil(math.log(n, eta) - 1e-9))
        return [halving(n, spec.min_iterations or max(1, last // eta**rungs), last, eta)]
    s_max = math.floor(math.log(last / max(1, spec.min_iterations or last // eta**2 or 1), eta) + 1e-9)
    result = []
    for s in range(s_max, -1, -1):
        n = math.ceil((s_max + 1) / (s + 1) * eta**s)
        if spec.jobs:
            n = min(n, spec.jobs)
        result.append(halving(n, max(1, last // eta**s), last, eta))
    if spec.budget_iterations:
        spent, kept = 0, []
        for bracket in result:
            spent += iterations(bracket)
            if kept and spent > spec.budget_iterations:
                break
            kept.append(bracket)
        result = kept
    return result


def iterations(bracket: Bracket) -> int:
    """All iterations of a bracket."""
    before = [0, *bracket.steps]
    return sum(n * (bracket.steps[i] - before[i]) for i, n in enumerate(bracket.counts))


class RungScheduler:
    """Runs brackets one after the other, each rung a barrier. Deterministic for the spec's seed."""

    def __init__(self, spec: AppSpec) -> None:
        self.spec = spec
        self.brackets = brackets_of(spec)
        self.current = 0
        self.configurations: dict[str, dict[str, str]] = {}
        self.results: dict[str, float] = {}
        """Best-first key of each job that finished its present rung; larger is better."""
        self.failed: set[str] = set()
        self._fill()

    @property
    def bracket(self) -> Bracket | None:
        """The bracket under way, None when all are done."""
        return self.brackets[self.current] if self.current < len(self.brackets) else None

    @property
    def finished(self) -> bool:
        """Whether the best model is found."""
        return self.bracket is None

    def suggest(self) -> tuple[str, dict[str, str]]:
        """A new job with its configuration."""
        index = len(self.configurations)
        rng = random.Random(f"{self.spec.seed}/{index}")
        job_id = f"job{index:03d}"
        self.configurations[job_id] = sample(self.spec.search_space, rng)
        return job_id, self.configurations[job_id]

    def _fill(self) -> None:
        bracket = self.bracket
        if bracket is not None and not bracket.jobs:
            bracket.jobs = [self.suggest()[0] for _ in range(bracket.counts[0])]

    def runnable(self) -> list[str]:
        """Jobs of the present rung that have not finished it."""
        bracket = self.bracket
        return [j for j in bracket.jobs if j not in self.results and j not in self.failed] if bracket else []

    def until_step(self) -> int:
        """The present rung's global step; 0 where only the script knows."""
        return self.bracket.steps[self.bracket.rung] if self.bracket else 0

    def on_result(self, job_id: str, loss: float, accuracy: float) -> str:
        """A job finished its rung; what becomes of it (PAUSE: the rung is not over yet)."""
        self.results[job_id] = -loss if self.spec.metric == "loss" else accuracy
        return self._rung_over(job_id)

    def on_failure(self, job_id: str) -> str:
        """A job failed for good: the others go on without it."""
        self.failed.add(job_id)
        return self._rung_over(job_id)

    def _rung_over(self, job_id: str) -> str:
        bracket = self.bracket
        if bracket is None or self.runnable():
            return PAUSE
        done = sorted((j for j in bracket.jobs if j in self.results), key=lambda j: (-self.results[j], j))
        if bracket.rung + 1 < len(bracket.counts) and done:
            bracket.rung += 1
            bracket.jobs = done[: bracket.counts[bracket.rung]]
            for j in bracket.jobs:
                del self.results[j]
            return CONTINUE if job_id in bracket.jobs else STOP
        self.current += 1
        self._fill()
        return STOP

    def best(self) -> str | None:
        """The best job among those that trained to the end, else among all with a result."""
        last = [b.jobs for b in self.brackets[: self.current]]
        finalists = [j for jobs in last for j in jobs if j in self.results] or list(self.results)
        return max(finalists, key=lambda j: (self.results[j], j), default=None)

    # ---- Figure 7: what rho needs to know of the phases

    def phases_left(self) -> list[tuple[int, int]]:
        """(jobs, iterations each) of the phases after the present one."""
        result = []
        for k, bracket in enumerate(self.brackets[self.current :]):
            start = bracket.rung + 1 if k == 0 else 0
            for i in range(start, len(bracket.counts)):
                before = bracket.steps[i - 1] if i else 0
                result.append((bracket.counts[i], bracket.steps[i] - before))
        return result

    def widest(self) -> int:
        """Most jobs at once in any phase."""
        return max(max(b.counts) for b in self.brackets)

    # ---- as plain values

    def dump(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "brackets": [asdict(b) for b in self.brackets],
            "current": self.current,
            "configurations": self.configurations,
            "results": self.results,
            "failed": sorted(self.failed),
        }

    @classmethod
    def load(cls, spec: AppSpec, data: Mapping[str, Any]) -> RungScheduler:
        """The inverse of dump()."""
        s = cls(spec)
        s.brackets = [Bracket(**b) for b in data["brackets"]]
        s.current, s.configurations = data["current"], dict(data["configurations"])
        s.results, s.failed = dict(data["results"]), set(data["failed"])
        return s
