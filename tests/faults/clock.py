"""Virtual time: one scheduler, machines' clocks, streams between them, and an asyncio loop that runs in it."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

SPIN_MAX = 3_000
"""Events at one moment of virtual time; more means that time does not move."""


class Violation(AssertionError):
    """A broken invariant. `kind` names it, `about` the GPU or app whose history explains it."""

    def __init__(self, kind: str, text: str, about: str = "") -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.about = kind, about


class Killed(BaseException):
    """kill -9 of the process that was running."""


class Life:
    """A process's life from start to end; its planned calls are dropped with it."""

    def __init__(self) -> None:
        self.dead = False


class Sim:
    """The scheduler. Every event is a function at a time; ties are in the order of planning."""

    def __init__(self, seed: int, start_s: float = 1_000_000.0) -> None:
        self.now = self.start_s = start_s
        self.rng = random.Random(f"world {seed}")
        self._heap: list[tuple[float, int, Life | None, Callable[[], object]]] = []
        self._order = 0
        self._moment = (0.0, 0)
        self.story: deque[tuple[float, str, str]] = deque(maxlen=20_000)
        self.steps = 0

    def at(self, delay_s: float, fn: Callable[[], object], life: Life | None = None) -> None:
        """Calls fn after a delay, unless that life has ended by then."""
        self._order += 1
        heapq.heappush(self._heap, (self.now + max(0.0, delay_s), self._order, life, fn))

    def every(self, period_s: float, fn: Callable[[], object], life: Life | None = None) -> None:
        """Calls fn periodically, the first time at a random phase."""

        def again() -> None:
            fn()
            self.at(period_s, again, life)

        self.at(self.rng.uniform(0, period_s), again, life)

    def tell(self, who: str, what: str) -> None:
        """Adds a line to the history."""
        self.story.append((self.now - self.start_s, who, what))

    def step(self) -> bool:
        """Runs the next event; False if none is left."""
        while self._heap:
            due, _, life, fn = heapq.heappop(self._heap)
            if life is not None and life.dead:
                continue
            at, count = self._moment
            self._moment = (due, count + 1 if due == at else 0)
            if self._moment[1] > SPIN_MAX:
                raise Violation("time", f"{SPIN_MAX} events at one moment")
            self.now = max(self.now, due)
            self.steps += 1
            fn()
            return True
        return False

    @property
    def next_s(self) -> float:
        """When the next event is due."""
        return self._heap[0][0] if self._heap else float("inf")


class MachineTime:
    """Replaces the module `time` for code that runs on a simulated machine."""

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self.skew_s = 0.0

    def time(self) -> float:
        """Unix seconds of the machine's wall clock."""
        return self._sim.now + self.skew_s

    def monotonic(self) -> float:
        """Seconds that never jump, as time.monotonic()."""
        return self._sim.now

    def perf_counter(self) -> float:
        """The same."""
        return self._sim.now


class _NothingSelects:
    """A selector without files."""

    def select(self, timeout: float | None = None) -> list[Any]:
        """Returns no events, immediately."""
        return []


def _unknown(context: dict[str, Any]) -> BaseException:
    return Violation("service fails", str(context.get("message")))


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without sockets whose time is the simulation's."""

    def __init__(self, sim: Sim) -> None:
        super().__init__()
        self._sim = sim
        self._selector = _NothingSelects()
        self._clock_resolution = 1e-6
        self._failed: list[BaseException] = []
        self.set_exception_handler(lambda _, found: self._failed.append(found.get("exception") or _unknown(found)))

    def time(self) -> float:
        """Virtual seconds."""
        return self._sim.now

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def run_ready(self) -> None:
        """Runs until nothing is left to do at this moment."""
        due = self._ready or (self._scheduled and self._scheduled[0].when() <= self._sim.now)  # type: ignore[attr-defined]
        if not due:
            return
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            while due:
                self._run_once()  # type: ignore[attr-defined]
                if self._failed:
                    raise self._failed.pop()
                due = self._ready or (self._scheduled and self._scheduled[0].when() <= self._sim.now)  # type: ignore[attr-defined]
        finally:
            asyncio._set_running_loop(before)

    @property
    def next_s(self) -> float:
        """When a timer is due."""
        timers = [t.when() for t in self._scheduled if not t.cancelled()]  # type: ignore[attr-defined]
        return min(timers, default=float("inf"))


