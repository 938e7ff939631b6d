"""Holds shadow rounds in mode shadow, on its own thread, so that the Arbiter's thread does not wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from pycontrol.model.events import ClusterSnapshot
from pycontrol.queries.shadow import ShadowRounds

LOOK_S = 5.0
log = structlog.get_logger("isonomy.shadow")


class ShadowWatch:
    """Calls `look` every LOOK_S seconds; it returns the cluster in mode shadow, else None."""

    def __init__(
        self, rounds: ShadowRounds, look: Callable[[], ClusterSnapshot | None], now_s: Callable[[], float]
    ) -> None:
        self.rounds, self._look, self._now_s = rounds, look, now_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="isonomy-shadow", daemon=True)

    def start(self) -> None:
        """Start the watch's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the present look."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.look()
            except Exception as e:  # neither a busy Arbiter nor a failed round may end the thread
                log.warning("no look at the shadow", problem=repr(e))

    def look(self) -> None:
        """Look at the cluster once."""
        now = self._look()
        if now is None:
            self.rounds.interrupted()
        elif (found := self.rounds.look(now, self._now_s())) is not None:
            log.info("as if", given=dict(found.given), would_give=dict(found.would_give))
