"""Isonomy: turns by the equal share, what is remembered, what a lie about work does, and how long anybody waits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.model.auction import AppView, Plan, Snapshot
from pycontrol.policies.isonomy import Isonomy, equal_share_s, ledger
from pycontrol.simulation.apps import TraceApp, Workload
from pycontrol.simulation.clusters import uniform
from pycontrol.simulation.runs import simulate
from pycontrol.simulation.settings import ARBITER, Misreport, Settings
from tests.policies.snapshots import CLUSTER, app, snapshot, snapshots

ONE = {"n1": 1}
ALL = 2 * CLUSTER.gpus
"""Gangs of an app that could use more than the cluster: its work takes work / 13 seconds of it."""


def decide(s: Snapshot) -> Plan:
    return Isonomy().decide(s, {}, random.Random(0))


def later(s: Snapshot, plan: Plan, by_s: float, apps: Sequence[AppView]) -> Snapshot:
    """The next round: other apps, the memory of the last one."""
    return replace(s, now_s=s.now_s + by_s, apps=tuple(apps), memory=plan.memory)


def first(s: Snapshot) -> str:
    """Who gets the only GPU."""
    return decide(replace(s, free=ONE)).awards[0].app_id


def test_the_least_work_goes_first_among_those_that_come_together() -> None:
    s = snapshot(app("big", work_total_gpu_s=9000.0), app("small", work_total_gpu_s=3000.0))
    assert first(s) == "small"


def test_who_waited_long_enough_goes_before_a_smaller_newcomer() -> None:
    """600 s alone in the cluster are 600 s of the clock, 300 s of work at a patience of 2: 3,900 GPU-s."""
    old, new = app("old", 1, ALL, work_total_gpu_s=5000.0), app("new", 1, ALL, work_total_gpu_s=1000.0)
    new = replace(new, submitted_s=600.0)
    assert first(snapshot(old, new)) == "new"
    s = snapshot(old)
    s = later(s, decide(s), 600.0, [old, new])
    assert first(s) == "new"
    assert first(replace(s, apps=(old, replace(new, demand=replace(new.demand, work_total_gpu_s=1200.0))))) == "old"


def test_the_clock_runs_slower_the_more_apps_there_are() -> None:
    s = snapshot(app("a"), app("b"))
    s = later(s, decide(s), 100.0, s.apps)
    assert equal_share_s(replace(s, memory=ledger(s))) == pytest.approx(50.0)
    s = replace(s, present=frozenset({"a", "b", "sated", "c"}))
    s = later(s, decide(s), 100.0, s.apps)
    assert equal_share_s(replace(s, memory=ledger(s))) == pytest.approx(75.0)


@settings(max_examples=60, deadline=None)
@given(s=snapshots(), data=st.data())
def test_what_apps_say_after_their_submission_changes_nothing(s: Snapshot, data: st.DataObject) -> None:
    """All of them at once: rho, loss, and work total, left and done. The whole plan is the same."""
    number = st.floats(0.0, 1e6)
    s = replace(s, memory=decide(s).memory)
    said = [
        replace(v, rho=data.draw(st.none() | number), demand=replace(
            v.demand, work_total_gpu_s=data.draw(number), work_left_gpu_s=data.draw(number),
            work_done_gpu_s=data.draw(number), loss_rate=data.draw(number),
        ))
        for v in s.apps
    ]  # fmt: skip
    assert decide(replace(s, apps=tuple(said))) == decide(s)


def test_service_beyond_what_was_declared_counts_four_times() -> None:
    """1,000 GPU-s declared and 1,400 served have the turn of 2,600."""
    liar, honest = app("liar", work_total_gpu_s=1000.0), app("honest", work_total_gpu_s=2500.0)
    s = snapshot(liar, honest)
    plan = decide(s)
    assert first(later(s, plan, 1.0, [replace(liar, attained_gpu_s=1300.0), honest])) == "liar"
    assert first(later(s, plan, 1.0, [replace(liar, attained_gpu_s=1400.0), honest])) == "honest"


@settings(max_examples=40, deadline=None)
@given(truth=st.floats(100, 1e6), said=st.floats(0.01, 10.0))
def test_the_turn_at_the_end_is_the_earliest_for_the_truth(truth: float, said: float) -> None:
    def turn(declared_gpu_s: float) -> float:
        view = app("a", work_total_gpu_s=declared_gpu_s)
        s = snapshot(view)
        s = later(s, decide(s), 0.0, [replace(view, attained_gpu_s=truth)])
        offered = type("Offered", (), {"snapshot": s})()
        return Isonomy().key(s.apps[0], 0, offered)

    assert turn(truth) <= turn(said * truth) * (1 + 1e-9)


def test_memory_changes_only_when_apps_come_or_go() -> None:
    s = snapshot(app("a"), app("b"))
    memory = decide(s).memory
    s = later(s, decide(s), 100.0, s.apps)
    assert decide(s).memory == memory
    assert set(decide(replace(s, apps=s.apps[:1])).memory["apps"]) == {"a"}


@settings(max_examples=40, deadline=None)
@given(
    work=st.floats(1, 1e6), others=st.integers(0, 5), newcomer=st.floats(0, 1e6), gangs=st.integers(1, 99),
    extra_s=st.floats(1, 1e5),
)  # fmt: skip
def test_nobody_who_comes_after_an_apps_turn_goes_before_it(
    work: float, others: int, newcomer: float, gangs: int, extra_s: float
) -> None:
    """The bound on waiting: its turn comes within patience x its own time x the apps there, whatever comes then."""
    old = app("old", work_total_gpu_s=work)
    s = replace(snapshot(old), present=frozenset({"old", *(f"o{i}" for i in range(others))}))
    plan = decide(s)
    wide_gpus = plan.memory["apps"]["old"][2]
    due_s = 2.0 * work / wide_gpus * (others + 1) + extra_s
    new = app("new", 1, gangs, work_total_gpu_s=newcomer, submitted_s=due_s)
    assert first(later(s, plan, due_s, [new, old])) == "old"


def test_a_large_gang_does_not_starve_behind_a_stream_of_small_apps() -> None:
    """4 GPUs, an app that needs all of them, and small apps for more than the cluster, without end."""
    small = [TraceApp(f"s{i:03d}", 20.0 * i, 1, ((100.0,),)) for i in range(150)]
    large = TraceApp("large", 300.0, 4, ((400.0,),))
    apps = tuple(sorted([*small, large], key=lambda a: a.submitted_s))
    quick = Settings(arbiter=replace(ARBITER, lease_s=60.0), checkpoint_s=1.0, restart_s=1.0)
    result = simulate(Workload("stream", apps), uniform(1, 4), "isonomy", quick)
    found = next(a for a in result.apps if a.app_id == "large")
    present = max(sum(b.submitted_s <= t < (b.finished_s or 1e9) for b in result.apps) for t in range(0, 4000, 20))
    assert found.waited_s <= 2.0 * 400 / 4 * present + 60
    assert found.finished_s is not None
    assert found.finished_s < apps[-1].submitted_s, "before the last of the stream had come"


def test_the_receipt_says_when_an_apps_turn_is() -> None:
    view = app("a", 1, ALL, work_total_gpu_s=1300.0)
    s = snapshot(view)
    assert decide(s).why["a"] == "its turn, in 200 s, is the earliest: it declared 1300 GPU-s; 1 apps share"
    s = later(s, decide(s), 260.0, [replace(view, attained_gpu_s=1365.0)])
    assert decide(s).why["a"] == (
        "its turn, 20 s ago, is the earliest: it declared 1300 GPU-s and used 65 more, which count 4 times; "
        "1 apps share"
    )


def test_lies_about_anything_but_work_change_nothing() -> None:
    apps = tuple(TraceApp(f"a{i}", 10.0 * i, 1 + i % 2, ((400.0,) * 5,)) for i in range(6))
    workload, cluster = Workload("six", apps), uniform(2, 2)
    honest = simulate(workload, cluster, "isonomy")
    for lie in (Misreport(rho=3.0), Misreport(elapsed=3.0), Misreport(loss=3.0), Misreport(elapsed=0.3, loss=3.0)):
        for liars in (["a3"], ["a1", "a3"]):
            assert simulate(workload, cluster, "isonomy", Settings(lies=dict.fromkeys(liars, lie))).apps == honest.apps
    assert simulate(workload, cluster, "isonomy", Settings(lies={"a3": Misreport(total=3.0)})).apps != honest.apps
