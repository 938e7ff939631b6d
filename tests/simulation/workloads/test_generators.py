"""What the generators promise: the papers' marginals, and the same workload for the same seed."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from pycontrol.lab.workloads import CATALOGUE, hived, load, models
from pycontrol.lab.workloads.marginals import app_gpu_days, demand, jobs_per_app, marginals, task_gpu_h
from pycontrol.lab.workloads.trace_table import BadTrace
from pycontrol.model.topology import Scope
from pycontrol.simulation.trace_apps import TraceApp, Workload

SEEDS = range(10)


@pytest.fixture(scope="module")
def cluster() -> Workload:
    return load("hived", 1)


@pytest.mark.parametrize("name", [n for n in CATALOGUE.generators if n != "hived"])
def test_a_seed_gives_one_workload(name: str) -> None:
    assert load(name, 3) == load(name, 3)
    assert load(name, 3).apps != load(name, 4).apps
    times = [a.submitted_s for a in load(name, 3).apps]
    assert times[0] == 0
    assert times == sorted(times)


def test_w1_has_the_marginals_of_the_paper() -> None:
    made = [load("w1", seed) for seed in SEEDS]
    for w in made:
        jobs = jobs_per_app(w)
        assert len(jobs) == 85
        assert np.median(jobs) == pytest.approx(75, rel=0.03)
        assert 95 <= jobs.max() <= 100
        assert np.mean(jobs == 1) == pytest.approx(0.1, abs=0.02)
        assert np.median(app_gpu_days(w)) == pytest.approx(11.5, rel=0.05)
        assert np.median(task_gpu_h(w)) == pytest.approx(3.75, rel=0.3)
        assert {a.gang_gpus for a in w.apps} == {1, 2}
        assert w.apps[-1].submitted_s <= 14 * 86400
    assert np.mean([np.median(task_gpu_h(w)) for w in made]) == pytest.approx(3.75, rel=0.1)
    assert np.mean([app_gpu_days(w).sum() / 14 for w in made]) == pytest.approx(50, rel=0.15)


def test_w2_has_w1s_arrivals_and_work_halves_and_has_more_tasks_a_job() -> None:
    one, two = load("w1", 5), load("w2", 5)
    assert [a.submitted_s for a in one.apps] == [a.submitted_s for a in two.apps]
    assert [a.model for a in one.apps] == [a.model for a in two.apps]
    assert app_gpu_days(one) == pytest.approx(app_gpu_days(two))
    assert np.mean([a.gang_gpus for a in two.apps]) > 2 * np.mean([a.gang_gpus for a in one.apps])
    for app in two.apps:
        sizes = [len(p) for p in app.phases]
        assert sizes == [sizes[0] >> k for k in range(sizes[0].bit_length())]
        assert [sum(p) for p in app.phases] == pytest.approx([app.work_gpu_s / len(sizes)] * len(sizes))


def test_the_mix_of_models_is_exact_and_a_share_of_network_intensive_apps_grows_by_inclusion() -> None:
    kinds = Counter(models.BY_NAME[a.model].kind for a in load("w1", 2).apps)
    assert [kinds[k] for k in models.MIX] == pytest.approx([85 * share for share in models.MIX.values()], abs=1)
    chosen: list[set[str]] = []
    for share in (0.0, 0.2, 0.5, 1.0):
        apps = load("w1", 2, network_share=share).apps
        chosen.append({a.app_id for a in apps if a.slowdown[1] > 1.2})
        assert len(chosen[-1]) == round(share * 85)
    assert all(few <= more for few, more in itertools.pairwise(chosen))
    assert models.BY_NAME["vgg16"].slowdown[1] == pytest.approx(103.6 / 80.4)
    assert models.BY_NAME["inception-v3"].slowdown == (1.0, 1.0, 1.0)


def test_contention_moves_arrivals_alone_and_shorter_moves_work_too() -> None:
    whole, dense, short = load("w1", 1), load("w1,contention=2", 1), load("w1", 1, {"shorter": "10"})
    assert dense.apps[-1].submitted_s == pytest.approx(whole.apps[-1].submitted_s / 2)
    assert dense.apps[7].phases == whole.apps[7].phases
    assert short.apps[-1].submitted_s == pytest.approx(whole.apps[-1].submitted_s / 10)
    assert short.apps[7].work_gpu_s == pytest.approx(whole.apps[7].work_gpu_s / 10)
    assert load("w1-testbed", 1).apps == short.apps


def test_hived_has_every_job_of_the_papers_table(cluster: Workload) -> None:
    assert len(cluster.apps) == 141_950
    counts = Counter((a.queue, min(a.gang_gpus, 16)) for a in cluster.apps)
    for tenant, row in hived.COUNTS.items():
        assert tuple(counts[f"root.{tenant}", size] for size in hived.CLASSES) == row
    assert sum(counts[f"root.{t}", 1] for t in hived.COUNTS) / 141_950 > 0.8
    assert all(a.scope is (Scope.MACHINE if a.gang_gpus <= 8 else Scope.CLUSTER) for a in cluster.apps)
    assert all(a.gang_gpus % 8 == 0 for a in cluster.apps if a.gang_gpus > 8)
    assert cluster.apps[-1].submitted_s <= hived.DAYS * 86400


def test_hiveds_load_and_each_tenants_are_those_asked_for(cluster: Workload) -> None:
    gpu_days: Counter[str] = Counter()
    for a in cluster.apps:
        gpu_days[a.queue.removeprefix("root.")] += a.work_gpu_s / 86400
    capacity = hived.GPUS * hived.DAYS
    assert gpu_days.total() / capacity == pytest.approx(0.70, abs=0.005)
    for tenant, over_quota in hived.LOADS.items():
        expected = over_quota * 0.7 / hived.INFERRED_LOAD
        assert gpu_days[tenant] / capacity / hived.QUOTAS[tenant] == pytest.approx(expected, rel=0.01)
    small = load("hived,share=0.05,load=0.5", 1)
    assert app_gpu_days(small).sum() / (capacity * 0.05) == pytest.approx(0.5, abs=0.01)


def test_oef_has_the_papers_range_and_one_job_type_a_tenant() -> None:
    w = load("oef", 1)
    by_tenant: dict[str, set[tuple[str, tuple[float, ...]]]] = {}
    for a in w.apps:
        by_tenant.setdefault(a.user, set()).add((a.model, tuple(a.speedups.values())))
        assert a.queue == f"root.{a.user}"
    assert len(by_tenant) == 50
    assert all(len(kinds) == 1 for kinds in by_tenant.values())
    assert len(w.apps) / 50 == pytest.approx(20, abs=2)
    fastest = [a.speedups["RTX 3090"] for a in w.apps]
    assert (min(fastest), max(fastest)) == pytest.approx((1.39, 2.15))
    assert app_gpu_days(w).sum() / (24 * 3) == pytest.approx(0.9)
    assert w.apps[-1].submitted_s < 3 * 86400
    assert len({a.user for a in load("oef-20", 1).apps}) == 20


def test_demand_is_the_integral_of_what_runs() -> None:
    apps = (
        TraceApp("a", 0.0, 2, ((7200.0, 3600.0), (3600.0,))),  # 2 gangs for 0.5 h, 1 till 1 h, then 1 for 0.5 h
        TraceApp("b", 3600.0, 1, ((1800.0,),)),
    )
    at_s, gpus = demand(Workload("d", apps), step_s=1800.0)
    assert gpus == pytest.approx([4, 2, 3])
    assert at_s == pytest.approx([0, 1800, 3600])


def test_marginals_stand_beside_the_papers() -> None:
    found = {m.name: (m.ours, m.paper) for m in marginals(load("w1", 1))}
    assert found["apps"] == (85, 85)
    assert found["jobs of an app, median"] == (75, 75)
    assert {m.name: m.paper for m in marginals(load("w2", 1))}["jobs of an app, median"] is None
    assert {m.name: m.ours for m in marginals(load("oef", 1))}["tenants"] == 50


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("w9", "w9: is no file and none of w1, w2, .*FORMAT:FILE"),
        ("w1,speed=2", "w1: speed: is not an option; known are count, days, contention"),
        ("w1,contention=x", r"w1: contention: .*number.*got 'x'"),
        ("w1,network_share=2", "w1: network_share: .*less than or equal to 1"),
        ("oef,queues=t99", "oef: queues: there is no root.t99; there are root.t00"),
        ("w1,begin_s=9e9", "w1: no app is left .85 skipped .85 outside the window"),
    ],
)
def test_what_does_not_exist_is_named(name: str, said: str) -> None:
    with pytest.raises(BadTrace, match=said):
        load(name)
