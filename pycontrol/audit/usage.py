"""Accounting from the journal: GPU time used, lost and borrowed, and waiting times, by user, queue or app."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import OF_LEASE, AllocationChanged, AppArrived, AppEnded, Fact, Restored
from pycontrol.model.topology import Gpu
from pycontrol.runtime.spans import IntervalChange, Journal, LeaseInterval, SpanFold, changes_of

KEYS = ("user", "queue", "vc", "app", "name", "kind")
HOUR_S = 3600.0


@dataclass(slots=True)
class AppUsage:
    """One app's usage within the requested time, in GPU-seconds."""

    app_id: str
    name: str
    user: str
    queue: str
    vc: str
    kind: str
    submitted_s: float
    held_gpu_s: float = 0.0
    """Time of its leases, used or not."""
    used_gpu_s: float = 0.0
    """Time of its leases with a container."""
    lost_gpu_s: float = 0.0
    """Time until revoked GPUs were released, and from the next grants to the first step."""
    borrowed_gpu_s: float = 0.0
    """Part of the held time on other virtual clusters' cells."""
    revocations: int = 0
    first_s: float | None = None
    """When its first container started."""
    ended_s: float | None = None
    seen: bool = False
    """Whether it had any event within the requested time."""


@dataclass
class Usage:
    """Folds facts; time before `since_s` and after `until_s` is not counted."""

    since_s: float
    until_s: float
    apps: dict[str, AppUsage] = field(default_factory=dict)
    unknown: int = 0
    """Facts about leases whose grant is no longer in the journal."""
    _fold: SpanFold = field(default_factory=SpanFold)
    _counted_s: dict[Gpu, float] = field(default_factory=dict)
    """By GPU: until when an open lease's time has been counted as held."""
    _launched: set[tuple[str, str]] = field(default_factory=set)

    def read(self, *journals: Journal) -> None:
        """Read the facts of consecutive control planes in order, from the beginning."""
        within = (takewhile(lambda row: row[1] <= self.until_s, facts) for facts in journals)
        for time_s, fact, changes in changes_of(self._fold, *within):
            self._take(fact, time_s)
            self.unknown += isinstance(fact, OF_LEASE) and not changes
            for change in changes:
                self._changed(change, time_s)

    def close(self) -> None:
        """Count the leases that have not ended."""
        for span in self._fold.open.values():
            self._stop(span, self.until_s)
            self._hold(span, self.until_s)

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
            case AllocationChanged():
                self._restarted(fact)

    def _know(self, app_id: str, name: str, user: str, queue: str, vc: str, kind: str, submitted_s: float) -> None:
        if app_id not in self.apps:
            self.apps[app_id] = AppUsage(app_id, name, user, queue, vc, kind, submitted_s)

    def _changed(self, change: IntervalChange, time_s: float) -> None:
        before, after = change.before, change.after
        if after is None:
            return
        if before is None:
            self._counted_s[after.gpu] = after.granted_s
            return
        app = self.apps.get(after.app_id)
        if app is not None and after.running_s is not None and app.first_s is None:
            app.first_s = after.running_s
        if app is not None and before.running_s is not None and before.revoking_s is None:
            app.revocations += after.revoking_s is not None and self.since_s <= time_s
        if before.running_s is not None and after.running_s is None:
            self._stop(before, after.gone_s)
        if after.ended_s is not None:
            self._hold(before, after.ended_s)
        elif before.lease.guaranteed != after.lease.guaranteed:
            self._hold(before, time_s)

    def _hold(self, span: LeaseInterval, at_s: float) -> None:
        app = self.apps.get(span.app_id)
        if app is not None:
            held_s = self._span_s(self._counted_s[span.gpu], at_s)
            app.held_gpu_s += held_s
            app.borrowed_gpu_s += 0.0 if span.lease.guaranteed else held_s
            app.seen |= held_s > 0
        self._counted_s[span.gpu] = at_s

    def _stop(self, span: LeaseInterval, at_s: float) -> None:
        """Count the time of a container that has ended."""
        app = self.apps.get(span.app_id)
        if app is not None and span.running_s is not None:
            app.used_gpu_s += self._span_s(span.running_s, at_s)
            if span.revoking_s is not None:
                app.lost_gpu_s += self._span_s(span.revoking_s, at_s)

    def _restarted(self, fact: AllocationChanged) -> None:
        """Count a job's time from grant to first step as lost, except for its first launch."""
        key = fact.app_id, fact.job_id
        if key in self._launched:
            gpus = sum((x.app_id, x.job_id) == key for x in self._fold.open.values())
            app = self.apps.get(fact.app_id)
            if app is not None:
                app.lost_gpu_s += gpus * self._span_s(fact.at_s - fact.seconds, fact.at_s)
        self._launched.add(key)

    # ---- results

    def table(self, by: Sequence[str]) -> list[dict[str, Any]]:
        """A row per group of apps, most GPU time first; times in hours."""
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
        """Seconds until its first container, else until its end or now; None if it waited only before `since_s`."""
        until_s = app.first_s if app.first_s is not None else app.ended_s or self.until_s
        if app.submitted_s < self.since_s and until_s < self.since_s:
            return None
        return max(0.0, until_s - app.submitted_s)


def _value(app: AppUsage, key: str) -> str:
    return str(getattr(app, "app_id" if key == "app" else key))


def usage(journals: Iterable[Journal], by: Sequence[str], since_s: float, until_s: float) -> Mapping[str, Any]:
    """The accounting of these journals of consecutive control planes."""
    found = Usage(since_s, until_s)
    found.read(*journals)
    found.close()
    everything = found.table(())
    return {
        "since_s": since_s, "until_s": until_s, "by": list(by), "rows": found.table(by),
        "total": everything[0] if everything else None, "unknown_facts": found.unknown,
    }  # fmt: skip


def quantile(values: Sequence[float], q: float) -> float | None:
    """The q-quantile with linear interpolation; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low, high = math.floor(at), math.ceil(at)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
