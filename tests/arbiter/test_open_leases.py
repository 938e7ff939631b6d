"""Leases without an end: only where a round could do no more than renew them, and only until it could do more."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import from_json, to_json
from pycontrol.arbiter.ledger.lease import REVOKING, Lease
from pycontrol.arbiter.state import SET_LIMITS
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.arbiter.views.settings import Settings
from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.cells.layout import Layout
from pycontrol.config import parse
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Mode, ModeSwitch, Queue
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.on_schedule import OnSchedule
from pycontrol.policies.registry import make
from tests.arbiter.mini import CELLS, SETTINGS, Mini

OPEN = dataclasses.replace(SETTINGS, open_leases=True)
LEASE_S, LEAD_S = OPEN.lease_s, OPEN.lead
A, B = "root.a", "root.b"
NODES = (("n1", 4), ("n2", 4))


def assignment(text: str = CELLS) -> Layout:
    return layout(parse(text, CellsFile, "cells.yaml"), name="cells.yaml")


def cells(settings: Settings = OPEN, **more: Any) -> Mini:
    """`root.a` owns four GPUs and `root.b` two; two more are nobody's."""
    return Mini(ByVirtualCluster(make("tiresias")), settings, NODES, supply=CellSupply(assignment()), **more)


def later(m: Mini, seconds: float) -> None:
    m.run(seconds, 5.0)


def running(m: Mini, name: str, gang: int, queue: str = "root.q", **more: Any) -> None:
    m.app(name, gang, queue=queue, **more)
    m.run(2)
    m.start(name)


def leases(m: Mini, name: str) -> list[Lease]:
    return m.a.durable.leases.of(name)


def is_open(m: Mini, name: str) -> bool:
    found = {x.end_s == math.inf for x in leases(m, name)}
    assert len(found) == 1, leases(m, name)
    return found.pop()


def ends_soon(m: Mini, name: str) -> bool:
    """Whether the app's leases end at the first common end that is a lead away."""
    return {x.end_s for x in leases(m, name)} == {math.ceil((m.now + LEAD_S) / LEASE_S) * LEASE_S}


def is_losing(m: Mini, name: str) -> bool:
    return any(x.state == REVOKING for x in leases(m, name))


def test_the_leases_of_a_virtual_cluster_stay_open_while_apps_of_another_wait() -> None:
    m = cells()
    running(m, "a", 4, A)
    running(m, "b", 2, B)
    m.app("waits", 8, queue=B)
    later(m, 2 * LEASE_S)
    assert is_open(m, "a")
    assert not is_open(m, "b"), "an app of its own virtual cluster waits"
    rounds = [r for r in m.a.receipts if r.vc == A]
    assert len(rounds) == 1, "no round is held to renew"


@pytest.mark.parametrize("arrives_s", [0.0, 100.0, LEASE_S - 2 * LEAD_S, LEASE_S - 1.4 * LEAD_S, LEASE_S - 1])
def test_an_open_lease_that_an_app_of_its_owner_wants_ends_when_a_renewed_one_would(arrives_s: float) -> None:
    found = []
    for how in (OPEN, SETTINGS):
        m = cells(settings=how)
        running(m, "a", 4, A)
        running(m, "b", 2, B)
        running(m, "guest", 2)
        later(m, 3 * LEASE_S - m.now % LEASE_S)
        assert is_open(m, "a") == (how is OPEN)
        later(m, arrives_s)
        m.app("rival", 4, queue=A, work=1.0)
        m.run(1)
        ends = {x.end_s for x in leases(m, "a")}
        later(m, LEASE_S + LEAD_S)
        assert is_losing(m, "a")
        found.append((ends, {x.end_s for x in leases(m, "a")}))
    assert found[0] == found[1]


def test_an_end_that_a_round_of_others_looked_at_is_past_as_where_that_round_renews() -> None:
    """Half a lead before leases go on offer by themselves, any round renews them."""
    ends = []
    for how in (OPEN, SETTINGS):
        m = cells(settings=how)
        running(m, "a", 4, A)
        running(m, "guest", 2)
        later(m, 3 * LEASE_S - m.now % LEASE_S - 1.4 * LEAD_S)
        m.app("b", 2, queue=B)
        m.run(5)
        m.app("rival", 4, queue=A, work=1.0)
        m.run(5)
        ends.append({x.end_s for x in leases(m, "a")})
    assert ends == [{(math.ceil(m.now / LEASE_S) + 1) * LEASE_S}] * 2


