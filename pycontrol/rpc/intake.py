"""Limits how fast users are read: by messages, by bytes that the Arbiter has not yet handled; and apps by reports."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from pycontrol.runtime.driver import Overloaded

MESSAGES_PER_S = 2000.0
"""Messages read a second, about a quarter of a core: in equal parts by user, and one part for those who send less. A
training worker sends two to three, and then its newest state only."""
AT_ONCE_S = 0.025
"""A user that was silent may send what this time allows at once."""
MESSAGE_BYTES = 2048
"""A longer message counts as so many."""
STREAM_BYTES = 2 * MESSAGE_BYTES
"""What opening a stream costs, with the check of its token."""
REPORTS_PER_S = 2.0
REPORTS_AT_ONCE = 20.0
"""Of an app: one a second is expected, and its facts are journaled."""
RETRY_S = 0.2
USER_BYTES = 4 << 20
ALL_BYTES = 64 << 20
"""The most bytes of all users' events that wait for the Arbiter; as values they use about three times as much."""


class RateLimiter:
    """The rate of an app's reports: a faster Agent is read more slowly."""

    def __init__(self) -> None:
        self._left, self._at_s = REPORTS_AT_ONCE, time.monotonic()

    async def take(self) -> None:
        """Wait until a report may be read."""
        now_s = time.monotonic()
        self._left = min(REPORTS_AT_ONCE, self._left + (now_s - self._at_s) * REPORTS_PER_S) - 1.0
        self._at_s = now_s
        if self._left < 0:
            await asyncio.sleep(-self._left / REPORTS_PER_S)


class Intake:
    """Counts users' messages, and the bytes of their events in the Arbiter's queue; belongs to the server's event loop.

    `after(done)` calls `done` on some thread once all that was submitted before is handled; it may raise Overloaded.
    """

    def __init__(self, after: Callable[[Callable[[], None]], None]) -> None:
        self._after = after
        self.under_way = Counter[str]()
        self._watched: dict[str, int] = {}
        """By user: the bytes that its pending `after` call covers; there is one at a time."""
        self._less = asyncio.Event()
        self._turns: dict[str, float] = {}
        """By user: when its next message may be read, of time.monotonic."""
        self.paced = Counter[str]()
        """The streams of each user that wait for their turn."""
        self._next = WeakValueDictionary[str, asyncio.Lock]()
        """By user: held by the stream whose turn is next."""

    async def turn(self, user: str, size: int) -> None:
        """Wait until this user's next message, of `size` bytes, may be read: users take turns, not streams.

        Its streams go on one by one: hundreds at once would hold up the loop, and so all others.
        """
        lock = self._next.setdefault(user, asyncio.Lock())
        with counted(self.paced, user):
            async with lock:
                now_s = time.monotonic()
                turn_s = max(self._turns.get(user, 0.0), now_s - AT_ONCE_S)
                part_per_s = MESSAGES_PER_S / (1 + len(self.paced))
                turn_s += max(1.0, size / MESSAGE_BYTES) / part_per_s
                self._turns[user] = turn_s
                if turn_s > now_s:
                    await asyncio.sleep(turn_s - now_s)

    async def room(self, user: str) -> None:
        """Wait until this user's and all users' waiting bytes are below their limits."""
        while self.under_way[user] >= USER_BYTES or self.under_way.total() >= ALL_BYTES:
            less = self._less
            await less.wait()

    def submitted(self, user: str, size: int) -> None:
        """Count an event of `size` bytes that was submitted to the Arbiter."""
        self.under_way[user] += size
        if user not in self._watched:
            self._watch(user, asyncio.get_running_loop())

    def _watch(self, user: str, loop: asyncio.AbstractEventLoop) -> None:
        self._watched[user] = self.under_way[user]

        def handled() -> None:
            with contextlib.suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(self._handled, user, loop)

        try:
            self._after(handled)
        except Overloaded:
            loop.call_later(RETRY_S, self._watch, user, loop)

    def _handled(self, user: str, loop: asyncio.AbstractEventLoop) -> None:
        self.under_way[user] -= self._watched.pop(user)
        if self.under_way[user]:
            self._watch(user, loop)
        else:
            del self.under_way[user]
        less, self._less = self._less, asyncio.Event()
        less.set()


@contextmanager
def counted(counts: Counter[str], user: str) -> Iterator[None]:
    """Context manager in which a user counts once more."""
    counts[user] += 1
    try:
        yield
    finally:
        counts[user] -= 1
        if not counts[user]:
            del counts[user]
