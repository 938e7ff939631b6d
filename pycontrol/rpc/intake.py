"""Limits how fast peers are read: streams by messages, users by bytes that the Arbiter has not yet handled."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable

from pycontrol.runtime.driver import Overloaded

MESSAGES_PER_S = 500.0
MESSAGES_AT_ONCE = 5000.0
COSTS = {"progress": 250.0, "register": 250.0}
"""Costs of an Agent's messages, in ordinary ones: progress is expected once a second, and its facts are journaled."""
RETRY_S = 0.2
USER_BYTES = 4 << 20
ALL_BYTES = 64 << 20
"""The most bytes of all users' events that wait for the Arbiter; as values they use about three times as much."""


class RateLimiter:
    """A stream's rate limit: a faster sender is read more slowly."""

    def __init__(self, per_s: float = MESSAGES_PER_S, at_once: float = MESSAGES_AT_ONCE) -> None:
        self._per_s, self._at_once, self._left = per_s, at_once, at_once
        self._at_s = time.monotonic()

    async def take(self, cost: float = 1.0) -> None:
        """Wait until a message of this cost may be read."""
        now_s = time.monotonic()
        self._left = min(self._at_once, self._left + (now_s - self._at_s) * self._per_s) - cost
        self._at_s = now_s
        if self._left < 0:
            await asyncio.sleep(-self._left / self._per_s)


class Intake:
    """Counts the bytes of events in the Arbiter's queue; belongs to the server's event loop.

    `after(done)` calls `done` on some thread once all that was submitted before is handled; it may raise Overloaded.
    """

    def __init__(self, after: Callable[[Callable[[], None]], None]) -> None:
        self._after = after
        self._under_way = Counter[str]()
        self._watched: dict[str, int] = {}
        """By user: the bytes that its pending `after` call covers; there is one at a time."""
        self._less = asyncio.Event()

    async def room(self, user: str) -> None:
        """Wait until this user's and all users' waiting bytes are below their limits."""
        while self._under_way[user] >= USER_BYTES or self._under_way.total() >= ALL_BYTES:
            less = self._less
            await less.wait()

    def submitted(self, user: str, size: int) -> None:
        """Count an event of `size` bytes that was submitted to the Arbiter."""
        self._under_way[user] += size
        if user not in self._watched:
            self._watch(user, asyncio.get_running_loop())

    def _watch(self, user: str, loop: asyncio.AbstractEventLoop) -> None:
        self._watched[user] = self._under_way[user]

        def handled() -> None:
            with contextlib.suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(self._handled, user, loop)

        try:
            self._after(handled)
        except Overloaded:
            loop.call_later(RETRY_S, self._watch, user, loop)

    def _handled(self, user: str, loop: asyncio.AbstractEventLoop) -> None:
        self._under_way[user] -= self._watched.pop(user)
        if self._under_way[user]:
            self._watch(user, loop)
        else:
            del self._under_way[user]
        less, self._less = self._less, asyncio.Event()
        less.set()
