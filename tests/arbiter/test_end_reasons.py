"""Every end reason occurs in a scenario, and the journal names it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from pycontrol.arbiter.ledger.facts import LeaseEnded, LeaseRevoking
from pycontrol.arbiter.state import SET_LIMITS
from pycontrol.model import events as ev
from pycontrol.model.reasons import EndReason
from tests.arbiter.mini import Mini
from tests.arbiter.test_lease_table import (
    active,
    drained,
    ends,
    foreign,
    gives_back,
    goes_bad,
    gone,
    granted,
    node_lost,
)
from tests.arbiter.test_reason_table import celled

Begin = Callable[[], Mini]
CASES: dict[EndReason, Begin] = {}


def case(reason: EndReason) -> Callable[[Begin], Begin]:
    def add(begin: Begin) -> Begin:
        assert reason not in CASES
        CASES[reason] = begin
        return begin

    return add


def after(begin: Begin, step: Callable[[Mini], None]) -> Begin:
    def run() -> Mini:
        m = begin()
        step(m)
        return m

    return run


case(EndReason.DRAINED)(after(active, drained))
case(EndReason.BAD_GPU)(after(active, goes_bad))
case(EndReason.NODE_LOST)(after(active, node_lost))
case(EndReason.RELEASED)(after(active, gives_back))
case(EndReason.LAPSED)(after(granted, lambda m: m.run(61)))
case(EndReason.APP_ENDED)(after(active, ends))
case(EndReason.CONTAINER_ENDED)(after(foreign, gone))


@case(EndReason.LOST_ROUND)
def _() -> Mini:
    """An app with less work comes first at the lease's end."""
    m = active()
    m.app("b", work=10.0)
    m.run(1300, 5)
    return m


@case(EndReason.TIME_LIMIT)
def _() -> Mini:
    m = Mini()
    m.foreign("a", 1, tags=["isonomy.max_hours=0.1"])
    m.run(1)
    m.up(m.places()[0], "c1")
    m.run(400, 5)
    m.send(ev.ContainerGone("c1"))
    return m


@case(EndReason.IDLE)
def _() -> Mini:
    m = Mini()
    m.foreign("a", 1, tags=["isonomy.interactive"])
    m.run(1)
    m.up(m.places()[0], "c1")
    gpu = next(iter(m.held("a")))
    at = next(n for n in m.nodes if n.host == gpu.host)
    m.send(ev.NodeUp(dataclasses.replace(at, idle_since_s={gpu.index: m.now})))
    m.run(1900, 5)
    m.send(ev.ContainerGone("c1"))
    return m


@case(EndReason.REFUSED)
def _() -> Mini:
    m = granted()
    m.use("a")
    for _ in range(100):
        for place in m.places():
            m.send(ev.DirectiveDone(place.directive_id, False, "", "no such GPU"))
        m.run(2)
    return m


@case(EndReason.LIMIT)
def _() -> Mini:
    m = active()
    m.send(ev.OperatorCommand(SET_LIMITS, "user u", "root", values={"gpus": 0}))
    m.run(1300, 5)
    return m


@case(EndReason.GUARANTEE)
def _() -> Mini:
    """App b borrows all of a's cells until a wants them."""
    m = celled()
    m.app("b", 1, 8, queue="root.b")
    m.run(5)
    m.start("b")
    m.app("a", 4, 1, queue="root.a")
    m.run(30)
    return m


@case(EndReason.BORROWED_SHARE)
def _() -> Mini:
    """Three apps of b borrow all idle GPUs; at the leases' end half of these are due to another queue."""
    m = celled()
    for name in ("b1", "b2", "b3"):
        m.app(name, 2, 1, queue="root.b")
        m.run(5)
        m.start(name)
    m.app("n", 1, 8, queue="root.nobody")
    m.run(1300, 5)
    return m


@case(EndReason.MOVED)
def _() -> Mini:
    """App q borrows while p has its queue's cells; p ends, and the cells cannot be bound to q's GPUs."""
    m = celled()
    m.app("p", 4, 1, queue="root.a")
    m.run(5)
    m.start("p")
    m.app("q", 2, 1, queue="root.a")
    m.run(5)
    m.start("q")
    m.send(ev.AgentDone("p", True))
    for container in list(m.a.cluster.containers.values()):
        if container.app_id == "p":
            m.send(ev.ContainerGone(container.container_id))
    m.run(1300, 5)
    return m


def test_every_reason_has_its_case() -> None:
    assert set(CASES) | {EndReason.UNKNOWN} == set(EndReason)


@pytest.mark.parametrize("reason", CASES, ids=lambda r: str(r))
def test_the_journal_names_why_a_gpu_was_lost(reason: EndReason) -> None:
    facts = CASES[reason]().facts
    assert reason in [f.cause for f in facts if isinstance(f, LeaseEnded | LeaseRevoking)]
