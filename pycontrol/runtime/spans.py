"""Turns a journal's facts into spans, one for each GPU of a lease, for audit, usage, history and feed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

from pycontrol.arbiter.ledger.facts import (
    OF_LEASE,
    AppEnded,
    Fact,
    LeaseEnded,
    LeaseGranted,
    LeaseIdle,
    LeaseRevoking,
    LeaseStarted,
    NextDropped,
    OfLease,
    RoundHeld,
)
from pycontrol.arbiter.ledger.lease import Lease, LeaseTable, Reservation, part
from pycontrol.model.reasons import EndReason
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value

NOT_TAKEN_OVER, OVERWRITTEN = "not taken over", "overwritten"
"""End reasons of spans for which the journal has no LeaseEnded."""


@value
class LeaseInterval:
    """The lease of one GPU from its grant to its end; times in Unix seconds, None for what has not happened."""

    number: int
    """Position among the journal's spans, in the order in which they began."""
    gpu: Gpu
    lease: Lease
    """Its latest state."""
    granted_s: float
    job_id: str = ""
    """The job of its present container, or of its last one."""
    started_s: float | None = None
    """When its first container started."""
    running_s: float | None = None
    """When its present container started."""
    revoking_s: float | None = None
    reason: str = ""
    """Why it was revoked; empty if it was not."""
    cause: EndReason = EndReason.UNKNOWN
    idle_s: float | None = None
    """When its last container ended while the lease continued."""
    ended_s: float | None = None
    end_reason: str = ""
    end_cause: EndReason = EndReason.UNKNOWN

    @property
    def app_id(self) -> str:
        """The app that holds the lease."""
        return self.lease.app_id

    @property
    def gone_s(self) -> float:
        """When the lease ended; while it continues, when its last container ended; inf before that."""
        return next((x for x in (self.ended_s, self.idle_s) if x is not None), math.inf)

    @property
    def stop_s(self) -> float | None:
        """Seconds from the revocation until the container was gone; None if not revoked or not yet gone."""
        if self.revoking_s is None:
            return None
        gone_s = self.idle_s if self.idle_s is not None and self.idle_s >= self.revoking_s else self.ended_s
        return max(0.0, gone_s - self.revoking_s) if gone_s is not None else None

    @property
    def on_lost_node(self) -> bool:
        """Whether it ended because its machine was lost."""
        return self.end_cause is EndReason.NODE_LOST


@value
class IntervalChange:
    """How a fact changed a GPU's span: `before` is None if the span began, `after.ended_s` is set if it ended."""

    before: LeaseInterval | None
    after: LeaseInterval | None
    reservation: Reservation | None = None
    """The reservation that was made or cancelled, or that became the lease `after`."""
    revokes: bool = False
    """Whether its gang, which ran, is being revoked from now on: true for one of its GPUs."""

    @property
    def span(self) -> LeaseInterval | None:
        """The span that the fact is about, in its latest state."""
        return self.after if self.after is not None else self.before


