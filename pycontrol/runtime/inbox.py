"""The Arbiter's input queues: three bounded lanes, so that no kind of sender delays another.

A lane is first in, first out. There is no order between lanes, and none is needed: their senders are independent of
each other, like messages on different connections.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable
from typing import get_args

from pycontrol.model import events as ev

Call = Callable[[], None]
LANE_MAX, EVENTS_MAX = 100_000, 2_000
"""The most items of a lane; the most events of the cluster, as in the plugin a newer one replaces one that waits."""


class Overloaded(Exception):
    """A lane is full; the sender must slow down and try again."""


class Held(Overloaded):
    """The state contradicts itself: nothing can be changed, views are served."""


class Lane(enum.IntEnum):
    """The lanes by sender, in the order in which they are served."""

    URGENT = 0
    """Decisions, operators' commands and calls: few, and a caller waits for each of them."""
    AGENTS = 1
    CLUSTER = 2


_URGENT = (ev.Decided, ev.OperatorCommand, ev.ExchangePosted, ev.StandbyRestored)
_AGENTS = get_args(ev.OfAgents)


def lane_of(event: ev.Event) -> Lane:
    """The lane that an event belongs to."""
    if isinstance(event, _URGENT):
        return Lane.URGENT
    return Lane.AGENTS if isinstance(event, _AGENTS) else Lane.CLUSTER


class Inbox:
    """The lanes; every method may be called from any thread."""

    def __init__(self, lane_max: int = LANE_MAX) -> None:
        self._lane_max = lane_max
        self._lanes: list[deque[ev.Event | Call]] = [deque() for _ in Lane]
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: ev.Event | Call, lane: Lane) -> None:
        """Append an event or a call to a lane; raises Overloaded if the lane is full."""
        with self._changed:
            most = self._lane_max if lane is not Lane.CLUSTER or callable(item) else min(self._lane_max, EVENTS_MAX)
            if len(self._lanes[lane]) >= most:
                raise Overloaded(f"{most} items wait for the Arbiter ({lane.name.lower()})")
            self._lanes[lane].append(item)
            self._changed.notify()

    def close(self) -> None:
        """Make `wait` return False from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def wait(self, nap_s: float | None) -> bool:
        """Wait for an item for at most `nap_s` seconds (None: without limit); False once the inbox is closed."""
        with self._changed:
            if not self._closed and not any(self._lanes):
                self._changed.wait(nap_s)
            return not self._closed

    def take(self, lane: Lane) -> ev.Event | Call | None:
        """Remove and return the first item of a lane; None if it is empty."""
        with self._changed:
            items = self._lanes[lane]
            return items.popleft() if items else None

    def take_event(self, lane: Lane) -> ev.Event | None:
        """Remove and return the first item of a lane if it is an event; None if it is a call or the lane is empty."""
        with self._changed:
            items = self._lanes[lane]
            if not items:
                return None
            first = items[0]
            if callable(first):
                return None
            items.popleft()
            return first

    def waiting(self, lane: Lane) -> int:
        """The number of items in a lane."""
        return len(self._lanes[lane])
