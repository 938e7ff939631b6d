"""The driver: waiting events share one transaction, and urgent ones do not wait behind the cluster's events."""

import threading
from collections.abc import Iterable
from typing import Any

import pytest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.facts import AppArrived, Fact, LeaseGranted, Switched
from pycontrol.arbiter.validate import Inconsistent
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand, HeldGrant
from pycontrol.model.cluster import Ask, Node, YarnApp
from pycontrol.model.topology import Gpu
from pycontrol.policies.registry import make
from pycontrol.runtime import inbox
from pycontrol.runtime.driver import Driver, Overloaded
from pycontrol.runtime.inbox import Held

pytestmark = pytest.mark.interpreted


class Told:
    """Journal, Agents and cluster in one; records what each received, in order."""

    def __init__(self) -> None:
        self.transactions: list[list[Fact]] = []
        self.effects: list[Any] = []

    def append(self, facts: Iterable[Fact], now_s: float) -> None:
        facts = list(facts)
        if facts:
            self.transactions.append(facts)

    def send(self, effect: Any) -> None:
        self.effects.append(effect)

    carry_out = send


class Seen(Arbiter):
    """An Arbiter that notes the order of events."""

    def __init__(self) -> None:
        policy = make("isonomy")
        super().__init__(Settings(settle_s=0.0), policy)
        self.order: list[str] = []

    def handle_all(self, events: Iterable[ev.Event], now_s: float) -> list[ev.Effect]:
        def noted() -> Iterable[ev.Event]:
            for event in events:
                self.order.append(type(event).__name__)
                yield event

        return super().handle_all(noted(), now_s)


def made() -> tuple[Driver, Seen, Told]:
    arbiter, told = Seen(), Told()
    return Driver(arbiter, told, told, told), arbiter, told


def app(n: int) -> list[ev.Event]:
    app_id = f"application_1_{n:04}"
    return [
        ev.AppAdded(YarnApp(app_id, "u", "root.q", app_id, attempt_id=app_id)),
        ev.AskChanged(Ask(app_id, app_id, 1, 1, 1)),
    ]


SNAPSHOT = ev.ClusterSnapshot(True, (Node("n1:1", "n1", "r", 8),), (), (), ())


def test_events_that_wait_together_share_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycontrol.runtime.driver.BATCH_S", 60.0)
    driver, arbiter, told = made()
    for event in [SNAPSHOT, *(e for n in range(100) for e in app(n))]:
        driver.submit(event)
    driver.start()
    driver.settle()
    driver.stop()
    assert driver.failed is None
    assert len(arbiter.durable.apps) == 100
    assert len([t for t in told.transactions if any(isinstance(fact, AppArrived) for fact in t)]) == 1


