"""The conformance suite over all policies of the registry."""

from __future__ import annotations

import pytest

from pycontrol.lab.conformance import PolicyConformance
from pycontrol.lab.conformance.snapshots import CLUSTER
from pycontrol.lab.policies.variants import make
from pycontrol.policies import registry

VARIANTS = [(name, {}) for name in registry.names()] + [
    ("gavel", {"objective": "finish_time"}),
    ("gavel", {"objective": "min_duration"}),
    ("gandiva", {"ties": "random"}),
    ("gandiva", {"restart_s": 0.0}),
    ("tiresias", {"threshold_gpu_s": 900.0}),
    ("tiresias", {"greedy": True, "packing": "first"}),
    ("optimus", {"gain": "time"}),
    ("drf", {"packing": "random"}),
    ("yarn_cs", {"packing": "random", "ties": "random"}),
]
every_policy = pytest.mark.parametrize(
    "policy",
    [pytest.param(make(n, **o), id="-".join([n, *map(str, o.values())])) for n, o in VARIANTS],
)


@every_policy
class TestEveryPolicy(PolicyConformance):
    """Each policy of the registry, also with options."""


def test_the_suites_cluster_covers_the_tested_cases() -> None:
    assert {m.gpu_type for m in CLUSTER.machines.values()} == {"V100", "K80"}
    assert len(CLUSTER.racks) == 3
