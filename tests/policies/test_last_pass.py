"""No round leaves GPUs free that one of its apps wants and could use, under any policy; held GPUs are lent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.auction.placing import place_gang
from pycontrol.auction.round_limits import limits_of
from pycontrol.lab.conformance import decide
from pycontrol.lab.conformance.snapshots import app, snapshot, snapshots
from pycontrol.lab.oef.placers import Placed
from pycontrol.model.auction import AppView, Award, Bid, BidReceipt, Hold, Plan, Snapshot, gang_gpus
from pycontrol.model.topology import Machine, Topology
from pycontrol.policies import registry
from pycontrol.policies.last_pass import last_pass
from pycontrol.policies.oef import Oef
from pycontrol.policies.policy_port import Policy
from tests.arbiter.world import World
from tests.policies.scripted import Scripted
from tests.policies.test_conformance import every_policy

NOBODY: Collection[str] = ()
ONE = Topology.of([Machine("n1", "r", 4), Machine("n2", "r", 4)])


def anywhere(_: str) -> Collection[str]:
    return NOBODY


def idle_and_wanted(plan: Plan, s: Snapshot, closed: Mapping[str, Collection[str]]) -> list[str]:
    """An independent check: for each app, whether one more gang of one type would fit on the free GPUs."""
    left = dict(s.free)
    got = dict.fromkeys((v.app_id for v in s.apps), 0)
    for award in plan.awards:
        for host, n in (pair for gang in award.gangs for pair in gang):
            left[host] -= n
            got[award.app_id] += n
    assert min(left.values(), default=0) >= 0, "more than there is"
    for host, n in (pair for hold in plan.holds for pair in hold.gang):
        left[host] = max(0, left[host] - n)
    found = []
    for v in s.apps:
        rooms = [x.gpus - sum(got[a] for a in x.app_ids) for x in limits_of(s) if v.app_id in x.app_ids]
        room = min([v.demand.gpus - v.retained_gpus - got[v.app_id], *rooms])
        for gpu_type in [v.demand.gpu_type] if v.demand.gpu_type else s.topology.types:
            here = {
                h: n
                for h, n in left.items()
                if n > 0 and s.topology.type_of(h) == gpu_type and h not in closed.get(v.app_id, ())
            }
            fits = place_gang(v.demand.gang_gpus, v.demand.scope, here, s.topology) if v.demand.gang_gpus else None
            if fits and v.demand.gang_gpus <= room:
                found.append(v.app_id)
    return found


def test_a_leftover_goes_to_an_app_that_can_start_there_not_to_one_whose_containers_cannot_move() -> None:
    """The first app, without an Agent, lost its GPU to another one; what is left is of no use to it."""
    fixed = replace(app("fixed", 1, 1, ending_gangs=((("n1", 1),),)), new_gangs_max=0)
    waits = replace(app("waits", 1, 1), submitted_s=fixed.submitted_s + 1)
    s = snapshot(fixed, waits, app("won", 1, 1), free={"n1": 1, "n2": 1}, top=ONE)
    plan = Plan("r", (Award("won", ((("n1", 1),),)),))
    assert {a.app_id: a.gangs for a in last_pass(plan, s, anywhere).awards}["waits"] == ((("n2", 1),),)
    kept = last_pass(replace(plan, awards=()), s, anywhere)
    assert {a.app_id: a.gangs for a in kept.awards}["fixed"] == ((("n1", 1),),), "on its own GPU it stays"


@every_policy
@settings(max_examples=25, deadline=None)
@given(s=snapshots(), data=st.data())
def test_no_wanted_gpu_stays_free(policy: Policy, s: Snapshot, data: st.DataObject) -> None:
    hosts = st.frozensets(st.sampled_from(sorted(s.topology.machines)), max_size=2)
    closed = {v.app_id: data.draw(hosts) for v in s.apps}
    before = decide(policy, s)
    after = last_pass(before, s, lambda a: closed[a])
    assert idle_and_wanted(after, s, closed) == []
    assert last_pass(after, s, lambda a: closed[a]) == after
    for limit in limits_of(s):
        got = sum(gang_gpus(g) for a in after.awards if a.app_id in limit.app_ids for g in a.gangs)
        had = sum(gang_gpus(g) for a in before.awards if a.app_id in limit.app_ids for g in a.gangs)
        assert got <= max(limit.gpus, had)
    kept = {a.app_id: a.gangs for a in before.awards}
    for award in after.awards:
        assert award.gangs[: len(kept.get(award.app_id, ()))] == kept.get(award.app_id, ()), "it takes nothing away"


def give(*apps: AppView, awards: tuple[Award, ...] = (), **more: object) -> dict[str, tuple[object, ...]]:
    plan = Plan("r1", awards, **more)  # type: ignore[arg-type]
    return {a.app_id: a.gangs for a in last_pass(plan, snapshot(*apps, top=ONE), anywhere).awards}


def test_apps_with_the_fewest_gpus_come_first_and_apps_that_paid_last() -> None:
    bids = (BidReceipt("payer", 1.0, 1, paid_gangs=1),)
    apps = [app("payer", 4, 2), app("rich", 4, 3, retained_gpus=4), app("poor", 4, 1)]
    assert give(*apps, bids=bids) == {"poor": ((("n1", 4),),), "rich": ((("n2", 4),),)}
    assert len(give(apps[0], bids=bids)["payer"]) == 2, "nobody else could use them"


def test_a_running_gang_is_kept_before_a_new_one_starts() -> None:
    runs = app("a", 2, 1, ending_gangs=((("n2", 2),),))
    assert give(runs) == {"a": ((("n2", 2),),)}


def test_a_gang_mixes_types_only_if_its_app_says_so() -> None:
    top = Topology.of([Machine("n1", "r", 2, "K80"), Machine("n2", "r", 2, "V100")])
    for mixes in (False, True):
        s = snapshot(app("a", 4, 1, mixes=mixes), top=top)
        assert bool(last_pass(Plan("r1", ()), s, anywhere).awards) is mixes
    s = snapshot(app("b", 2, 1, speedups={"K80": 1.0, "V100": 3.0}), top=top)
    assert last_pass(Plan("r1", ()), s, anywhere).awards[0].gangs == ((("n2", 2),),), "the faster one"


def test_gpus_held_for_a_gang_are_lent_to_other_apps_until_its_deadline() -> None:
    big, small = app("big", 8, 1), app("small", 2, 2)
    hold = Hold("big", (("n1", 4),), 500.0)
    s = replace(snapshot(big, small, free={"n1": 4}, top=ONE), now_s=0.0, lease_s=600.0)
    (award,) = last_pass(Plan("r1", (), holds=(hold,)), s, anywhere).awards
    assert (award.app_id, award.until_s, sum(map(gang_gpus, award.gangs))) == ("small", 500.0, 4)
    late = replace(s, now_s=300.0)
    assert last_pass(Plan("r1", (), holds=(hold,)), late, anywhere).awards == (), "too short for a start"


def test_a_hold_may_name_machines_where_nothing_is_free() -> None:
    """Their GPUs are lent or in use."""
    s = snapshot(app("a", 1, 1), free={"n3": 1})
    plan = last_pass(Plan("r1", (), holds=(Hold("big", (("n1", 4), ("n3", 1)), 10.0),)), s, anywhere)
    assert plan.awards == ()


def test_oef_holds_gpus_for_the_longest_waiting_app_until_a_fixed_time() -> None:
    """Half of its gang's GPUs are free; until its end time has passed, the hold keeps the same end."""
    big = app("big", 8, 1, user="u", work_left_gpu_s=1e6, submitted_s=1000.0 - 20 * 600.0)
    busy = app("busy", 4, 1, user="v", retained_gpus=4, retained_gangs=((("n2", 4),),))
    user = "u (gpu 1)"
    memory = {"deviation": {user: {"gpu": 20.0}}, "seen_s": {user: 900.0}, "at_s": 900.0}
    s = replace(snapshot(big, busy, free={"n1": 4}, top=ONE), now_s=1000.0, lease_s=600.0, memory=memory)
    plan = decide(Oef(), s)
    assert plan.holds == (Hold("big", (("n1", 4),), 1600.0),)
    again = decide(Oef(), replace(s, now_s=1200.0, memory=plan.memory))
    assert again.holds == (Hold("big", (("n1", 4),), 1600.0),)