def test_events_go_on_together_while_calls_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever asks much would let one event through for each answer."""
    monkeypatch.setattr("pycontrol.runtime.driver.BATCH_S", 60.0)
    driver, arbiter, _ = made()
    for n in range(100):
        driver.submit(app(n)[0])
    seen: list[int] = []

    def asked() -> None:
        seen.append(len(arbiter.cluster.apps))
        if seen[-1] < 100:
            driver.inbox.put(asked, inbox.Lane.URGENT)

    driver.inbox.put(asked, inbox.Lane.URGENT)
    driver.start()
    driver.settle()
    driver.stop()
    assert seen == [0, 100]


def test_solutions_and_commands_do_not_wait_behind_the_cluster() -> None:
    driver, arbiter, _ = made()
    for n in range(300):
        driver.submit(app(n)[0])
    driver.submit(ev.AgentUp("application_1_0007", "a", "single", Demand(1, 1, 1, 1.0, 1.0)))
    driver.submit(ev.Decided("r1.1", None))
    driver.submit(ev.OperatorCommand("pause", "", "root"))
    driver.start()
    driver.settle()
    driver.stop()
    assert arbiter.order[:3] == ["Decided", "OperatorCommand", "AgentUp"]
    assert arbiter.order.count("AppAdded") == 300


def test_a_call_runs_before_waiting_events_and_settle_after_them() -> None:
    driver, arbiter, _ = made()
    for n in range(1000):
        driver.submit(app(n)[0])
    found: list[int] = []
    caller = threading.Thread(target=lambda: found.append(driver.call(lambda a, now_s: len(a.cluster.apps))))
    caller.start()
    while not driver.inbox.waiting(inbox.Lane.URGENT):
        threading.Event().wait(0.005)
    driver.start()
    driver.settle()
    caller.join(10)
    driver.stop()
    assert found == [0]
    assert len(arbiter.cluster.apps) == 1000


def test_a_call_whose_caller_gave_up_is_not_run() -> None:
    driver, arbiter, _ = made()
    with pytest.raises(TimeoutError):
        driver.call(lambda a, now_s: a.order.append("too late"), timeout_s=0.01)
    driver.start()
    driver.settle()
    driver.stop()
    assert "too late" not in arbiter.order


def test_a_full_lane_stops_only_its_own_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox.Inbox.__init__, "__defaults__", (3,))
    driver, _, _ = made()
    for n in range(3):
        driver.submit(app(n)[0])
    with pytest.raises(Overloaded, match="3 items wait for the Arbiter"):
        driver.submit(app(3)[0])
    driver.submit(ev.AgentLost("application_1_0001"))
    driver.submit(ev.Decided("r1.1", None))


def test_the_arbiter_is_at_most_some_thousand_events_behind_the_cluster() -> None:
    driver, arbiter, _ = made()
    for n in range(inbox.EVENTS_MAX):
        driver.submit(app(n)[0])
    with pytest.raises(Overloaded, match="2000 items wait for the Arbiter"):
        driver.submit(app(0)[0])
    driver.start()
    driver.settle()
    driver.submit(app(0)[0])
    assert len(arbiter.cluster.apps) == inbox.EVENTS_MAX
    driver.stop()


def until_leased(*events: ev.Event) -> list[ev.Effect]:
    """The effects of these events until GPUs are leased, or for ten seconds."""
    driver, arbiter, told = made()
    for event in events:
        driver.submit(event)
    driver.start()
    driver.settle()
    arbiter.cluster.recovering_until_s = 0.0
    done = threading.Event()
    for _ in range(200):
        if driver.call(lambda a, now_s: bool(a.durable.leases)):
            break
        done.wait(0.05)
    driver.stop()
    return list(told.effects)


def test_the_stand_ins_grants_are_sent_to_nobody() -> None:
    effects = until_leased(SNAPSHOT, *app(1))
    assert [e for e in effects if isinstance(e, ev.Place)]
    assert not [e for e in effects if isinstance(e, ev.SendGrant)]


def test_an_agent_hears_of_its_grants() -> None:
    up = ev.AgentUp("application_1_0001", "a", "single", Demand(1, 1, 1, 1.0, 1.0))
    assert {type(e).__name__ for e in until_leased(SNAPSHOT, *app(1), up)} >= {"SendRegistered", "SendGrant"}


@pytest.mark.parametrize("wake_s", [1.8e12, 1e300, float("inf")])
def test_a_wake_in_centuries_is_a_nap_of_an_hour(wake_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, arbiter, _ = made()
    monkeypatch.setattr(arbiter, "next_wake_s", lambda now_s: wake_s)
    napped, waited = list[float | None](), driver.inbox.wait

    def wait(nap_s: float | None) -> bool:
        napped.append(nap_s)
        return waited(0.0) and len(napped) < 2

    monkeypatch.setattr(driver.inbox, "wait", wait)
    driver.start()
    assert driver.stopped.wait(10)
    assert driver.failed is None
    assert napped[0] == 3600.0
    driver.stop()


def test_what_a_call_changed_is_durable_before_it_is_answered() -> None:
    driver, _, told = made()
    driver.start()
    assert driver.call(lambda a, now_s: len(told.transactions)) == 0
    switched = ev.OperatorCommand("pause", "", "ann")
    driver.call(lambda a, now_s: a.handlers[ev.OperatorCommand](switched, now_s))
    assert [type(f).__name__ for f in told.transactions[-1]] == ["Switched"]
    driver.stop()


def test_a_call_that_fails_before_it_changes_anything_ends_nothing() -> None:
    driver, _, _ = made()
    driver.start()

    def fails(a: Arbiter, now_s: float) -> None:
        raise LookupError("no such app")

    with pytest.raises(LookupError):
        driver.call(fails)
    driver.call(lambda a, now_s: None)
    assert driver.failed is None
    driver.stop()


def test_a_call_that_fails_half_way_stops_the_arbiter() -> None:
    driver, _, told = made()
    driver.start()

    def fails(a: Arbiter, now_s: float) -> None:
        a.handlers[ev.OperatorCommand](ev.OperatorCommand("pause", "", "ann"), now_s)
        raise LookupError("half a change")

    with pytest.raises(LookupError):
        driver.call(fails)
    assert driver.stopped.wait(10)
    assert isinstance(driver.failed, LookupError)
    assert told.transactions == []


def _granted_and_free(a: Arbiter, now_s: float) -> None:
    """A lease whose GPU the index has as free."""
    a.clerk.record(LeaseGranted((Gpu("n1", 0),), "application_1_0000", "r9.0", now_s, now_s + 600))
    a.gpus.free.put(Gpu("n1", 0))
    a.clerk.emit(ev.SendGrant("application_1_0000", "r9", HeldGrant("r9.0", (Gpu("n1", 0),), now_s + 600)))


@pytest.mark.parametrize("met_before", [False, True])
def test_a_contradiction_reaches_neither_journal_nor_agents(met_before: bool) -> None:
    arbiter, told = Seen(), Told()
    driver = Driver(arbiter, told, told, told, kept=lambda e: met_before)
    for event in [SNAPSHOT, *app(0)]:
        driver.submit(event)
    driver.start()
    driver.settle()
    facts, effects = len(told.transactions), len(told.effects)
    with pytest.raises(Inconsistent):
        driver.call(_granted_and_free)
    if not met_before:
        assert driver.stopped.wait(10)
        assert isinstance(driver.failed, Inconsistent)
    else:
        for event in app(1):
            driver.submit(event)
        driver.settle()
        assert arbiter.order.count("AppAdded") == 1, "no event is handled"
        assert driver.call(lambda a, now_s: a.holdings.held).startswith("n1:0: it is not free")
        with pytest.raises(Held):
            driver.submit(ev.OperatorCommand("pause", "", "ann"))
        with pytest.raises(Held):
            driver.call(lambda a, now_s: a.clerk.record(Switched("paused", True, "ann", now_s)))
        assert not driver.stopped.is_set()
        driver.stop()
    assert (len(told.transactions), len(told.effects)) == (facts, effects)