class Net:
    """The network between two machines: delays, walls in one or both directions, cuts."""

    def __init__(self, sim: Sim, delay_s: tuple[float, float] = (0.001, 0.05)) -> None:
        self.sim, self.delay_s = sim, delay_s
        self.slow: dict[str, float] = {}
        """Party -> seconds added to everything that it sends."""
        self.walls: set[tuple[str, str]] = set()
        """(from, to): nothing gets through. A party is a name; "*" is everybody."""
        self.loss: dict[tuple[str, str], float] = {}
        self.duplication = 0.0

    def open(self, a: str, b: str) -> bool:
        """Whether a's packets reach b."""
        return not ({(a, b), (a, "*"), ("*", b)} & self.walls)

    def delay(self, a: str, b: str) -> float:
        """The seconds that a message takes."""
        return self.sim.rng.uniform(*self.delay_s) + self.slow.get(a, 0.0) + self.slow.get(b, 0.0)

    def quick(self, a: str, b: str) -> bool:
        """Whether a and b hear each other, and neither is slow."""
        return self.open(a, b) and self.open(b, a) and a not in self.slow and b not in self.slow

    def twice(self) -> bool:
        """Whether a message of its own connection arrives twice."""
        return self.duplication > 0 and self.sim.rng.random() < self.duplication

    def lost(self, a: str, b: str) -> bool:
        """Whether a message of its own connection is lost."""
        p = self.loss.get((a, b), 0.0)
        return not self.open(a, b) or (p > 0 and self.sim.rng.random() < p)


KEEPALIVE_S = 12.0
"""A stream whose packets are not acknowledged for this long is broken."""


class Stream:
    """One connection: in order, nothing lost before its end. Each side learns of the end at its own time."""

    def __init__(self, net: Net, a: str, b: str) -> None:
        self.net, self.ends = net, (a, b)
        self.on_message: list[Callable[[Any], object] | None] = [None, None]
        self.on_end: list[Callable[[str], object] | None] = [None, None]
        self._free_s = [0.0, 0.0]
        self.closed = [False, False]
        """Whether each side knows that it has ended."""
        self._stalled_s: float | None = None
        self.broken = False
        """Whether no message arrives any more, which the sides may not have noticed."""
        self.app_id = ""
        """Of an Agent's or worker's own stream."""

    def send(self, side: int, message: Any) -> None:
        """From side 0 or 1 to the other."""
        if self.closed[side]:
            return
        a, b = self.ends[side], self.ends[1 - side]
        if not self.net.open(a, b):
            self._stall(side, message)
            return
        due = max(self._free_s[side], self.net.sim.now + self.net.delay(a, b))
        self._free_s[side] = due + 1e-6
        self.net.sim.at(due - self.net.sim.now, lambda: self._arrive(side, message))

    def _stall(self, side: int, message: Any) -> None:
        """Retries like TCP until the wall is gone or the stream breaks."""
        begun = self._stalled_s = self._stalled_s or self.net.sim.now
        if self.net.sim.now - begun > KEEPALIVE_S:
            self.cut("keepalive")
            return
        self._free_s[side] = max(self._free_s[side], self.net.sim.now + 1.0)
        self.net.sim.at(1.0, lambda: self._retry(side, message))

    def _retry(self, side: int, message: Any) -> None:
        if self.net.open(self.ends[side], self.ends[1 - side]):
            self._stalled_s = None
            self._arrive(side, message)
        else:
            self._stall(side, message)

    def _arrive(self, side: int, message: Any) -> None:
        handler = self.on_message[1 - side]
        if not self.closed[1 - side] and handler is not None:
            handler(message)

    def end(self, side: int, why: str = "") -> None:
        """Ends it from one side, which knows immediately; the other learns of it after the earlier messages."""
        if self.closed[side]:
            return
        self.closed[side] = True
        due = max(self._free_s[side], self.net.sim.now + 0.01)
        self.net.sim.at(due - self.net.sim.now, lambda: self._ended(1 - side, why))

    def cut(self, why: str = "cut") -> None:
        """Breaks it; messages in transit are lost, and either side may not notice for a while."""
        for side in (0, 1):
            late_s = self.net.sim.rng.choice((0.0, 0.0, 1.0, KEEPALIVE_S))
            self.net.sim.at(late_s, lambda side=side: self._ended(side, why))  # type: ignore[misc]
        self.on_message, self.broken = [None, None], True

    def _ended(self, side: int, why: str) -> None:
        if not self.closed[side]:
            self.closed[side] = True
            handler = self.on_end[side]
            if handler is not None:
                handler(why)
