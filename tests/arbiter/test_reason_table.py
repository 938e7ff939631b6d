"""Each reason of the closed list, caused by the Arbiter's own events."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from pycontrol.arbiter.state import SET_LIMITS
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import BidReceipt, Hold, Plan
from pycontrol.model.cluster import Ask, Mode, ModeSwitch, Queue, YarnApp
from pycontrol.model.reasons import SENTENCES, Pending
from pycontrol.queries.pending_reasons import reason
from pycontrol.queries.views import queue
from tests.arbiter.mini import CELLS, SETTINGS, Mini
from tests.policies.scripted import Scripted

TWO = (("n1", 4), ("n2", 4))
CASES: dict[Pending, Callable[[], Mini]] = {}
"""For each reason a scenario in which app `a` has it."""


def case(code: Pending) -> Callable[[Callable[[], Mini]], Callable[[], Mini]]:
    def known(make: Callable[[], Mini]) -> Callable[[], Mini]:
        CASES[code] = make
        return make

    return known


def says(*bids: BidReceipt) -> Scripted:
    """A policy that asks for bids, gives nothing, and notes for each bidder what the test sets."""
    return Scripted(lambda s: Plan(s.round_id, (), bids), asks_agents=True)


def holds(app_id: str) -> Scripted:
    """A policy that gives nothing and holds machine n1 for an app's gang, for too short a time to lend it."""
    return Scripted(lambda s: Plan(s.round_id, (), holds=(Hold(app_id, (("n1", 4),), s.now_s + 1.0),)))


class Deaf(Mini):
    """The Agent of app `a` answers nothing of this kind."""

    deaf_to: type[ev.Event] = ev.RhoReported

    def send(self, event: ev.Event) -> None:
        if not (isinstance(event, self.deaf_to) and getattr(event, "app_id", "") == "a"):
            super().send(event)


class BidsBadly(Mini):
    def send(self, event: ev.Event) -> None:
        if isinstance(event, ev.BidReceived):
            event = dataclasses.replace(event, bid=None, problem="rho is not a number")
        super().send(event)


class CannotCount(Mini):
    """The policy fails with what app `a` reports."""

    def decide(self, e: ev.Solve) -> ev.Decided:
        return dataclasses.replace(super().decide(e), left_out={"a": "its work is not a number"})


def one(m: Mini, gang: int = 1, gangs: int = 1, seconds: float = 5.0) -> Mini:
    m.app("a", gang, gangs)
    m.run(seconds)
    return m


def two_types(policy: str) -> Mini:
    """Four GPUs of each of two types."""
    m = Mini(policy, nodes=TWO)
    for node, kind in zip(m.nodes, ("K80", "V100"), strict=True):
        m.send(ev.NodeUp(dataclasses.replace(node, attributes={"gpu_type": kind})))
    return m


def celled(in_use: bool = True) -> Mini:
    """`in_use`: app `other` holds the only cell of root.b, a pair."""
    m = Mini("tiresias", Settings(lease_s=600, recovery_s=0, round_retry_s=5), nodes=TWO, supply=CELLS)
    if in_use:
        m.start_app("other", 2, 1, queue="root.b", after_s=5)
    return m


@case(Pending.RUNNING)
def _() -> Mini:
    m = one(Mini())
    m.start("a")
    return m


@case(Pending.IDLE)
def _() -> Mini:
    return one(Mini(), gangs=0)


@case(Pending.FINISHED)
def _() -> Mini:
    m = one(Mini())
    m.send(ev.AgentDone("a", True))
    return m


@case(Pending.UNKNOWN)
def _() -> Mini:
    m = Mini()
    m.send(ev.AppAdded(YarnApp("a", "u", "root.q", "a", "SUBMARINE", m.now, frozenset({"isonomy"}))))
    return m


@case(Pending.EXCEEDS_CLUSTER_SIZE)
def _() -> Mini:
    return one(Mini(), gang=5)


@case(Pending.NO_MACHINE_LARGE_ENOUGH)
def _() -> Mini:
    m = Mini(nodes=TWO)
    m.foreign("a", 5)
    m.run(5)
    return m


@case(Pending.EXCEEDS_GPU_TYPE)
def _() -> Mini:
    return one(two_types("themis"), gang=6)


@case(Pending.QUEUE_LIMIT)
def _() -> Mini:
    return one(Mini(queues=(Queue("root.q", 0.5, 0.5),)), gangs=4)


