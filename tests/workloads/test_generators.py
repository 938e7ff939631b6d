"""What the generators promise: the papers' marginals, and the same workload for the same seed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pycontrol.simulation.workloads import hived, load
from pycontrol.simulation.workloads.themis import MODELS, marginals


@pytest.mark.parametrize("name", ["w1", "w2"])
def test_a_seed_gives_one_workload(name: str) -> None:
    assert load(name, seed=3) == load(name, seed=3)
    assert load(name, seed=3).apps != load(name, seed=4).apps


def test_w1_has_the_marginals_of_the_paper() -> None:
    found = [marginals(load("w1", seed=seed)) for seed in range(12)]
    mean = {k: float(np.mean([f[k] for f in found])) for k in found[0]}
    assert mean["apps"] == 85
    assert mean["single_job_share"] == pytest.approx(0.10, abs=0.05)
    assert mean["jobs_median"] == pytest.approx(75, abs=5)
    assert all(f["jobs_max"] <= 100 for f in found)
    assert mean["task_gpu_h_median"] == pytest.approx(3.75, rel=0.25)
    assert mean["app_gpu_days_median"] == pytest.approx(11.5, rel=0.25)
    assert 1 <= mean["gpus_per_job_mean"] <= 2


def test_w2_arrives_as_w1_and_has_more_tasks_a_job() -> None:
    one, two = load("w1", seed=5), load("w2", seed=5)
    assert [a.submitted_s for a in one.apps] == [a.submitted_s for a in two.apps]
    assert marginals(two)["gpus_per_job_mean"] > marginals(one)["gpus_per_job_mean"]
    for app in two.apps:
        sizes = [len(p) for p in app.phases]
        assert sizes == [max(1, sizes[0] >> k) for k in range(len(sizes))]
        assert np.ptp([sum(p) / len(p) * len(p) for p in app.phases]) <= 0.6 * sum(app.phases[0])


def test_the_mix_of_models_and_the_share_bound_by_the_network() -> None:
    category = {m: kind for kind, models in MODELS.items() for m, _ in models}
    kinds = [category[a.model] for seed in range(10) for a in load("w1", seed=seed).apps]
    assert kinds.count("language") / len(kinds) == pytest.approx(0.6, abs=0.06)
    assert kinds.count("vision") / len(kinds) == pytest.approx(0.1, abs=0.04)
    for share in (0.0, 0.5, 1.0):
        apps = [a for seed in range(5) for a in load("w2", seed=seed, network=share).apps]
        bound = sum(a.slowdown[1] > 1.2 for a in apps) / len(apps)
        assert bound == pytest.approx(share, abs=0.06)


def test_scale_makes_everything_shorter() -> None:
    whole, small = load("w1", seed=1), load("w1", seed=1, scale=0.1)
    assert small.apps[-1].submitted_s == pytest.approx(0.1 * whole.apps[-1].submitted_s)
    assert small.apps[7].work_gpu_s == pytest.approx(0.1 * whole.apps[7].work_gpu_s)


def test_hived_has_every_job_of_the_papers_table() -> None:
    apps = load("hived", seed=0).apps
    assert len(apps) == 141_950
    for tenant, counts in hived.JOBS.items():
        sizes = [a.gang_gpus for a in apps if a.queue == tenant]
        assert tuple(sum(s == k for s in sizes) for k in (1, 2, 4, 8)) == counts[:4]
        assert sum(s >= 16 for s in sizes) == counts[4]
    assert all(a.submitted_s <= b.submitted_s for a, b in itertools.pairwise(apps))


def test_quotas_are_whole_machines_and_all_of_them() -> None:
    quotas = hived.quotas_gpus(hived.CLUSTER_GPUS)
    assert sum(quotas.values()) == hived.CLUSTER_GPUS
    assert all(gpus % 8 == 0 and gpus >= 8 for gpus in quotas.values())
    assert quotas["res-f"] == pytest.approx(0.2857 * 2232, abs=8)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [("w9", {}, "is none of w1, w2, hived"), ("w1", {"speed": 2}, "unexpected keyword argument 'speed'")],
)
def test_what_does_not_exist_is_named(name: str, options: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load(name, **options)