# ---- in the Arbiter


class Conserving(World):
    """A world that compares each round with the GPUs that are free and wanted right after it."""

    held_to = ""
    rounds = 0

    def check(self) -> None:
        super().check()
        a = self.arbiter
        r = a.receipts[-1] if a.receipts else None
        if r is None or r.round_id == self.held_to or r.outcome is None or a.cluster.recovering_until_s > r.at_s:
            return
        if any(x.app_id not in a.durable.live for x in r.done.awards):
            return  # it ended during the round: the next round gives away its award
        self.held_to, self.rounds = r.round_id, self.rounds + 1
        # GPUs that became free after the offer belong to the next round.
        free = {h: min(n, r.offered.get(h, 0)) for h, n in r.done.unused_gpus.items()}
        for host, n in (pair for hold in r.done.holds for pair in hold.gang):
            free[host] = free.get(host, 0) - n
        free = {h: n for h, n in free.items() if n > 0}
        for app_id, agent in a.agents.items():
            here = app_id in a.durable.live and app_id not in r.out and agent.connected
            if not here or a.durable.apps[app_id].arrived_s > r.at_s - 1.0:
                continue
            d = agent.demand
            wants = d.gang_gpus > 0 and d.gpus - a.holdings.holding(app_id) >= d.gang_gpus
            fits = place_gang(d.gang_gpus, d.scope, free, a.holdings.topology) if wants else None
            assert fits is None, f"{r.policy} leaves {free} free, and {app_id} could use them"


ARBITRATED: list[Policy] = [*map(registry.make, registry.names()), Placed(Oef(), "paper"), Scripted()]


@pytest.mark.parametrize("policy", ARBITRATED, ids=[*registry.names(), "oef-paper", "stubborn"])
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_no_round_of_the_arbiter_leaves_wanted_gpus_free(policy: Policy, data: st.DataObject) -> None:
    """Some Agents bid for nothing, for example because a start costs more than a lease; all may be in the auction."""
    timing = data.draw(st.sampled_from(["aligned", "spread"]))
    f = data.draw(st.sampled_from([0.0, 0.8]))
    w = Conserving(policy, data.draw(st.integers(0, 99)), lease_timing=timing, f=f)
    for k in range(data.draw(st.integers(2, 5))):
        gang, gangs = data.draw(st.sampled_from([1, 2, 3, 4, 6])), data.draw(st.integers(1, 4))
        agent = w.add_app(f"a{k}", gang, gangs, data.draw(st.sampled_from([60, 200])))
        if data.draw(st.booleans()):
            agent.bid = lambda e, agent=agent: Bid(agent.app_id, agent.rho(0, e.contention))  # type: ignore[method-assign]
        w.wait(data.draw(st.sampled_from([0.1, 10.0, 40.0])))
    w.wait(300.0)
    assert w.rounds
