"""Policies by shares in rounds: the types that apps get, renewals in place, memory, explanations."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.lab.conformance.snapshots import app, snapshot
from pycontrol.lab.oef.placers import Placed
from pycontrol.lab.policies.gandiva_fair import GandivaFair
from pycontrol.lab.policies.gavel import Gavel
from pycontrol.lab.shares.gavel_shares import Objective
from pycontrol.model.auction import BOOSTED, AppView, Gang, Plan, Snapshot, gang_gpus
from pycontrol.model.cluster import Queue
from pycontrol.model.topology import Machine, Topology
from pycontrol.policies.oef import Oef
from pycontrol.policies.sharing import Shared, Sharing
from pycontrol.shares.problem import ShareProblem

TOP = Topology.of([Machine(f"{t.lower()}-{i}", "r", 4, t) for t in ("K80", "V100") for i in range(2)])
EVERY: tuple[Sharing, ...] = (Oef(), Oef(mode="noncooperative"), GandivaFair(), Gavel(), Gavel(objective="max_min"))


def tenant_app(app_id: str, user: str, fast: float, gang: int = 1, gangs: int = 8, **more: object) -> AppView:
    """An app whose speed on a V100 is `fast`."""
    return app(app_id, gang, gangs, user=user, speedups={"K80": 1.0, "V100": fast}, **more)


class Rounds:
    """Plays rounds at whose ends all leases end, and passes the memory through JSON as the journal does."""

    def __init__(self, policy: Sharing, *apps: AppView, top: Topology = TOP) -> None:
        self.policy, self.apps, self.top = policy, apps, top
        self.memory: dict[str, object] = {}
        self.held: dict[str, tuple[Gang, ...]] = {}
        self.now_s = 0.0
        self.total: dict[str, Counter[str]] = {v.app_id: Counter() for v in apps}
        self.moved = 0

    def snapshot(self) -> Snapshot:
        """The snapshot of the next round."""
        views = [replace(v, ending_gangs=self.held.get(v.app_id, ())) for v in self.apps]
        present = frozenset(v.app_id for v in self.apps)
        return replace(snapshot(*views, top=self.top), memory=self.memory, now_s=self.now_s, present=present)

    def step(self) -> Plan:
        """Plays one round."""
        plan = self.policy.decide(self.snapshot(), {}, random.Random(0))
        self.memory = json.loads(json.dumps(plan.memory))
        now = {a.app_id: a.gangs for a in plan.awards}
        for app_id, gangs in now.items():
            kept = sum((Counter(gangs) & Counter(self.held.get(app_id, ()))).values())
            self.moved += min(len(gangs), len(self.held.get(app_id, ()))) - kept
            for host, n in (pair for gang in gangs for pair in gang):
                self.total[app_id][self.top.machines[host].gpu_type] += n
        self.held = now
        self.now_s += 600.0
        return plan

    def run(self, rounds: int) -> Plan:
        """Plays this many rounds."""
        for _ in range(rounds):
            plan = self.step()
        return plan


def test_gpus_converge_to_the_shares_of_the_programme() -> None:
    """The paper's example, eight GPUs of each type: u1 gets 8 and 2, u2 gets 0 and 6."""
    world = Rounds(Oef(), tenant_app("a", "u1", 2.0, gangs=16), tenant_app("b", "u2", 5.0, gangs=16))
    world.run(10)
    assert world.total == {"a": {"K80": 80, "V100": 20}, "b": {"V100": 60}}
    assert world.moved == 0


@pytest.mark.parametrize("policy", EVERY, ids=lambda p: f"{p.name}-{list(vars(p).values())[-1]}")
def test_fractional_shares_are_met_over_rounds(policy: Sharing) -> None:
    apps = [tenant_app(f"a{i}", f"u{i}", 1.2 + i, gangs=16) for i in range(3)]
    world = Rounds(policy, *apps)
    world.run(60)
    problem = ShareProblem.of([[1.0, 1.2 + i] for i in range(3)], [8, 8], None, [16.0] * 3)
    ideal = policy.scheme().shares(problem)
    for view, row in zip(apps, ideal, strict=True):
        got = [world.total[view.app_id][t] / 60 for t in ("K80", "V100")]
        assert got == pytest.approx(row, abs=0.2), view.app_id


