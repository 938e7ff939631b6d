"""Every end reason occurs in a scenario, and the journal names it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from pycontrol.arbiter.ledger.facts import LeaseEnded, LeaseRevoking
from pycontrol.arbiter.state import SET_LIMITS
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.model import events as ev
from pycontrol.model.reasons import EndReason
from pycontrol.model.receipt import Receipt
from pycontrol.queries.explain import explain
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
    m.start_app("b", 1, 8, queue="root.b", after_s=5)
    m.app("a", 4, 1, queue="root.a")
    m.run(30)
    return m


@case(EndReason.BORROWED_SHARE)
def _() -> Mini:
    """Three apps of b borrow all idle GPUs; at the leases' end half of these are due to another queue."""
    m = celled()
    for name in ("b1", "b2", "b3"):
        m.start_app(name, 2, 1, queue="root.b", after_s=5)
    m.app("n", 1, 8, queue="root.nobody")
    m.run(1300, 5)
    return m


@case(EndReason.MOVED)
def _() -> Mini:
    """App q borrows while p has its queue's cells; p ends, and the cells cannot be bound to q's GPUs."""
    m = celled()
    m.start_app("p", 4, 1, queue="root.a", after_s=5)
    m.start_app("q", 2, 1, queue="root.a", after_s=5)
    m.send(ev.AgentDone("p", True))
    for container in list(m.a.cluster.containers.values()):
        if container.app_id == "p":
            m.send(ev.ContainerGone(container.container_id))
    m.run(1300, 5)
    return m


BY_ROUND = (EndReason.LOST_ROUND, EndReason.GUARANTEE, EndReason.BORROWED_SHARE, EndReason.MOVED)


@pytest.mark.parametrize("reason", BY_ROUND, ids=lambda r: str(r))
def test_receipts_name_what_rounds_took_and_why_and_explain_shows_it(reason: EndReason) -> None:
    m = CASES[reason]()
    gone = [f for f in m.facts if isinstance(f, LeaseEnded | LeaseRevoking) and f.cause is reason]
    whys = {f.reason for f in gone} - {"revoked"}
    named = [x for r in m.a.receipts for x in Receipt.load(r.dump()).done.revoked if x.why in whys]
    assert {x.gpu for x in named} == {gpu for f in gone for gpu in f.gpus}
    for app_id in {x.app_id for x in named}:
        told = " ".join(r["text"] for r in explain(m.a, m.now, {"app": app_id, "n": "200"})["rounds"])
        assert all(str(x.gpu) in told and f"({x.why})" in told for x in named if x.app_id == app_id)


@pytest.mark.interpreted
def test_loans_that_end_where_no_round_follows_have_a_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wants GPUs, and nobody is to have those that are lent."""
    m = celled(in_use=False)
    for name in ("own", "b1", "b2", "b3"):
        m.start_app(name, 2, 1, queue="root.b", after_s=5)
    monkeypatch.setattr(CellSupply, "shares", lambda *_: {"root.b": 0})
    m.run(800, 5)
    (found,) = (r for r in m.a.receipts if not r.offered)
    assert (found.vc, found.guaranteed, found.asked) == ("root.b", False, False)
    assert {x.why for x in found.done.revoked} == {f"b{k} borrowed more than its share" for k in (1, 2)}
    told = next(x["text"] for x in explain(m.a, m.now, {"app": "b1"})["rounds"] if x["round_id"] == found.round_id)
    assert told.startswith(
        "0 GPUs free or ending; it took no part and gave way; lost n2:0, n2:1 (b1 borrowed more than its share), "
    )


def test_every_reason_has_its_case() -> None:
    assert set(CASES) | {EndReason.UNKNOWN} == set(EndReason)


@pytest.mark.parametrize("reason", CASES, ids=lambda r: str(r))
def test_the_journal_names_why_a_gpu_was_lost(reason: EndReason) -> None:
    facts = CASES[reason]().facts
    assert reason in [f.cause for f in facts if isinstance(f, LeaseEnded | LeaseRevoking)]
