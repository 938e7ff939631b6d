"""Policy `isonomy`: the order of equal sharing, its memory, the effect of lies about work, and bounds on waiting."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.fairness.plausible import slowdowns_of
from pycontrol.lab.clusters import uniform
from pycontrol.lab.conformance.snapshots import CLUSTER, QUEUES, app, snapshot, snapshots
from pycontrol.lab.runs import simulate
from pycontrol.model.accounts import Account, Accounts
from pycontrol.model.auction import AppView, Plan, Snapshot, gang_gpus, gang_of
from pycontrol.model.cluster import PartitionCapacity, Queue
from pycontrol.model.topology import Machine, Topology
from pycontrol.policies.fluid import Fluid
from pycontrol.policies.isonomy import Isonomy
from pycontrol.simulation.simulation_settings import ARBITER, Misreport, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

ONE = {"n1": 1}
ALL = 2 * CLUSTER.gpus
"""Gangs of an app that could use more than the cluster: its work takes work / 13 seconds of it."""


def decide(s: Snapshot) -> Plan:
    return Isonomy().decide(s, {}, random.Random(0))


def later(s: Snapshot, plan: Plan, by_s: float, apps: Sequence[AppView]) -> Snapshot:
    """The next round: other apps, with the memory of the previous round."""
    return replace(s, now_s=s.now_s + by_s, apps=tuple(apps), memory=plan.memory)


def first(s: Snapshot) -> str:
    """The app that gets the only GPU."""
    return decide(replace(s, free=ONE)).awards[0].app_id


def test_among_apps_that_arrive_together_the_least_work_goes_first() -> None:
    s = snapshot(app("big", work_total_gpu_s=9000.0), app("small", work_total_gpu_s=3000.0))
    assert first(s) == "small"


def test_an_app_nearly_done_under_equal_sharing_goes_before_a_smaller_newcomer() -> None:
    """300 s alone are 3,900 GPU-s of 13 GPUs: 1,100 of its 5,000 are left when a newcomer with 1,000 or 1,200 comes."""
    old = app("old", 1, ALL, work_total_gpu_s=5000.0)
    s = snapshot(old)
    plan = decide(s)
    for work, expected in ((1000.0, "new"), (1200.0, "old")):
        new = app("new", 1, ALL, work_total_gpu_s=work, submitted_s=300.0)
        assert first(later(s, plan, 300.0, [old, new])) == expected


def test_a_users_apps_share_what_another_user_has_alone() -> None:
    """Each of the three has a third of half the cluster: the single app is served first although it is larger."""
    three = [app(f"a{i}", 1, ALL, user="ann", work_total_gpu_s=1000.0) for i in range(3)]
    lone = app("b", 1, ALL, user="bob", work_total_gpu_s=2000.0)
    assert first(snapshot(*three, lone)) == "b"
    assert first(snapshot(*[replace(v, user=v.app_id) for v in three], lone)) == "a0"


def test_queues_share_by_their_capacities_unless_weights_are_given() -> None:
    """root.a has 0.6 of the cluster, root.b 0.4; the same work is done sooner in root.a."""
    s = replace(snapshot(app("b", 1, ALL, queue="root.b"), app("a", 1, ALL, queue="root.a")), queues=QUEUES)
    assert first(s) == "a"
    assert first(replace(s, accounts=Accounts(queue_weights={"root.b": 2.0}))) == "b"
    less = Accounts(queue_weights={"root.b": 0.59})
    assert first(replace(s, accounts=less)) == "a", "weights are as capacities: 0.59 is less than 60 percent"


def test_a_queue_of_capacity_0_gets_what_the_others_leave() -> None:
    """So does one that YARN has not reported yet."""
    prod, scav = app("p", 1, 9, queue="root.a", user="ann"), app("s", 1, ALL, queue="root.s", user="bob")
    s = replace(snapshot(prod, scav), queues={"root.a": Queue("root.a"), "root.s": Queue("root.s", 0.0)})
    for queues in (s.queues, {"root.a": Queue("root.a")}):
        _, ideal = Isonomy().ideal(replace(s, queues=queues))
        assert [ideal.rate(x) for x in "ps"] == pytest.approx([9.0, CLUSTER.gpus - 9.0])
    assert first(s) == "p"


def test_queues_share_by_their_capacities_in_all_partitions() -> None:
    """root.b has nothing of the 4 unlabelled GPUs, and all of the 12 labelled ones: 12 of 16 GPUs."""
    two = Topology.of([Machine("m", "r", 4), Machine("n", "r", 12, partition="x")])
    all_there, none_there = PartitionCapacity(1.0, 1.0), PartitionCapacity(0.0, 0.0)
    own = Queue("root.a", 1.0, partitions={"x": none_there}), Queue("root.b", 0.0, 0.0, partitions={"x": all_there})
    s = snapshot(app("a", 1, ALL, queue="root.a"), app("b", 1, ALL, queue="root.b"), top=two)
    weights = Isonomy().weights(replace(s, queues={q.path: q for q in own}))
    accounts = [weights.root.at(path) for path in ("root.a", "root.b")]
    assert [(x.weight, x.limits.gpus) for x in accounts] == [(0.25, 4.0), (0.75, 12.0)]
    three = Topology.of([Machine(f"m{k}", "r", n, partition=f"p{k}") for k, n in enumerate((1, 4, 1))])
    (free,) = [Isonomy().weights(replace(s, topology=three, queues={"root.a": Queue("root.a")})).root.at("root.a")]
    assert free.limits.gpus is None, "all of every partition is no limit, whatever rounding does"


def test_users_with_weights_share_by_them() -> None:
    s = snapshot(app("a", 1, ALL, user="ann"), app("b", 1, ALL, user="bob"))
    assert first(s) == "a"
    for queues in (QUEUES, {}):  # none in a virtual cluster
        weighted = replace(s, queues=queues, accounts=Accounts(queue_users={"bob": Account(1.5)}))
        assert first(weighted) == "b"


def test_a_user_who_returns_immediately_first_repays_service_ahead_of_the_share() -> None:
    """Ann's first app got its 6,000 GPU-s within 10 s of the ideal's clock; Bob's larger app goes before her second."""
    one = app("a1", 1, ALL, user="ann", work_total_gpu_s=6000.0)
    bob = app("b", 1, ALL, user="bob", work_total_gpu_s=6500.0)
    again = app("a2", 1, ALL, user="ann", work_total_gpu_s=1000.0, submitted_s=10.0)
    s = snapshot(one, bob)
    s = later(s, decide(s), 10.0, [bob, again])
    assert first(replace(s, ended={"a1": 6000.0})) == "b"
    assert first(replace(s, ended={"a1": 50.0})) == "a2", "a crash at the start costs what it used"


