"""A journal's leases as spans, from grant to end: the one reading of its facts for audit, usage, history and feed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

from pycontrol.arbiter.facts import (
    OF_GPU,
    AppEnded,
    Fact,
    LeaseEnded,
    LeaseGranted,
    LeaseIdle,
    LeaseRevoking,
    LeaseStarted,
    OfGpu,
    RoundHeld,
)
from pycontrol.arbiter.lease import Lease, Reservation
from pycontrol.arbiter.lease_table import LeaseTable
from pycontrol.model.reasons import EndReason
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value

NOT_TAKEN_OVER, OVERWRITTEN = "not taken over", "overwritten"
"""Why spans end of which the journal does not say so."""


@value
class LeaseInterval:
    """One lease from its grant to its end; times in Unix seconds, None where it has not come to that."""

    number: int
    """Of the journal's spans, in the order of their beginning."""
    lease: Lease
    """As it is, or was at its end."""
    granted_s: float
    job_id: str = ""
    """Of its present container, or of its last."""
    started_s: float | None = None
    """When its first container ran."""
    running_s: float | None = None
    """Since when its present one runs."""
    revoking_s: float | None = None
    reason: str = ""
    """Why it was revoked; empty where it was not."""
    cause: EndReason = EndReason.UNKNOWN
    idle_s: float | None = None
    """When its last container ended while the lease continued."""
    ended_s: float | None = None
    end_reason: str = ""
    end_cause: EndReason = EndReason.UNKNOWN

    @property
    def gpu(self) -> Gpu:
        """The GPU that is leased."""
        return self.lease.gpu

    @property
    def app_id(self) -> str:
        """Whose lease it is."""
        return self.lease.app_id

    @property
    def gone_s(self) -> float:
        """When its last container went, or would have; inf while the first one runs."""
        return next((x for x in (self.ended_s, self.idle_s) if x is not None), math.inf)

    @property
    def stop_s(self) -> float | None:
        """Seconds from its revocation until its container was gone."""
        if self.revoking_s is None:
            return None
        gone_s = self.idle_s if self.idle_s is not None and self.idle_s >= self.revoking_s else self.ended_s
        return max(0.0, gone_s - self.revoking_s) if gone_s is not None else None

    @property
    def on_lost_node(self) -> bool:
        """It ended because its machine was lost, with whatever ran there."""
        return self.end_cause is EndReason.NODE_LOST


@value
class IntervalChange:
    """What a fact made of one span: `before` is None where it began, `after` has an end where it ended."""

    before: LeaseInterval | None
    after: LeaseInterval | None
    reservation: Reservation | None = None
    """The one that was made, cancelled, or has become the lease `after`."""

    @property
    def span(self) -> LeaseInterval | None:
        """The span that the fact is about, as it is now."""
        return self.after if self.after is not None else self.before


