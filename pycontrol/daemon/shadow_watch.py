"""Looks at the cluster in mode shadow, in a thread of its own: the Arbiter's does not wait for rounds as if."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from pycontrol.model.events import ClusterSnapshot
from pycontrol.queries.shadow import ShadowRounds

LOOK_S = 5.0
log = structlog.get_logger("isonomy.shadow")


class ShadowWatch:
    """`look` gives the cluster while the mode is shadow, else None."""

    def __init__(
        self, rounds: ShadowRounds, look: Callable[[], ClusterSnapshot | None], now_s: Callable[[], float]
    ) -> None:
        self.rounds, self._look, self._now_s = rounds, look, now_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="isonomy-shadow", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the look at hand."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.look()
            except Exception as e:  # busy, or stopping; what could not be decided as if stops nothing
                log.warning("no look at the shadow", problem=repr(e))

    def look(self) -> None:
        """Once."""
        now = self._look()
        if now is None:
            self.rounds.interrupted()
        elif (found := self.rounds.look(now, self._now_s())) is not None:
            log.info("as if", given=dict(found.given), would_give=dict(found.would_give))