@settings(max_examples=60, deadline=None)
@given(s=snapshots(), data=st.data())
def test_reports_after_the_first_round_change_nothing(s: Snapshot, data: st.DataObject) -> None:
    """All reports together: rho, loss, and work total, left and done. The whole plan is the same."""
    number = st.floats(0.0, 1e6)
    s = replace(s, memory=decide(s).memory)
    said = [
        replace(
            v,
            rho=data.draw(st.none() | number),
            demand=replace(
                v.demand,
                work_total_gpu_s=data.draw(number),
                work_left_gpu_s=data.draw(number),
                work_done_gpu_s=data.draw(number),
                loss_rate=data.draw(number),
            ),
        )
        for v in s.apps
    ]
    assert decide(replace(s, apps=tuple(said))) == decide(s)


def test_an_app_that_began_with_one_gang_is_as_wide_as_it_then_asks_for() -> None:
    """So it is while it tries GPU types. What others ask for after their first round changes nothing, except without an
    Agent: containers come and go."""
    s = snapshot(app("one", 2, 1), app("other", 1, 3), app("guessed", 1, 2, guessed=True))
    memory = decide(s).memory
    for gangs, due in ((1, [2, 3, 2]), (2, [4, 3, 2]), (4, [4, 3, 4]), (1, [4, 3, 4])):
        apps = [replace(v, demand=replace(v.demand, gangs=gangs)) for v in s.apps]
        s = replace(s, now_s=s.now_s + 1.0, apps=tuple(apps), memory=memory)
        _, ideal = Isonomy().ideal(s)
        memory = decide(s).memory
        assert [ideal.rate(v.app_id) for v in s.apps] == due


def test_service_beyond_what_was_declared_counts_four_times() -> None:
    """An app with 100,000 GPU-s declared and 140,000 served is ordered like one with 260,000."""
    liar, honest = app("liar", 1, ALL, work_total_gpu_s=1e5), app("honest", 1, ALL, work_total_gpu_s=2.5e5)
    s = snapshot(liar, honest)
    plan = decide(s)
    assert first(later(s, plan, 0.0, [replace(liar, attained_gpu_s=1.3e5), honest])) == "liar"
    assert first(later(s, plan, 0.0, [replace(liar, attained_gpu_s=1.4e5), honest])) == "honest"


