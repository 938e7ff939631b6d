"""Drives the Arbiter in production: one thread, fed from bounded lanes; facts are journaled before effects."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

import structlog

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.validate import Inconsistent
from pycontrol.model import events as ev
from pycontrol.policies import salvage
from pycontrol.policies.policy_port import Policy
from pycontrol.runtime.clock import SteadyClock
from pycontrol.runtime.driver_ports import AgentPort, Clock, ClusterPort
from pycontrol.runtime.inbox import Held, Inbox, Lane, Overloaded, lane_of
from pycontrol.runtime.journal import Journal, JournalError

__all__ = ["Driver", "Overloaded", "SteadyClock"]

T = TypeVar("T")
BATCH_EVENTS, BATCH_S = 256, 0.01
"""The most events, and the longest time, that share one transaction; an urgent item waits no longer than that."""
SHORTEST_NAP_S, LONGEST_NAP_S = 0.02, 3600.0
"""Whatever the state says, the Arbiter is woken once an hour: a wait of centuries cannot be timed."""
log = structlog.get_logger("arbiter")


class Driver:
    """Feeds waiting events to the Arbiter in batches and carries out its effects."""

    def __init__(
        self,
        arbiter: Arbiter,
        journal: Journal,
        agents: AgentPort,
        cluster: ClusterPort,
        clock: Clock | None = None,
        kept: Callable[[Inconsistent], bool] = lambda e: False,
    ) -> None:
        """`kept` keeps a violation of the invariants on disk, and says whether an earlier start met the same."""
        self._kept = kept
        self._arbiter, self._journal, self._agents, self._cluster = arbiter, journal, agents, cluster
        self.clock = clock or SteadyClock()
        self.inbox = Inbox()
        self._solver = ThreadPoolExecutor(1, thread_name_prefix="isonomy-solve")
        self._thread = threading.Thread(target=self._run, name="isonomy-arbiter", daemon=True)
        self.failed: BaseException | None = None
        self.stopped = threading.Event()

    def start(self) -> None:
        """Start the Arbiter's thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Finish the present batch and stop."""
        self.inbox.close()
        self._thread.join(timeout_s)
        self._solver.shutdown(wait=False, cancel_futures=True)

    @property
    def waiting(self) -> int:
        """The number of events and calls that wait for the Arbiter."""
        return sum(self.inbox.waiting(lane) for lane in Lane)

    def submit(self, event: ev.Event) -> None:
        """Queue an event, from any thread; raises Overloaded if its lane is full, Held if nobody will handle it."""
        lane = lane_of(event)
        if lane is Lane.URGENT and self._arbiter.holdings.held:
            raise self._refusal()
        self.inbox.put(event, lane)

    def after(self, done: Callable[[], None]) -> None:
        """Call `done` on the Arbiter's thread after all Agents' events that were submitted before; from any thread.

        `done` must neither block nor raise. Raises Overloaded if the lane is full.
        """
        self.inbox.put(done, Lane.AGENTS)

    def call(self, fn: Callable[[Arbiter, float], T], timeout_s: float = 5.0) -> T:
        """Run `fn(arbiter, now)` on the Arbiter's thread, before the waiting events, and return its result.

        What `fn` changes is durable before its result is returned. Raises what `fn` raises, Overloaded, or
        TimeoutError; after a timeout `fn` does not run unless it has already begun.
        """
        return self._call(fn, timeout_s, Lane.URGENT)

    def settle(self, timeout_s: float = 30.0) -> None:
        """Wait until all cluster events that were submitted before are handled; raises TimeoutError."""
        self._call(lambda arbiter, now_s: None, timeout_s, Lane.CLUSTER)

    def _call(self, fn: Callable[[Arbiter, float], T], timeout_s: float, lane: Lane) -> T:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            now_s = self.clock.now_s()
            try:
                result = fn(self._arbiter, now_s)
            except BaseException as e:
                future.set_exception(e)
                if self._arbiter.ledger.facts or self._arbiter.clerk.effects:
                    raise  # half a change: stop rather than continue with it
                return
            try:
                self._settle(self._arbiter.clerk.take_effects(), now_s)
            except BaseException as e:
                future.set_exception(e)
                if not self._arbiter.holdings.held:
                    raise
                return
            future.set_result(result)

        self.inbox.put(work, lane)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    # ---- the thread

    def _run(self) -> None:
        try:
            while self.inbox.wait(self._nap_s()):
                try:
                    self._turn()
                except Inconsistent as e:
                    if not self._kept(e):
                        raise
                    self._hold(e)
        except JournalError as e:  # it says all that there is to say
            self.failed = e
            log.error("the Arbiter stopped", error=str(e))
        except BaseException as e:  # the state may be inconsistent: stop rather than continue
            self.failed = e
            log.exception("the Arbiter stopped", error=str(e))
        finally:
            self.stopped.set()

    def _hold(self, e: Inconsistent) -> None:
        """Only answers from now on: another restart would meet the same. Nothing of the event becomes true."""
        self._arbiter.take_facts(), self._arbiter.clerk.take_effects()
        self._arbiter.holdings.held = f"{e.about}: {e.problem}"
        log.critical(
            "the state contradicts itself as before the restart: leases are held, events are not handled", error=str(e)
        )

    def _refusal(self) -> Held:
        return Held(f"leases are held, and nothing can be changed: {self._arbiter.holdings.held}")

    def _nap_s(self) -> float | None:
        if self._arbiter.holdings.held:
            return None
        now_s = self.clock.now_s()
        wake_s = self._arbiter.next_wake_s(now_s)
        return None if wake_s is None else min(LONGEST_NAP_S, max(SHORTEST_NAP_S, wake_s - now_s))

    def _turn(self) -> None:
        """Handle the urgent items, then one batch of each other lane; a Tick if nothing waits."""
        idle = True
        for lane in Lane:
            for _ in range(self.inbox.waiting(lane) if lane is Lane.URGENT else 1):
                item = self.inbox.take(lane)
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
        """The events of a lane that form one batch; a batch ends before the lane's next call."""
        until_s = time.monotonic() + BATCH_S
        yield first
        for _ in range(BATCH_EVENTS - 1):
            if time.monotonic() >= until_s or (event := self.inbox.take_event(lane)) is None:
                return
            yield event

    def _step(self, events: Iterable[ev.Event]) -> None:
        if self._arbiter.holdings.held:
            for _ in events:
                pass
            return
        now_s = self.clock.now_s()
        if self.clock.step_s():  # handled before any deadline that the step has passed
            events = chain([ev.ClockStepped()], events)
        self._settle(self._arbiter.handle_all(events, now_s), now_s)

    def _settle(self, effects: Iterable[ev.Effect], now_s: float) -> None:
        """Makes the facts durable, then carries out the effects."""
        facts, effects = self._arbiter.take_facts(), list(effects)
        if self._arbiter.holdings.held and (facts or effects):
            raise self._refusal()
        self._arbiter.check(facts, effects)
        self._journal.append(facts, now_s)
        for fact in facts:
            log.debug("fact", fact=fact)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: ev.Effect) -> None:
        if isinstance(effect, ev.Solve):
            self._solver.submit(self._solve, effect, self._arbiter.rounds.policy)
        elif isinstance(effect, ev.Place | ev.Preempt | ev.Kill):
            self._cluster.carry_out(effect)
        elif not isinstance(effect, ev.SendGrant | ev.SendRevoke) or effect.app_id in self._arbiter.agents:
            self._agents.send(effect)  # apps of the stand-in have no Agent

    def _solve(self, job: ev.Solve, policy: Policy) -> None:
        round_id = job.snapshot.round_id
        outcome = salvage.decide(policy, job.snapshot, job.bids, job.seed)
        for app_id, why in outcome.left_out.items():
            log.error("the policy failed with an app and continued without", round=round_id, app=app_id, error=why)
        if outcome.plan is None:
            log.error("the policy failed", round=round_id, error=outcome.problem)
        self.submit(ev.Decided(round_id, outcome.plan, outcome.problem, outcome.left_out))
