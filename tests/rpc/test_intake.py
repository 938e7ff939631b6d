"""A user's unhandled events are bounded by bytes; a user who sends more is read later."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable

import pytest

from pycontrol.model.events import ProgressReported
from pycontrol.rpc import intake
from pycontrol.rpc.intake import MESSAGE_BYTES, MESSAGES_PER_S, Intake, RateLimiter
from pycontrol.runtime.driver import Overloaded
from pycontrol.wire.v1 import agent_pb2 as pb
from tests.rpc.site import Site


class Queue:
    """The Arbiter's queue, as far as needed here: the requested notifications, in order."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []
        self.full = False

    def after(self, done: Callable[[], None]) -> None:
        if self.full:
            raise Overloaded("full")
        self.asked.append(done)

    async def handle_all(self) -> None:
        asked, self.asked = self.asked, []
        for done in asked:
            done()
        for _ in range(3):
            await asyncio.sleep(0)


async def _waits(coming: asyncio.Future[None]) -> bool:
    await asyncio.sleep(0.02)
    return not coming.done()


def test_a_user_is_read_again_once_the_arbiter_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "USER_BYTES", 1000)

    async def go() -> None:
        arbiter = Queue()
        taken = Intake(arbiter.after)
        for _ in range(4):
            await taken.room("mallory")
            taken.submitted("mallory", 300)
        assert len(arbiter.asked) == 1, "one question at a time, however many events"
        waiting = asyncio.ensure_future(taken.room("mallory"))
        assert await _waits(waiting)
        await asyncio.wait_for(taken.room("ann"), 1)
        await arbiter.handle_all()
        await asyncio.wait_for(waiting, 1)
        await arbiter.handle_all()
        await arbiter.handle_all()
        assert not taken.under_way
        assert not arbiter.asked

    asyncio.run(go())


def test_all_users_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "ALL_BYTES", 1000)

    async def go() -> None:
        arbiter = Queue()
        taken = Intake(arbiter.after)
        for k in range(10):
            taken.submitted(f"u{k}", 100)
        waiting = asyncio.ensure_future(taken.room("ann"))
        assert await _waits(waiting)
        await arbiter.handle_all()
        await asyncio.wait_for(waiting, 1)

    asyncio.run(go())


def test_an_overloaded_arbiter_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "USER_BYTES", 100)
    monkeypatch.setattr(intake, "RETRY_S", 0.01)

    async def go() -> None:
        arbiter = Queue()
        arbiter.full = True
        taken = Intake(arbiter.after)
        taken.submitted("ann", 100)
        waiting = asyncio.ensure_future(taken.room("ann"))
        assert await _waits(waiting)
        arbiter.full = False
        while not arbiter.asked:
            await asyncio.sleep(0.01)
        await arbiter.handle_all()
        await asyncio.wait_for(waiting, 1)

    asyncio.run(go())


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which sleeping advances."""
    now_s = [1000.0]

    async def sleep(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr(intake.asyncio, "sleep", sleep)
    monkeypatch.setattr(intake.time, "monotonic", lambda: now_s[0])
    return now_s


def test_progress_is_read_at_a_bounded_rate(now_s: list[float]) -> None:
    """Each may change what is journaled: a flood must not fill the disk."""

    async def go() -> None:
        reports = RateLimiter()
        for _ in range(220):
            await reports.take()

    asyncio.run(go())
    assert now_s[0] == pytest.approx(1100, abs=1), "20 at once, then two a second"


def test_an_agent_that_connects_again_has_no_more_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "REPORTS_AT_ONCE", 3.0)
    monkeypatch.setattr(intake, "REPORTS_PER_S", 1e-3)
    site = Site()
    try:
        for attempt, reports in (("a1", 3), ("a2", 0)):
            agent = site.registered(attempt)
            for _ in range(3):
                agent.send(pb.AgentMessage(progress=pb.Progress()))
            for _ in range(reports):
                assert isinstance(site.event(), ProgressReported)
        with pytest.raises(queue.Empty):
            site.events.get(timeout=0.2)
    finally:
        site.close()


@pytest.mark.parametrize(("size", "cost"), [(10, 1), (10 * MESSAGE_BYTES, 10)])
def test_all_streams_of_a_user_share_its_part(now_s: list[float], size: int, cost: int) -> None:
    async def go() -> None:
        taken = Intake(Queue().after)
        for _ in range(4000):  # of whichever streams
            await taken.turn("mallory", size)
        begin_s = now_s[0]
        await taken.turn("ann", 10)
        assert now_s[0] == begin_s, "others are read at once"

    asyncio.run(go())
    assert now_s[0] - 1000.0 == pytest.approx(4000 * cost / (MESSAGES_PER_S / 2), rel=0.05), "one part is kept free"


def test_users_that_wait_have_equal_parts() -> None:
    async def go() -> None:
        taken, read = Intake(Queue().after), dict.fromkeys(("ann", "mallory"), 0)

        async def stream(user: str) -> None:
            while True:
                await taken.turn(user, 10)
                read[user] += 1

        streams = [asyncio.ensure_future(stream(u)) for u in ("ann", *["mallory"] * 300)]
        while sum(read.values()) < 1000:
            await asyncio.sleep(0.001)
        for each in streams:
            each.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        assert read["ann"] > 250
        assert not taken.paced

    asyncio.run(asyncio.wait_for(go(), 60))


def test_streams_of_a_user_go_on_one_by_one_also_when_the_loop_was_held_up() -> None:
    async def go() -> None:
        taken, read = Intake(Queue().after), [0]

        async def stream() -> None:
            await taken.turn("mallory", 10)
            read[0] += 1

        streams = [asyncio.ensure_future(stream()) for _ in range(300)]
        await asyncio.sleep(0)
        time.sleep(0.05)  # the turns of a hundred of them pass
        await asyncio.sleep(0.001)
        by_step = []
        while read[0] < 150:
            before = read[0]
            await asyncio.sleep(0)
            by_step.append(read[0] - before)
        for each in streams:
            each.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        assert max(by_step) == 1

    asyncio.run(asyncio.wait_for(go(), 60))