def test_slow_places_and_restarts_that_the_arbiter_chose_are_not_overrun() -> None:
    """50,000 GPU-s beyond the declared 100,000: 30,000 lost to slow places, 500 revoked GPUs at 40 s each."""
    one, other = app("one", 1, ALL, work_total_gpu_s=1e5), app("other", 1, ALL, work_total_gpu_s=1.1e5)
    s = snapshot(one, other)
    plan = decide(s)
    over = replace(one, attained_gpu_s=1.5e5)
    assert first(later(s, plan, 0.0, [over, other])) == "other"
    assert first(later(s, plan, 0.0, [replace(over, slowed_gpu_s=3e4, revoked_gpus=500), other])) == "one"
    assert first(later(s, plan, 0.0, [replace(over, slowed_gpu_s=3e4, launching_gpu_s=2e4), other])) == "one"


def test_an_app_whose_share_is_all_that_it_can_use_never_waits() -> None:
    """Equal sharing ends "long" after 20,000 s, as it does alone; "wide", whose time comes first, has 19,000 s."""
    long, wide = app("long", 1, 1, work_total_gpu_s=2e4), app("wide", 1, ALL, work_total_gpu_s=12 * 19e3)
    assert first(snapshot(long, wide)) == "long"
    assert first(snapshot(replace(long, demand=replace(long.demand, guessed=True)), wide)) == "wide"
    done = replace(long, attained_gpu_s=2e4)  # what is left may wait: nobody declared it
    s = snapshot(long, wide)
    assert first(later(s, decide(s), 0.0, [done, wide])) == "wide"


@settings(max_examples=40, deadline=None)
@given(truth=st.floats(100, 1e6), said=st.floats(0.01, 10.0))
def test_the_truth_gives_the_earliest_final_virtual_finish_time(truth: float, said: float) -> None:
    def finish_s(declared_gpu_s: float) -> float:
        view = app("a", work_total_gpu_s=declared_gpu_s)
        s = snapshot(view)
        s = Isonomy().prepared(later(s, decide(s), 0.0, [replace(view, attained_gpu_s=truth)]))
        ideal: Fluid = s.memory["ideal"]
        return ideal.finish_s("a")

    assert finish_s(truth) <= finish_s(said * truth) * (1 + 1e-9)


def test_an_app_that_returns_continues_with_its_declaration() -> None:
    """It moves to another virtual cluster's queue and back: its declaration still counts, and it is served."""
    one, other = app("one", work_total_gpu_s=1000.0), app("other", work_total_gpu_s=3000.0)
    s = snapshot(one, other)
    s = later(s, decide(s), 10.0, [other])
    s = later(s, decide(replace(s, ended={"one": 500.0})), 0.0, [other, replace(one, demand=other.demand)])
    plan = decide(s)
    assert {a.app_id for a in plan.awards} == {"one", "other"}
    assert plan.memory["apps"]["one"][2] == 1000.0, "not declared again"


def test_memory_changes_only_when_apps_come_or_go() -> None:
    s = snapshot(app("a"), app("b"))
    memory = decide(s).memory
    s = later(s, decide(s), 100.0, s.apps)
    assert decide(s).memory == memory
    assert set(decide(replace(s, apps=s.apps[:1], ended={"b": 0.0})).memory["apps"]) == {"a"}


@settings(max_examples=40, deadline=None)
@given(
    work=st.floats(1, 1e6),
    others=st.integers(0, 5),
    newcomer=st.floats(0, 1e6),
    gangs=st.integers(1, 99),
    extra_s=st.floats(1, 1e5),
)
def test_an_app_that_arrives_after_anothers_virtual_finish_time_goes_later(
    work: float, others: int, newcomer: float, gangs: int, extra_s: float
) -> None:
    """The bound on waiting: with n other users the ideal does an app's work within work / (GPUs / (n + 1))."""
    old = app("old", 1, ALL, work_total_gpu_s=work)
    rest = [app(f"o{i}", 1, ALL, work_total_gpu_s=1e9) for i in range(others)]
    s = snapshot(old, *rest)
    due_s = work / CLUSTER.gpus * (others + 1) + extra_s
    new = app("new", 1, gangs, work_total_gpu_s=newcomer, submitted_s=due_s)
    assert first(later(s, decide(s), due_s, [new, old, *rest])) == "old"


