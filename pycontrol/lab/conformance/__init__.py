"""The conformance suite for policies, for pytest and hypothesis: what must hold for every policy in any round.

A package with a policy derives a test class from `PolicyConformance` (docs/extending.md):

    class TestFewest(PolicyConformance):
        @pytest.fixture
        def policy(self) -> Policy:
            return Fewest()
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pycontrol.auction.placing import place_gang
from pycontrol.auction.round_limits import limits_of
from pycontrol.lab.conformance.snapshots import app, snapshot, snapshots, truthful_bids
from pycontrol.model.auction import AppView, Gang, Plan, Snapshot, gang_gpus
from pycontrol.policies.filling import Filling
from pycontrol.policies.policy_port import Policy

CHECKS = [HealthCheck.differing_executors, HealthCheck.function_scoped_fixture]
"""Health checks of hypothesis to suppress: each derived class runs the base's tests, and policies are frozen."""


def decide(policy: Policy, s: Snapshot, seed: int = 0) -> Plan:
    """The policy's plan with truthful bids, if it asks for bids; without its solve time, so that plans compare."""
    bids = truthful_bids(s, policy.offer(s))
    return replace(policy.decide(s, bids, random.Random(seed)), solve_s=0.0)


def won(s: Snapshot, plan: Plan) -> dict[str, tuple[Gang, ...]]:
    """App -> its gangs; asserts that each app has at most one award."""
    assert len({a.app_id for a in plan.awards}) == len(plan.awards)
    return {v.app_id: next((a.gangs for a in plan.awards if a.app_id == v.app_id), ()) for v in s.apps}


def renewed(view: AppView, gangs: tuple[Gang, ...]) -> int:
    """The number of gangs that stay where they are."""
    return sum((Counter(view.ending_gangs) & Counter(gangs)).values())


def any_type(s: Snapshot) -> Snapshot:
    """The snapshot with all demands for a GPU type removed."""
    return replace(s, apps=tuple(replace(v, demand=replace(v.demand, gpu_type="")) for v in s.apps))


def check_feasible(s: Snapshot, plan: Plan) -> None:
    """Asserts that awards use only GPUs on offer, each once, in whole gangs within demand, scope, GPU type and queue
    limits."""
    left = dict(s.free)
    gangs_of = won(s, plan)
    assert {a.app_id for a in plan.awards} <= gangs_of.keys()
    for v in s.apps:
        d, gangs = v.demand, gangs_of[v.app_id]
        new = list((Counter(gangs) - Counter(v.ending_gangs)).elements())
        assert sum(map(gang_gpus, gangs)) <= max(0, d.gpus - v.retained_gpus)
        for gang in gangs:
            for host, n in gang:
                left[host] -= n
                assert not d.gpu_type or s.topology.machines[host].gpu_type == d.gpu_type
        for gang in new:
            assert gang_gpus(gang) in d.sizes, "a whole gang"
            assert s.topology.scope_of(h for h, _ in gang) <= d.scope
    assert min(left.values(), default=0) >= 0
    assert {h: n for h, n in left.items() if n} == dict(plan.unused_gpus)
    for limit in limits_of(s):
        assert sum(gang_gpus(g) for a in limit.app_ids for g in gangs_of[a]) <= limit.gpus


def check_work_conserving(s: Snapshot, plan: Plan, bidders: set[str], one_type: bool) -> None:
    """Asserts that no app outside the auction could run another gang on unused GPUs within its limits.

    `one_type`: the policy does not put a gang on GPUs of several types.
    """
    gangs_of = won(s, plan)
    for v in s.apps:
        d, gangs = v.demand, gangs_of[v.app_id]
        limits = [
            limit.gpus - sum(gang_gpus(g) for a in limit.app_ids for g in gangs_of[a])
            for limit in limits_of(s)
            if v.app_id in limit.app_ids
        ]
        room = min([d.gpus - v.retained_gpus - sum(map(gang_gpus, gangs)), *limits])
        if v.app_id in bidders or d.gang_gpus > room:
            continue
        hosts = s.topology.machines
        unused = {h: n for h, n in plan.unused_gpus.items() if d.gpu_type in ("", hosts[h].gpu_type)}
        kinds = {m.gpu_type for m in hosts.values()} if one_type else {""}
        for kind in kinds:
            here = {h: n for h, n in unused.items() if kind in ("", hosts[h].gpu_type)}
            assert place_gang(d.gang_gpus, d.scope, here, s.topology, d.members) is None, f"{v.app_id} could use more"


