"""Tells a webhook when apps start, lose GPUs, and end. It never holds the Arbiter up: what does not fit is dropped."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from typing import Any

import requests
import structlog

from pycontrol.arbiter import causes
from pycontrol.arbiter.durable import Durable
from pycontrol.arbiter.facts import AppArrived, AppEnded, Fact, LeaseRevoking, LeaseStarted
from pycontrol.queries.spans import LeaseSpan

WAITING_MAX = 1000
CONNECT_S, READ_S = 3.0, 5.0
TRIES = 2
log = structlog.get_logger("isonomy.notify")


class Notifier:
    """Posts {"event", "app_id", "name", "user", "queue", "at_s", ...} as JSON, one by one, on a thread of its own."""

    def __init__(self, url: str, durable: Durable | None = None) -> None:
        self._url = url
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(WAITING_MAX)
        self._apps: dict[str, dict[str, str]] = {}
        self._started: set[str] = set()
        self.dropped = self.failed = 0
        for app in durable.live.values() if durable is not None else ():
            self._apps[app.app_id] = {"name": app.name, "user": app.user, "queue": app.queue}
            if app.leases:
                self._started.add(app.app_id)
        self._thread = threading.Thread(target=self._run, name="isonomy-notify", daemon=True)

    def start(self) -> None:
        """Begins to post."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the post at hand; what waits is dropped."""
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
        self._queue.put_nowait(None)
        self._thread.join(CONNECT_S + READ_S)

    def take(self, facts: Iterable[tuple[Fact, LeaseSpan | None]], now_s: float) -> None:
        """Facts of one moment, each with the lease that it is about; GPUs revoked together are one event."""
        revoked: dict[tuple[str, str, str], list[str]] = {}
        for fact, span in facts:
            match fact:
                case AppArrived():
                    self._apps[fact.app_id] = {"name": fact.name, "user": fact.user, "queue": fact.queue}
                case LeaseStarted() if span is not None and span.app_id not in self._started:
                    self._started.add(span.app_id)
                    self._put("started", span.app_id, fact.at_s)
                case LeaseRevoking() if span is not None and span.started_s and fact.cause in causes.PREEMPTIONS:
                    revoked.setdefault((span.app_id, fact.cause, fact.reason), []).append(str(fact.gpu))
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
        try:
            self._queue.put_nowait({"event": event, "app_id": app_id, **known, "at_s": at_s, **more})
        except queue.Full:
            self.dropped += 1

    def _run(self) -> None:
        with requests.Session() as http:
            http.trust_env = False
            while (event := self._queue.get()) is not None:
                self._post(http, event)

    def _post(self, http: requests.Session, event: dict[str, Any]) -> None:
        for _ in range(TRIES):
            try:
                timeout = (CONNECT_S, READ_S)
                reply = http.post(self._url, json=event, timeout=timeout, allow_redirects=False, stream=True)
                reply.close()
                if reply.status_code < 500:
                    self.failed += reply.status_code >= 300
                    return
            except requests.RequestException as e:
                log.debug("a notification was not taken", problem=str(e))
        self.failed += 1
