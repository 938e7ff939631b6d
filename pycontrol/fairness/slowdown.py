"""S(G): how much an app's placement slows it down, by the scope of the placement (Themis, section 4.3.1).

S is declared or the prior until it is measured. A sample is iteration time x GPUs of one job in one scope, which is
serial GPU-seconds x S. Four steps reduce noise: medians of the newest samples (stalls, warm-up), ratios only within one
job (jobs differ in size), the median over jobs weighted by samples, and an S that never falls as the scope widens.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pycontrol.model.auction import SLOWDOWN_PRIOR
from pycontrol.model.topology import Scope

WINDOW = 32
ENOUGH = 5
"""Samples that a measurement needs before it replaces the declared value."""
RECALLED_MAX = 1000.0
"""A stored slowdown above this is rejected."""


class Profiler:
    """Keeps the newest samples of each job in each scope."""

    def __init__(
        self, iteration_s: float | None = None, prior: Sequence[float] = SLOWDOWN_PRIOR, guess_s: float = 1.0
    ) -> None:
        """`iteration_s`: serial seconds of an iteration, if declared; `guess_s`: else these; `prior`: S by scope."""
        self.declared_s, self.prior, self.guess_s = iteration_s, tuple(prior), guess_s
        self._samples: dict[tuple[str, Scope], deque[float]] = {}
        self._medians: dict[tuple[str, Scope], float] | None = None
        self._slowdowns: dict[Scope, float] | None = None
        self._serial_s: dict[str, float] | None = None
        """Measured job -> serial GPU-seconds of an iteration; `_else_s` is that of all other jobs."""
        self._else_s = guess_s
        self._recalled: dict[Scope, float] = {}

    def add(self, job_id: str, iter_time_s: float, gpus: int, scope: Scope, times: int = 1) -> None:
        """Adds measured iterations of a job on `gpus` GPUs placed in `scope`, each of `iter_time_s`."""
        if 0 < iter_time_s < math.inf:
            samples = self._samples.setdefault((job_id, scope), deque(maxlen=WINDOW))
            gpu_s = iter_time_s * max(1, gpus)
            if samples.count(gpu_s) < WINDOW:  # else nothing would change
                samples.extend([gpu_s] * times)
                self._forget()

    def _forget(self) -> None:
        self._medians = self._slowdowns = self._serial_s = None

    def slowdown(self, scope: Scope) -> float:
        """S of a scope: measured, else declared; at least 1, and at least that of a narrower scope."""
        return self.slowdowns()[scope]

    def slowdowns(self) -> Mapping[Scope, float]:
        """S by scope; that of one machine is declared, and the others are measured relative to it."""
        if self._slowdowns is None:
            self._slowdowns = rising(self._measured(), self.prior)
        return self._slowdowns

    def _measured(self) -> dict[Scope, tuple[float, float]]:
        """Scope -> (measured S, weight)."""
        measured: dict[Scope, tuple[float, float]] = {Scope.MACHINE: (self.prior[0], math.inf)}
        for scope in (Scope.RACK, Scope.CLUSTER):
            ratios = self._ratios(scope, measured)
            if ratios:
                measured[scope] = _weighted_median(ratios), sum(n for _, n in ratios)
        return measured

    def assume(self, prior: Sequence[float]) -> None:
        """Replaces the prior."""
        if tuple(prior) != self.prior:
            self.prior = tuple(prior)
            self._forget()

    def measured(self) -> dict[Scope, float]:
        """S of the scopes that were measured; that of one machine is the prior's."""
        return {scope: s for scope, (s, _) in self._measured().items()}

    def kept(self) -> dict[str, float]:
        """Name of scope -> S for later apps of the same job type, as measured or recalled."""
        own = {scope: s for scope, (s, _) in self._measured().items() if scope is not Scope.MACHINE}
        known = self._recalled | own
        return {scope.name: known[scope] for scope in sorted(known)}

    def recall(self, kept: Mapping[str, Any]) -> None:
        """Takes S measured by earlier apps (`kept`) as the prior; raises ValueError for other data."""
        found = {Scope[name]: float(s) for name, s in kept.items() if name in Scope.__members__}
        if any(not 1 <= s <= RECALLED_MAX for s in found.values()):
            raise ValueError(f"{dict(kept)} are not slowdowns")
        self._recalled = {scope: s for scope, s in found.items() if scope is not Scope.MACHINE}
        weighed = {Scope.MACHINE: (self.prior[0], math.inf), **{k: (s, 1.0) for k, s in self._recalled.items()}}
        known = rising(weighed, self.prior)
        self.prior = tuple(known[scope] for scope in Scope)
        self._forget()

    def _ratios(self, scope: Scope, narrower: Mapping[Scope, tuple[float, float]]) -> list[tuple[float, float]]:
        """(S, samples) for each job measured in this scope, relative to a narrower scope or the declared time."""
        known, found = self._known(), []
        for (job_id, at), median in known.items():
            if at is scope:
                below = next((s for s in Scope if s < scope and (job_id, s) in known), None)
                if below is not None:
                    s_below = narrower.get(below, (self.prior[below - 1], 0.0))[0]
                    samples = min(len(self._samples[job_id, s]) for s in (below, scope))
                    found.append((median / known[job_id, below] * s_below, float(samples)))
                elif self.declared_s:
                    found.append((median / self.declared_s, float(len(self._samples[job_id, scope]))))
        return found

    def _known(self) -> dict[tuple[str, Scope], float]:
        if self._medians is None:
            self._medians = {k: statistics.median(v) for k, v in self._samples.items() if len(v) >= ENOUGH}
        return self._medians

    def sensitivity(self) -> float:
        """S across the machines of a rack."""
        return self.slowdown(Scope.RACK)

    def serial_s(self, job_id: str | None = None) -> float:
        """Serial GPU-seconds of an iteration of the job: measured, else declared, else the median over jobs, else the
        guess."""
        serial_s = self.serial_by_job()
        return self._else_s if job_id is None else serial_s.get(job_id, self._else_s)

    def serial_by_job(self) -> Mapping[str, float]:
        """Measured job -> serial GPU-seconds of an iteration."""
        if self._serial_s is None:
            known, s = self._known(), self.slowdowns()
            widest_first = sorted(known, key=lambda k: -k[1])
            self._serial_s = {job: known[job, scope] / s[scope] for job, scope in widest_first}  # the narrowest wins
            all_s = [median / s[scope] for (_, scope), median in known.items()]
            self._else_s = self.declared_s or (statistics.median(all_s) if all_s else self.guess_s)
        return self._serial_s

    def scope_by_job(self) -> Mapping[str, Scope]:
        """Measured job -> the narrowest scope in which it was measured."""
        return dict(sorted(self._known(), key=lambda k: -k[1]))

    def dump(self) -> list[Any]:
        """All samples as JSON values."""
        return [[job_id, int(scope), list(v)] for (job_id, scope), v in self._samples.items()]

    def restore(self, saved: Sequence[Any]) -> None:
        """Replaces the samples by those of an earlier dump()."""
        self._samples = {(j, Scope(scope)): deque(v, maxlen=WINDOW) for j, scope, v in saved}
        self._forget()


