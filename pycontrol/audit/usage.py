"""Accounting from the journal: GPU time by user, queue or app, used, lost and borrowed, and how long apps waited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pycontrol.arbiter.durable import Durable
from pycontrol.arbiter.facts import (
    AllocationChanged,
    AppArrived,
    AppEnded,
    Fact,
    LeaseBorrowed,
    LeaseEnded,
    LeaseGranted,
    LeaseIdle,
    LeaseRevoking,
    LeaseStarted,
    NextDropped,
    Restored,
)
from pycontrol.audit.report import quantile
from pycontrol.model.topology import Gpu

KEYS = ("user", "queue", "vc", "app", "name", "kind")
HOUR_S = 3600.0


@dataclass(slots=True)
class _Lease:
    app_id: str
    held_s: float
    """Since when it is counted."""
    guaranteed: bool = True
    job_id: str = ""
    started_s: float | None = None
    revoking_s: float | None = None


@dataclass(slots=True)
class AppUsage:
    """One app within the time asked for; GPU-seconds."""

    app_id: str
    name: str
    user: str
    queue: str
    vc: str
    kind: str
    submitted_s: float
    held_gpu_s: float = 0.0
    """Leased to it, used or not."""
    used_gpu_s: float = 0.0
    """With a container."""
    lost_gpu_s: float = 0.0
    """Until revoked GPUs were given back, and from the grants that follow to the first step."""
    borrowed_gpu_s: float = 0.0
    """Of those held: from other virtual clusters' cells."""
    revocations: int = 0
    first_s: float | None = None
    """When its first container ran."""
    ended_s: float | None = None
    seen: bool = False
    """Anything of it happened within the time asked for."""


