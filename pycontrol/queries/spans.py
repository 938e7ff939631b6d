"""Recent leases by app, gang by gang: from grant to end, why they were revoked, and what that cost.

Folds facts as they come, and at the start the newest ones of the journal; old ones are forgotten.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pycontrol.arbiter.durable import Durable
from pycontrol.arbiter.facts import (
    AllocationChanged,
    Fact,
    LeaseEnded,
    LeaseGranted,
    LeaseIdle,
    LeaseRevoking,
    LeaseStarted,
    NextDropped,
)
from pycontrol.model.reasons import EndReason
from pycontrol.model.topology import Gpu

SPANS_KEPT, APPS_KEPT = 500, 3000
"""Of one app, and apps in all."""


@dataclass(slots=True)
class LeaseSpan:
    """One lease; times in Unix seconds, None where it has not come to that."""

    gpu: Gpu
    app_id: str
    granted_s: float
    job_id: str = ""
    started_s: float | None = None
    revoking_s: float | None = None
    idle_s: float | None = None
    """When its container ended, after the revocation began."""
    ended_s: float | None = None
    reason: str = ""
    """Why it was revoked; empty where it was not."""
    cause: EndReason = EndReason.UNKNOWN

    @property
    def stop_s(self) -> float | None:
        """Seconds from its revocation until its container was gone."""
        if self.revoking_s is None:
            return None
        gone_s = self.idle_s if self.idle_s is not None and self.idle_s >= self.revoking_s else self.ended_s
        return max(0.0, gone_s - self.revoking_s) if gone_s is not None else None

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "gpu": str(self.gpu), "host": self.gpu.host, "job_id": self.job_id, "granted_s": self.granted_s,
            "started_s": self.started_s, "revoking_s": self.revoking_s, "ended_s": self.ended_s,
            "reason": self.reason, "cause": self.cause,
        }  # fmt: skip


@dataclass(slots=True)
class _App:
    spans: deque[LeaseSpan] = field(default_factory=lambda: deque(maxlen=SPANS_KEPT))
    restarts: deque[tuple[float, str, float]] = field(default_factory=lambda: deque(maxlen=SPANS_KEPT))
    """(when, job, seconds from the grant to the first step)."""


class Spans:
    """Written by one thread, read by others."""

    def __init__(self, durable: Durable | None = None, past: Iterable[tuple[float, Fact]] = ()) -> None:
        """`past`: (when, fact), the newest of the journal, oldest first; `durable`: how things are after them."""
        self._lock = threading.Lock()
        self._open: dict[Gpu, LeaseSpan] = {}
        self._next: dict[Gpu, str] = {}
        self._apps: dict[str, _App] = {}
        for at_s, fact in past:
            self._take(fact, at_s)
        if durable is not None:
            self._next = {gpu: lease.app_id for gpu, lease in durable.reservations.items()}
            for gpu, lease in durable.leases.items():
                if gpu not in self._open:
                    span = LeaseSpan(gpu, lease.app_id, lease.granted_s, lease.job_id, lease.started_s)
                    self._open[gpu] = span
                    self._of(lease.app_id).spans.append(span)

    def _of(self, app_id: str) -> _App:
        found = self._apps.get(app_id)
        if found is None:
            found = self._apps[app_id] = _App()
            while len(self._apps) > APPS_KEPT:
                self._apps.pop(next(iter(self._apps)))
        return found

    def take(self, fact: Fact, now_s: float) -> LeaseSpan | None:
        """Folds a fact, recorded at `now_s`; returns the lease that it is about, if it is about one."""
        with self._lock:
            gpu = getattr(fact, "gpu", None)
            before = self._open.get(gpu) if gpu is not None else None
            self._take(fact, now_s)
            return before if before is not None or gpu is None else self._open.get(gpu)

    def _take(self, fact: Fact, now_s: float) -> None:
        match fact:
            case LeaseGranted():
                if fact.after_current:
                    self._next[fact.gpu] = fact.app_id
                else:
                    self._begin(fact.gpu, fact.app_id, min(fact.at_s, now_s))
            case NextDropped():
                self._next.pop(fact.gpu, None)
            case LeaseStarted():
                span = self._open.get(fact.gpu)
                if span is not None:
                    span.started_s = fact.at_s if span.started_s is None else span.started_s
                    span.job_id = fact.job_id or span.job_id
            case LeaseRevoking():
                span = self._open.get(fact.gpu)
                if span is not None and span.revoking_s is None:
                    span.revoking_s, span.reason, span.cause = now_s, fact.reason, fact.cause
            case LeaseIdle():
                span = self._open.get(fact.gpu)
                if span is not None:
                    span.idle_s = fact.at_s
            case LeaseEnded():
                span = self._open.pop(fact.gpu, None)
                if span is not None:
                    span.ended_s = fact.at_s
                following = self._next.pop(fact.gpu, "")
                if following:
                    self._begin(fact.gpu, following, fact.at_s)
            case AllocationChanged():
                self._of(fact.app_id).restarts.append((fact.at_s, fact.job_id, fact.seconds))

    def _begin(self, gpu: Gpu, app_id: str, at_s: float) -> None:
        span = self._open[gpu] = LeaseSpan(gpu, app_id, at_s)
        self._of(app_id).spans.append(span)

    # ---- reading

    def spans(self, app_id: str) -> list[dict[str, Any]]:
        """The app's leases, oldest first."""
        with self._lock:
            app = self._apps.get(app_id)
            return [span.row() for span in app.spans] if app is not None else []

    def revocations(self, app_id: str) -> list[dict[str, Any]]:
        """What was taken back from the app, gang by gang, oldest first.

        `stop_gpu_s`: GPU-seconds from the notice until its containers were gone; `start_gpu_s`: those from the next
        grant to the job's first step, None until it runs again.
        """
        with self._lock:
            app = self._apps.get(app_id)
            if app is None:
                return []
            gangs: dict[tuple[float, str, str], list[LeaseSpan]] = {}
            for span in app.spans:
                if span.revoking_s is not None and span.started_s is not None:
                    gangs.setdefault((span.revoking_s, span.job_id, span.reason), []).append(span)
            return [self._revocation(app, *key, gang) for key, gang in sorted(gangs.items(), key=lambda item: item[0])]

    @staticmethod
    def _revocation(app: _App, at_s: float, job_id: str, reason: str, gang: list[LeaseSpan]) -> dict[str, Any]:
        stopped = [s for x in gang if (s := x.stop_s) is not None]
        again = next((seconds for when, job, seconds in app.restarts if job == job_id and when > at_s), None)
        return {
            "at_s": at_s, "job_id": job_id, "reason": reason, "gpus": [str(x.gpu) for x in gang],
            "stop_gpu_s": sum(stopped) if len(stopped) == len(gang) else None,
            "start_gpu_s": again * len(gang) if again is not None else None,
        }  # fmt: skip
