"""Which apps avoid a machine that refuses: the table, and apps that are served elsewhere."""

from __future__ import annotations

import dataclasses

import pytest

from pycontrol.arbiter.views.workers import AVOIDED_MAX_S, AVOIDED_S, REFUSALS, REFUSED_S, Refusals
from pycontrol.model import events as ev
from pycontrol.policies import registry
from pycontrol.queries.pending_reasons import reason
from tests.arbiter.mini import SETTINGS, Mini

STEP_S = REFUSED_S / (REFUSALS - 1)


def refuse(
    r: Refusals, host: str, app_id: str, user: str, at_s: float, times: int = REFUSALS, machine_at_fault: bool = True
) -> float:
    """Records some refusals in a row and returns the time of the last."""
    for k in range(times):
        r.refused(host, app_id, user, "too little memory", at_s + k * STEP_S, machine_at_fault)
    return at_s + (times - 1) * STEP_S


def test_an_app_avoids_a_machine_after_some_refusals_in_a_row() -> None:
    r = Refusals()
    refuse(r, "n1", "a", "u", 0.0, REFUSALS - 1)
    assert not r.avoided("a")
    assert r.refused("n1", "a", "u", "too little memory", REFUSED_S)
    assert r.avoided("a") == {"n1": "too little memory"}
    assert not r.avoided("b")
    assert not r.closed()
    assert r.next_end_s() == REFUSED_S + AVOIDED_S


def test_refusals_in_quick_succession_do_not_count() -> None:
    r = Refusals()
    assert not any(r.refused("n1", "a", "u", "busy", 0.1 * k) for k in range(3 * REFUSALS))


def test_a_started_container_resets_the_refusals() -> None:
    r = Refusals()
    last_s = refuse(r, "n1", "a", "u", 0.0, REFUSALS - 1)
    r.placed("n1", "a")
    assert len(r) == 0
    assert not r.refused("n1", "a", "u", "x", last_s + STEP_S)


def test_each_time_the_app_avoids_the_machine_twice_as_long() -> None:
    r = Refusals()
    now_s, spans = refuse(r, "n1", "a", "u", 0.0), []
    for _ in range(7):
        end_s = r.next_end_s()
        assert end_s is not None
        spans.append(end_s - now_s)
        assert not r.lapse(end_s - 1)
        assert r.lapse(end_s)
        assert not r.avoided("a")
        assert r.refused("n1", "a", "u", "x", end_s), "one more is enough"
        now_s = end_s
    assert spans[:4] == [AVOIDED_S, 2 * AVOIDED_S, 4 * AVOIDED_S, 8 * AVOIDED_S]
    assert max(spans) == AVOIDED_MAX_S


@pytest.mark.parametrize(("users", "closed"), [(["u", "u", "u"], False), (["u", "v"], True)])
def test_a_machine_is_closed_where_it_refuses_apps_of_several_users(users: list[str], closed: bool) -> None:
    r = Refusals()
    for k, user in enumerate(users):
        refuse(r, "n1", f"a{k}", user, 0.0)
    assert bool(r.closed()) == closed
    assert r.placed("n1", "other") == closed
    assert not r.closed()


def test_refusals_that_apps_can_bring_about_close_no_machine_to_others() -> None:
    """Such as those of an AM that blacklists every machine, with as many accounts as it likes."""
    r = Refusals()
    for k, user in enumerate("uvw"):
        refuse(r, "n1", f"a{k}", user, 0.0, machine_at_fault=False)
    assert not r.closed()
    assert r.avoided("a0"), "who is refused keeps off itself"
    refuse(r, "n1", "honest", "x", 0.0, machine_at_fault=True)
    assert not r.closed(), "one honest refusal does not make the others honest"


def test_an_app_avoids_a_machine_that_it_excludes_at_its_first_refusal_and_nobody_else_does() -> None:
    r = Refusals()
    for app_id, user in (("a", "u"), ("b", "v")):
        assert r.refused("n1", app_id, user, "blacklisted", 0.0, excluded=True)
        assert r.refused("n1", app_id, user, "blacklisted", 1.0, excluded=True), "each of its gangs leaves"
    assert r.avoided("a") == {"n1": "blacklisted"}
    assert not r.avoided("c")
    assert not r.closed()
    assert r.next_end_s() == AVOIDED_S


def test_refusals_of_ended_apps_and_lost_machines_are_forgotten() -> None:
    r = Refusals()
    refuse(r, "n1", "a", "u", 0.0)
    refuse(r, "n2", "a", "u", 0.0)
    r.forget_app("a")
    assert len(r) == 0
    refuse(r, "n1", "a", "u", 0.0)
    r.forget("n1")
    assert len(r) == 0


def test_a_snapshot_forgets_the_machines_and_apps_that_it_does_not_name() -> None:
    r = Refusals()
    for host, app_id in (("n1", "a"), ("n1", "ended"), ("gone", "a")):
        refuse(r, host, app_id, "u", 0.0)
    r.keep({"n1"}, {"a"})
    assert (len(r), list(r.avoided("a"))) == (1, ["n1"])


# ---- in the Arbiter


def serve(m: Mini, names: list[str], seconds: float, refusing: set[str]) -> None:
    """Agents use their grants; machines in `refusing` refuse."""
    end = m.now + seconds
    while m.now < end:
        m.run(0.5)
        for name in names:
            if m.held(name) and not m.a.workers.of(name):
                m.use(name)
        for place in m.places():
            if place.ask.app_id in names and place.node_id.split(":")[0] in refusing:
                m.send(ev.DirectiveDone(place.directive_id, False, "", "too little memory", machine_at_fault=True))
            else:
                m.up(place)