def test_leases_left_without_an_end_count_as_renewed_for_the_wait_after_rounds_that_moved_nothing() -> None:
    for how in (OPEN, SETTINGS):
        m = Mini("tiresias", how)
        running(m, "a", 4)
        m.a.timer.idle_rounds = 3
        later(m, 2 * LEASE_S)
        assert is_open(m, "a") == (how is OPEN)
        assert m.a.timer.idle_rounds == 0


@pytest.mark.parametrize("queue", [B, "root.q"])
def test_what_is_borrowed_always_has_an_end_and_its_owner_calls_it_back_at_once(queue: str) -> None:
    m = cells()
    running(m, "guest", 8, queue)
    for _ in range(8):
        later(m, LEASE_S / 2)
        assert {x.guaranteed for x in leases(m, "guest")} == {False}
        assert not is_open(m, "guest")
    m.app("owner", 4, queue=A)
    m.run(1)
    assert {x.state for x in leases(m, "guest")} == {REVOKING}
    assert max(x.end_s for x in leases(m, "guest")) <= m.now + LEAD_S
    assert m.held("owner") or m.a.durable.reservations.of("owner")


def test_an_app_that_wants_more_later_is_not_left_waiting_by_leases_without_an_end() -> None:
    """Where all GPUs have leases without an end, no end starts a round, and none is free."""
    m = Mini("tiresias", OPEN)
    running(m, "first", 3)
    running(m, "second", 1)
    later(m, 2 * LEASE_S)
    assert is_open(m, "first")
    assert is_open(m, "second")
    m.send(ev.ProgressReported("second", Demand(1, 2, 1, 1.0, 1.0), ()))
    m.run(10)
    assert ends_soon(m, "first")
    later(m, LEASE_S + LEAD_S)
    assert is_losing(m, "first")


def test_own_gpus_that_become_borrowed_get_an_end() -> None:
    m = cells()
    running(m, "a", 4, A)
    later(m, 2 * LEASE_S)
    assert is_open(m, "a")
    m.a.reconfigure(assignment(CELLS.replace("root.a: {big: 1}", "root.a: {pair: 1}")), m.now)
    m.run(1)
    assert {x.guaranteed for x in leases(m, "a")} == {False}
    assert ends_soon(m, "a")


def test_an_agent_that_registers_again_as_opportunistic_has_leases_with_ends() -> None:
    m = cells()
    running(m, "a", 4, A)
    later(m, 2 * LEASE_S)
    m.send(ev.AgentUp("a", "a_1", "single", Demand(4, 1, 4, 1e6, 1e6, opportunistic=True)))
    assert {x.guaranteed for x in leases(m, "a")} == {False}
    assert ends_soon(m, "a")


def test_a_deal_of_the_exchange_that_ends_gives_what_it_lent_an_end() -> None:
    m = cells()
    end_s = m.now + 2.2 * LEASE_S
    m.send(ev.ExchangePosted("offer", "o", A, ("big", "big", 1), end_s))
    m.send(ev.ExchangePosted("request", "r", B, ("big", "big", 1), end_s))
    m.run(10)
    assert m.a.durable.exchange.get("deals"), m.a.durable.exchange
    running(m, "tenant", 4, B)
    later(m, 1.7 * LEASE_S)
    assert is_open(m, "tenant")
    later(m, end_s + 2 - m.now)
    assert {x.guaranteed for x in leases(m, "tenant")} == {False}
    assert not is_open(m, "tenant")


def test_a_bad_gpu_or_machine_takes_open_leases_at_once() -> None:
    m = cells()
    running(m, "a", 4, A)
    later(m, 2 * LEASE_S)
    assert is_open(m, "a")
    host = leases(m, "a")[0].gpus[0].host
    m.send(ev.NodeUp(next(dataclasses.replace(n, bad_gpus=frozenset({0})) for n in m.nodes if n.host == host)))
    bad = [x for x in leases(m, "a") if any(g.host == host and g.index == 0 for g in x.gpus)]
    assert {x.state for x in bad} == {REVOKING}
    assert max(x.end_s for x in bad) <= m.now + LEAD_S
    m.send(ev.NodeDown(f"{host}:1", "lost"))
    assert not any(g.host == host for x in leases(m, "a") for g in x.gpus)


