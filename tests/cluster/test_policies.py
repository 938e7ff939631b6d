"""Every policy and every app scheduler on a real cluster: two apps that contend, both succeed, the audit is clean.

About seven minutes, so not a part of `make test`: `make policy-test`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pycontrol.policies import registry
from tests.cluster.rig import Rig

pytestmark = pytest.mark.policies

SPACE = """\
parameters:
  learning-rate: {type: float, min: 0.003, max: 0.3, log: true}
"""
SCHEDULERS = ("hyperband", "successive_halving", "asha", "median", "curve", "optuna")
PAIRS = [(policy, SCHEDULERS[k % len(SCHEDULERS)]) for k, policy in enumerate(registry.names())]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("policies"))
    (made.folder / "space.yaml").write_text(SPACE)
    yield made
    made.down()


def group(scheduler: str, space: Path) -> list[str]:
    """Options of four jobs of two GPUs that try learning rates."""
    halves = ["--eta", "2"] if scheduler in ("hyperband", "successive_halving", "asha") else []
    return [
        "--app-scheduler",
        scheduler,
        "--search-space",
        str(space),
        "--gpus-per-job",
        "2",
        "--jobs",
        "4",
        "--min-iterations",
        "25",
        "--seed",
        "1",
        *halves,
    ]


@pytest.mark.parametrize(("policy", "scheduler"), PAIRS)
def test_two_apps_contend_and_both_succeed(rig: Rig, policy: str, scheduler: str) -> None:
    rig.stop()
    rig.serve(policy)
    search, plain = f"{policy}-{scheduler}", f"{policy}-plain"
    rig.submit(search, 5, *group(scheduler, rig.folder / "space.yaml"))
    rig.submit(plain, 10)
    rig.succeeds(search)
    rig.succeeds(plain)
    rounds = rig.get("rounds", n="200")["rounds"]
    ids = {rig.app(name)["id"] for name in (search, plain)}
    served = {g["app_id"] for r in rounds if r["policy"] == policy for g in r["granted"]}
    assert ids <= served, "both got GPUs in rounds of this policy"
    rig.audit()
