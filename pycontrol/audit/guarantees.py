"""Guarantees in a journal: the GPUs that virtual clusters claimed as their own, and since when these were due.

A virtual cluster's app that asks for its own GPUs is served within one revocation: the borrower has the lead to write a
checkpoint, then it is killed (HiveD, sharing safety). The virtual cluster may grant borrowers a time before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pycontrol.arbiter.ledger.facts import (
    AppArrived,
    AppMoved,
    ExchangeChanged,
    Fact,
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseRevoking,
    LeaseStarted,
    NextDropped,
    RoundHeld,
    Switched,
)
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Gpu
from pycontrol.runtime.spans import IntervalChange

ON_END_S = 600.0
"""Refusing rounds count as consecutive if no more than this is between two, as idle rounds delay the next one."""


@dataclass(slots=True)
class GuaranteedGpu:
    """A GPU that was promised to an app as its virtual cluster's own; times in Unix seconds.

    `asked_s`: since when it was the app's due: it had asked, and its cells, as far as the journal says, had not changed
    since. `still_s`: until when leases stood still.
    """

    gpu: Gpu
    app_id: str
    vc: str
    asked_s: float
    until_s: float | None = None
    """When the app had the GPU, or gave its claim up."""
    still_s: float = 0.0
    lend_s: float = 0.0
    """How long the virtual cluster lets borrowers keep its GPUs (`min_lend_s`)."""


@dataclass(slots=True)
class RefusedRounds:
    """Consecutive rounds that awarded an app GPUs of its own virtual cluster that the cells then did not provide."""

    app_id: str
    vc: str
    first_s: float
    last_s: float
    rounds: int


@dataclass
class GuaranteedGpus:
    """Collects all claims of a journal, fact by fact."""

    made: list[GuaranteedGpu] = field(default_factory=list)
    vc_of: dict[str, str] = field(default_factory=dict)
    """By application."""
    refused: list[RefusedRounds] = field(default_factory=list)
    _refused: dict[str, RefusedRounds] = field(default_factory=dict)
    """By application, while the refusals continue."""
    _open: dict[Gpu, GuaranteedGpu] = field(default_factory=dict)
    _changed_s: dict[str, float] = field(default_factory=dict)
    """Virtual cluster -> when any of its apps last lost GPUs: its cells may have come free by that."""
    _all_changed_s: float = 0.0
    """When cells were lent or given back, or an operator did something."""

    def take(self, fact: Fact, time_s: float, changes: Sequence[IntervalChange]) -> None:
        """Fold the next fact and its changes of leases."""
        span = changes[0].span if changes else None
        match fact:
            case AppArrived() | AppMoved():
                self._refused.pop(fact.app_id, None)
                self.vc_of[fact.app_id] = fact.vc
                self._changed(fact.app_id, time_s)
            case ExchangeChanged() | Switched():
                self._all_changed_s = time_s
            case LeaseGranted():
                self._granted(fact, time_s)
            case LeaseExtended() if not fact.counted:  # none ends before two leads have passed
                for claim in (self._open[gpu] for gpu in fact.gpus if gpu in self._open):
                    claim.still_s = max(claim.still_s, fact.end_s)
            case LeaseRevoking():
                self._changed(span.app_id if span is not None else "", time_s)
            case NextDropped():
                dropped = changes[0].reservation if changes else None
                self._changed(dropped.app_id if dropped is not None else "", time_s)
                self._close(fact.gpus, time_s)
            case LeaseStarted() if span is not None:
                self._close((g for g in fact.gpus if g in self._open and self._open[g].app_id == span.app_id), time_s)
            case LeaseEnded():
                self._ended(fact.gpus, time_s, changes)
            case RoundHeld():
                self._held(fact.receipt)

    def _changed(self, app_id: str, time_s: float) -> None:
        self._changed_s[self.vc_of.get(app_id, "")] = time_s

    def _granted(self, fact: LeaseGranted, time_s: float) -> None:
        self._close(fact.gpus, time_s)
        vc = self.vc_of.get(fact.app_id, "")
        for gpu in fact.gpus if fact.guaranteed and vc else ():
            claim = self._open[gpu] = GuaranteedGpu(gpu, fact.app_id, vc, time_s)
            self.made.append(claim)

    def _ended(self, gpus: Iterable[Gpu], time_s: float, changes: Sequence[IntervalChange]) -> None:
        begun: dict[Gpu, str] = {}
        for change in changes:
            if change.before is not None:
                self._changed(change.before.app_id, time_s)
            if change.reservation is not None and change.after is not None:
                begun[change.after.gpu] = change.reservation.app_id
        self._close((g for g in gpus if g in self._open and begun.get(g) != self._open[g].app_id), time_s)

    def _close(self, gpus: Iterable[Gpu], time_s: float) -> None:
        for claim in [self._open.pop(gpu) for gpu in list(gpus) if gpu in self._open]:
            claim.until_s = time_s

    def _held(self, receipt: Receipt) -> None:
        """Set when a round's claims were due, from its record of how long the apps had waited."""
        due_s = max(self._all_changed_s, self._changed_s.get(receipt.vc, 0.0))
        for granted in receipt.done.granted:
            claim = self._open.get(granted.gpu)
            if claim is not None and claim.app_id == granted.app_id:
                claim.lend_s = receipt.min_lend_s
                claim.asked_s = min(claim.asked_s, max(due_s, receipt.asked_s.get(granted.app_id, receipt.at_s)))

        if receipt.vc and receipt.guaranteed and receipt.outcome is not None:
            self._note_refused(receipt)

    def _note_refused(self, receipt: Receipt) -> None:
        """A round of a virtual cluster's own GPUs; who asked for a place that these are not has a reason (`out`)."""
        for app_id in (*receipt.out, *(x.app_id for x in receipt.done.granted)):
            self._refused.pop(app_id, None)
        for app_id in receipt.done.refused:
            if app_id in receipt.out:
                continue
            known = self._refused.get(app_id)
            if known is None or receipt.at_s > known.last_s + ON_END_S:
                known = self._refused[app_id] = RefusedRounds(app_id, receipt.vc, receipt.at_s, receipt.at_s, 0)
                self.refused.append(known)
            known.last_s, known.rounds = receipt.at_s, known.rounds + 1


def strangers(
    claims: GuaranteedGpus, apps_on: Mapping[Gpu, list[tuple[str, str, float, float | None]]], bound_s: float
) -> list[tuple[GuaranteedGpu, str, float]]:
    """Claims whose GPU had another virtual cluster's container for longer than `bound_s` after they were due.

    The time that the virtual cluster grants borrowers is added to the bound.
    `apps_on`: by GPU (container, application, start, end or None) of what ran there. Returns the claim, the container,
    and when the bound was over.
    """
    found = []
    for claim in claims.made:
        over_s = max(claim.asked_s, claim.still_s) + bound_s + claim.lend_s
        if claim.until_s is not None and claim.until_s <= over_s:
            continue
        for container_id, app_id, start_s, end_s in apps_on.get(claim.gpu, ()):
            stranger = claims.vc_of.get(app_id, "") != claim.vc
            until_s = claim.until_s if claim.until_s is not None else float("inf")
            if stranger and start_s < until_s and (end_s is None or end_s > over_s):
                found.append((claim, container_id, over_s))
    return found