def test_a_large_gang_does_not_starve_behind_a_stream_of_small_apps() -> None:
    """There are 4 GPUs, an app that needs all of them, and an endless stream of small apps that exceeds the cluster."""
    small = [TraceApp(f"s{i:03d}", 20.0 * i, 1, ((100.0,),)) for i in range(250)]
    large = TraceApp("large", 300.0, 4, ((400.0,),))
    apps = tuple(sorted([*small, large], key=lambda a: a.submitted_s))
    quick = SimulationSettings(arbiter=replace(ARBITER, lease_s=60.0), checkpoint_s=1.0, restart_s=1.0)
    result = simulate(Workload("stream", apps), uniform(1, 4), "isonomy", quick)
    found = next(a for a in result.apps if a.app_id == "large")
    present = max(sum(b.submitted_s <= t < (b.finished_s or 1e9) for b in result.apps) for t in range(0, 7000, 20))
    assert found.waited_s <= 2.0 * 400 / 4 * present + 60
    assert found.finished_s is not None
    assert found.finished_s < apps[-1].submitted_s, "before the last of the stream had come"


def test_the_receipt_says_the_share_and_when_equal_sharing_would_be_done() -> None:
    view, other = app("a", 1, 4, work_total_gpu_s=1300.0), app("b", 1, ALL, work_total_gpu_s=90_000.0)
    s = snapshot(view, other)
    assert decide(s).why["a"] == (
        "equal sharing would finish it in 325 s: it declared 1300 GPU-s; its share is 4.0 GPUs of 13; "
        "it would end later if it waited a lease"
    )
    s = later(s, decide(s), 345.0, [view, other])
    assert decide(s).why["a"] == (
        "equal sharing would have finished it 20 s ago: it declared 1300 GPU-s; it would end later if it waited a lease"
    )
    s = replace(s, apps=(replace(view, attained_gpu_s=1365.0), other))
    assert decide(s).why["a"] == (
        "equal sharing would finish it in 65 s: it declared 1300 GPU-s and used 65 more, which count 4 times; "
        "its share is 4.0 GPUs of 13"
    )


def test_lies_about_anything_but_work_change_nothing() -> None:
    apps = tuple(TraceApp(f"a{i}", 10.0 * i, 1 + i % 2, ((400.0,) * 5,)) for i in range(6))
    workload, cluster = Workload("six", apps), uniform(2, 2)
    honest = simulate(workload, cluster, "isonomy")
    for lie in (Misreport(rho=3.0), Misreport(elapsed=3.0), Misreport(loss=3.0), Misreport(elapsed=0.3, loss=3.0)):
        for liars in (["a3"], ["a1", "a3"]):
            assert (
                simulate(workload, cluster, "isonomy", SimulationSettings(lies=dict.fromkeys(liars, lie))).apps
                == honest.apps
            )
    assert (
        simulate(workload, cluster, "isonomy", SimulationSettings(lies={"a3": Misreport(total=3.0)})).apps
        != honest.apps
    )


TYPES = Topology.of(Machine(f"{kind}-{k}", "r", 4, kind) for k in range(2) for kind in ("k80", "v100"))
FAST, FASTER = {"k80": 1.0, "v100": 2.0}, {"k80": 1.0, "v100": 5.0}


def typed(*apps: AppView, free: Mapping[str, int] | None = None) -> Snapshot:
    return snapshot(*apps, free=free, top=TYPES)


def on_types(plan: Plan, app_id: str) -> set[str]:
    """The GPU types of the app's gangs."""
    return {TYPES.type_of(h) for a in plan.awards if a.app_id == app_id for g in a.gangs for h, _ in g}


def gains(view: AppView, speedups: Mapping[str, float], **more: object) -> AppView:
    return replace(view, demand=replace(view.demand, speedups=speedups, **more))  # type: ignore[arg-type]


def test_an_app_alone_is_on_its_fastest_free_type() -> None:
    one = gains(app("a", 4, 1, work_total_gpu_s=1e5), FASTER)
    assert on_types(decide(typed(one)), "a") == {"v100"}
    assert on_types(decide(typed(gains(one, {"k80": 5.0, "v100": 1.0}))), "a") == {"k80"}
    assert on_types(decide(typed(one, free={"k80-0": 4})), "a") == {"k80"}


def test_a_gang_mixes_types_only_if_its_app_says_so() -> None:
    two = gains(app("a", 2, 1, work_total_gpu_s=1e5), FASTER)
    one_each = {"k80-0": 1, "v100-0": 1}
    assert decide(typed(two, free=one_each)).awards == ()
    assert on_types(decide(typed(gains(two, FASTER, mixes=True), free=one_each)), "a") == {"k80", "v100"}