@dataclass
class Usage:
    """Folds facts; time before `since_s` and after `until_s` is not counted."""

    since_s: float
    until_s: float
    apps: dict[str, AppUsage] = field(default_factory=dict)
    unknown: int = 0
    """Facts about leases whose grant is no longer in the journal."""
    _open: dict[Gpu, _Lease] = field(default_factory=dict)
    _next: dict[Gpu, tuple[str, bool]] = field(default_factory=dict)
    _launched: set[tuple[str, str]] = field(default_factory=set)

    def read(self, facts: Iterable[tuple[int, float, Fact]]) -> None:
        """A journal's facts in their order, from its beginning."""
        for _, time_s, fact in facts:
            if time_s > self.until_s:
                break
            self._take(fact, time_s)

    def close(self) -> None:
        """Counts the leases that have not ended."""
        for gpu in list(self._open):
            self._end(gpu, self.until_s, closing=True)

    def _span_s(self, begin_s: float, end_s: float) -> float:
        return max(0.0, min(end_s, self.until_s) - max(begin_s, self.since_s))

    def _take(self, fact: Fact, time_s: float) -> None:
        match fact:
            case Restored():
                for x in Durable.load(fact.data).apps.values():
                    self._know(x.app_id, x.name, x.user, x.queue, x.vc, x.kind, x.submitted_s)
            case AppArrived():
                self._know(fact.app_id, fact.name, fact.user, fact.queue, fact.vc, fact.kind, fact.submitted_s)
                self.apps[fact.app_id].seen |= time_s >= self.since_s
            case AppEnded():
                if fact.app_id in self.apps:
                    self.apps[fact.app_id].ended_s = fact.at_s
            case LeaseGranted():
                if fact.after_current:
                    self._next[fact.gpu] = fact.app_id, fact.guaranteed
                else:
                    self._end(fact.gpu, fact.at_s)
                    self._open[fact.gpu] = _Lease(fact.app_id, min(fact.at_s, time_s), fact.guaranteed)
            case NextDropped():
                self._next.pop(fact.gpu, None)
            case AllocationChanged():
                self._restarted(fact)
            case LeaseStarted() | LeaseIdle() | LeaseRevoking() | LeaseBorrowed() | LeaseEnded():
                lease = self._open.get(fact.gpu)
                if lease is None:
                    self.unknown += 1
                else:
                    self._of_lease(fact, lease, time_s)

    def _know(self, app_id: str, name: str, user: str, queue: str, vc: str, kind: str, submitted_s: float) -> None:
        if app_id not in self.apps:
            self.apps[app_id] = AppUsage(app_id, name, user, queue, vc, kind, submitted_s)

    def _of_lease(self, fact: Fact, lease: _Lease, time_s: float) -> None:
        app = self.apps.get(lease.app_id)
        match fact:
            case LeaseStarted():
                lease.started_s = fact.at_s if lease.started_s is None else lease.started_s
                lease.job_id = fact.job_id or lease.job_id
                if app is not None and app.first_s is None:
                    app.first_s = fact.at_s
            case LeaseIdle():
                self._stop(lease, fact.at_s)
            case LeaseRevoking():
                if app is not None and lease.started_s is not None and lease.revoking_s is None:
                    app.revocations += self.since_s <= time_s
                lease.revoking_s = time_s if lease.revoking_s is None else lease.revoking_s
            case LeaseBorrowed():
                self._hold(lease, time_s)
                lease.held_s, lease.guaranteed = time_s, False
            case LeaseEnded():
                self._end(fact.gpu, fact.at_s)
                following = self._next.pop(fact.gpu, None)
                if following is not None:
                    self._open[fact.gpu] = _Lease(following[0], fact.at_s, following[1])

    def _hold(self, lease: _Lease, at_s: float) -> None:
        app = self.apps.get(lease.app_id)
        if app is not None:
            held_s = self._span_s(lease.held_s, at_s)
            app.held_gpu_s += held_s
            app.borrowed_gpu_s += 0.0 if lease.guaranteed else held_s
            app.seen |= held_s > 0

    def _stop(self, lease: _Lease, at_s: float) -> None:
        """Its container is gone."""
        app = self.apps.get(lease.app_id)
        if app is not None and lease.started_s is not None:
            app.used_gpu_s += self._span_s(lease.started_s, at_s)
            if lease.revoking_s is not None:
                app.lost_gpu_s += self._span_s(lease.revoking_s, at_s)
        lease.started_s = None

    def _end(self, gpu: Gpu, at_s: float, closing: bool = False) -> None:
        lease = self._open.pop(gpu, None)
        if lease is not None:
            self._stop(lease, at_s)
            self._hold(lease, at_s)

    def _restarted(self, fact: AllocationChanged) -> None:
        """A job trains: what it took since the grant is lost, but for its first launch."""
        key = fact.app_id, fact.job_id
        if key in self._launched:
            gpus = sum(x.app_id == fact.app_id and x.job_id == fact.job_id for x in self._open.values())
            app = self.apps.get(fact.app_id)
            if app is not None:
                app.lost_gpu_s += gpus * self._span_s(fact.at_s - fact.seconds, fact.at_s)
        self._launched.add(key)

    # ---- what it comes to

    def table(self, by: Sequence[str]) -> list[dict[str, Any]]:
        """A row for each group of apps, most GPU time first; times in hours."""
        groups: dict[tuple[str, ...], list[AppUsage]] = {}
        for app in self.apps.values():
            if app.seen:
                groups.setdefault(tuple(_value(app, key) for key in by), []).append(app)
        rows = [dict(zip(by, key, strict=True)) | self._sum(apps) for key, apps in groups.items()]
        return sorted(rows, key=lambda r: (-r["gpu_h_used"], *(r[key] for key in by)))

    def _sum(self, apps: Sequence[AppUsage]) -> dict[str, Any]:
        waits_s = [w for x in apps if (w := self._wait_s(x)) is not None]
        total = {
            name: round(sum(getattr(x, f"{name}_gpu_s") for x in apps) / HOUR_S, 4)
            for name in ("held", "used", "lost", "borrowed")
        }
        return {
            "apps": len(apps),
            "gpu_h_used": total["used"],
            "gpu_h_unused": round(max(0.0, total["held"] - total["used"]), 4),
            "gpu_h_lost": total["lost"],
            "gpu_h_borrowed": total["borrowed"],
            "revocations": sum(x.revocations for x in apps),
            "wait_h": round(sum(waits_s) / HOUR_S, 4),
            "wait_median_s": quantile(waits_s, 0.5),
            "wait_p95_s": quantile(waits_s, 0.95),
        }

    def _wait_s(self, app: AppUsage) -> float | None:
        """Until its first container; without one until the app's end, or until now."""
        until_s = app.first_s if app.first_s is not None else app.ended_s or self.until_s
        if app.submitted_s < self.since_s and until_s < self.since_s:
            return None
        return max(0.0, until_s - app.submitted_s)


def _value(app: AppUsage, key: str) -> str:
    return str(getattr(app, "app_id" if key == "app" else key))


def usage(
    journals: Iterable[Iterable[tuple[int, float, Fact]]], by: Sequence[str], since_s: float, until_s: float
) -> Mapping[str, Any]:
    """The accounting of these journals, of control planes that followed each other."""
    found = Usage(since_s, until_s)
    for facts in journals:
        found.read(facts)
    found.close()
    everything = found.table(())
    return {
        "since_s": since_s, "until_s": until_s, "by": list(by), "rows": found.table(by),
        "total": everything[0] if everything else None, "unknown_facts": found.unknown,
    }  # fmt: skip
