"""Every lease ends in bounded time, whatever its Agent reports and whatever the cluster fails to report."""

from __future__ import annotations

import dataclasses
import random

from pycontrol.arbiter.ledger.facts import LeaseEnded
from pycontrol.arbiter.ledger.lease import REVOKING
from pycontrol.model import events as ev
from pycontrol.model.auction import Plan, Snapshot
from pycontrol.model.cluster import Ask, Container
from pycontrol.model.topology import Gpu
from pycontrol.policies.registry import make
from tests.arbiter.mini import SETTINGS, Mini
from tests.policies.scripted import Scripted


def losing() -> tuple[Mini, list[Container]]:
    """App `greedy` runs on all GPUs and is losing them to `victim`."""
    m = Mini()
    containers = m.start_app("greedy", gang=4)
    m.app("victim", gang=4, work=1.0)
    m.run(max(x.end_s for x in m.a.durable.leases.of("greedy")) - m.now - 30)
    assert {x.state for x in m.a.durable.leases.of("greedy")} == {REVOKING}
    return m, containers


def test_an_agent_that_keeps_returning_revoked_gpus_does_not_move_the_deadline() -> None:
    m, (container,) = losing()
    deadline_s = m.a.durable.leases.of("greedy")[0].end_s
    while m.now < deadline_s + 30:
        m.send(ev.GpusReleased("greedy", frozenset(m.held("greedy"))))
        m.run(5)
    assert container.container_id in {k.container_id for k in m.of(ev.Kill)}
    m.send(ev.ContainerGone(container.container_id))
    assert len(m.held("victim")) == 4


def test_a_grant_that_is_not_used_ends_at_its_time_and_no_earlier() -> None:
    m = Mini()
    m.app("a", work=1.0)
    m.run(2)
    (lease,) = m.a.durable.leases.of("a")
    assert lease.unused_since_s is not None
    for left_s, held in ((0.01, 1), (0.0, 0)):
        m.now = lease.unused_since_s + SETTINGS.grant_timeout_s - left_s
        m.send(ev.Tick())
        assert len(m.held("a")) == held


def test_leases_that_are_spread_last_one_length_each() -> None:
    m = Mini(settings=dataclasses.replace(SETTINGS, lease_timing="spread"))
    for name in "ab":
        m.app(name)
        m.run(7)
        (lease,) = m.a.durable.leases.of(name)
        assert m.now - 7 <= lease.end_s - SETTINGS.lease_s <= m.now


def test_gpus_given_back_while_their_container_is_being_placed_stay_leased_until_it_is_gone() -> None:
    m = Mini()
    m.app("thief", gang=4)
    m.run(2)
    gpus = m.held("thief")
    m.use("thief")
    (place,) = m.places()
    m.send(ev.GpusReleased("thief", frozenset(gpus)))
    assert m.held("thief") == gpus
    container = m.up(place)
    m.app("victim", gang=4, work=1.0)
    m.run(SETTINGS.lead + 10)
    assert container.container_id in {k.container_id for k in m.of(ev.Kill)}
    m.send(ev.ContainerGone(container.container_id))
    m.run(10)
    assert len(m.held("victim")) == 4


def test_an_app_that_ends_while_its_container_is_being_placed_leaves_none_behind() -> None:
    m = Mini()
    m.app("gone", gang=4)
    m.run(2)
    m.use("gone")
    (place,) = m.places()
    m.send(ev.AgentDone("gone", True))
    container = m.up(place)
    m.run(1)
    assert [k.container_id for k in m.of(ev.Kill)] == [container.container_id]
    m.send(ev.ContainerGone(container.container_id))
    assert not m.a.durable.leases
    assert m.a.gpus.free.count == 4


def test_a_container_without_leases_is_killed_repeatedly_until_it_is_gone() -> None:
    """For example, it started after its machine was declared lost."""
    m = Mini(nodes=(("n1", 4), ("n2", 4)))
    app = m.app("late", gang=2)
    m.run(2)
    assert len(m.held("late")) == 2
    taken = next(h for h in ("n1", "n2") if Gpu(h, 0) not in m.held("late"))
    stray = Container("stray", app.app_id, f"{taken}:1", (Gpu(taken, 0), Gpu(taken, 1)), "r1.9.0")
    m.send(ev.ContainerUp(stray))
    assert [k.container_id for k in m.of(ev.Kill)] == ["stray"]
    m.run(20)
    assert len(m.of(ev.Kill)) >= 3, "asked for again while it lives"
    m.send(ev.ContainerGone("stray"))
    kills = len(m.of(ev.Kill))
    m.run(20)
    assert len(m.of(ev.Kill)) == kills
    assert m.a.gpus.free.count == 6