def test_a_gang_has_one_type_and_stays() -> None:
    """Each tenant can use exactly its share: all GPUs of one type."""
    world = Rounds(Oef(mode="noncooperative"), tenant_app("a", "u1", 1.0, 4, 2), tenant_app("b", "u2", 1.0, 4, 2))
    for _ in range(12):
        world.step()
        for gangs in world.held.values():
            assert all(len({TOP.machines[h].gpu_type for h, _ in g}) == 1 for g in gangs)
    assert world.moved == 0
    assert sum(gang_gpus(g) for gangs in world.held.values() for g in gangs) == 16


@pytest.mark.parametrize("policy", EVERY, ids=lambda p: f"{p.name}-{list(vars(p).values())[-1]}")
def test_boosted_gangs_take_turns_as_others_do(policy: Sharing) -> None:
    """A class of apps served before others was forgotten after each round, so the second gang never was the first."""
    apps = [tenant_app(f"a{k}", f"u{k}", 1.0, 16, 1, priority=BOOSTED) for k in range(2)]
    world = Rounds(policy, *apps, tenant_app("other", "u1", 1.0))
    world.run(60)
    turns = [world.total[v.app_id].total() / 16 for v in apps]
    assert min(turns) >= 20, turns


def test_no_app_waits_forever() -> None:
    """Gangs of 4 and of 1 of many tenants on two hosts of four."""
    apps = [tenant_app(f"a{i}", f"u{i % 3}", 1.5, 4 if i % 2 else 1, 2) for i in range(9)]
    world = Rounds(Oef(patience=4.0), *apps)
    waits = dict.fromkeys(world.total, 0)
    for _ in range(80):
        world.step()
        for app_id in waits:
            waits[app_id] = 0 if app_id in world.held else waits[app_id] + 1
            assert waits[app_id] <= 20


def test_a_tenant_with_several_apps_has_one_tenants_share() -> None:
    apps = [tenant_app(f"a{i}", "many", 2.0, gangs=16) for i in range(3)] + [tenant_app("b", "one", 2.0, gangs=16)]
    world = Rounds(Oef(), *apps)
    world.run(20)
    assert sum(world.total["b"].values()) / 20 == pytest.approx(8, abs=0.2)
    by_app = Rounds(Oef(tenant="app"), *apps)
    by_app.run(20)
    assert sum(by_app.total["b"].values()) / 20 == pytest.approx(4, abs=0.2)


def test_weights_and_capacities_count() -> None:
    apps = tenant_app("a", "u1", 2.0, gangs=16, queue="root.a"), tenant_app("b", "u2", 2.0, gangs=16, queue="root.b")
    world = Rounds(Oef(weights={"u1": 3.0}), *apps)
    world.run(20)
    assert sum(world.total["a"].values()) / 20 == pytest.approx(12, abs=0.2)
    s = replace(snapshot(*apps, top=TOP), queues={"root.a": Queue("root.a", 0.25), "root.b": Queue("root.b", 0.75)})
    plan = Oef(tenant="queue").decide(s, {}, random.Random(0))
    assert {a.app_id: sum(map(gang_gpus, a.gangs)) for a in plan.awards} == {"a": 4, "b": 12}
    for policy in (Oef(tenant="queue"), Oef("queue", mode="noncooperative"), Gavel("queue"), GandivaFair("queue")):
        for wants, due in ((16, [16, 0]), (6, [6, 10])):
            s = snapshot(replace(apps[0], demand=replace(apps[0].demand, gangs=wants)), apps[1], top=TOP)
            s = replace(s, queues={"root.a": Queue("root.a", 1.0), "root.b": Queue("root.b", 0.0)})
            shares = Shared(policy, s).shares.values()
            assert [sum(x.values()) for x in shares] == pytest.approx(due, abs=1e-3), "capacity 0: what others leave"


