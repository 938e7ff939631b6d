"""How fast peers are read: each stream by messages, each user by the bytes that the Arbiter has not handled yet."""

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
"""Of an Agent's messages, in ordinary ones: progress is wanted once a second, and its facts are journaled."""
RETRY_S = 0.2
USER_BYTES = 4 << 20
ALL_BYTES = 64 << 20
"""Of events that wait for the Arbiter. As values they have some three times as much."""


class RateLimiter:
    """A stream's rate limit: whoever sends faster is read slower."""

    def __init__(self, per_s: float = MESSAGES_PER_S, at_once: float = MESSAGES_AT_ONCE) -> None:
        self._per_s, self._at_once, self._left = per_s, at_once, at_once
        self._at_s = time.monotonic()

    async def take(self, cost: float = 1.0) -> None:
        """Waits until one more message, which costs so many, may be read."""
        now_s = time.monotonic()
        self._left = min(self._at_once, self._left + (now_s - self._at_s) * self._per_s) - cost
        self._at_s = now_s
        if self._left < 0:
            await asyncio.sleep(-self._left / self._per_s)


class Intake:
    """Bytes of events on their way through the Arbiter's queue; belongs to the server's event loop.

    `after(done)` calls `done` on some thread once all that was submitted before is handled; it may raise Overloaded.
    """

    def __init__(self, after: Callable[[Callable[[], None]], None]) -> None:
        self._after = after
        self._under_way = Counter[str]()
        self._watched: dict[str, int] = {}
        """By user the bytes that its question in the queue is about; there is one at a time."""
        self._less = asyncio.Event()

    async def room(self, user: str) -> None:
        """Waits until so little of this user's is under way that more may be."""
        while self._under_way[user] >= USER_BYTES or self._under_way.total() >= ALL_BYTES:
            less = self._less
            await less.wait()

    def submitted(self, user: str, size: int) -> None:
        """An event of so many bytes was handed to the Arbiter."""
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