class SpanFold:
    """Folds the facts of one journal, or of consecutive ones; facts about leases whose grant it missed are ignored."""

    def __init__(self) -> None:
        self.open: dict[Gpu, LeaseInterval] = {}
        self._table = LeaseTable()
        self._left: set[Gpu] = set()
        """GPUs whose lease was open at the end of the previous journal and is not yet known to continue."""
        self._begun = 0

    def go_on(self, leases: Iterable[Lease], reservations: Iterable[Reservation]) -> list[LeaseInterval]:
        """Complete the fold with the present leases and reservations.

        Returns spans for the leases that the folded facts did not show, because the facts began too late.
        """
        found = []
        for x in leases:
            missed = [gpu for gpu in x.gpus if gpu not in self.open]
            if missed:
                lease = part(x, missed)
                self._table.load(lease)
                found += [self._begin(lease, gpu, x.granted_s, x.job_id, x.started_s) for gpu in missed]
        self._table.cancel(list(self._table.reservations))
        for reservation in reservations:
            self._table.load(reservation)
        return found

    def next_journal(self) -> None:
        """Mark a takeover: the following facts are another control plane's."""
        self._left = set(self.open)
        self._table.cancel(list(self._table.reservations))

    def take(self, fact: Fact, time_s: float) -> list[IntervalChange]:
        """Fold a fact recorded at `time_s`; the first changes are those of the fact's own GPUs, in its order."""
        if isinstance(fact, OF_LEASE):
            return self._of_lease(fact, time_s)
        if isinstance(fact, AppEnded):
            return self._let_go(time_s, fact.app_id)
        if isinstance(fact, RoundHeld):  # a control plane has seen all containers before its first round
            return self._let_go(time_s)
        return []

    def _of_lease(self, fact: OfLease, time_s: float) -> list[IntervalChange]:
        known = self._table.being_revoked(fact.gpus) if isinstance(fact, LeaseRevoking) else None
        step, leases = self._table.take(fact), self._table.leases
        for rest in step.rest:
            for gpu in rest.gpus:
                if gpu in self.open:
                    self.open[gpu] = dataclasses.replace(self.open[gpu], lease=rest)
        if isinstance(fact, LeaseEnded):
            ended = [self._end(self.open[g], fact.at_s, fact.reason, fact.cause) for g in fact.gpus if g in self.open]
            coming = zip(step.after, step.reservations, strict=True)
            return ended + [
                IntervalChange(None, self._begin(lease, gpu, fact.at_s), x) for lease, x in coming for gpu in lease.gpus
            ]
        changes = [IntervalChange(None, None, x) for x in step.reservations]
        if isinstance(fact, LeaseGranted):
            at_s = min(fact.at_s, time_s)
            begun = (self._granted(lease, gpu, at_s, time_s) for lease in step.after for gpu in lease.gpus)
            return [*(change for mine in begun for change in mine), *changes]
        for gpu in fact.gpus:
            before, lease = self.open.get(gpu), leases.get(gpu)
            if before is not None and lease is not None and not isinstance(fact, NextDropped):
                self.open[gpu] = after = _after(before, lease, fact, time_s)
                revokes = known is not None and before.running_s is not None and lease.grant_id not in known
                changes.append(IntervalChange(before, after, revokes=revokes))
                if known is not None and revokes:
                    known.add(lease.grant_id)
        return changes

    def _granted(self, lease: Lease, gpu: Gpu, at_s: float, time_s: float) -> list[IntervalChange]:
        changes, before = [], self.open.get(gpu)
        if before is not None:
            left = gpu in self._left
            self._left.discard(gpu)
            if left and before.app_id == lease.app_id:  # the lease continues after the takeover
                self.open[gpu] = after = dataclasses.replace(before, lease=lease)
                return [IntervalChange(before, after)]
            changes.append(self._end(before, time_s, NOT_TAKEN_OVER if left else OVERWRITTEN))
        # at_s of a gang's lease is when its last GPU becomes free at the latest; its containers may start earlier.
        return [*changes, IntervalChange(None, self._begin(lease, gpu, at_s))]

    def _let_go(self, time_s: float, app_id: str | None = None) -> list[IntervalChange]:
        """End the spans (all, or one app's) that did not continue after the takeover."""
        lost = [self.open[g] for g in self._left if g in self.open and app_id in (None, self.open[g].app_id)]
        self._left -= {x.gpu for x in lost}
        self._table.forget(x.gpu for x in lost)
        return [self._end(span, time_s, NOT_TAKEN_OVER) for span in lost]

    def _begin(
        self, lease: Lease, gpu: Gpu, at_s: float, job_id: str = "", started_s: float | None = None
    ) -> LeaseInterval:
        span = self.open[gpu] = LeaseInterval(self._begun, gpu, lease, at_s, job_id, started_s, started_s)
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
                span,
                lease=lease,
                job_id=fact.job_id or span.job_id,
                started_s=fact.at_s if span.started_s is None else span.started_s,
                running_s=fact.at_s if span.running_s is None else span.running_s,
            )
        case LeaseIdle():
            return dataclasses.replace(span, lease=lease, running_s=None, idle_s=fact.at_s)
        case LeaseRevoking() if span.revoking_s is None:
            return dataclasses.replace(span, lease=lease, revoking_s=time_s, reason=fact.reason, cause=fact.cause)
    return dataclasses.replace(span, lease=lease)


Journal = Iterable[tuple[int, float, Fact]]
"""(sequence number, time recorded, fact), oldest first."""


def changes_of(fold: SpanFold, *journals: Journal) -> Iterator[tuple[float, Fact, list[IntervalChange]]]:
    """(time recorded, fact, its changes) for each fact of consecutive control planes' journals."""
    for i, facts in enumerate(journals):
        if i:
            fold.next_journal()
        for _, time_s, fact in facts:
            yield time_s, fact, fold.take(fact, time_s)
