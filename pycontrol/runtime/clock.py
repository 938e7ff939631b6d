"""The control plane's clock: Unix time that never runs backwards and follows the machine's clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

STEP_S = 2.0
"""A wall clock this far ahead of the elapsed monotonic time was set forward, or the machine slept."""
SLOW = 0.5
"""After the wall clock was set back, time runs at this rate until the wall clock has caught up."""


class SteadyClock:
    """A monotonic clock in Unix seconds; thread-safe."""

    def __init__(
        self,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
        not_before_s: float = 0.0,
    ) -> None:
        """`not_before_s`: the last time of the previous control plane. If the wall clock is behind it, time continues
        from there at the rate `SLOW` until the wall clock has caught up."""
        self._wall_s, self._monotonic_s = wall_s, monotonic_s
        self._lock = threading.Lock()
        self._now_s, self._at_s = max(not_before_s, wall_s()), monotonic_s()
        self._stepped_s = 0.0

    def now_s(self) -> float:
        """The current time, Unix seconds; never decreases."""
        with self._lock:
            at_s, wall_s = self._monotonic_s(), self._wall_s()
            passed_s, self._at_s = max(0.0, at_s - self._at_s), at_s
            ahead_s = wall_s - (self._now_s + passed_s)
            if ahead_s > STEP_S:
                self._stepped_s += ahead_s
            self._now_s = max(wall_s, self._now_s + SLOW * passed_s)
            return self._now_s

    def step_s(self) -> float:
        """Seconds by which the wall clock was set forward since the last call."""
        with self._lock:
            stepped_s, self._stepped_s = self._stepped_s, 0.0
            return stepped_s
