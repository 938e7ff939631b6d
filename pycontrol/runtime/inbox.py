"""What waits for the Arbiter: three bounded lanes, so that no kind of sender makes another one wait.

Within a lane the order of arrival holds. Between lanes there is none, and none is needed: their senders do not know
of each other, as little as messages of different connections do.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable

from pycontrol.model import events as ev

Call = Callable[[], None]
LANE_MAX = 100_000


class Overloaded(Exception):
    """A lane is full; the sender must slow down and try again."""


class Lane(enum.IntEnum):
    """Who speaks, the one that is heard first on top."""

    URGENT = 0
    """Solutions, operators' commands, calls: few, and somebody waits for each of them."""
    AGENTS = 1
    CLUSTER = 2


_URGENT = (ev.Decided, ev.OperatorCommand, ev.ExchangePosted, ev.StandbyRestored)
_AGENTS = (
    ev.AgentUp, ev.AgentLost, ev.RhoReported, ev.BidReceived, ev.UsePlanned, ev.GpusReleased, ev.ProgressReported,
    ev.AgentDone,
)  # fmt: skip


def lane_of(event: ev.Event) -> Lane:
    """The lane of an event."""
    if isinstance(event, _URGENT):
        return Lane.URGENT
    return Lane.AGENTS if isinstance(event, _AGENTS) else Lane.CLUSTER


class Inbox:
    """The lanes; from any thread."""

    def __init__(self, lane_max: int = LANE_MAX) -> None:
        self._lane_max = lane_max
        self._lanes: list[deque[ev.Event | Call]] = [deque() for _ in Lane]
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: ev.Event | Call, lane: Lane) -> None:
        """Hands something over; Overloaded where too much waits."""
        with self._changed:
            if len(self._lanes[lane]) >= self._lane_max:
                raise Overloaded(f"{self._lane_max} items wait for the Arbiter ({lane.name.lower()})")
            self._lanes[lane].append(item)
            self._changed.notify()

    def close(self) -> None:
        """Nothing more is taken."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def wait(self, nap_s: float | None) -> bool:
        """Waits for something, so long at most; False once it is closed."""
        with self._changed:
            if not self._closed and not any(self._lanes):
                self._changed.wait(nap_s)
            return not self._closed

    def take(self, lane: Lane) -> ev.Event | Call | None:
        """The first item of a lane."""
        with self._changed:
            items = self._lanes[lane]
            return items.popleft() if items else None

    def take_event(self, lane: Lane) -> ev.Event | None:
        """The first item of a lane, if it is an event and not a call."""
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
        """How many items wait."""
        return len(self._lanes[lane])
