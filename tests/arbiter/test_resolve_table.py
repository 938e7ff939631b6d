"""What `resolve` decides, case by case: a state, a plan, and the changes that are asked for. Nothing is carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from pycontrol.arbiter.ledger.facts import LeaseBorrowed
from pycontrol.arbiter.ledger.lease import gpus_in
from pycontrol.arbiter.round.parts import own_part
from pycontrol.arbiter.round.resolve import Change, Grant, Lend, Own, Refuse, Renew, Revoke, Work, resolve
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import Award, Gang, Plan, gang_of
from pycontrol.model.cluster import Queue
from tests.arbiter.mini import Mini

NODES = (("n1", 4), ("n2", 4))
PAIR = gang_of({"n1": 2})
CELLS = """
levels: {pair: 2, node: 4}
hosts: [n1, n2]
virtual_clusters: {root.a: {node: 1}, root.b: {node: 1}}
"""
SETTINGS = Settings(lease_s=600, recovery_s=0, round_retry_s=5)


def shared(**more: object) -> Mini:
    """Apps a and b hold two GPUs of n1 each; rounds are paused."""
    m = Mini(nodes=NODES, **more)  # type: ignore[arg-type]
    for app_id in ("a", "b"):
        m.start_app(app_id, gang=2, after_s=5)
    m.send(ev.OperatorCommand("pause"))
    assert {g.host for app_id in ("a", "b") for g in m.held(app_id)} == {"n1"}
    return m


def limited() -> Mini:
    """The queue of all apps is at its limit."""
    return shared(queues=(Queue("root.q", 0.5, 0.5),))


def unmanaged() -> Mini:
    m = shared()
    m.foreign("f", 2)
    return m


def ended() -> Mini:
    m = shared()
    m.send(ev.AgentDone("b", True))
    return m


def private(**demand: object) -> Mini:
    """App a holds a pair of root.a's node; the other node is root.b's."""
    m = Mini("tiresias", SETTINGS, NODES, supply=CELLS)
    m.start_app("a", 2, queue="root.a", **demand, after_s=8)
    m.send(ev.OperatorCommand("pause"))
    return m


def lazy() -> Mini:
    return private(lazy=True)


def borrowing() -> Mini:
    """App a, which wants no more than it has, borrows its gang although cells of its own are free for it."""
    m = private()
    first = m.a.holdings.gangs_of("a")[0]
    assert m.a.supply.downgrade(first[0].grant_id)
    m.a.clerk.record(LeaseBorrowed(tuple(gpus_in(first)), first[0].grant_id))
    return m


@dataclass
class Case:
    """`ending`: apps with all their gangs on offer. `expected`: the changes in short, see `told`."""

    begins: Callable[[], Mini]
    awards: Callable[[Mini], Sequence[tuple[str, Gang]]]
    ending: tuple[str, ...] = ()
    expected: list[str] = field(default_factory=list)


def mine(m: Mini) -> Gang:
    """The gang of app a, on its virtual cluster's machine."""
    return m.a.holdings.places(gpus_in(m.a.holdings.gangs_of("a")[0]), True)


CASES = {
    "a gang on offer that its app is awarded is renewed": Case(shared, lambda m: [("a", PAIR)], ("a",), ["renew a 2"]),
    "a gang on offer that nobody is awarded is revoked": Case(shared, lambda m: [], ("a",), ["revoke a 2 lost_round"]),
    "renewals come first, then revocations, then grants": Case(
        shared,
        lambda m: [("b", gang_of({"n2": 2})), ("a", PAIR)],
        ("a", "b"),
        ["renew a 2", "revoke b 2 lost_round", "grant b n2:2"],
    ),
    "a gang that is not on offer stays as it is": Case(shared, lambda m: [], (), []),
    "an app that has ended gets nothing, which is no fault": Case(
        ended, lambda m: [("b", PAIR)], (), ["refuse b (no need): b ended during the round"]
    ),
    "a queue at its limit refuses a gang, with a reason": Case(
        limited, lambda m: [("a", PAIR)], (), ["refuse a QueueLimit: a: its queue is at its limit: root.q"]
    ),
    "a revocation makes room below the limit of its queue only once it is carried out": Case(
        limited,
        lambda m: [("a", gang_of({"n2": 2}))],
        ("a",),
        ["revoke a 2 lost_round", "refuse a QueueLimit: a: its queue is at its limit: root.q"],
    ),
    "a grant to an app without an Agent names the asks that it serves": Case(
        unmanaged, lambda m: [("f", PAIR)], (), ["grant f n1:2 for 1 asks"]
    ),
    "GPUs that fit none of its asks are refused": Case(
        unmanaged, lambda m: [("f", gang_of({"n1": 1}))], (), ["refuse f (no need): f: none of its asks fits {'n1': 1}"]
    ),
    "a lazy app keeps what it lost as borrowed": Case(lazy, lambda m: [], ("a",), ["lend 2"]),
    "one that is not lazy loses it": Case(private, lambda m: [], ("a",), ["revoke a 2 lost_round"]),
    "an app that can use no more owns what it borrows": Case(
        borrowing, lambda m: [("a", mine(m))], (), ["own 2", "refuse a (no need): a borrows: its cells are kept for it"]
    ),
}


def told(change: Change) -> str:
    match change:
        case Renew():
            return f"renew {change.award.app_id} {len(gpus_in(change.leases))}"
        case Revoke():
            return f"revoke {change.app_id} {len(gpus_in(change.leases))} {change.cause.kind}"
        case Lend() | Own():
            return f"{type(change).__name__.lower()} {len(gpus_in(change.leases))}"
        case Grant():
            where = ",".join(f"{name}:{n}" for name, n in change.gang)
            return f"grant {change.award.app_id} {where}" + (f" for {len(change.asks)} asks" if change.asks else "")
        case Refuse():
            why = "(no need)" if not change.lacks else str(change.why.code) if change.why else ""
            return f"refuse {change.app_id} {why}: {change.note}"


@pytest.mark.parametrize("name", CASES)
def test_a_plan_asks_for_these_changes_and_makes_none(name: str) -> None:
    case = CASES[name]
    m = case.begins()
    m.a.take_facts()
    m.a.clerk.effects.clear()
    plan = Plan("r9", tuple(Award(app_id, (gang,)) for app_id, gang in case.awards(m)))
    work = Work(
        "r9",
        own_part(m.a.holdings, m.a.durable.apps["a"].vc, {}),
        {app_id: m.a.holdings.gangs_of(app_id) for app_id in case.ending},
    )
    found = [change for changes in resolve(m.a.holdings, work, plan, [], m.now) for change in changes]
    assert [told(change) for change in found] == case.expected
    assert not m.a.ledger.facts
    assert not m.a.clerk.effects