def test_where_the_fast_type_is_short_it_goes_to_whom_it_speeds_up_most() -> None:
    """The smaller app goes first; twice as fast there, it leaves the V100s to the one that is five times as fast."""
    small, large = app("small", 8, 1, work_total_gpu_s=1e4), app("large", 8, 1, work_total_gpu_s=1e5)
    plan = decide(typed(gains(small, FAST), gains(large, FASTER)))
    assert (on_types(plan, "small"), on_types(plan, "large")) == ({"k80"}, {"v100"})
    plan = decide(typed(gains(small, FASTER), gains(large, FAST)))
    assert (on_types(plan, "small"), on_types(plan, "large")) == ({"v100"}, {"k80"})


def test_where_nobody_else_needs_the_fast_type_the_least_gain_is_enough() -> None:
    a, b = app("a", 2, 1, work_total_gpu_s=1e4), app("b", 2, 1, work_total_gpu_s=1e5)
    plan = decide(typed(gains(a, FAST), gains(b, FASTER)))
    assert on_types(plan, "a") == on_types(plan, "b") == {"v100"}


def test_a_gang_moves_to_a_faster_type_if_that_regains_the_restart() -> None:
    gang = (("k80-0", 4),)
    held = replace(app("a", 4, 1, work_total_gpu_s=1e5), ending_gangs=(gang,))
    assert decide(typed(gains(held, FASTER))).awards[0].gangs != (gang,)
    assert decide(typed(gains(held, {"k80": 1.0, "v100": 1.01}))).awards[0].gangs == (gang,)
    busy = {"k80-0": 4, "k80-1": 4}
    assert decide(typed(gains(held, FASTER), free=busy)).awards[0].gangs == (gang,)


def moved(view: AppView, lease_s: float = 600.0, free: Mapping[str, int] | None = None) -> bool:
    """Whether the app's only gang gets another place, on two V100 machines unless `free` says otherwise."""
    (award,) = decide(replace(typed(view, free=free), lease_s=lease_s)).awards
    return award.gangs != view.ending_gangs


def on_k80(work_gpu_s: float, fast: float, **more: object) -> AppView:
    """An app whose gang of four runs on K80s; V100s are `fast` times as fast."""
    view = app("a", 4, 1, ending_gangs=((("k80-0", 4),),), work_total_gpu_s=work_gpu_s, **more)
    return gains(view, {"k80": 1.0, "v100": fast})


def test_a_move_counts_against_the_work_left_however_short_leases_are() -> None:
    """400 s left end after 200 s on V100s, and 40 s for the restart; 100 s left do not end earlier at 1.2 times the
    speed, though a lease's progress would be more."""
    for lease_s in (60.0, 600.0):
        assert moved(on_k80(4 * 400.0, 2.0), lease_s)
        assert not moved(on_k80(4 * 100.0, 1.2), lease_s)
        assert not moved(on_k80(4 * 1000.0, 2.0, attained_gpu_s=4 * 930.0), lease_s), "35 s and a restart, not 70 s"
        assert not moved(on_k80(4 * 1e5, 1.04), lease_s), "two measurements may differ by as much"


def test_a_move_counts_what_the_gang_would_train_again_unless_it_saves_when_it_is_told_to_stop() -> None:
    assert moved(on_k80(4 * 400.0, 2.0, unsaved_s=(300.0,), unsaved=True))
    assert not moved(on_k80(4 * 400.0, 2.0, unsaved_s=(340.0,), unsaved=True))
    assert moved(on_k80(4 * 400.0, 2.0, unsaved_s=(340.0,)))


def test_where_the_work_left_is_not_known_a_move_must_be_regained_within_a_lease() -> None:
    for unknown in (on_k80(4e5, 2.0, guessed=True), on_k80(4e3, 2.0, attained_gpu_s=5e3)):
        assert moved(unknown, 600.0)
        assert not moved(unknown, 60.0)


def test_what_was_attained_on_a_fast_type_counts_by_its_speed() -> None:
    """Of 1,000 s of work on K80s 100 are left after 450 s on V100s: another type, twice as fast, saves 25 s."""
    three = Topology.of(Machine(kind, "r", 4, kind) for kind in ("a100", "k80", "v100"))
    view = app("a", 4, 1, ending_gangs=((("v100", 4),),), work_total_gpu_s=4 * 1000.0, attained_gpu_s=4 * 450.0)
    view = gains(view, {"k80": 1.0, "v100": 2.0, "a100": 4.0})
    (award,) = decide(snapshot(view, top=three)).awards
    assert award.gangs == view.ending_gangs
    (award,) = decide(snapshot(replace(view, attained_gpu_s=4 * 300.0), top=three)).awards
    assert award.gangs == ((("a100", 4),),)


