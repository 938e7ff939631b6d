"""No app's numbers, asks or clock stop the others' rounds or make them expensive."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

import pytest

from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import Bid, Plan, Snapshot
from pycontrol.model.cluster import Ask
from pycontrol.model.topology import Gpu
from pycontrol.policies import registry
from pycontrol.policies.tiresias import Tiresias
from pycontrol.queries.pending_reasons import reason
from tests.arbiter.mini import Mini


@pytest.mark.parametrize("policy", registry.names())
@pytest.mark.parametrize("huge", [(1, 1 << 20), (8, 1 << 20), (1 << 20, 1 << 20)])
def test_an_enormous_demand_costs_no_more_than_the_clusters_size(policy: str, huge: tuple[int, int]) -> None:
    m = Mini(policy, nodes=[(f"n{k}", 4) for k in range(4)])
    for k in range(3):
        m.app(f"honest{k}", gang=2, user=f"u{k}")
    m.app("liar", *huge, user="mallory")
    m.rho["liar"] = 9.0
    begin_s = time.thread_time()
    m.run(20, step=2)
    assert time.thread_time() - begin_s < 10
    assert not m.problems
    demands = [v.demand for e in m.of(ev.Solve) for v in e.snapshot.apps]
    assert demands
    assert all(d.gpus <= 16 for d in demands)
    assert len(m.a.durable.leases) >= 6


@pytest.mark.parametrize("policy", ["oef", "gavel", "gandiva_fair"])
@pytest.mark.parametrize("speedups", [{"gpu": 1e300}, {"gpu": 1e-12, "x": 1.0}, {"gpu": 5e-324}])
def test_enormous_speeds_stop_nobody_elses_rounds(policy: str, speedups: Mapping[str, float]) -> None:
    m = Mini(policy, nodes=(("n1", 4), ("n2", 4)))
    for k in range(3):
        m.app(f"honest{k}", gangs=2, user=f"u{k}")
    m.app("liar", 1, 2, user="mallory", speedups=speedups)
    m.run(55)
    assert sum(len(m.held(f"honest{k}")) for k in range(3)) == 6


class Brittle(Tiresias):
    """A policy that fails when app `liar` takes part."""

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        if any(v.app_id == "liar" for v in snapshot.apps):
            raise ZeroDivisionError("float division by zero")
        return super().decide(snapshot, bids, rng)


def test_an_app_that_makes_the_policy_fail_is_excluded_and_gets_the_reason() -> None:
    m = Mini(Brittle(), nodes=(("n1", 4),))
    m.app("liar")
    m.app("honest")
    m.run(30)
    assert len(m.held("honest")) == 1
    assert len(m.problems) == 1, "it is not tried again in each round"
    said = reason(m.a, "liar", m.now)
    assert (said.code, "float division by zero" in said.sentence) == ("BadReport", True)
    m.send(ev.AppRemoved("liar", "KILLED"))
    assert not m.a.rounds.candidates.aside


@pytest.mark.parametrize("policy", registry.names())
def test_an_app_submitted_in_the_future_by_the_resource_managers_clock_stops_nobody(policy: str) -> None:
    m = Mini(policy, Settings(lease_s=600, recovery_s=0, f=0.0))
    m.foreign("ahead", 1, submitted_s=m.now + 5000)
    m.app("honest")
    m.run(120)
    assert not m.problems
    assert (len(m.held("honest")), len(m.held("ahead"))) == (1, 1)


def test_any_number_of_asks_is_counted_not_copied() -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)))
    begin_s = time.thread_time()
    m.foreign("many", 4, count=2**31 - 1)
    m.run(5)
    assert time.thread_time() - begin_s < 5
    assert len(m.held("many")) == 8
    assert m.a.durable.apps["many"].demand_gpus <= 8


def test_the_cost_of_thousands_of_asks_is_linear() -> None:
    m = Mini()
    m.foreign("f", 4)

    def cost_s(first: int, n: int) -> float:
        begin_s = time.thread_time()
        for k in range(first, first + n):
            m.a.handle(ev.AskChanged(Ask("f_1", "f", k, 4, 1)), m.now)
        return time.thread_time() - begin_s

    few, many = cost_s(1, 500), cost_s(501, 4000)
    assert many < 40 * max(few, 0.02), "linear is 8 times as much"


def test_an_ask_for_no_gpus_is_ignored() -> None:
    m = Mini()
    m.foreign("none", 0)
    m.run(2)
    assert len(m.a.cluster.asks) == 0
    assert Gpu("n1", 0) in set(m.a.gpus.free)
