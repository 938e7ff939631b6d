"""Drives the Arbiter in production: one thread, bounded lanes before it; journal before effect."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

import structlog

from pycontrol.arbiter.clock import SteadyClock
from pycontrol.arbiter.core import Arbiter
from pycontrol.model import events as ev
from pycontrol.policies import salvage
from pycontrol.policies.port import Policy
from pycontrol.runtime.inbox import Inbox, Lane, Overloaded, lane_of
from pycontrol.runtime.journal import Journal
from pycontrol.runtime.ports import AgentPort, Clock, ClusterPort

__all__ = ["Driver", "Overloaded", "SteadyClock"]

T = TypeVar("T")
BATCH_EVENTS, BATCH_S = 256, 0.01
"""So many events, or for so long, share one transaction; who is urgent waits no longer."""
SHORTEST_NAP_S = 0.02
log = structlog.get_logger("arbiter")


class Driver:
    """Feeds events to the Arbiter, those that wait together as one batch, and carries its effects out."""

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
        self._inbox = Inbox()
        self._solver = ThreadPoolExecutor(1, thread_name_prefix="isonomy-solve")
        self._thread = threading.Thread(target=self._run, name="isonomy-arbiter", daemon=True)
        self.failed: BaseException | None = None
        self.stopped = threading.Event()

    def start(self) -> None:
        """Starts the Arbiter's thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Finishes the batch at hand and stops."""
        self._inbox.close()
        self._thread.join(timeout_s)
        self._solver.shutdown(wait=False, cancel_futures=True)

    @property
    def waiting(self) -> int:
        """Events and calls that wait for the Arbiter."""
        return sum(self._inbox.waiting(lane) for lane in Lane)

    def submit(self, event: ev.Event) -> None:
        """Hands an event over, from any thread; raises Overloaded if too many of its kind wait."""
        self._inbox.put(event, lane_of(event))

    def after(self, done: Callable[[], None]) -> None:
        """Calls `done` on the Arbiter's thread once all that Agents sent before is handled; from any thread.

        `done` must neither block nor raise; raises Overloaded if too many wait.
        """
        self._inbox.put(done, Lane.AGENTS)

    def call(self, fn: Callable[[Arbiter, float], T], timeout_s: float = 5.0) -> T:
        """Runs `fn(arbiter, now)` on the Arbiter's thread, before all events that wait.

        Raises Overloaded, and TimeoutError; after that it is not run any more, unless it has begun.
        """
        return self._call(fn, timeout_s, Lane.URGENT)

    def settle(self, timeout_s: float = 30.0) -> None:
        """Returns when all events of the cluster that were submitted before are handled; raises TimeoutError."""
        self._call(lambda arbiter, now_s: None, timeout_s, Lane.CLUSTER)

    def _call(self, fn: Callable[[Arbiter, float], T], timeout_s: float, lane: Lane) -> T:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(self._arbiter, self.clock.now_s()))
            except BaseException as e:
                future.set_exception(e)

        self._inbox.put(work, lane)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    # ---- the thread

    def _run(self) -> None:
        try:
            while self._inbox.wait(self._nap_s()):
                self._turn()
        except BaseException as e:  # the state may be half changed: stop rather than continue wrongly
            self.failed = e
            log.exception("the Arbiter stopped", error=str(e))
        finally:
            self.stopped.set()

    def _nap_s(self) -> float | None:
        now_s = self.clock.now_s()
        wake_s = self._arbiter.next_wake_s(now_s)
        return None if wake_s is None else max(SHORTEST_NAP_S, wake_s - now_s)

    def _turn(self) -> None:
        """What is urgent, then a batch of each other lane; without either, time itself is the event."""
        idle = True
        for lane in Lane:
            for _ in range(self._inbox.waiting(lane) if lane is Lane.URGENT else 1):
                item = self._inbox.take(lane)
                if item is None:
                    continue
                idle = False
                if callable(item):
                    item()
                elif lane is Lane.URGENT:
                    self._step((item,))
                else:
                    self._step(self._batch(item, lane))
        if idle:
            self._step((ev.Tick(),))

    def _batch(self, first: ev.Event, lane: Lane) -> Iterator[ev.Event]:
        """The events of a lane that are handled together, up to the next call in it."""
        until_s = time.monotonic() + BATCH_S
        yield first
        for _ in range(BATCH_EVENTS - 1):
            if time.monotonic() >= until_s or self._inbox.waiting(Lane.URGENT):
                return
            event = self._inbox.take_event(lane)
            if event is None:
                return
            yield event

    def _step(self, events: Iterable[ev.Event]) -> None:
        now_s = self.clock.now_s()
        if self.clock.step_s():  # before what is due by now takes its effect
            events = chain([ev.ClockStepped()], events)
        effects = self._arbiter.handle_all(events, now_s)
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
        elif not isinstance(effect, ev.SendGrant | ev.SendRevoke) or effect.app_id in self._arbiter.agents:
            self._agents.send(effect)  # what the stand-in was granted or loses nobody waits for

    def _solve(self, job: ev.Solve) -> None:
        round_id = job.snapshot.round_id
        outcome = salvage.decide(self._policy, job.snapshot, job.bids, job.seed)
        for app_id, why in outcome.left_out.items():
            log.error("the policy failed with an app and continued without", round=round_id, app=app_id, error=why)
        if outcome.plan is None:
            log.error("the policy failed", round=round_id, error=outcome.problem)
        self.submit(ev.Decided(round_id, outcome.plan, outcome.problem, outcome.left_out))