class SpanFold:
    """Folds facts of one journal, or of several that followed each other; what it never saw granted changes nothing."""

    def __init__(self) -> None:
        self.open: dict[Gpu, LeaseInterval] = {}
        self._table = LeaseTable()
        self._left: set[Gpu] = set()
        """Whose lease the journal before left open; who took over continues with it, or knows nothing of it."""
        self._begun = 0

    def go_on(self, leases: Iterable[Lease], reservations: Iterable[Reservation]) -> list[LeaseInterval]:
        """Things are so by now, whatever the facts that were there began with; returns the spans that these lacked."""
        found = []
        for x in leases:
            if x.gpu not in self.open:
                self._table.load(x)
                found.append(self._begin(x, x.granted_s, x.job_id, x.started_s))
        for gpu in list(self._table.reservations):
            self._table.cancel(gpu)
        for reservation in reservations:
            self._table.load(reservation)
        return found

    def next_journal(self) -> None:
        """From here on the facts are those of another control plane, which took over."""
        self._left = set(self.open)
        for gpu in list(self._table.reservations):
            self._table.cancel(gpu)

    def take(self, fact: Fact, time_s: float) -> list[IntervalChange]:
        """Folds a fact that was recorded at `time_s`; the first change is the one of the fact's own GPU."""
        if isinstance(fact, OF_GPU):
            return self._of_gpu(fact, time_s)
        if isinstance(fact, AppEnded):
            return self._let_go(time_s, fact.app_id)
        if isinstance(fact, RoundHeld):  # who took over has seen all containers by then
            return self._let_go(time_s)
        return []

    def _of_gpu(self, fact: OfGpu, time_s: float) -> list[IntervalChange]:
        before, step = self.open.get(fact.gpu), self._table.take(fact)
        if isinstance(fact, LeaseGranted) and not fact.after_current:
            assert step.after is not None
            return self._granted(step.after, before, min(fact.at_s, time_s), time_s)
        if isinstance(fact, LeaseEnded):
            changes = []
            if before is not None:
                changes.append(self._end(before, fact.at_s, fact.reason, fact.cause))
            if step.after is not None:
                changes.append(IntervalChange(None, self._begin(step.after, fact.at_s), step.reservation))
            return changes
        if before is None or step.after is None:
            return [IntervalChange(None, None, step.reservation)] if step.reservation is not None else []
        self.open[fact.gpu] = after = _after(before, step.after, fact, time_s)
        return [IntervalChange(before, after, step.reservation)]

    def _granted(self, lease: Lease, before: LeaseInterval | None, at_s: float, time_s: float) -> list[IntervalChange]:
        changes = []
        if before is not None:
            left = lease.gpu in self._left
            self._left.discard(lease.gpu)
            if left and before.app_id == lease.app_id:  # the same continues under another control plane
                self.open[lease.gpu] = after = dataclasses.replace(before, lease=lease)
                return [IntervalChange(before, after)]
            changes.append(self._end(before, time_s, NOT_TAKEN_OVER if left else OVERWRITTEN))
        # A gang's lease begins when its last GPU is free at the latest; its containers may come earlier.
        return [*changes, IntervalChange(None, self._begin(lease, at_s))]

    def _let_go(self, time_s: float, app_id: str | None = None) -> list[IntervalChange]:
        """Ends the spans (all, or an app's) that the control plane that took over did not find."""
        lost = [self.open[g] for g in self._left if g in self.open and app_id in (None, self.open[g].app_id)]
        self._left -= {x.gpu for x in lost}
        for span in lost:
            self._table.forget(span.gpu)
        return [self._end(span, time_s, NOT_TAKEN_OVER) for span in lost]

    def _begin(self, lease: Lease, at_s: float, job_id: str = "", started_s: float | None = None) -> LeaseInterval:
        span = self.open[lease.gpu] = LeaseInterval(self._begun, lease, at_s, job_id, started_s, started_s)
        self._begun += 1
        return span

    def _end(
        self, span: LeaseInterval, at_s: float, reason: str, cause: EndReason = EndReason.UNKNOWN
    ) -> IntervalChange:
        del self.open[span.gpu]
        after = dataclasses.replace(span, running_s=None, ended_s=at_s, end_reason=reason, end_cause=cause)
        return IntervalChange(span, after)


def _after(span: LeaseInterval, lease: Lease, fact: Fact, time_s: float) -> LeaseInterval:
    match fact:
        case LeaseStarted():
            return dataclasses.replace(
                span, lease=lease, job_id=fact.job_id or span.job_id,
                started_s=fact.at_s if span.started_s is None else span.started_s,
                running_s=fact.at_s if span.running_s is None else span.running_s,
            )  # fmt: skip
        case LeaseIdle():
            return dataclasses.replace(span, lease=lease, running_s=None, idle_s=fact.at_s)
        case LeaseRevoking() if span.revoking_s is None:
            return dataclasses.replace(span, lease=lease, revoking_s=time_s, reason=fact.reason, cause=fact.cause)
    return dataclasses.replace(span, lease=lease)


Journal = Iterable[tuple[int, float, Fact]]
"""(sequence number, when it was recorded, fact), oldest first."""


def changes_of(fold: SpanFold, *journals: Journal) -> Iterator[tuple[float, Fact, list[IntervalChange]]]:
    """Each fact of control planes that followed each other, with when it was recorded and what it changed."""
    for i, facts in enumerate(journals):
        if i:
            fold.next_journal()
        for _, time_s, fact in facts:
            yield time_s, fact, fold.take(fact, time_s)
