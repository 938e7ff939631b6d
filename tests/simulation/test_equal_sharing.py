"""The yardsticks of schedules: equal sharing, the promise, and the bound on mean completion."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.lab.clusters import uniform
from pycontrol.lab.default_policy.equal_sharing import finish_s, least_mean_completion_s, promise
from pycontrol.lab.paper_metrics import metrics
from pycontrol.lab.runs import simulate
from pycontrol.simulation.result import AppResult
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload


def app(app_id: str, work: float, at_s: float = 0.0, **more: object) -> AppResult:
    """An app that can use all GPUs of a cluster of 4."""
    given_ = AppResult(
        app_id, "root.q", app_id, "", at_s, at_s, None, 1.0, work, work, 4, work / 4, 4, work, 1.0, 1, 0, 0.0
    )
    return replace(given_, **more)  # type: ignore[arg-type]


def test_two_equal_apps_end_together_and_a_single_one_has_the_cluster() -> None:
    assert finish_s([app("a", 400.0), app("b", 400.0), app("c", 40.0, 1000.0)]) == pytest.approx(
        {"a": 200.0, "b": 200.0, "c": 1010.0}
    )


def test_no_app_ends_before_its_longest_path() -> None:
    assert finish_s([app("a", 400.0, longest_path_s=350.0)]) == pytest.approx({"a": 350.0})


def test_a_broken_promise_is_counted_and_measured() -> None:
    apps = (app("a", 400.0, finished_s=200.0), app("b", 400.0, finished_s=310.0))
    result = replace(simulate(Workload("none", ()), uniform(1, 4), "srsf"), apps=apps)
    assert promise(result, 10.0).kept == 0.5
    assert promise(result, 10.0).excess == pytest.approx(0.5)
    assert promise(result, 110.0).kept == 1.0
    assert promise(replace(result, apps=(replace(apps[0], finished_s=None),)), 1e9).kept == 0.0


@pytest.mark.parametrize(
    ("apps", "expected"),
    [
        ([app("a", 400.0)], 100.0),
        ([app("a", 400.0), app("b", 40.0)], (10.0 + 110.0) / 2),
        ([app("a", 400.0), app("b", 40.0, 50.0)], (110.0 + 10.0) / 2),
        ([app("a", 400.0), app("b", 4000.0, 50.0)], (100.0 + 1050.0) / 2),
        ([app("a", 400.0, longest_path_s=400.0)], 400.0),
    ],
    ids=["alone", "the shorter first", "the shorter preempts", "the longer waits", "its longest path"],
)
def test_the_bound_on_mean_completion(apps: list[AppResult], expected: float) -> None:
    assert least_mean_completion_s(apps) == pytest.approx(expected)


@settings(max_examples=15, deadline=None)
@given(
    drawn=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 4), st.integers(50, 900)), min_size=1, max_size=5),
    policy=st.sampled_from(["srsf", "isonomy", "max_min"]),
)
def test_no_schedule_beats_the_bound(drawn: list[tuple[int, int, int]], policy: str) -> None:
    apps = tuple(
        TraceApp(f"a{i}", float(at), 1, ((float(work),) * jobs,)) for i, (at, jobs, work) in enumerate(sorted(drawn))
    )
    quick = SimulationSettings(arbiter=replace(ARBITER, lease_s=60.0), checkpoint_s=0.0, restart_s=0.0)
    result = simulate(Workload("drawn", apps), uniform(1, 4), policy, quick)
    assert metrics(result)["completion_mean_s"] >= least_mean_completion_s(result.apps) - 1e-6
