"""The private cluster's schedule in a policy's memory, and the order that follows from it."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from pycontrol.model.auction import BOOSTED, AppView, Demand, Hold, Plan, Snapshot
from pycontrol.model.topology import Machine, Scope, Topology
from pycontrol.policies import registry
from pycontrol.policies.on_schedule import KEEPS, NoSchedule, OnSchedule, one_type, policy_memory
from pycontrol.policies.private import PrivateSchedule
from pycontrol.policies.registry import make

LEASE_S = 100.0
ONE = Topology.of([Machine("m0", "r", 4)])
POLICY = OnSchedule(make("yarn_cs"))


def app(name: str, gpus: int, work: float, at_s: float, done: float = 0.0, **more: object) -> AppView:
    demand = Demand(gpus, 1, gpus, work - done, work, done, Scope.MACHINE, slowdown=(1.0, 1.0, 1.0))
    return AppView(name, "root.a", None, demand, submitted_s=at_s, **more)  # type: ignore[arg-type]


def snapshot(now_s: float, free: int, *apps: AppView, memory: object = None, present: str = "") -> Snapshot:
    here = frozenset(v.app_id for v in apps) | frozenset(present.split())
    return Snapshot(
        "r",
        now_s,
        ONE,
        {"m0": free} if free else {},
        apps,
        lease_s=LEASE_S,
        vc="root.a",
        memory=memory or {},
        present=here,
        private=True,  # type: ignore[arg-type]
    )


def decide(s: Snapshot) -> Plan:
    plan = POLICY.decide(s, {}, random.Random(0))
    return dataclasses.replace(plan, memory=json.loads(json.dumps(plan.memory)))


def won(plan: Plan) -> list[str]:
    return [a.app_id for a in plan.awards]


def ends_s(plan: Plan) -> dict[str, float | None]:
    return {a: row["ended_s"] for a, row in plan.memory["private_schedule"]["apps"].items()}


def test_the_schedule_runs_the_private_clusters_apps_and_ends_them_by_declared_work() -> None:
    first = decide(snapshot(0.0, 4, app("a", 4, 400.0, 0.0), app("b", 4, 80.0, 1.0)))
    assert won(first) == ["a"]
    later = decide(snapshot(150.0, 0, app("b", 4, 80.0, 1.0), memory=first.memory, present="a"))
    assert ends_s(later) == {"a": 100.0, "b": 120.0}


def test_the_memory_changes_only_at_events() -> None:
    first = decide(snapshot(0.0, 4, app("a", 4, 40_000.0, 0.0), app("b", 4, 80.0, 0.0)))
    again = decide(snapshot(20.0, 0, app("b", 4, 80.0, 0.0), memory=first.memory, present="a"))
    assert again.memory == first.memory


def test_an_app_that_would_have_ended_privately_goes_before_an_earlier_one() -> None:
    """App b ends first there; here other apps of its queue, which had borrowed less, held the cells."""
    memory = decide(snapshot(0.0, 4, app("b", 4, 80.0, 0.0))).memory
    found = decide(snapshot(50.0, 4, app("a", 4, 400.0, -5.0), app("b", 4, 80.0, 0.0), memory=memory))
    assert won(make("yarn_cs").decide(snapshot(50.0, 4, *found_apps()), {}, random.Random(0))) == ["a"]
    assert won(found) == ["b"]
    assert "would have ended 30 s ago" in found.why["b"]


def found_apps() -> tuple[AppView, AppView]:
    return app("a", 4, 400.0, -5.0), app("b", 4, 80.0, 0.0)


def test_a_round_before_the_leases_end_uses_the_schedule_after_their_end() -> None:
    """By the schedule of the round's own time an app that runs there would stay here for another lease. The private
    cluster would not give that lease, since its rounds also take leases that end soon."""
    tiresias = OnSchedule(make("tiresias"))
    home = (("m0", 4),)
    first = dataclasses.replace(snapshot(0.0, 4, app("a", 4, 4000.0, 0.0)), lead_s=10.0)
    memory = tiresias.decide(first, {}, random.Random(0)).memory
    views = app("a", 4, 4000.0, 0.0, 348.0, ending_gangs=(home,), attained_gpu_s=348.0), app("b", 4, 4000.0, 50.0)
    round_s = dataclasses.replace(snapshot(87.0, 4, *views, memory=memory), lead_s=10.0)
    assert won(tiresias.decide(round_s, {}, random.Random(0))) == ["b"]


def test_uncontested_leases_are_renewed_at_their_ends() -> None:
    """They are not renewed at the next arrival, with an end relative to it: the next app would be a lease late."""
    tiresias = make("tiresias")
    schedule = PrivateSchedule.load({}, 0.0)
    schedule.advance(snapshot(0.0, 4, app("a", 4, 4000.0, 0.0)), tiresias)
    schedule.advance(snapshot(170.0, 0, app("b", 4, 4000.0, 165.0), present="a"), tiresias)
    assert [end_s for _, end_s in schedule.apps["a"].gangs] == [200.0]
    schedule.advance(snapshot(205.0, 0, app("b", 4, 4000.0, 165.0), present="a"), tiresias)
    assert [bool(schedule.apps[name].gangs) for name in "ab"] == [False, True]


def test_leases_are_renewed_as_early_as_rounds_take_them() -> None:
    """An app that arrives between that and their end would else get GPUs that the real cluster has leased again."""
    tiresias = make("tiresias")
    schedule = PrivateSchedule.load({}, 0.0)
    schedule.advance(snapshot(0.0, 4, app("a", 4, 4000.0, 0.0)), tiresias)
    late = dataclasses.replace(snapshot(97.0, 0, app("b", 4, 4000.0, 95.0), present="a"), lead_s=10.0)
    schedule.advance(late, tiresias)
    assert [end_s for _, end_s in schedule.apps["a"].gangs] == [200.0]


def test_a_round_that_takes_leases_early_stops_no_app_that_ends_before_their_end() -> None:
    tiresias = OnSchedule(make("tiresias"))
    first = dataclasses.replace(snapshot(0.0, 4, app("a", 4, 352.0, 0.0)), lead_s=10.0)
    memory = tiresias.decide(first, {}, random.Random(0)).memory
    last = app("a", 4, 352.0, 0.0, 348.0, ending_gangs=((("m0", 4),),), attained_gpu_s=348.0)
    views = last, app("b", 4, 4000.0, 50.0)
    round_s = dataclasses.replace(snapshot(87.0, 4, *views, memory=memory), lead_s=10.0)
    assert won(tiresias.decide(round_s, {}, random.Random(0))) == ["a"]


def test_an_app_that_would_have_ended_comes_before_apps_that_would_stay() -> None:
    """This holds for any number of apps that would stay: they took their machines from it."""
    two = Topology.of([Machine("m0", "r", 4), Machine("m1", "r", 4)])
    wide = Demand(8, 1, 8, 80.0, 80.0, 0.0, slowdown=(1.0, 1.0, 1.0))
    over = AppView("w", "root.a", None, wide, submitted_s=0.0)
    before = dataclasses.replace(snapshot(0.0, 0, over), topology=two)
    memory = json.loads(json.dumps(POLICY.decide(before, {}, random.Random(0)).memory))
    homes = {"a": (("m0", 4),), "b": (("m1", 4),)}
    running = [app(n, 4, 4000.0, 20.0, 400.0, ending_gangs=(home,)) for n, home in homes.items()]
    now = dataclasses.replace(snapshot(100.0, 0, *running, over, memory=memory), topology=two, free={"m0": 4, "m1": 4})
    plan = POLICY.decide(now, {}, random.Random(0))
    assert {a for a, x in PrivateSchedule.load(plan.memory["private_schedule"], 0.0).apps.items() if x.gangs} == {
        "a",
        "b",
    }
    assert won(plan) == ["w"]


@pytest.mark.parametrize(("now_s", "held"), [(60.0, False), (75.0, True)])
def test_no_lease_begins_just_before_a_common_end_where_the_first_app_waits_for_the_whole_machine(
    now_s: float, held: bool
) -> None:
    """It would not have started when the round decides about that end, and end a lease later than the others: a job was
    6,833 s late. Earlier, it ends with the others."""
    over = dataclasses.replace(snapshot(0.0, 4, app("w", 4, 40.0, 0.0)), lead_s=10.0)
    memory = json.loads(json.dumps(POLICY.decide(over, {}, random.Random(0)).memory))
    keeps = app("a", 2, 4000.0, 20.0, retained_gpus=2, retained_gangs=((("m0", 2),),))
    borrows = dataclasses.replace(snapshot(26.0, 2, keeps, app("c", 2, 4000.0, 25.0), memory=memory), lead_s=10.0)
    memory = POLICY.decide(dataclasses.replace(borrows, present=frozenset("wac")), {}, random.Random(0)).memory
    views = (app("w", 4, 40.0, 0.0), keeps, app("b", 2, 4000.0, 30.0))  # on the private cluster a and c run now
    s = dataclasses.replace(snapshot(now_s, 2, *views, memory=memory, present="c"), lead_s=10.0)
    plan = POLICY.decide(s, {}, random.Random(0))
    assert won(plan) == ([] if held else ["b"])
    assert plan.holds == ((Hold("w", (("m0", 2),), 100.0),) if held else ())
    assert plan.unused_gpus == ({"m0": 2} if held else {})


def test_a_gang_stays_where_it_runs() -> None:
    home = (("m0", 2),)
    memory = decide(snapshot(0.0, 4, app("a", 2, 4000.0, 0.0), app("b", 2, 4000.0, 0.0))).memory
    views = (
        app("a", 2, 4000.0, 0.0, 200.0, ending_gangs=(home,)),
        app("b", 2, 4000.0, 0.0, 200.0, ending_gangs=(home,)),
    )
    found = decide(snapshot(100.0, 4, *views, memory=memory))
    assert {a.app_id: a.gangs for a in found.awards} == {"a": (home,), "b": (home,)}
    assert not found.unused_gpus


def test_no_app_gets_more_than_the_offer_or_than_it_can_use() -> None:
    rng = random.Random(3)
    memory: object = {}
    for now_s in range(0, 1000, 40):
        views = [
            app(f"x{k}", rng.choice((1, 2, 4)), 100.0 * (k + 1), 10.0 * k, 10.0 * k)
            for k in range(6)
            if 10.0 * k <= now_s
        ]
        free = rng.randint(0, 4)
        plan = decide(snapshot(float(now_s), free, *views, memory=memory))
        assert sum(n for a in plan.awards for gang in a.gangs for _, n in gang) <= free
        assert all(len(a.gangs) <= 1 for a in plan.awards)
        memory = plan.memory


def test_an_app_at_a_limit_takes_no_gpus_from_the_others_though_its_private_cluster_would_have_run_it_there() -> None:
    """The private cluster knows no limits. Others used to lose their leases to gangs that were refused then."""
    two = Topology.of([Machine(f"m{k}", "r", 4) for k in range(2)])
    on, home = {"m0": 4, "m1": 4}, (("m0", 4),)
    wide = app("wide", 4, 8000.0, 0.0)
    wide = dataclasses.replace(wide, demand=dataclasses.replace(wide.demand, gangs=2), rooms={"user u": 4})
    other = app("other", 4, 4000.0, 10.0)
    first = decide(dataclasses.replace(snapshot(0.0, 4, wide), free=on, topology=two))
    assert {a.app_id: len(a.gangs) for a in first.awards} == {"wide": 1}
    views = dataclasses.replace(wide, ending_gangs=(home,)), dataclasses.replace(other, ending_gangs=((("m1", 4),),))
    s = dataclasses.replace(snapshot(95.0, 4, *views, memory=first.memory), free=on, topology=two, lead_s=6.0)
    found = decide(s)
    assert {a.app_id: a.gangs for a in found.awards} == {"wide": (home,), "other": ((("m1", 4),),)}
    waiting = dataclasses.replace(s, apps=(views[0], other), free={"m1": 4})
    assert not decide(waiting).holds, "nothing is held for it"


@pytest.mark.parametrize("priority", [0, BOOSTED])
def test_a_boosted_app_comes_before_one_that_would_have_ended(priority: int) -> None:
    memory = decide(snapshot(0.0, 4, app("late", 4, 80.0, 0.0))).memory
    late = app("late", 4, 80.0, 0.0, ending_gangs=((("m0", 4),),))
    found = decide(snapshot(99.0, 4, late, app("b", 4, 400.0, 90.0, priority=priority), memory=memory))
    assert won(found) == ["b" if priority else "late"]


@pytest.mark.parametrize("priority", [0, BOOSTED])
def test_a_boosted_app_comes_first_where_its_private_cluster_has_no_room_for_it(priority: int) -> None:
    others = app("late", 2, 40.0, 0.0), app("long", 4, 40_000.0, 1.0)
    memory = decide(snapshot(30.0, 0, *others, memory=decide(snapshot(0.0, 4, *others)).memory)).memory
    wide = app("b", 2, 400.0, 40.0, priority=priority)
    wide = dataclasses.replace(wide, demand=dataclasses.replace(wide.demand, gangs=2))
    found = decide(snapshot(50.0, 4, *others, wide, memory=memory))
    assert {a.app_id: len(a.gangs) for a in found.awards} == ({"b": 2} if priority else {"late": 1, "b": 1})


def test_what_apps_of_an_account_get_first_counts_for_its_others() -> None:
    rooms = {"user u": 2}
    memory = decide(snapshot(0.0, 4, *(app(a, n, 400.0, 0.0) for a, n in (("z1", 1), ("z2", 1), ("away", 2))))).memory
    apps = [*(app(f"z{k}", 1, 400.0, k, rooms=rooms) for k in (1, 2, 3)), app("other", 2, 400.0, 9.0)]
    found = decide(snapshot(10.0, 4, *apps, memory=memory, present="away"))
    assert won(found) == ["z1", "z2", "other"]


def test_a_declaration_that_grows_continues_in_the_schedule() -> None:
    memory = decide(snapshot(0.0, 4, app("a", 4, 40.0, 0.0))).memory
    ended = decide(snapshot(20.0, 4, app("a", 4, 40.0, 0.0), memory=memory))
    assert ends_s(ended) == {"a": 10.0}
    more = decide(snapshot(30.0, 4, app("a", 4, 400.0, 0.0), memory=ended.memory))
    assert ends_s(more) == {"a": None}


def test_apps_that_ended_in_both_clusters_are_forgotten() -> None:
    memory = decide(snapshot(0.0, 4, app("a", 4, 40.0, 0.0))).memory
    memory = decide(snapshot(20.0, 4, app("b", 4, 40.0, 15.0), memory=memory, present="a")).memory
    after = decide(snapshot(30.0, 4, app("b", 4, 40.0, 15.0), memory=memory))
    assert set(ends_s(after)) == {"b"}


def test_on_borrowed_gpus_the_policy_decides_alone() -> None:
    s = dataclasses.replace(snapshot(0.0, 4, app("a", 4, 40.0, 0.0)), private=False)
    assert decide(s).memory == {}


def test_the_policys_own_memory_is_kept_beside_the_schedule() -> None:
    on_schedule = OnSchedule(make("isonomy"))
    plan = on_schedule.decide(snapshot(0.0, 4, app("a", 4, 40.0, 0.0)), {}, random.Random(0))
    assert "a" in policy_memory(plan.memory)["apps"]
    assert "a" in plan.memory["apps"]


def test_the_loss_of_a_machine_drops_no_app_from_the_schedule() -> None:
    two = Topology.of([Machine("m0", "r", 4), Machine("m1", "r", 4)])
    s = dataclasses.replace(snapshot(0.0, 0, app("a", 4, 4000.0, 0.0), app("b", 4, 4000.0, 0.0)), topology=two)
    schedule = PrivateSchedule.load({}, 0.0)
    schedule.advance(s, POLICY.policy)
    assert {host for x in schedule.apps.values() for gang, _ in x.gangs for host, _ in gang} == {"m0", "m1"}
    schedule.advance(dataclasses.replace(s, topology=ONE, now_s=10.0), POLICY.policy)
    assert {host for x in schedule.apps.values() for gang, _ in x.gangs for host, _ in gang} == {"m0"}


def test_the_control_plane_makes_the_bids_of_a_policy_that_asks_for_some() -> None:
    """The worst rho is offered the GPUs and bids: the app that waited longest for the least work. No Agent is asked."""
    themis = OnSchedule(make("themis"))
    assert not themis.asks_agents
    free = dataclasses.replace(snapshot(0.0, 0), private=False, topology=ONE, free={"m0": 4}, f=0.8, now_s=100.0)
    s = dataclasses.replace(free, apps=(app("a", 4, 4000.0, 0.0), app("b", 4, 40.0, 0.0)), present=frozenset("ab"))
    plan = themis.decide(s, {}, random.Random(0))
    assert won(plan) == ["b"]
    (bid,) = plan.bids
    assert bid.rho_nothing == pytest.approx((100 + LEASE_S + 40 / 4) / (40 / 4 * 2))  # two apps are present
    assert bid.rho_won == pytest.approx((100 + 40 / 4) / (40 / 4 * 2))


def test_draws_are_by_virtual_cluster_and_round() -> None:
    """Two apps of one rho and one machine: who is first by a draw does not depend on the seed of the real round."""
    views = tuple(app(f"a{k}", 2, 4000.0, 0.0) for k in range(8))
    s = dataclasses.replace(snapshot(0.0, 4, *views), f=1.0)

    def got(vc: str, seed: int) -> tuple[object, ...]:
        themis = OnSchedule(make("themis"))
        return themis.decide(dataclasses.replace(s, vc=vc), {}, random.Random(seed)).awards

    assert len({got("root.a", seed) for seed in range(5)}) == 1
    assert len({got(f"root.{k}", 0) for k in range(8)}) > 1


def test_n_avg_is_that_of_the_private_cluster() -> None:
    schedule = PrivateSchedule.load({}, 0.0)
    schedule.advance(snapshot(0.0, 4, app("a", 4, 400.0, 0.0)), POLICY.policy)
    schedule.advance(snapshot(60.0, 0, app("b", 4, 80.0, 50.0), present="a"), POLICY.policy)
    schedule.advance(snapshot(130.0, 0, app("b", 4, 80.0, 50.0), present="a"), POLICY.policy)
    contended_s = {a: x.contended_s for a, x in schedule.apps.items()}
    assert ends_of(schedule) == {"a": 100.0, "b": 120.0}
    assert contended_s == {"a": 50 * 1 + 50 * 2 + 20 * 1, "b": 50 * 2 + 20 * 1}


def ends_of(schedule: PrivateSchedule) -> dict[str, float | None]:
    return {a: x.ended_s for a, x in schedule.apps.items()}


@pytest.mark.parametrize("policy", KEEPS)
def test_how_often_the_control_plane_looks_makes_no_difference(policy: str) -> None:
    """The memory of shares, too, depends on time and not on how many rounds were held."""
    rng = random.Random(5)
    came = sorted(rng.uniform(0.0, 900.0) for _ in range(9))
    apps = [
        app(f"x{k}", rng.choice((1, 2, 4)), rng.uniform(40.0, 900.0), at_s, user=f"u{k % 3}")
        for k, at_s in enumerate(came)
    ]
    ends = []
    for every_s in (4000.0, 23.0):
        times = sorted({*came, *(every_s * k for k in range(int(4000 / every_s) + 1))})
        schedule = PrivateSchedule.load({}, 0.0)
        for at_s in times:
            here = [v for v in apps if v.submitted_s <= at_s]
            s = dataclasses.replace(snapshot(at_s, 0, *here), lead_s=6.0)
            schedule.advance(s, make(policy))
            schedule = PrivateSchedule.load(json.loads(json.dumps(schedule.dump(), default=dict)), at_s)
        ends.append(ends_of(schedule))
    assert None not in ends[0].values()
    assert ends[1] == pytest.approx(ends[0], abs=0.01)


@pytest.mark.parametrize("policy", sorted(set(registry.POLICIES) - set(KEEPS)))
def test_a_policy_without_kept_results_has_no_schedule(policy: str) -> None:
    with pytest.raises(NoSchedule, match=rf"private_schedule: true: is for the policies yarn_cs, .* \(got {policy}\)"):
        OnSchedule(make(policy))


def test_memory_under_its_former_name_is_continued() -> None:
    first = POLICY.decide(snapshot(0.0, 4, app("a", 4, 40.0, 0.0)), {}, random.Random(0))
    former = {"shadow" if k == "private_schedule" else k: v for k, v in first.memory.items()}
    plans = [
        POLICY.decide(snapshot(5.0, 0, app("a", 4, 40.0, 0.0), memory=m), {}, random.Random(0))
        for m in (first.memory, former)
    ]
    assert plans[0] == plans[1]
    assert policy_memory(former) == policy_memory(first.memory)


@pytest.mark.parametrize(("policy", "mixed"), [("isonomy", False), ("themis", False), ("tiresias", True)])
def test_a_gang_that_goes_first_mixes_types_only_if_its_app_or_the_policy_does(policy: str, mixed: bool) -> None:
    """On the private cluster the app would run on one machine; of each type one GPU is free."""
    two = Topology.of([Machine("k", "r", 2, "k80"), Machine("v", "r", 2, "v100")])
    on_schedule, wide = OnSchedule(make(policy)), Demand(2, 1, 2, 4000.0, 4000.0)
    for mixes in (False, True):
        view = AppView("a", "root.a", None, dataclasses.replace(wide, mixes=mixes), submitted_s=0.0)
        s = dataclasses.replace(snapshot(10.0, 0, view), topology=two, free={"k": 1, "v": 1})
        assert won(on_schedule.decide(s, {}, random.Random(0))) == (["a"] if mixes or mixed else [])
    assert one_type(on_schedule) == one_type(make(policy)) == (not mixed)
