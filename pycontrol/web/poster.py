"""Posts JSON to a URL, one event at a time, on its own thread; never blocks, and drops events if the queue is full."""

from __future__ import annotations

import queue
import threading
from typing import Any

import requests
import structlog

WAITING_MAX = 1000
CONNECT_S, READ_S = 3.0, 5.0
TRIES = 2
log = structlog.get_logger("isonomy.notify")


class Poster:
    """Posts events; `dropped` counts those without room in the queue, `failed` those that the server did not accept."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(WAITING_MAX)
        self.dropped = self.failed = 0
        self._thread = threading.Thread(target=self._run, name="isonomy-notify", daemon=True)

    def start(self) -> None:
        """Start the posting thread."""
        self._thread.start()

    def put(self, event: dict[str, Any]) -> None:
        """Queue an event; never blocks."""
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.dropped += 1

    def stop(self) -> None:
        """Stop after the present post; drop the waiting events."""
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
        self._queue.put_nowait(None)
        self._thread.join(CONNECT_S + READ_S)

    def drain(self, timeout_s: float) -> None:
        """Stop once all events are posted, or after `timeout_s`."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

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