def check_renewals(s: Snapshot, plan: Plan) -> None:
    """Asserts that no app gets a new gang while the GPUs of one of its ending gangs stay unused."""
    for v in s.apps:
        gangs = won(s, plan)[v.app_id]
        new = list((Counter(gangs) - Counter(v.ending_gangs)).elements())
        for home in (Counter(v.ending_gangs) - Counter(gangs)).elements():
            alike = [g for g in new if gang_gpus(g) == gang_gpus(home)]
            free = all(plan.unused_gpus.get(h, 0) >= n for h, n in home)
            wrong_type = v.demand.gpu_type and any(
                s.topology.machines[h].gpu_type != v.demand.gpu_type for h, _ in home
            )
            assert wrong_type or not (alike and free), f"{v.app_id} restarted without need"


class PolicyConformance:
    """The base class of a policy's conformance tests; a derived class has a fixture `policy`.

    A policy that moves gangs to better places has an attribute `migrates = True`; one that leaves GPUs free rather than
    mix types in a gang has `one_type = True`.
    """

    @pytest.fixture
    def policy(self) -> Policy:
        """The policy under test."""
        raise NotImplementedError("override this fixture with your policy")

    @settings(max_examples=60, deadline=None, suppress_health_check=CHECKS)
    @given(s=snapshots(), seed=st.integers(0, 1 << 20))
    def test_any_plan_is_feasible_repeatable_and_wastes_nothing(self, policy: Policy, s: Snapshot, seed: int) -> None:
        if policy.asks_agents:  # the Agents' bids choose the GPU types
            s = any_type(s)
        before = copy.deepcopy(s)
        plan = decide(policy, s, seed)
        assert plan == decide(policy, s, seed), "the same seed gave another plan"
        assert s == before, "the policy changed the snapshot"
        assert plan.round_id == s.round_id
        check_feasible(s, plan)
        bidders = set(truthful_bids(s, policy.offer(s)))
        check_work_conserving(s, plan, bidders, getattr(policy, "one_type", False))
        if not bidders and not getattr(policy, "migrates", False):
            check_renewals(s, plan)
        if not policy.asks_agents:
            assert policy.offer(s) is None
            assert set(plan.why) == {a.app_id for a in plan.awards}

    @settings(max_examples=30, deadline=None, suppress_health_check=CHECKS)
    @given(s=snapshots())
    def test_an_app_that_nobody_contends_with_stays_where_it_is(self, policy: Policy, s: Snapshot) -> None:
        """One app alone that can use all that it holds: nothing moves."""
        if policy.asks_agents or getattr(policy, "migrates", False):
            pytest.skip("its place depends on its bids, or the policy moves gangs")
        for v in s.apps:
            ending = sum(map(gang_gpus, v.ending_gangs))
            if v.demand.gpu_type or ending > min([v.demand.gpus - v.retained_gpus, *v.rooms.values()]):
                continue
            plan = decide(policy, replace(s, apps=(v,)))
            assert renewed(v, won(replace(s, apps=(v,)), plan)[v.app_id]) == len(v.ending_gangs)

    @pytest.mark.parametrize(
        "s",
        [
            pytest.param(snapshot(app("a"), free={}), id="no GPU on offer"),
            pytest.param(snapshot(app("a"), free={"n1": 0}), id="a host without free GPUs"),
            pytest.param(snapshot(), id="no app"),
            pytest.param(snapshot(app("a", gangs=0)), id="no demand"),
            pytest.param(snapshot(app("a", retained_gpus=2)), id="sated"),
            pytest.param(snapshot(app("a", gang=99)), id="a gang larger than the cluster"),
            pytest.param(snapshot(app("a", rooms={"queue root.q": 0})), id="a queue at its limit"),
            pytest.param(snapshot(app("a", gpu_type="TPU")), id="a GPU type that the cluster lacks"),
        ],
    )
    def test_no_gpu_is_awarded_where_none_can_be(self, policy: Policy, s: Snapshot) -> None:
        if policy.asks_agents and any(v.demand.gpu_type for v in s.apps):
            pytest.skip("the Agents' bids choose the GPU types")
        plan = decide(policy, s)
        assert plan.awards == ()
        assert sum(plan.unused_gpus.values()) == sum(s.free.values())

    def test_an_app_whose_rho_is_not_known_is_served_too(self, policy: Policy) -> None:
        plan = decide(policy, snapshot(app("a", rho=None)))
        assert sum(map(gang_gpus, plan.awards[0].gangs)) == 2

    def test_the_order_of_the_apps_does_not_change_the_plan(self, policy: Policy) -> None:
        if not isinstance(policy, Filling) or getattr(policy, "ties", "") == "random":
            pytest.skip("draws among equals")
        s = snapshot(*(app(f"a{i}", 2, 2) for i in range(5)), free={"n1": 4, "n2": 2})
        assert won(s, decide(policy, s)) == won(s, decide(policy, replace(s, apps=s.apps[::-1])))
