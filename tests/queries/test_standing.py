"""The displayed order of service is the order in which GPUs are given."""

import random

import pytest

from pycontrol.model.auction import AppView, Demand, Snapshot
from pycontrol.model.topology import Machine, Topology
from pycontrol.policies import registry
from pycontrol.policies.filling import Filling
from pycontrol.policies.isonomy import Isonomy
from pycontrol.queries.standing import _ranked
from tests.web.scene import EARLY, LATE, Scene

FILLING = [n for n in registry.names() if isinstance(registry.make(n), Filling)]


def _snapshot(seed: int) -> Snapshot:
    """Ten apps of one-GPU gangs with or without GPUs; a single GPU is on offer."""
    rng = random.Random(seed)
    apps = tuple(
        AppView(
            f"app{i}",
            f"root.q{i % 3}",
            rng.uniform(0.5, 9),
            Demand(1, 4, 1, rng.uniform(10, 900), 1000.0, loss_rate=rng.random()),
            retained_gpus=0,
            submitted_s=rng.uniform(0, 100),
            user=f"u{i % 4}",
            attained_gpu_s=rng.uniform(0, 5000),
        )
        for i in range(10)
    )
    topology = Topology.of([Machine("n1", "a", 40)])
    return Snapshot("r1", 200.0, topology, {"n1": 1}, apps, present=frozenset(v.app_id for v in apps))


@pytest.mark.parametrize("name", FILLING)
def test_an_app_that_ranks_first_gets_the_only_gpu(name: str) -> None:
    policy = registry.make(name)
    assert isinstance(policy, Filling)
    for seed in range(20):
        snapshot = _snapshot(seed)
        ranks = _ranked(policy, snapshot)
        assert sorted(s.rank for s in ranks.values()) == list(range(1, 11))
        plan = policy.decide(snapshot, {}, random.Random(0))
        assert [ranks[award.app_id].rank for award in plan.awards] == [1], seed


def test_the_queue_under_the_default_policy_goes_by_virtual_finish_time() -> None:
    scene = Scene(policy=Isonomy())
    d = scene.get("queue")
    assert d["measure"] == {"name": "virtual finish time", "unit": "s"}
    waiting = [r for r in d["apps"] if r["rank"] is not None]
    assert [r["rank"] for r in waiting] == list(range(1, len(waiting) + 1))
    assert [r["amount"] for r in waiting] == sorted(r["amount"] for r in waiting)
    assert {r["app_id"] for r in waiting} <= {EARLY, LATE}
    assert [r["position"] for r in d["apps"]] == list(range(1, len(d["apps"]) + 1))
