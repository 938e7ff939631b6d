"""Drives the Arbiter in production: one thread, one bounded queue; journal before effect."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import structlog

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.journal import Journal
from pycontrol.arbiter.ports import AgentPort, Clock, ClusterPort
from pycontrol.model import events as ev
from pycontrol.policies.port import Policy

T = TypeVar("T")
QUEUE_SIZE = 100_000
SHORTEST_NAP_S = 0.02
log = structlog.get_logger("arbiter")


class Overloaded(Exception):
    """The Arbiter's queue is full; the sender must slow down and try again."""


class SteadyClock:
    """Unix seconds that never run backwards: the wall clock at the start plus the monotonic clock."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Unix seconds."""
        return time.monotonic() + self._offset_s


class Driver:
    """Feeds events to the Arbiter one by one and carries its effects out."""

    def __init__(
        self,
        arbiter: Arbiter,
        journal: Journal,
        agents: AgentPort,
        cluster: ClusterPort,
        policy: Policy,
        clock: Clock | None = None,
    ) -> None:
        self._arbiter, self._journal, self._agents, self._cluster = arbiter, journal, agents, cluster
        self._policy = policy
        self.clock = clock or SteadyClock()
        self._queue: queue.Queue[ev.Event | Callable[[], None] | None] = queue.Queue(QUEUE_SIZE)
        self._solver = ThreadPoolExecutor(1, thread_name_prefix="isonomy-solve")
        self._thread = threading.Thread(target=self._run, name="isonomy-arbiter", daemon=True)
        self.failed: BaseException | None = None
        self.stopped = threading.Event()

    def start(self) -> None:
        """Starts the Arbiter's thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Finishes the event at hand and stops."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        self._solver.shutdown(wait=False, cancel_futures=True)

    def submit(self, event: ev.Event) -> None:
        """Hands an event over, from any thread; raises Overloaded if too many wait."""
        try:
            self._queue.put_nowait(event)
        except queue.Full as e:
            raise Overloaded(f"{QUEUE_SIZE} events wait for the Arbiter") from e

    def call(self, fn: Callable[[Arbiter, float], T], timeout_s: float = 5.0) -> T:
        """Runs `fn(arbiter, now)` on the Arbiter's thread; raises TimeoutError."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(self._arbiter, self.clock.now_s()))
            except BaseException as e:
                future.set_exception(e)

        self._queue.put(work, timeout=timeout_s)
        return future.result(timeout_s)

    # ---- the thread

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                if callable(item):
                    item()
                else:
                    self._step(item)
        except BaseException as e:  # the state may be half changed: stop rather than go on wrongly
            self.failed = e
            log.exception("the Arbiter stopped", error=str(e))
        finally:
            self.stopped.set()

    def _next(self) -> ev.Event | Callable[[], None] | None:
        now_s = self.clock.now_s()
        wake_s = self._arbiter.next_wake_s(now_s)
        nap_s = None if wake_s is None else max(SHORTEST_NAP_S, wake_s - now_s)
        try:
            return self._queue.get(timeout=nap_s)
        except queue.Empty:
            return ev.Tick()

    def _step(self, event: ev.Event) -> None:
        now_s = self.clock.now_s()
        effects = self._arbiter.handle(event, now_s)
        facts = self._arbiter.take_facts()
        self._journal.append(facts, now_s)
        for fact in facts:
            log.debug("fact", fact=fact)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: ev.Effect) -> None:
        if isinstance(effect, ev.Solve):
            self._solver.submit(self._solve, effect)
        elif isinstance(effect, ev.Place | ev.Preempt | ev.Kill):
            self._cluster.carry_out(effect)
        else:
            self._agents.send(effect)

    def _solve(self, job: ev.Solve) -> None:
        round_id = job.snapshot.round_id
        try:
            plan = self._policy.decide(job.snapshot, job.bids, random.Random(job.seed))
            self.submit(ev.Decided(round_id, plan))
        except Exception as e:
            log.exception("the policy failed", round=round_id)
            self.submit(ev.Decided(round_id, None, f"the policy failed: {e}"))