def test_an_app_that_asks_for_a_type_gets_that_type() -> None:
    world = Rounds(Oef(), tenant_app("a", "u1", 3.0, gpu_type="K80"), tenant_app("b", "u2", 2.0))
    world.run(5)
    assert set(world.total["a"]) == {"K80"}


def test_why_says_type_share_deviation_and_speedup() -> None:
    plan = Rounds(Oef(), tenant_app("a", "u1", 2.0, gangs=16), tenant_app("b", "u2", 5.0, gangs=16)).step()
    assert plan.why["b"] == "u2: V100: due to its tenant; share 6.00 of 8, deviation before +0.00, speedup 5"


def between(world: Rounds, part: float) -> Snapshot:
    """A round within the lease, where nothing ends and nothing is free: only apps that want more take part."""
    apps = [
        replace(v, retained_gangs=held, retained_gpus=sum(map(gang_gpus, held)))
        for v in world.apps
        for held in (world.held.get(v.app_id, ()),)
        if sum(map(gang_gpus, held)) < v.demand.gpus
    ]
    now_s = world.now_s - 600.0 * (1 - part)
    return replace(world.snapshot(), free={}, apps=tuple(apps), now_s=now_s)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 2, 4]), st.integers(1, 4)), min_size=2, max_size=6),
    st.lists(st.lists(st.floats(0.01, 0.99), max_size=3).map(sorted), min_size=6, max_size=6),
    st.sampled_from(EVERY),
)
@settings(deadline=None)
def test_what_is_due_does_not_depend_on_how_many_rounds_were_held(
    asked: list[tuple[int, int, int]], extra: list[list[float]], policy: Sharing
) -> None:
    apps = [tenant_app(f"a{i}", f"u{u}", 1.2 + u, gang, gangs) for i, (u, gang, gangs) in enumerate(asked)]
    plain, busy = Rounds(policy, *apps), Rounds(policy, *apps)
    for parts in extra:
        assert plain.step().awards == busy.step().awards
        for part in parts:
            plan = policy.decide(between(busy, part), {}, random.Random(0))
            assert plan.awards == ()
            busy.memory = json.loads(json.dumps(plan.memory))


def test_only_the_papers_placer_mixes_types_and_leaves_gpus_idle() -> None:
    apps = tenant_app("a", "u1", 2.0, 4, 2), tenant_app("b", "u2", 2.0, 4, 2), tenant_app("c", "u3", 2.0, 4, 2)
    mixed, used = {"whole": 0, "paper": 0}, {"whole": 0, "paper": 0}
    for placer in mixed:
        world = Rounds(Placed(Oef(), placer), *apps)  # type: ignore[arg-type]
        for _ in range(30):
            world.step()
            gangs = [g for own in world.held.values() for g in own]
            mixed[placer] += sum(len({TOP.machines[h].gpu_type for h, _ in g}) > 1 for g in gangs)
            used[placer] += sum(map(gang_gpus, gangs))
    assert mixed["whole"] == 0
    assert mixed["paper"] > 0
    assert used["paper"] < used["whole"] == 30 * 16


def test_shares_are_met_by_the_papers_placer_too() -> None:
    world = Rounds(Placed(Oef(), "paper"), tenant_app("a", "u1", 2.0, gangs=16), tenant_app("b", "u2", 5.0, gangs=16))
    world.run(10)
    assert world.total == {"a": {"K80": 80, "V100": 20}, "b": {"V100": 60}}
    assert world.moved == 0