def test_a_container_on_fewer_leased_gpus_than_it_has_is_killed() -> None:
    m = Mini()
    m.app("half", gang=2)
    m.run(2)
    gpus = (*sorted(m.held("half")), Gpu("n1", 3))
    m.send(ev.ContainerUp(Container("c", "half", "n1:1", gpus)))
    assert [k.container_id for k in m.of(ev.Kill)] == ["c"]


def test_the_next_owners_plan_does_not_hide_a_container_that_is_being_placed() -> None:
    """The GPU's lease ends only when that container is gone, or its placement failed."""
    m = Mini(settings=dataclasses.replace(SETTINGS, lead_s=20, grant_timeout_s=100))
    m.app("first", gang=4)
    m.run(2)
    gpus = m.held("first")
    m.use("first")
    (place,) = m.places()
    m.send(ev.GpusReleased("first", frozenset(gpus)))
    m.app("second", gang=4, work=1.0)
    m.run(10)
    assert m.a.holdings.holding("second") == 4
    m.send(ev.UsePlanned("second", "u", (ev.WorkerPlan("w", "j", tuple(sorted(gpus)), 1),)))
    m.run(30)
    assert m.held("first") == gpus
    container = m.up(place)
    m.run(1)
    assert [k.container_id for k in m.of(ev.Kill)] == [container.container_id]
    m.send(ev.ContainerGone(container.container_id))
    assert m.held("second") == gpus


def test_a_placement_that_is_never_answered_is_given_up() -> None:
    m = Mini()
    m.app("a", gang=4)
    m.run(2)
    m.use("a")
    assert len(m.places()) == 1
    m.run(2 * SETTINGS.grant_timeout_s + 5)
    assert not m.held("a") or m.of(ev.SendGrant)[-1].grant.grant_id != m.of(ev.SendGrant)[0].grant.grant_id
    assert "grant not used in time" in {r.reason for r in m.of(ev.SendRevoke)}


def test_a_placement_is_given_up_if_its_container_never_comes() -> None:
    m = Mini()
    m.app("a", gang=4)
    m.run(2)
    m.use("a")
    (place,) = m.places()
    m.send(ev.DirectiveDone(place.directive_id, True, "c-never"))
    m.run(2 * SETTINGS.grant_timeout_s + 5)
    assert "grant not used in time" in {r.reason for r in m.of(ev.SendRevoke)}


def test_the_end_of_a_gang_is_announced_once_per_container() -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 2)))
    containers = m.start_app("a", gang=6)
    assert len(containers) == 2
    m.send(ev.AgentDone("a", True))
    assert sorted(p.container_id for p in m.of(ev.Preempt)) == sorted(c.container_id for c in containers)


def test_an_ask_withdrawn_during_its_placement_frees_the_gpus_when_it_is_refused() -> None:
    m = Mini()
    m.app("a", gang=4)
    m.run(2)
    plan = m.use("a")[0]
    (place,) = m.places()
    m.send(ev.GpusReleased("a", frozenset(plan.gpus)))
    m.send(ev.AskChanged(Ask("a_1", "a", plan.allocation_request_id, 4, 0)))
    m.send(ev.DirectiveDone(place.directive_id, False, "", "attempt a_1 does not ask"))
    assert [f.reason for f in m.facts if isinstance(f, LeaseEnded) for _ in f.gpus] == ["released"] * 4


def lends(s: Snapshot) -> Plan:
    """All its awards end at 1150 s."""
    plan = make("isonomy").decide(s, {}, random.Random(0))
    return dataclasses.replace(plan, awards=tuple(dataclasses.replace(a, until_s=1150.0) for a in plan.awards))


def test_gpus_lent_until_a_time_are_not_held_longer_for_a_start() -> None:
    """The start of its container used to give it a whole lease."""
    m = Mini(Scripted(lends))
    m.start_app("a", gang=4)
    assert {x.end_s for x in m.a.durable.leases.of("a")} == {1150.0}