@case(Pending.ACCOUNT_LIMIT)
def _() -> Mini:
    m = Mini()
    m.send(ev.OperatorCommand(SET_LIMITS, "user u", "root", values={"gpus": 1}))
    return one(m, gangs=4)


@case(Pending.PAUSED)
def _() -> Mini:
    m = one(Mini(), gangs=8)
    m.send(ev.OperatorCommand("pause", "", "root"))
    return m


@case(Pending.RECOVERY_IN_PROGRESS)
def _() -> Mini:
    m = one(Mini(), gangs=8)
    m.send(ev.ClusterLost())
    return m


@case(Pending.AGENT_AWAY)
def _() -> Mini:
    m = one(Mini(), gangs=8)
    m.send(ev.AgentLost("a"))
    return m


@case(Pending.LATE_RHO)
def _() -> Mini:
    return one(Deaf("themis"), seconds=2)


@case(Pending.LATE_BID)
def _() -> Mini:
    m = Deaf("themis")
    m.deaf_to = ev.BidReceived
    return one(m)


@case(Pending.BAD_BID)
def _() -> Mini:
    return one(BidsBadly("themis"))


@case(Pending.BAD_REPORT)
def _() -> Mini:
    m = one(CannotCount(), gangs=8)
    m.app("b", gangs=8)
    m.run(20)
    return m


@case(Pending.WAITING_FOR_REVOCATION)
def _() -> Mini:
    m = Mini("tiresias", Settings(lease_s=60, recovery_s=0))
    m.start_app("b", gangs=4, after_s=5)
    m.run(60)
    m.app("a", gangs=8)
    while not m.a.durable.reservations.of("a"):
        m.run(1)
        assert m.now < 2000
    return m


@case(Pending.STARTING)
def _() -> Mini:
    m = one(Mini())
    m.use("a")
    return m


@case(Pending.REFUSED)
def _() -> Mini:
    m = one(Mini(), gang=4)
    m.use("a")
    for _ in range(100):
        for place in m.places():
            m.send(ev.DirectiveDone(place.directive_id, False, "", "no such GPU"))
        m.run(2)
        if m.a.cluster.refusals.avoided("a"):
            break
    m.run(10)
    return m


@case(Pending.NOT_ALLOWED_THERE)
def _() -> Mini:
    m = Mini(nodes=TWO)
    m.app("a", 4)
    m.send(ev.AskChanged(Ask("a_1", "a", 1, 4, 1, only_on=("n9",))))
    m.run(5)
    return m


@case(Pending.CELLS_TOO_SMALL)
def _() -> Mini:
    m = celled()
    m.app("a", 4, 1, queue="root.b")
    return m


@case(Pending.CELLS_IN_USE)
def _() -> Mini:
    m = celled()
    m.app("a", 2, 1, queue="root.b")
    return m


@case(Pending.CELLS_BAD)
def _() -> Mini:
    m = celled()
    m.nodes = tuple(dataclasses.replace(n, bad_gpus=frozenset(range(1, 4))) for n in m.nodes)
    for node in m.nodes:
        m.send(ev.NodeUp(node))
    m.app("a", 2, 1, queue="root.b")
    return m


@case(Pending.CELLS_LENT)
def _() -> Mini:
    m = celled(in_use=False)
    pair = ("big", "pair", 1)
    m.send(ev.ExchangePosted("offer", "o1", "root.b", pair, end_s=m.now + 9000.0))
    m.send(ev.ExchangePosted("request", "q1", "root.a", pair, end_s=m.now + 9000.0))
    m.run(10)
    m.app("a", 2, 1, queue="root.b")
    return m


@case(Pending.NO_CELLS)
def _() -> Mini:
    m = celled()
    m.start_app("all", 1, 8, queue="root.a", after_s=5)
    m.run(20)
    m.app("a", 1, 1, queue="root.nobody")
    return m


def wants(m: Mini, queue: str, gang: int = 1, **wishes: object) -> Mini:
    """App `a` of this queue registers with these wishes."""
    m.app("a", gang, queue=queue, **wishes)
    m.run(8)
    return m


@case(Pending.OPPORTUNISTIC)
def _() -> Mini:
    m = celled()
    m.start_app("all", 1, 8, queue="root.a", after_s=5)
    m.run(20)
    return wants(m, "root.b", opportunistic=True)


@case(Pending.NO_SUCH_CELLS)
def _() -> Mini:
    return wants(celled(), "root.b", pinned="north")