def test_the_papers_placer_decides_once_a_lease() -> None:
    """Between two leases it gives nothing and keeps its memory, so that idle GPUs cause no restarts."""
    policy = Placed(Oef(), "paper")
    rounds = Rounds(policy, tenant_app("a", "u1", 2.0, gang=4), tenant_app("b", "u2", 5.0, gang=4))
    assert rounds.step().awards
    early = replace(rounds.snapshot(), now_s=rounds.now_s - 300.0)
    early = replace(early, apps=tuple(replace(v, ending_gangs=()) for v in early.apps))
    plan = policy.decide(early, {}, random.Random(0))
    assert not plan.awards
    assert plan.memory == early.memory


@pytest.mark.parametrize("placer", ["priority", "unpacked"])
def test_a_share_below_a_gang_runs_it_now_and_then(placer: str) -> None:
    """The share is a fifth of 16 GPUs, the gangs have 8."""
    apps = (tenant_app("a", "u1", 2.0, gang=8, gangs=1), *(tenant_app(f"b{i}", f"v{i}", 2.0) for i in range(4)))
    rounds = Rounds(Placed(Oef(), placer), *apps)
    rounds.run(60)
    assert sum(rounds.total["a"].values()) / 60 == pytest.approx(16 / 5, abs=1.0)


@pytest.mark.parametrize("placer", ["priority", "unpacked"])
def test_under_gavels_placer_no_gpu_is_idle_no_gang_mixes_types_and_nobody_starves(placer: str) -> None:
    apps = [tenant_app(f"a{i}", f"u{i}", 1.0 + i / 4, (1, 2, 4)[i % 3], 1) for i in range(12)]
    world = Rounds(Placed(GandivaFair(), placer), *apps)
    waits = dict.fromkeys(world.total, 0)
    for _ in range(60):
        world.step()
        gangs = [g for own in world.held.values() for g in own]
        assert sum(map(gang_gpus, gangs)) >= 12, "a gang of four needs four of one type"
        assert all(len({TOP.machines[h].gpu_type for h, _ in g}) == 1 for g in gangs)
        for app_id in waits:
            waits[app_id] = 0 if app_id in world.held else waits[app_id] + 1
            assert waits[app_id] <= 12, app_id


@pytest.mark.parametrize("placer", ["priority", "whole"])
def test_priority_counts_only_inside_a_tenant(placer: str) -> None:
    low, high = (tenant_app(a, "u1", 2.0, 4, 4, priority=p) for a, p in (("low", 0), ("high", 5)))
    world = Rounds(Placed(Oef(), placer), low, high, tenant_app("other", "u2", 2.0, 4, 4))
    world.run(12)
    assert sum(world.total["low"].values()) <= 8, "but for what rounds off"
    assert sum(world.total["high"].values()) == pytest.approx(8 * 12, abs=16)
    assert sum(world.total["other"].values()) == pytest.approx(8 * 12, abs=16)


def test_kinds_of_a_tenant_share_its_weight_by_their_priority() -> None:
    """The two kinds of u1's apps split its half 3 : 1 (OEF 4.2.4), in throughput in the non-cooperative scheme."""
    apps = (
        tenant_app("a", "u1", 2.0, priority=2, gangs=16),
        tenant_app("b", "u1", 5.0, gangs=16),
        tenant_app("c", "u2", 2.0, gangs=16),
    )
    shared = Shared(Oef(mode="noncooperative"), Rounds(Oef(), *apps).snapshot())
    worth = {
        u.name: sum(w * shared.shares[u.name][t] for w, t in zip(u.vector, shared.types, strict=True))
        for u in shared.users.values()
    }
    a, b, c = (worth[shared.users[v].name] for v in "abc")
    assert a == pytest.approx(3 * b)
    assert a + b == pytest.approx(c)


def test_nobody_has_a_share_beyond_its_demand_and_the_rest_goes_to_the_others() -> None:
    """Tenant u1 wants two GPUs and would be due eight: it gets two fast ones, and the other 14 are used."""
    small, large = tenant_app("a", "u1", 5.0, gangs=2), tenant_app("b", "u2", 2.0, gangs=16)
    for policy in (Oef(), Oef(mode="noncooperative"), GandivaFair(), Gavel()):
        shared = Shared(policy, Rounds(policy, small, large).snapshot())
        a, b = (shared.shares[shared.users[x].name] for x in "ab")
        assert sum(a.values()) <= 2 + 1e-6
        assert sum(a.values()) + sum(b.values()) == pytest.approx(16), policy
    assert Oef().decide(Rounds(Oef(), small, large).snapshot(), {}, random.Random(0)).unused_gpus == {}