def test_a_gang_does_not_leave_a_fast_type_to_lie_closer_together() -> None:
    """It came from one K80 machine to V100s of two machines, and would go back, and so on."""
    spread = gains(app("a", 4, 1, ending_gangs=((("v100-0", 2), ("v100-1", 2)),), work_total_gpu_s=1e6), FASTER)
    assert not moved(spread, free={"k80-0": 4, "k80-1": 4, "v100-0": 2, "v100-1": 2})
    assert moved(spread), "to one V100 machine"


def test_containers_of_an_app_without_an_agent_do_not_move() -> None:
    spread: dict[str, Any] = {
        "ending_gangs": ((("k80-0", 2), ("k80-1", 2)),),
        "members": (2, 2),
        "work_total_gpu_s": 1e6,
    }
    assert not moved(app("a", 4, 1, new_gangs_max=0, **spread))
    assert moved(app("a", 4, 1, **spread))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), lease_s=st.sampled_from([60.0, 600.0]))
def test_a_gang_that_moves_is_faster_there_so_moves_come_to_an_end(data: st.DataObject, lease_s: float) -> None:
    """Gangs whose leases end together, round by round: none is slower than before, and in the end none moves."""
    left, views = {h: m.gpus for h, m in TYPES.machines.items()}, []
    for k in range(data.draw(st.integers(1, 5))):
        gang = gang_of({h: data.draw(st.integers(0, min(2, n))) for h, n in left.items()})
        size = gang_gpus(gang)
        if size:
            left = {h: n - dict(gang).get(h, 0) for h, n in left.items()}
            speeds = {"k80": 1.0, "v100": data.draw(st.sampled_from([0.5, 1.0, 1.05, 1.2, 5.0]))}
            slowdown = data.draw(st.sampled_from([(1.0, 1.0, 1.0), (1.0, 1.1, 1.3), (1.0, 1.5, 2.5)]))
            work, done = data.draw(st.sampled_from([1e3, 1e4, 1e6])), data.draw(st.sampled_from([0.0, 900.0, 9e3]))
            view = app(f"a{k}", size, 1, slowdown=slowdown, work_total_gpu_s=work, attained_gpu_s=done)
            views.append(replace(gains(view, speeds, mixes=data.draw(st.booleans())), ending_gangs=(gang,)))
    racks = Topology.of(replace(m, rack=m.host[-1]) for m in TYPES.machines.values())
    s, kinds_and_scopes = replace(snapshot(*views, top=racks), lease_s=lease_s), 3 * 3
    for _ in range(1 + kinds_and_scopes * len(views)):
        plan = decide(s)
        got = {award.app_id: award.gangs for award in plan.awards}
        assert all(len(got[v.app_id]) == 1 for v in s.apps)
        for v in s.apps:
            old, new = (slowdowns_of(gang, v.demand, racks)[1] for gang in (*v.ending_gangs, *got[v.app_id]))
            assert new < old or got[v.app_id] == v.ending_gangs
        if all(got[v.app_id] == v.ending_gangs for v in s.apps):
            return
        s = later(s, plan, lease_s, [replace(v, ending_gangs=got[v.app_id]) for v in s.apps])
    raise AssertionError("gangs still move")


def stays(by_s: float, unsaved_s: float) -> bool:
    """Whether a gang keeps the only GPU against an app that equal sharing would finish that much earlier."""
    now = snapshot(
        app("runs", 1, 1, user="ann", work_total_gpu_s=50_000.0),
        app("waits", 1, 1, user="bob", work_total_gpu_s=50_000.0 - by_s),
    )
    runs, waits = now.apps
    held = replace(runs, ending_gangs=((("n1", 1),),), unsaved_s=(unsaved_s,))
    return first(replace(now, apps=(held, waits))) == "runs"


def test_a_gang_gives_way_to_apps_that_come_earlier_by_ten_times_what_its_restart_would_cost() -> None:
    for unsaved_s, most_s in ((0.0, 400.0), (100.0, 1400.0), (1e5, 3600.0)):  # a restart takes 40 s; six leases at most
        assert stays(most_s - 10, unsaved_s)
        assert not stays(most_s + 10, unsaved_s)