@case(Pending.NO_ROOM_WITHIN)
def _() -> Mini:
    m = celled(in_use=False)
    m.nodes = tuple(dataclasses.replace(n, bad_gpus=frozenset({0, 2})) for n in m.nodes)
    for node in m.nodes:
        m.send(ev.NodeUp(node))
    return wants(m, "root.nobody", 2, within="pair")


@case(Pending.HIDDEN_PAYMENT)
def _() -> Mini:
    return one(Mini(says(BidReceipt("a", 5.0, 1, {"n1": 2}, 2.0, 0.5, 1, 1))), gangs=8)


@case(Pending.BID_NOTHING)
def _() -> Mini:
    return one(Mini(says(BidReceipt("a", 5.0, 0))), gangs=8)


@case(Pending.LOST_AUCTION)
def _() -> Mini:
    return one(Mini(says(BidReceipt("a", 5.0, 1), BidReceipt("b", 7.0, 1, {"n1": 1}, 2.0))), gangs=8)


@case(Pending.NOT_OFFERED)
def _() -> Mini:
    m = Mini("themis", SETTINGS)
    m.rho = {"a": 1.0, "b": 9.0}
    m.app("b", gangs=8)
    m.app("a", gang=4)
    m.run(5)
    return m


@case(Pending.OUTRANKED)
def _() -> Mini:
    return behind("b", "c")


def behind(*others: str) -> Mini:
    """These come before app `a`; the first has the only four GPUs."""
    m = Mini("isonomy")
    for name in others:
        m.app(name, gangs=4, work=1e3)
    m.app("a", gangs=4, work=1e6)
    m.run(5)
    return m


@case(Pending.NO_FREE_GPUS)
def _() -> Mini:
    m = Mini()
    m.app("b", gangs=4)
    m.run(5)
    m.app("a")
    return m


@case(Pending.WAITING_FOR_ROUND)
def _() -> Mini:
    m = Mini()
    m.app("a")
    return m


@case(Pending.GANG_INCOMPLETE)
def _() -> Mini:
    m = Mini()
    m.foreign("a", 1, tags=["isonomy.gang=2"])
    m.run(2)
    return m


@case(Pending.INTERACTIVE_LIMIT)
def _() -> Mini:
    m = Mini()
    m.foreign("other", 1, tags=["isonomy.interactive"])
    m.foreign("a", 1, tags=["isonomy.interactive"])
    m.run(2)
    return m


@case(Pending.GATHERING)
def _() -> Mini:
    return one(Mini(holds("a")), gang=4)


@case(Pending.HELD_FOR_GANG)
def _() -> Mini:
    m = Mini(holds("b"))
    m.app("b", 4)
    return one(m, gang=4)


def switched(mode: Mode) -> Mini:
    m = one(Mini(), gang=4, gangs=2)
    m.send(dataclasses.replace(m.snapshot(), ready=False, switch=ModeSwitch(mode)))
    return m


@case(Pending.OFF)
def _() -> Mini:
    return switched(Mode.OFF)


@case(Pending.MODE_UNREADABLE)
def _() -> Mini:
    return switched(Mode.UNREADABLE)


ELSEWHERE = {Pending.SHADOW}
"""The reason of a shadow control plane is tested with it (tests/cli/test_shadow.py)."""


def test_every_reason_has_its_case() -> None:
    assert set(CASES) | ELSEWHERE == set(Pending)


@pytest.mark.parametrize("code", CASES)
def test_an_app_gets_the_reason_why_it_waits(code: Pending) -> None:
    m = CASES[code]()
    found = reason(m.a, "a", m.now)
    assert found.code is code, found
    assert found.sentence.startswith(SENTENCES[code])


def test_the_first_in_the_order_is_not_outranked() -> None:
    m = behind("b")
    assert m.held("b")
    assert m.a.receipts[-1].done.awards
    (first,) = (row for row in queue(m.a, m.now, {})["apps"] if row["rank"] == 1)
    assert (first["app_id"], first["reason"]) == ("a", Pending.NO_FREE_GPUS)


def test_an_app_that_no_other_outbid_did_not_lose() -> None:
    m = one(Mini(says(BidReceipt("a", 5.0, 1, {"n1": 4}, 2.0))), gangs=8)
    assert m.a.holdings.holding("a") == 4
    assert reason(m.a, "a", m.now).code is Pending.NO_FREE_GPUS
