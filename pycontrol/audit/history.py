"""The leases of a journal as intervals: who had which GPU when, which container used it, which gangs ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pycontrol.arbiter.facts import (
    AppEnded,
    Fact,
    LeaseEnded,
    LeaseGranted,
    LeaseIdle,
    LeaseStarted,
    NextDropped,
    RoundHeld,
)
from pycontrol.audit.guarantees import Claims
from pycontrol.model.reasons import EndReason
from pycontrol.model.topology import Gpu


@dataclass(slots=True)
class Span:
    """One lease from its grant to its end; times in Unix seconds of the journal."""

    gpu: Gpu
    app_id: str
    grant_id: str
    start_s: float
    end_s: float | None = None
    end_reason: str = ""
    end_cause: EndReason = EndReason.UNKNOWN
    job: str = ""

    @property
    def on_lost_node(self) -> bool:
        """It ended because its machine was lost, with whatever ran there."""
        return self.end_cause is EndReason.NODE_LOST


@dataclass(slots=True)
class Change:
    """How many GPUs a job ran on from this time on."""

    at_s: float
    gpus: int


@dataclass(slots=True)
class Problem:
    """Something that the journal itself should not say."""

    kind: str
    what: str
    when: float


@dataclass
class History:
    """All of a journal."""

    facts: int = 0
    from_s: float = 0.0
    until_s: float = 0.0
    spans: dict[Gpu, list[Span]] = field(default_factory=dict)
    started: dict[str, set[Gpu]] = field(default_factory=dict)
    """GPUs by container."""
    started_s: dict[str, float] = field(default_factory=dict)
    app_of: dict[str, str] = field(default_factory=dict)
    """Application by container."""
    ended_s: dict[str, float] = field(default_factory=dict)
    """By application."""
    gang_sizes: dict[str, set[int]] = field(default_factory=dict)
    """Sizes of the gangs that rounds awarded, by application."""
    jobs: dict[tuple[str, str], list[Change]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    claims: Claims = field(default_factory=Claims)
    _next: dict[Gpu, tuple[str, str]] = field(default_factory=dict)
    _running: dict[tuple[str, str], set[Gpu]] = field(default_factory=dict)
    _left: set[Gpu] = field(default_factory=set)
    """GPUs whose lease the journal before left open; who took over goes on with it, or knows nothing of it."""

    @classmethod
    def of(cls, *journals: Iterable[tuple[int, float, Fact]]) -> History:
        """Reads facts in their order; of control planes that followed each other, one journal after the other."""
        history = cls()
        for facts in journals:
            history._left = {gpu for gpu in history.spans if history.open(gpu) is not None}
            history._next.clear()
            for _, time_s, fact in facts:
                history.facts += 1
                history.from_s = history.from_s or time_s
                history.until_s = time_s
                history.claims.take(fact, time_s)
                history._take(fact, time_s)
        return history

    def open(self, gpu: Gpu) -> Span | None:
        """The GPU's lease that has not ended."""
        spans = self.spans.get(gpu)
        return spans[-1] if spans and spans[-1].end_s is None else None

    def leases(self) -> list[Span]:
        """All leases."""
        return [span for spans in self.spans.values() for span in spans]

    def _take(self, fact: Fact, time_s: float) -> None:
        match fact:
            case AppEnded():
                self.ended_s.setdefault(fact.app_id, fact.at_s)
                self._let_go(time_s, fact.app_id)
            case RoundHeld():  # whoever took over has seen all containers by then
                self._let_go(time_s)
                for award in fact.receipt.done.awards:
                    sizes = self.gang_sizes.setdefault(award.app_id, set())
                    sizes.update(sum(n for _, n in gang) for gang in award.gangs)
            case LeaseGranted():
                self._granted(fact, time_s)
            case NextDropped():
                self._next.pop(fact.gpu, None)
            case LeaseStarted():
                self._started(fact)
            case LeaseIdle():
                self._stopped(self.open(fact.gpu), fact.at_s)
            case LeaseEnded():
                self._ended(fact)

    def _granted(self, fact: LeaseGranted, time_s: float) -> None:
        present = self.open(fact.gpu)
        if fact.after_current:
            self._next[fact.gpu] = (fact.app_id, fact.grant_id)
            return
        if present is not None and fact.gpu in self._left:
            self._left.discard(fact.gpu)
            if present.app_id == fact.app_id:
                return
            self._close(present, time_s, "not taken over")
        elif present is not None:
            what = f"GPU {fact.gpu}: granted to {fact.app_id} while leased to {present.app_id}"
            self.problems.append(Problem("gpu_leased_twice", what, time_s))
            self._close(present, time_s, "overwritten")
        # A gang's lease begins when its last GPU is free at the latest; its containers may come earlier.
        self._begin(fact.gpu, fact.app_id, fact.grant_id, min(fact.at_s, time_s))

    def _let_go(self, time_s: float, app_id: str | None = None) -> None:
        """Closes the leases (all, or an app's) that the control plane that took over did not find."""
        for gpu in list(self._left):
            present = self.open(gpu)
            if present is None or app_id in (None, present.app_id):
                self._left.discard(gpu)
                if present is not None:
                    self._close(present, time_s, "not taken over")

    def _begin(self, gpu: Gpu, app_id: str, grant_id: str, at_s: float) -> None:
        self.spans.setdefault(gpu, []).append(Span(gpu, app_id, grant_id, at_s))

    def _started(self, fact: LeaseStarted) -> None:
        span = self.open(fact.gpu)
        if span is None or (span.job and fact.gpu in self.started.get(fact.container_id, ())):
            return  # the same container goes on under another control plane
        self.started.setdefault(fact.container_id, set()).add(fact.gpu)
        self.started_s.setdefault(fact.container_id, fact.at_s)
        self.app_of[fact.container_id] = span.app_id
        self._stopped(span, fact.at_s)
        span.job = fact.job_id or self._job_of_grant(span)
        self._count(span, fact.at_s, running=True)

    def _job_of_grant(self, span: Span) -> str:
        """After a restart a container is adopted without its job: that of its grant's other GPUs."""
        mates = (x[-1] for x in self.spans.values() if x[-1].grant_id == span.grant_id and x[-1].job)
        return next((m.job for m in mates), f"grant {span.grant_id}")

    def _stopped(self, span: Span | None, at_s: float) -> None:
        if span is not None and span.job:
            self._count(span, at_s, running=False)
            span.job = ""

    def _count(self, span: Span, at_s: float, *, running: bool) -> None:
        key = (span.app_id, span.job)
        gpus = self._running.setdefault(key, set())
        (gpus.add if running else gpus.discard)(span.gpu)
        self.jobs.setdefault(key, []).append(Change(at_s, len(gpus)))

    def _ended(self, fact: LeaseEnded) -> None:
        span = self.open(fact.gpu)
        if span is not None:
            self._close(span, fact.at_s, fact.reason, fact.cause)
        following = self._next.pop(fact.gpu, None)
        if following is not None:
            self._begin(fact.gpu, *following, fact.at_s)

    def _close(self, span: Span, at_s: float, reason: str, cause: EndReason = EndReason.UNKNOWN) -> None:
        self._stopped(span, at_s)
        span.end_s, span.end_reason, span.end_cause = at_s, reason, cause