def rising(measured: Mapping[Scope, tuple[float, float]], prior: Sequence[float]) -> dict[Scope, float]:
    """S by scope that never falls and is at least 1, from (S, weight) of the scopes that were measured.

    Contradicting measurements are pooled (isotonic regression of log S: pool adjacent violators). A scope that was not
    measured gets the prior, limited by its measured neighbours.
    """
    blocks: list[tuple[float, float, list[Scope]]] = []
    for scope in sorted(measured):
        s, weight = measured[scope]
        block = (math.log(max(1.0, s)), weight, [scope])
        while blocks and blocks[-1][0] > block[0]:
            before = blocks.pop()
            total = before[1] + block[1]
            share = before[1] / total if math.isfinite(total) else float(math.isinf(before[1]))
            block = (share * before[0] + (1 - share) * block[0], total, before[2] + block[2])
        blocks.append(block)
    fitted = {scope: math.exp(level) for level, _, scopes in blocks for scope in scopes}
    result: dict[Scope, float] = {}
    for scope in Scope:
        least = max((result[s] for s in result), default=1.0)
        most = min((fitted[s] for s in fitted if s > scope), default=math.inf)
        result[scope] = fitted.get(scope, max(least, min(most, prior[scope - 1])))
    return result


def _weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """The weighted median of (value, weight) pairs; the mean of two values if half the weight falls between them."""
    ordered, half, below = sorted(values), sum(w for _, w in values) / 2, 0.0
    for k, (value, weight) in enumerate(ordered):
        below += weight
        if below > half or k + 1 == len(ordered):
            return value
        if below == half:
            return (value + ordered[k + 1][0]) / 2
    raise ValueError("the median of nothing")
