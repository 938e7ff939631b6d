"""Notifies a webhook when apps start, lose GPUs, and end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import AppArrived, AppEnded, AppMoved, Fact, LeaseRevoking, LeaseStarted
from pycontrol.model.reasons import PREEMPTIONS
from pycontrol.runtime.spans import LeaseInterval
from pycontrol.web.poster import Poster


class Notifier(Poster):
    """Posts {"event", "app_id", "name", "user", "queue", "at_s", ...}."""

    def __init__(self, url: str, durable: Durable | None = None) -> None:
        super().__init__(url)
        self._apps: dict[str, dict[str, str]] = {}
        self._started: set[str] = set()
        if durable is not None:
            self.know_all(durable)

    def know_all(self, durable: Durable) -> None:
        """Know the apps of this state, at the start or after a takeover."""
        for app in durable.live.values():
            self._apps[app.app_id] = {"name": app.name, "user": app.user, "queue": app.queue}
            if app.leases:
                self._started.add(app.app_id)

    def take(self, facts: Iterable[tuple[Fact, LeaseInterval | None]], now_s: float) -> None:
        """Post events for facts of one step, each with its lease; GPUs revoked together are one event."""
        revoked: dict[tuple[str, str, str], list[str]] = {}
        for fact, span in facts:
            match fact:
                case AppArrived():
                    self._apps[fact.app_id] = {"name": fact.name, "user": fact.user, "queue": fact.queue}
                case AppMoved() if fact.queue and fact.app_id in self._apps:
                    self._apps[fact.app_id]["queue"] = fact.queue
                case LeaseStarted() if span is not None and span.app_id not in self._started:
                    self._started.add(span.app_id)
                    self._put("started", span.app_id, fact.at_s)
                case LeaseRevoking() if span is not None and span.started_s and fact.cause in PREEMPTIONS:
                    revoked.setdefault((span.app_id, fact.cause, fact.reason), []).extend(map(str, fact.gpus))
                case AppEnded():
                    failed = fact.final_state in ("FAILED", "KILLED")
                    self._put("failed" if failed else "ended", fact.app_id, fact.at_s, final_state=fact.final_state)
                    self._apps.pop(fact.app_id, None)
                    self._started.discard(fact.app_id)
        for (app_id, cause, reason), gpus in revoked.items():
            self._put("revoked", app_id, now_s, gpus=gpus, cause=cause, reason=reason)

    def _put(self, event: str, app_id: str, at_s: float, **more: Any) -> None:
        known = self._apps.get(app_id)
        if known is None:
            return
        self.put({"event": event, "app_id": app_id, **known, "at_s": at_s, **more})