def test_an_account_with_a_limit_has_no_lease_without_an_end() -> None:
    m = Mini("tiresias", OPEN)
    running(m, "a", 4)
    later(m, 2 * LEASE_S)
    assert is_open(m, "a")
    m.send(ev.OperatorCommand(SET_LIMITS, "user u", "root", values={"gpu_hours_day": 0.0}))
    assert ends_soon(m, "a")
    later(m, LEASE_S + LEAD_S)
    assert is_losing(m, "a")


def test_a_lease_of_a_queue_whose_maximum_was_lowered_ends() -> None:
    m = Mini("tiresias", OPEN, queues=[Queue("root.q", 1.0, 1.0)])
    running(m, "a", 4)
    later(m, 2 * LEASE_S)
    assert is_open(m, "a")
    (app,), containers = [m.a.cluster.apps["a"]], list(m.a.cluster.containers.values())
    m.queues = (Queue("root.q", 1.0, 0.5),)
    m.send(m.snapshot([app], containers))
    later(m, LEASE_S + 2 * LEAD_S)
    assert not is_open(m, "a")


def test_a_control_plane_that_takes_over_gives_open_leases_ends() -> None:
    m = cells()
    running(m, "a", 4, A)
    later(m, 2 * LEASE_S)
    assert is_open(m, "a")
    durable = Durable()
    for fact in m.facts:
        durable.apply(from_json(type(fact).__name__, to_json(fact)))
    for again in (cells(durable=durable), cells(durable=Durable())):
        again.now = m.now
        again.send(ev.StandbyRestored(m.a.durable.kept(), 2))  # ignored by the one that has the journal
        again.send(m.snapshot([m.a.cluster.apps["a"]], list(m.a.cluster.containers.values())))
        assert not is_open(again, "a")
        again.send(ev.AgentUp("a", "a_1", "single", Demand(4, 1, 4, 1e6, 1e6)))
        running(again, "b", 2, B)
        running(again, "guest", 2)
        again.app("rival", 4, queue=A, work=1.0)
        later(again, 300.0)
        assert is_losing(again, "a") or again.held("rival")


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.OFF])
def test_while_the_mode_is_not_on_nothing_ends_and_afterwards_open_leases_can_end(mode: Mode) -> None:
    m = Mini("tiresias", OPEN)
    running(m, "a", 4)
    later(m, 2 * LEASE_S)
    here = m.snapshot([m.a.cluster.apps["a"]], list(m.a.cluster.containers.values()))
    nothing = ev.ClusterSnapshot(False, (), (), (), ())
    off = nothing if mode is Mode.OFF else here
    m.send(dataclasses.replace(off, ready=False, switch=ModeSwitch(mode, by="ann")))
    held = m.held("a")
    later(m, 2 * LEASE_S)
    assert m.held("a") == held
    m.send(here)
    m.app("rival", 4, work=1.0)
    later(m, LEASE_S + 3 * LEAD_S)
    assert is_losing(m, "a")


def test_a_private_schedule_is_kept_by_rounds() -> None:
    text = CELLS.replace("root.a: {big: 1}", "root.a: {cells: {big: 1}, private_schedule: true}")
    supply = CellSupply(assignment(text))
    policy = ByVirtualCluster(make("tiresias"), {A: OnSchedule(make("tiresias"))})
    m = Mini(policy, OPEN, NODES, supply=supply)
    running(m, "a", 4, A)
    running(m, "b", 2, B)
    later(m, 2 * LEASE_S)
    assert (is_open(m, "a"), is_open(m, "b")) == (False, True)


@pytest.mark.parametrize(("policy", "stays"), [("tiresias", True), ("isonomy", False)])
def test_a_gang_that_its_policy_may_bring_closer_together_goes_on_offer_at_its_end(policy: str, stays: bool) -> None:
    m = Mini(policy, OPEN, NODES)
    running(m, "wide", 6)
    running(m, "close", 2)
    later(m, 2 * LEASE_S)
    assert is_open(m, "wide") == stays
    assert is_open(m, "close")
