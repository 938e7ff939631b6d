"""The Arbiter in a `World`: invariants of every run, and each course of a lease."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pycontrol.arbiter.ledger.facts import AllocationChanged
from pycontrol.arbiter.ledger.lease import Reservation
from pycontrol.model import events as ev
from pycontrol.model.cluster import Node
from pycontrol.model.reasons import SENTENCES
from pycontrol.policies import registry
from tests.arbiter.fake_agent import FakeAgent
from tests.arbiter.mixes import BAD_GPUS, SOMETIMES_S, plan
from tests.arbiter.world import TROUBLES, World


def world(**changes: object) -> World:
    return World("themis", **{"f": 0.0, **changes})


def test_a_malformed_bid_costs_the_round_and_is_named() -> None:
    w = world()
    app = w.add_app("bad", 2, 2, 100)
    w.do_SendOffer = lambda e: w.at(  # type: ignore[method-assign]
        0.01, lambda: w.submit(ev.BidReceived(e.app_id, e.round_id, None, "rho is nan"))
    )
    w.run(20)
    assert not app.held
    assert w.why("bad") == "BadBid"


def test_agents_hear_of_new_machines_but_not_of_those_that_come_back() -> None:
    w = world()
    app = w.add_app("app1", 2, 12, 2000)
    w.run(20)
    w.lose_node("n1")
    w.node_back("n1")
    assert app.topologies == 0
    w.nodes["n5:1"] = Node("n5:1", "n5", "c", 2)
    w.submit(ev.NodeUp(w.nodes["n5:1"]))
    w.run(21)
    assert app.topologies == 1
    assert w.arbiter.cluster.machines.known.machines["n5"].rack == "c"
    w.run(60)
    assert {g.host for g in app.held} == {"n1", "n2", "n3", "n4", "n5"}


def test_the_time_from_a_grant_to_training_is_measured_once_per_launch() -> None:
    w = world()
    agent = w.add_app("app1", 4, 1, 4000)

    def measured(step: int, after_s: float) -> list[float]:
        w.wait(after_s)
        launches = agent.launches["j0"]
        job = ev.JobProgress("j0", "running", step, launches=launches)
        w.submit(ev.ProgressReported("app1", agent.demand(), (job,)))
        return [f.seconds for f in w.journal if isinstance(f, AllocationChanged)]

    w.run(8)
    assert measured(0, 0) == []
    (seconds,) = measured(1, 2)
    assert 2 < seconds < 10
    w.crash()
    assert measured(20, 3) == measured(21, 3) == [seconds], "not again after a restart"


@pytest.mark.parametrize("verb", ["drain", "undrain", "pause", "resume", "kill"])
def test_operator_commands_on_an_empty_cluster_change_no_lease(verb: str) -> None:
    w = world()
    w.submit(ev.OperatorCommand(verb, "nothing", "root"))
    w.run(10)
    assert not w.arbiter.durable.leases


def test_leases_of_a_machine_end_together() -> None:
    w = world(lease_timing="machine")
    w.add_app("first", 1, 6, 300)
    w.run(20)
    w.add_app("second", 1, 6, 300)
    w.run(60)
    for host in ("n1", "n2", "n3", "n4"):
        ends = {x.end_s for g, x in w.arbiter.durable.leases.items() if g.host == host and x.state == "active"}
        assert len(ends) <= 1, (host, ends)


def test_uncontested_leases_stay_open_until_another_app_wants_them() -> None:
    w = world(open_leases=True)
    early = w.add_app("early", 4, 3, 800)
    w.run(150)
    assert {x.end_s for x in w.arbiter.durable.leases.values()} == {math.inf}
    assert len(w.arbiter.receipts) == 1, "no round is held for nobody"
    late = w.add_app("late", 4, 3, 800)
    w.run(220)
    assert late.held
    w.run(3000)
    assert early.finished
    assert late.finished


@pytest.mark.parametrize("policy", ["themis", "isonomy"])
def test_an_app_that_returns_everything_does_not_cause_endless_rounds(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = World(policy, f=0.0)
    fussy = w.add_app("fussy", 2, 2, 100)

    def give_back(agent: FakeAgent) -> None:
        given, agent.held = frozenset(agent.held), set()
        w.submit(ev.GpusReleased(agent.app_id, given))

    with monkeypatch.context() as m:
        m.setattr(w, "use", give_back)
        w.run(300)
    assert 5 < len(w.arbiter.receipts) < 30
    w.run(600)
    assert fussy.finished


def test_a_lease_that_no_round_can_move_does_not_cause_endless_rounds() -> None:
    w = world(last_pass=False)  # else it would renew leases that no other app can have
    w.add_app("early", 1, 12, 800)
    w.run(20)
    w.add_app("late", 1, 12, 800)
    durable = w.arbiter.durable
    for gpu, lease in durable.leases.items():  # the holder is also the next owner
        durable.reservations[gpu] = Reservation((gpu,), lease.app_id, "broken", lease.granted_s, lease.end_s)
    w.arbiter.settings = dataclasses.replace(w.settings, validate=False)
    at_s, rounds = w.now, len(w.arbiter.receipts)
    w.run(200)
    assert any(x.end_s < w.now for x in durable.leases.values()), "all were renewed: this tests nothing"
    assert len(w.arbiter.receipts) - rounds < 2 * (w.now - at_s) / w.settings.round_retry_s


@settings(max_examples=100, deadline=None)
@given(
    policy=st.sampled_from(registry.names()),
    seed=st.integers(0, 10_000),
    apps=st.lists(
        st.tuples(st.sampled_from([1, 2, 4, 6]), st.integers(1, 5), st.integers(20, 400), st.integers(0, 90)),
        min_size=1,
        max_size=4,
    ),
    foreign=st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3)), max_size=1),
    terms=st.fixed_dictionaries(
        {
            "f": st.sampled_from([0.0, 0.5, 0.8]),
            "lease_timing": st.sampled_from(["aligned", "machine", "spread"]),
            "open_leases": st.booleans(),
        }
    ),
    troubles=st.lists(st.tuples(st.floats(3, 150), st.sampled_from(TROUBLES)), max_size=6),
    crash_s=SOMETIMES_S,
    lost_s=SOMETIMES_S,
    bad=BAD_GPUS,
)
@example(  # a lease that is idle when its round decides is free immediately, and was given to the gang of four twice
    policy="themis",
    seed=0,
    apps=[(1, 1, 20, 0), (1, 4, 20, 22), (4, 2, 41, 34)],
    foreign=[],
    terms={"f": 0.0},
    troubles=[],
    crash_s=None,
    lost_s=None,
    bad=[],
)
def test_under_any_policy_all_apps_finish_whatever_goes_wrong_and_no_gpu_is_ever_in_two_containers(
    policy: str,
    seed: int,
    apps: list[tuple[int, int, int, int]],
    foreign: list[tuple[int, int]],
    terms: dict[str, object],
    troubles: list[tuple[float, str]],
    crash_s: int | None,
    lost_s: int | None,
    bad: list[tuple[int, str, int]],
) -> None:
    w = World(policy, seed, **terms)
    plan(w, [("root.q", *app) for app in apps], crash_s, lost_s)
    for i, (gpus, count) in enumerate(foreign):
        w.at(30, lambda i=i, g=gpus, c=count: w.add_foreign(f"shell{i}", g, c))
        w.at(400, lambda i=i: w.end_app(f"shell{i}"))
    w.troubles(troubles)
    w.marks(bad)
    w.run(5000)
    assert [a.app_id for a in w.agents.values() if not a.finished] == [], w.history[-40:]
    assert not w.arbiter.durable.leases
    assert not w.arbiter.durable.reservations
    for app_id in w.agents:
        assert w.why(app_id) in SENTENCES
