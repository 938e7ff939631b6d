"""Recent leases by app: from grant to end, why they were revoked, and what each revocation cost.

Folds the journal's newest facts at the start and new facts as they arrive; forgets old leases.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import AllocationChanged, Fact, LeaseStarted
from pycontrol.queries.lookup import find_app, picked
from pycontrol.runtime.spans import IntervalChange, LeaseInterval, SpanFold

SPANS_KEPT, APPS_KEPT = 500, 3000
"""The most spans per app, and the most apps."""


@dataclass(slots=True)
class _AppIntervals:
    spans: dict[int, LeaseInterval] = field(default_factory=dict)
    """By `LeaseInterval.number`."""
    containers: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Container id -> (host, job id), in the order of their starts."""
    restarts: deque[tuple[float, str, float]] = field(default_factory=lambda: deque(maxlen=SPANS_KEPT))
    """(time, job id, seconds from the grant to the first step)."""


class Spans:
    """Recent leases; one thread writes, any thread reads."""

    def __init__(self, durable: Durable | None = None, past: Iterable[tuple[float, Fact]] = ()) -> None:
        """`past`: (time, fact), the journal's newest facts, oldest first; `durable`: the state after them."""
        self._lock = threading.Lock()
        self._fold = SpanFold()
        self._apps: dict[str, _AppIntervals] = {}
        for at_s, fact in past:
            self._take(fact, at_s)
        if durable is not None:
            for span in self._fold.go_on(durable.leases.each(), durable.reservations.each()):
                self._keep(span)

    def _of(self, app_id: str) -> _AppIntervals:
        found = self._apps.get(app_id)
        if found is None:
            found = self._apps[app_id] = _AppIntervals()
            while len(self._apps) > APPS_KEPT:
                self._apps.pop(next(iter(self._apps)))
        return found

    def take(self, fact: Fact, now_s: float) -> list[IntervalChange]:
        """Fold a fact recorded at `now_s`; returns the leases that it changed."""
        with self._lock:
            return self._take(fact, now_s)

    def _take(self, fact: Fact, now_s: float) -> list[IntervalChange]:
        changes = self._fold.take(fact, now_s)
        for change in changes:
            if change.after is not None:
                self._keep(change.after)
        if isinstance(fact, LeaseStarted) and changes and changes[0].after is not None:
            containers = self._of(changes[0].after.app_id).containers
            containers[fact.container_id] = fact.gpus[0].host, fact.job_id
            if len(containers) > SPANS_KEPT:
                del containers[next(iter(containers))]
        if isinstance(fact, AllocationChanged):
            self._of(fact.app_id).restarts.append((fact.at_s, fact.job_id, fact.seconds))
        return changes

    def _keep(self, span: LeaseInterval) -> None:
        spans = self._of(span.app_id).spans
        if span.number in spans or len(spans) < SPANS_KEPT or span.number > next(iter(spans)):
            spans[span.number] = span
        if len(spans) > SPANS_KEPT:
            del spans[next(iter(spans))]

    # ---- reading

    def view(self, a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
        """The app's recent leases, and what was taken back from it."""
        app_id = find_app(a, params)
        taken = self.revocations(app_id)
        return {"now_s": now_s, "app_id": app_id, "leases": self.spans(app_id), "revocations": taken}

    def spans(self, app_id: str) -> list[dict[str, Any]]:
        """The app's leases, oldest first."""
        with self._lock:
            app = self._apps.get(app_id)
            return [row(span) for span in app.spans.values()] if app is not None else []

    def containers(self, app_id: str) -> dict[str, tuple[str, str]]:
        """Container id -> (host, job id) of the app's newest containers, those that ended too, oldest first."""
        with self._lock:
            app = self._apps.get(app_id)
            return dict(app.containers) if app is not None else {}

    def revocations(self, app_id: str) -> list[dict[str, Any]]:
        """The app's revocations, one row per gang, oldest first.

        `stop_gpu_s`: GPU-seconds from the notice until the containers were gone, None until then. `start_gpu_s`:
        GPU-seconds from the next grant to the job's first step, None until it runs again.
        """
        with self._lock:
            app = self._apps.get(app_id)
            if app is None:
                return []
            gangs: dict[tuple[float, str, str], list[LeaseInterval]] = {}
            for span in app.spans.values():
                if span.revoking_s is not None and span.started_s is not None:
                    gangs.setdefault((span.revoking_s, span.job_id, span.reason), []).append(span)
            return [self._revocation(app, *key, gang) for key, gang in sorted(gangs.items(), key=lambda item: item[0])]

    @staticmethod
    def _revocation(
        app: _AppIntervals, at_s: float, job_id: str, reason: str, gang: list[LeaseInterval]
    ) -> dict[str, Any]:
        stopped = [s for x in gang if (s := x.stop_s) is not None]
        again = next((seconds for when, job, seconds in app.restarts if job == job_id and when > at_s), None)
        stop = sum(stopped) if len(stopped) == len(gang) else None
        start = again * len(gang) if again is not None else None
        lost = {"at_s": at_s, "job_id": job_id, "reason": reason, "gpus": [str(x.gpu) for x in gang]}
        return {**lost, "stop_gpu_s": stop, "start_gpu_s": start}


def row(span: LeaseInterval) -> dict[str, Any]:
    """A span as JSON values."""
    of = picked(span, "job_id granted_s started_s revoking_s ended_s reason cause")
    return {"gpu": str(span.gpu), "host": span.gpu.host, **of}
