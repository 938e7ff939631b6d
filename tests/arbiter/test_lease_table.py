"""A GPU in each state: an event, and the resulting state, facts and effects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import pytest

from pycontrol.arbiter.ledger.facts import LeaseGranted, LeaseRevoking
from pycontrol.arbiter.validate import classify
from pycontrol.arbiter.views.gpu_index import GpuState
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.reasons import EndReason
from pycontrol.model.topology import Gpu
from tests.arbiter.mini import SETTINGS, Mini

GPU = Gpu("n1", 0)
S = GpuState
Step = Callable[[Mini], None]


def mini(settings: Settings = SETTINGS) -> Mini:
    """One machine with one GPU."""
    return Mini(settings=settings, nodes=(("n1", 1),))


def granted() -> Mini:
    m = mini()
    m.app("a")
    m.run(1)
    return m


def planned() -> Mini:
    """Its ask has not come."""
    m = granted()
    m.send(ev.UsePlanned("a", "u1", (ev.WorkerPlan("w1", "j", (GPU,), 1),)))
    return m


def placing() -> Mini:
    m = granted()
    m.use("a")
    return m


def starting() -> Mini:
    m = placing()
    m.up(m.places()[0], "c1", running=False)
    return m


def active() -> Mini:
    m = placing()
    m.up(m.places()[0], "c1")
    return m


def revoking() -> Mini:
    m = active()
    m.a.clerk.record(LeaseRevoking((GPU,), m.now + 20, "lost round r9", EndReason.LOST_ROUND))
    return m


def reserved() -> Mini:
    """The GPU is reserved for b."""
    m = revoking()
    m.app("b")
    m.a.clerk.record(LeaseGranted((GPU,), "b", "r9.0", m.now + 20, m.now + 620, "r9.0", after=(GPU,)))
    return m


def foreign() -> Mini:
    m = mini()
    m.foreign("a", 1)
    m.run(1)
    m.up(m.places()[0], "c1")
    return m


def free() -> Mini:
    return mini()


def frozen(begins: Callable[[], Mini]) -> Callable[[], Mini]:
    """The same, but paused."""

    def begin() -> Mini:
        m = begins()
        m.send(ev.OperatorCommand("pause"))
        return m

    return begin


def gone(m: Mini) -> None:
    m.send(ev.ContainerGone("c1"))


def gives_back(m: Mini) -> None:
    m.send(ev.GpusReleased("a", frozenset({GPU})))


def next_gives_back(m: Mini) -> None:
    m.send(ev.GpusReleased("b", frozenset({GPU})))


def ends(m: Mini) -> None:
    m.send(ev.AgentDone("a", True))


def next_ends(m: Mini) -> None:
    m.send(ev.AgentDone("b", True))


def node_lost(m: Mini) -> None:
    m.send(ev.NodeDown("n1:1", "lost"))


def goes_bad(m: Mini) -> None:
    m.send(ev.NodeUp(dataclasses.replace(m.nodes[0], bad_gpus=frozenset({0}))))


def drained(m: Mini) -> None:
    m.send(ev.OperatorCommand("drain", "n1"))


def refused(m: Mini) -> None:
    m.send(ev.DirectiveDone(m.places()[0].directive_id, False, "", "no"))


def after(seconds: float) -> Step:
    def wait(m: Mini) -> None:
        m.now += seconds
        m.send(ev.Tick())

    return wait


TABLE: dict[str, tuple[Callable[[], Mini], Step, GpuState, tuple[str, ...], tuple[str, ...]]] = {
    # what the container does
    "the container of a lease ends": (active, gone, S.GRANTED, ("LeaseIdle",), ()),
    "a revoked lease's container ends": (revoking, gone, S.FREE, ("LeaseEnded",), ()),
    "a reserved GPU's container ends": (reserved, gone, S.GRANTED, ("LeaseEnded",), ()),
    "the stand-in's container ends": (foreign, gone, S.FREE, ("LeaseEnded",), ()),
    "a container ends before it was launched": (starting, gone, S.GRANTED, (), ()),
    # what the app does
    "an unused grant is given back": (granted, gives_back, S.FREE, ("LeaseEnded",), ()),
    "a planned grant is given back": (planned, gives_back, S.FREE, ("LeaseEnded",), ()),
    "a GPU is given back while its container is on its way": (placing, gives_back, S.REVOKING, ("LeaseRevoking",), ()),
    "a GPU in use is given back": (active, gives_back, S.REVOKING, ("LeaseRevoking",), ()),
    "who is next gives its reservation back": (reserved, next_gives_back, S.REVOKING, ("NextDropped",), ()),
    "an app ends with an unused grant": (granted, ends, S.FREE, ("LeaseEnded", "AppEnded"), ("SendRevoke",)),
    "an app ends while its container runs": (
        active,
        ends,
        S.REVOKING,
        ("LeaseRevoking", "AppEnded"),
        ("Preempt", "SendRevoke", "Kill"),
    ),
    "who is next ends": (reserved, next_ends, S.REVOKING, ("NextDropped", "AppEnded"), ()),
    # what the machine does
    "a machine is lost with an unused grant": (granted, node_lost, S.AWAY, ("LeaseEnded",), ("SendRevoke",)),
    "a machine is lost with a container": (active, node_lost, S.AWAY, ("LeaseEnded",), ("SendRevoke",)),
    "a machine is lost while its GPU is reserved": (
        reserved,
        node_lost,
        S.AWAY,
        ("NextDropped", "LeaseEnded"),
        ("SendRevoke", "SendRevoke"),
    ),
    "a free GPU goes bad": (free, goes_bad, S.BAD, (), ()),
    "an unused grant's GPU goes bad": (granted, goes_bad, S.BAD, ("LeaseEnded",), ("SendRevoke",)),
    "a GPU in use goes bad": (active, goes_bad, S.REVOKING, ("LeaseRevoking",), ("Preempt", "SendRevoke")),
    "a reserved GPU goes bad": (reserved, goes_bad, S.REVOKING, ("NextDropped",), ("SendRevoke",)),
    "the stand-in's GPU goes bad": (foreign, goes_bad, S.REVOKING, ("LeaseRevoking",), ("Preempt", "SendRevoke")),
    "a placement is refused": (placing, refused, S.PLANNED, (), ()),
    # what the operator does
    "a free GPU's machine is drained": (free, drained, S.WITHHELD, ("Switched",), ()),
    "an unused grant's machine is drained": (
        granted,
        drained,
        S.WITHHELD,
        ("Switched", "LeaseEnded"),
        ("SendRevoke",),
    ),
    "the machine of a GPU in use is drained": (
        active,
        drained,
        S.REVOKING,
        ("Switched", "LeaseRevoking"),
        ("Preempt", "SendRevoke"),
    ),
    "the stand-in's machine is drained": (foreign, drained, S.ACTIVE, ("Switched",), ()),
    # what time does
    "a grant is not used in time": (granted, after(61), S.FREE, ("LeaseEnded",), ("SendRevoke",)),
    "a plan is not carried out in time": (planned, after(61), S.FREE, ("LeaseEnded",), ("SendRevoke",)),
    "a placement brings no container in time": (placing, after(61), S.FREE, ("LeaseEnded",), ("SendRevoke",)),
    "a container takes its time to start": (starting, after(61), S.STARTING, (), ()),
    "a revoked lease's time has passed": (revoking, after(21), S.REVOKING, (), ("Kill",)),
    "a reserved GPU's present lease has ended": (reserved, after(21), S.RESERVED, (), ("Kill",)),
    "leases stand still: a grant does not lapse": (frozen(granted), after(61), S.GRANTED, (), ()),
    "leases stand still: a revoked lease does not end": (frozen(revoking), after(21), S.REVOKING, (), ()),
}


@pytest.mark.parametrize("name", TABLE)
def test_each_event_changes_a_gpu_as_in_the_table(name: str) -> None:
    begins, step, state, facts, effects = TABLE[name]
    m = begins()
    m.facts += m.a.take_facts()
    known, sent = len(m.facts), len(m.effects)
    step(m)
    assert classify(m.a.holdings, GPU) is state
    assert tuple(x for x in names(m.facts[known:]) if x not in ("RoundHeld", "AppChanged")) == facts
    told = ("SendAskRho", "SendOffer", "Solve", "SendGrant", "SendHosts")
    assert tuple(x for x in names(e for _, e in m.effects[sent:]) if x not in told) == effects


def names(things: Iterable[object]) -> list[str]:
    return [type(x).__name__ for x in things]


@pytest.mark.parametrize(
    ("begins", "state"),
    [
        (free, S.FREE),
        (granted, S.GRANTED),
        (planned, S.PLANNED),
        (placing, S.PLACING),
        (starting, S.STARTING),
        (active, S.ACTIVE),
        (revoking, S.REVOKING),
        (reserved, S.RESERVED),
        (foreign, S.ACTIVE),
    ],
)
def test_classify_returns_the_state_of_a_gpu(begins: Callable[[], Mini], state: GpuState) -> None:
    assert classify(begins().a.holdings, GPU) is state


def test_an_unknown_gpu_is_away() -> None:
    assert classify(free().a.holdings, Gpu("n9", 0)) is S.AWAY


def test_a_container_without_a_lease_occupies_its_gpu() -> None:
    m = revoking()
    m.send(ev.AgentDone("a", True))
    for lease in list(m.a.durable.leases.each()):
        m.a.durable.leases.drop(lease)
    assert classify(m.a.holdings, GPU) is S.OCCUPIED
