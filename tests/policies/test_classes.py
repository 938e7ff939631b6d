"""Priorities under policies that hold auctions: one decision for each priority, the highest first."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.lab.conformance.snapshots import CLUSTER, app, snapshot, snapshots
from pycontrol.model.auction import AppView, Bid, BidRow, Hold, Plan, Snapshot, gang_gpus
from pycontrol.model.topology import Scope
from pycontrol.policies.classes import in_classes
from pycontrol.policies.policy_port import Policy
from pycontrol.policies.registry import make

POLICIES = ("themis", "worst_first")


def bid_of(view: AppView, better: float = 0.5) -> Bid:
    """A bid for one gang and for all its gangs, each of which halves its rho; it keeps its present gangs."""
    rho, size = view.rho or 1.0, view.demand.gang_gpus
    rows = [BidRow(rho * better**k, (), k, size, Scope.CLUSTER) for k in range(1, view.demand.gangs + 1)]
    rows += [BidRow(rho * better, view.ending_gangs)] if view.ending_gangs else []
    return Bid(view.app_id, rho, tuple(rows))


def decided(policy: Policy, s: Snapshot) -> Plan:
    offer = policy.offer(s)
    bids = {v.app_id: bid_of(v) for v in s.apps if offer is not None and v.app_id in offer.app_ids}
    return policy.decide(s, bids, random.Random(1))


def got(plan: Plan, app_id: str) -> int:
    return sum(gang_gpus(g) for a in plan.awards if a.app_id == app_id for g in a.gangs)


@pytest.mark.parametrize("name", POLICIES)
def test_a_higher_priority_is_served_though_its_rho_is_better(name: str) -> None:
    worse = app("worse", 4, 3, rho=100.0, priority=0)
    better = app("better", 4, 2, rho=1.5, priority=2)
    s = replace(snapshot(worse, better, free={"n1": 4, "n2": 4}), f=0.0)
    plan = decided(make(name), s)
    assert (got(plan, "better"), got(plan, "worse")) == (8, 0)


@pytest.mark.parametrize("name", POLICIES)
def test_gpus_that_a_higher_priority_leaves_go_to_the_others(name: str) -> None:
    high = app("high", 2, 1, rho=2.0, priority=9)
    low = app("low", 2, 9, rho=3.0)
    plan = decided(make(name), replace(snapshot(high, low, free={"n1": 4, "n3": 2}), f=0.0))
    assert (got(plan, "high"), got(plan, "low")) == (2, 4)


@pytest.mark.parametrize("name", POLICIES)
def test_a_higher_priority_stops_nobody_if_other_gpus_suffice(name: str) -> None:
    """It used to choose among all GPUs on offer, without regard to where lower priorities run."""
    for home in ("n1", "n2"):
        gang = ((home, 4),)
        low = app("low", 4, 1, rho=3.0, ending_gangs=(gang,))
        high = app("high", 4, 1, rho=2.0, priority=9)
        plan = decided(make(name), replace(snapshot(high, low, free={"n1": 4, "n2": 4}), f=0.0))
        gangs = {a.app_id: a.gangs for a in plan.awards}
        assert gangs["low"] == (gang,)
        assert gangs["high"] != (gang,)


def test_the_worst_of_each_priority_are_offered_the_pool() -> None:
    apps = [app(f"a{k}", rho=float(k), priority=k % 2) for k in range(1, 9)]
    offer = make("themis").offer(replace(snapshot(*apps), f=0.5))
    assert offer is not None
    assert offer.app_ids == ("a7", "a5", "a8", "a6")


def test_one_priority_is_one_decision() -> None:
    calls: list[Snapshot] = []

    def decide(s: Snapshot, _: object) -> Plan:
        calls.append(s)
        return Plan("r1", ())

    s = snapshot(app("a", priority=3), app("b", priority=3))
    in_classes(decide, s, {})
    assert calls == [s]


def test_lower_priorities_get_the_memory_of_the_higher_and_nothing_that_is_held_for_it() -> None:
    seen: list[Snapshot] = []

    def decide(s: Snapshot, _: object) -> Plan:
        seen.append(s)
        app_id = s.apps[0].app_id
        return Plan("r1", (), memory={**s.memory, app_id: 1}, holds=(Hold(app_id, (("n1", 3 - len(seen)),), 9.0),))

    s = snapshot(app("high", priority=3), app("low"), free={"n1": 4})
    plan = in_classes(decide, replace(s, memory={"before": 1}), {})
    assert [x.free for x in seen] == [{"n1": 4}, {"n1": 2}]
    assert plan.memory == {"before": 1, "high": 1, "low": 1}
    assert [hold.app_id for hold in plan.holds] == ["high", "low"]


@settings(max_examples=150, deadline=None)
@given(snapshots(), st.data(), st.sampled_from(POLICIES))
def test_priorities_together_give_no_gpu_twice_and_keep_all_limits(s: Snapshot, data: st.DataObject, name: str) -> None:
    levels = [data.draw(st.integers(0, 2)) for _ in s.apps]
    views = tuple(replace(v, priority=p, rho=v.rho or 1.0) for v, p in zip(s.apps, levels, strict=True))
    s = replace(s, apps=views)
    plan = decided(make(name), s)
    taken: dict[str, int] = {}
    for award in plan.awards:
        for gang in award.gangs:
            for host, n in gang:
                taken[host] = taken.get(host, 0) + n
    assert all(n <= s.free.get(host, 0) for host, n in taken.items())
    for v in views:
        assert got(plan, v.app_id) <= max(0, v.demand.gpus - v.retained_gpus)
    for name in {name for v in views for name in v.rooms}:
        mine = [v for v in views if name in v.rooms]
        ending = {v.app_id: sum(map(gang_gpus, v.ending_gangs)) for v in mine}
        room = min(v.rooms[name] - ending[v.app_id] for v in mine) + sum(ending.values())
        assert sum(got(plan, v.app_id) for v in mine) <= max(0, room)
    assert CLUSTER.gpus >= sum(taken.values())
