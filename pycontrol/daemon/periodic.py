"""Work that comes again and again, on a thread of its own, so that the Arbiter's does not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

log = structlog.get_logger("isonomy.serve")


class Periodic:
    """Calls `act` every `every_s` seconds; what it raises is logged with `problem`, and the next call may succeed."""

    def __init__(self, name: str, every_s: float, act: Callable[[], None], problem: str) -> None:
        self._every_s, self._act, self._problem = every_s, act, problem
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the present call."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self._act()
            except Exception as e:
                log.warning(self._problem, problem=repr(e))