@pytest.mark.parametrize("policy", registry.names())
def test_an_app_that_a_machine_refuses_is_placed_elsewhere(policy: str) -> None:
    m = Mini(policy, nodes=(("n1", 4), ("n2", 8)))
    m.app("a", gang=4)
    serve(m, ["a"], 400, {"n1"})
    assert {c.node_id for c in m.a.cluster.containers.values()} == {"n2:1"}


@pytest.mark.parametrize("policy", registry.names())
def test_an_app_with_nowhere_else_to_go_does_not_keep_others_from_the_machine(policy: str) -> None:
    """The waiting app has its reason."""
    m = Mini(policy, nodes=(("n1", 4),))
    m.app("a", gang=4, work=1.0, user="u")
    m.rho["a"] = 9.0
    serve(m, ["a"], 100, {"n1"})
    assert not m.held("a")
    m.app("b", gang=4, user="v")
    m.run(10)
    assert len(m.held("b")) == 4, "while a keeps off"
    said = reason(m.a, "a", m.now)
    assert (said.code, "n1: too little memory" in said.sentence) == ("Refused", True)


def test_an_app_that_blacklists_machines_starts_on_the_others_soon_and_has_them_back_once_it_no_longer_does() -> None:
    m = Mini("tiresias", nodes=[(f"n{k}", 2) for k in range(12)])
    m.foreign("spark", 1, 4)
    excluded, started = {f"n{k}" for k in range(11)}, list[str]()

    def run(seconds: float) -> None:
        end = m.now + seconds
        while m.now < end:
            m.run(0.5)
            for place in m.places():
                host = place.gpus[0].host
                if host in excluded:
                    m.send(ev.DirectiveDone(place.directive_id, False, "", "blacklisted", excluded=True))
                else:
                    m.up(place)
                    started.append(host)
                    m.send(ev.AskChanged(dataclasses.replace(place.ask, count=4 - len(started))))

    run(REFUSED_S)
    assert started == ["n11", "n11"]
    excluded.clear()
    run(AVOIDED_S)
    assert len(started) == 4


def test_machines_that_refuse_everybody_are_not_offered_until_they_are_tried_again() -> None:
    m = Mini("tiresias", nodes=(("n1", 4), ("n2", 4)))
    for k in range(2):
        m.app(f"a{k}", gang=4, user=f"u{k}")
    serve(m, ["a0", "a1"], 100, {"n1", "n2"})
    assert m.a.cluster.refusals.closed() == m.a.cluster.closed == {"n1": "too little memory", "n2": "too little memory"}
    assert m.a.gpus.free.count == 0
    serve(m, ["a0", "a1"], 600, set())
    assert not m.a.cluster.closed
    assert all(len(m.held(f"a{k}")) == 4 for k in range(2)), "they take containers again"


def test_a_machine_that_opens_as_it_takes_a_container_is_shared_out_at_once() -> None:
    m = Mini(settings=dataclasses.replace(SETTINGS, lease_s=3600.0), nodes=(("n1", 8),))
    for name in "abc":
        m.foreign(name, 1, user=f"user of {name}")
    m.run(2)
    late = {p.ask.app_id: p for p in m.places()}["c"]
    while not m.a.cluster.closed:
        for name in "ab":
            (*_, place) = (p for p in m.of(ev.Place) if p.ask.app_id == name)
            m.send(ev.DirectiveDone(place.directive_id, False, "", "disk full", True))
        m.run(5)
    m.up(late)
    m.places()
    m.run(10)
    assert {p.ask.app_id for p in m.places()} >= {"a", "b"}


def test_a_node_that_changed_is_tried_immediately() -> None:
    m = Mini("tiresias", nodes=(("n1", 4),))
    m.app("a", gang=4)
    serve(m, ["a"], 60, {"n1"})
    assert m.a.cluster.refusals.avoided("a")
    m.send(ev.NodeUp(dataclasses.replace(m.nodes[0], memory_mb=64_000)))
    m.run(2)
    assert len(m.held("a")) == 4


def test_refusals_of_apps_that_ended_are_forgotten() -> None:
    m = Mini("tiresias", nodes=(("n1", 4),))
    m.app("a", gang=4)
    serve(m, ["a"], 60, {"n1"})
    m.send(ev.AppRemoved("a", "KILLED"))
    assert len(m.a.cluster.refusals) == 0


def test_refusals_of_an_app_that_ended_unseen_are_forgotten_with_the_next_snapshot() -> None:
    m = Mini("tiresias", nodes=(("n1", 4),))
    m.app("a", gang=4)
    serve(m, ["a"], 60, {"n1"})
    m.send(ev.ClusterLost())
    m.send(ev.ClusterSnapshot(True, tuple(m.nodes), (), (), ()))
    assert len(m.a.cluster.refusals) == 0


def test_a_refusal_that_comes_after_its_app_ended_is_not_remembered() -> None:
    m = Mini("tiresias", nodes=(("n1", 4),))
    m.app("a", gang=4)
    m.run(2)
    m.use("a")
    (place,) = m.places()
    m.send(ev.AppRemoved("a", "KILLED"))
    m.send(ev.DirectiveDone(place.directive_id, False, "", "attempt a is not running"))
    assert len(m.a.cluster.refusals) == 0
