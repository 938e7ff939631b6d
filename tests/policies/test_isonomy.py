"""Isonomy: turns by the equal share, what is remembered, what a lie about work does, and how long anybody waits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pycontrol.model.auction import AppView, Plan, Snapshot
from pycontrol.policies.isonomy import Isonomy, equal_share_s, ledger
from tests.policies.snapshots import app, snapshot

ONE = {"n1": 1}


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
    """After 600 s alone in the cluster, an equal share has given 600 s to the old app, and none to the new one."""
    old, new = app("old", work_total_gpu_s=2000.0), app("new", work_total_gpu_s=1000.0, submitted_s=600.0)
    assert first(snapshot(old, new)) == "new"
    s = snapshot(old)
    s = later(s, decide(s), 600.0, [old, new])
    assert first(s) == "old"


def test_the_equal_share_runs_slower_the_more_apps_there_are() -> None:
    s = snapshot(app("a"), app("b"))
    s = later(s, decide(s), 100.0, s.apps)
    assert equal_share_s(replace(s, memory=ledger(s))) == pytest.approx(50.0)
    s = replace(s, present=frozenset({"a", "b", "sated", "c"}))
    s = later(s, decide(s), 100.0, s.apps)
    assert equal_share_s(replace(s, memory=ledger(s))) == pytest.approx(75.0)


def test_what_an_app_says_later_changes_nothing() -> None:
    a, b = app("a", work_total_gpu_s=2000.0), app("b", work_total_gpu_s=3000.0)
    s = snapshot(a, b)
    plan = decide(s)
    liar = replace(b, demand=replace(b.demand, work_total_gpu_s=1.0, work_left_gpu_s=1.0, loss_rate=9.0), rho=99.0)
    assert first(later(s, plan, 1.0, [a, liar])) == "a"


def test_service_beyond_what_was_declared_counts_double() -> None:
    """Declaring half moves the turn of an app of 2,000 GPU-s from 2,000 to 1,000 and, served, back to 3,000."""
    liar, honest = app("liar", work_total_gpu_s=1000.0), app("honest", work_total_gpu_s=2500.0)
    s = snapshot(liar, honest)
    plan = decide(s)
    assert first(later(s, plan, 1.0, [replace(liar, attained_gpu_s=1500.0), honest])) == "liar"
    assert first(later(s, plan, 1.0, [replace(liar, attained_gpu_s=2000.0), honest])) == "honest"


def test_memory_changes_only_when_apps_come_or_go() -> None:
    s = snapshot(app("a"), app("b"))
    memory = decide(s).memory
    s = later(s, decide(s), 100.0, s.apps)
    assert decide(s).memory == memory
    assert set(decide(replace(s, apps=s.apps[:1])).memory["apps"]) == {"a"}


def test_the_receipt_says_what_each_app_is_owed() -> None:
    s = snapshot(app("a", work_total_gpu_s=2000.0))
    s = later(s, decide(s), 60.0, [app("a", work_total_gpu_s=2000.0, attained_gpu_s=2100.0)])
    assert decide(s).why["a"] == (
        "an equal share would have given it 60 of the 1100 s that it needs alone; "
        "100 GPU-s beyond what it declared count 2 times"
    )
