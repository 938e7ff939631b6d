"""The leases of a journal as intervals: who had which GPU and when, in which containers, and in which gangs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pycontrol.arbiter.ledger import facts as f
from pycontrol.audit.guarantees import GuaranteedGpus
from pycontrol.model.topology import Gpu
from pycontrol.runtime.spans import OVERWRITTEN, IntervalChange, Journal, LeaseInterval, SpanFold, changes_of


@dataclass(slots=True)
class GangSize:
    """The number of a job's GPUs from this time on."""

    at_s: float
    gpus: int


@dataclass(slots=True)
class JournalProblem:
    """An inconsistency in the journal itself."""

    kind: str
    what: str
    when: float


@dataclass
class History:
    """The history in one journal, or in consecutive ones."""

    facts: int = 0
    from_s: float = 0.0
    until_s: float = 0.0
    spans: dict[Gpu, list[LeaseInterval]] = field(default_factory=dict)
    started: dict[str, set[Gpu]] = field(default_factory=dict)
    """GPUs by container."""
    started_s: dict[str, float] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)
    """By application."""
    gang_sizes: dict[str, set[int]] = field(default_factory=dict)
    """Sizes of the gangs that rounds awarded, by application."""
    elastic: set[str] = field(default_factory=set)
    """Applications whose jobs divide and join what rounds awarded."""
    jobs: dict[tuple[str, str], list[GangSize]] = field(default_factory=dict)
    problems: list[JournalProblem] = field(default_factory=list)
    claims: GuaranteedGpus = field(default_factory=GuaranteedGpus)
    started_in: set[tuple[str, int]] = field(default_factory=set)
    """(container, span's number) of what the journal saw run in a lease."""
    behind_s: dict[int, float] = field(default_factory=dict)
    """By a span's number: how far the journal's clock was behind the cluster's when it ended."""
    _behind_s: float = 0.0
    _job_on: dict[Gpu, str] = field(default_factory=dict)
    """The job that the journal last saw on the GPU, while its container runs."""
    _running: dict[tuple[str, str], set[Gpu]] = field(default_factory=dict)

    @classmethod
    def of(cls, *journals: Journal) -> History:
        """Read facts in order; of consecutive control planes, one journal after another."""
        history = cls()
        for time_s, fact, changes in changes_of(SpanFold(), *journals):
            history.facts += 1
            history.from_s = history.from_s or time_s
            history.until_s = time_s
            history.claims.take(fact, time_s, changes)
            history._take(fact, time_s, changes)
        return history

    def leases(self) -> list[LeaseInterval]:
        """All leases."""
        return [span for spans in self.spans.values() for span in spans]

    def _take(self, fact: f.Fact, time_s: float, changes: Sequence[IntervalChange]) -> None:
        match fact:
            case f.AppEnded():
                self.ended_s.setdefault(fact.app_id, fact.at_s)
            case f.AppChanged() if fact.changes.get("elastic"):
                self.elastic.add(fact.app_id)
            case f.RoundHeld():
                for award in fact.receipt.done.awards:
                    sizes = self.gang_sizes.setdefault(award.app_id, set())
                    sizes.update(sum(n for _, n in gang) for gang in award.gangs)
            case f.ClockBehind():
                self._behind_s = fact.by_s
            case f.LeaseStarted():
                for span in (c.after for c in changes if c.after is not None):
                    self._started(fact, span)
            case f.LeaseGranted():
                for span in (c.after for c in changes if c.after is not None and c.after.end_reason == OVERWRITTEN):
                    what = f"GPU {span.gpu}: granted to {fact.app_id} while leased to {span.app_id}"
                    self.problems.append(JournalProblem("gpu_leased_twice", what, time_s))
        for change in changes:
            self._changed(change)

    def _changed(self, change: IntervalChange) -> None:
        before, after = change.before, change.after
        if after is None:
            return
        spans = self.spans.setdefault(after.gpu, [])
        if before is None:
            spans.append(after)
            return
        spans[-1] = after
        if after.ended_s is not None:
            self.behind_s[after.number] = self._behind_s
        if before.running_s is not None and after.running_s is None:
            self._stopped(after, after.gone_s)

    def _started(self, fact: f.LeaseStarted, span: LeaseInterval) -> None:
        gpu = span.gpu
        if gpu in self._job_on and gpu in self.started.get(fact.container_id, ()):
            return  # the same container continues under another control plane
        self.started.setdefault(fact.container_id, set()).add(gpu)
        self.started_s.setdefault(fact.container_id, fact.at_s)
        self.started_in.add((fact.container_id, span.number))
        self._stopped(span, fact.at_s)
        self._job_on[gpu] = fact.job_id or self._job_of_grant(span)
        self._count(span, fact.at_s, running=True)

    def _job_of_grant(self, span: LeaseInterval) -> str:
        """The job of the grant's other GPUs, for a container that was adopted without a job after a restart."""
        grant_id = span.lease.grant_id
        last = ((x[-1], self._job_on.get(gpu)) for gpu, x in self.spans.items())
        return next((job for other, job in last if job and other.lease.grant_id == grant_id), f"grant {grant_id}")

    def _stopped(self, span: LeaseInterval, at_s: float) -> None:
        if span.gpu in self._job_on:
            self._count(span, at_s, running=False)
            del self._job_on[span.gpu]

    def _count(self, span: LeaseInterval, at_s: float, *, running: bool) -> None:
        key = (span.app_id, self._job_on[span.gpu])
        gpus = self._running.setdefault(key, set())
        (gpus.add if running else gpus.discard)(span.gpu)
        self.jobs.setdefault(key, []).append(GangSize(at_s, len(gpus)))