def test_deviations_outlive_speedups_that_are_measured_again() -> None:
    """When a vector changes the tenant becomes another virtual user, which inherits the old one's deviations."""
    apps = [tenant_app(f"a{i}", f"u{i}", 1.5 + i, gangs=16, gang=4) for i in range(3)]
    world = Rounds(Oef(), *apps)
    world.step()
    before = world.memory["next"]
    world.apps = tuple(
        replace(v, demand=replace(v.demand, speedups={"K80": 1.0, "V100": v.demand.speedups["V100"] + 0.1}))
        for v in world.apps
    )
    shared = Shared(Oef(), world.snapshot())
    assert not shared.carried.keys() & before.keys()  # type: ignore[attr-defined]
    assert sorted(map(str, shared.carried.values())) == sorted(map(str, before.values()))  # type: ignore[attr-defined]


def test_an_app_that_leaves_a_virtual_user_takes_no_deviation_from_the_others() -> None:
    apps = [tenant_app(f"a{i}", "u", 2.0, gang=4) for i in range(2)]
    world = Rounds(Oef(), *apps, tenant_app("b", "v", 3.0, gang=4))
    world.step()
    world.apps = (apps[0], tenant_app("a1", "u", 5.0, gang=4), world.apps[2])
    assert Shared(Oef(), world.snapshot()).carried == world.memory["next"]


def test_gavel_helps_the_latest_by_finish_times_and_the_largest_by_duration() -> None:
    """Equal apps on four GPUs of one type: one arrived long ago; one has three times the other's work."""
    top = Topology.of([Machine("h", "r", 4, "V100")])

    def share(objective: Objective, *apps: AppView) -> float:
        policy = Gavel(tenant="app", objective=objective)
        s = replace(snapshot(*apps, top=top), now_s=1000.0)
        first = Shared(policy, s)
        return first.shares[first.users[apps[0].app_id].name]["V100"]

    late, fresh = (app(f"a{i}", 1, 4, submitted_s=t, work_left_gpu_s=2000.0) for i, t in enumerate((0.0, 1000.0)))
    assert share("finish_time", late, fresh) > 2.5
    long, short = (app(f"a{i}", 1, 4, submitted_s=1000.0, work_left_gpu_s=w) for i, w in enumerate((3000.0, 1000.0)))
    assert share("min_duration", long, short) == pytest.approx(3.0)
    assert share("finish_time", long, short) == pytest.approx(2.0)


def test_a_tenant_that_misses_a_round_is_due_what_it_was_due_over_the_gap() -> None:
    world = Rounds(Oef(), tenant_app("a", "u", 2.0, gang=4), tenant_app("b", "v", 5.0, gang=4))
    world.step()
    after: dict[str, dict[str, float]] = world.memory["next"]  # type: ignore[assignment]
    alone = replace(snapshot(world.apps[0], free={"k80-0": 4}, top=TOP), memory=world.memory, now_s=300.0)
    world.memory = json.loads(json.dumps(Oef().decide(alone, {}, random.Random(0)).memory))
    world.now_s = 600.0
    shared = Shared(Oef(), world.snapshot())
    assert {u: own for u, own in shared.carried.items() if u.startswith("v ")} == {
        u: own for u, own in after.items() if u.startswith("v ")
    }
    gone = replace(snapshot(world.apps[0], top=TOP), memory=world.memory, now_s=1800.0)
    left = Oef().decide(gone, {}, random.Random(0)).memory
    assert {u[0] for u in left["deviation"]} == {"u"}, "after two leases it is forgotten"
