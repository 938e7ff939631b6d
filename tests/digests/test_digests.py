"""Today's decisions are those that are kept, on a part of the workloads; `make digests` compares all of them.

A rule that changes decisions is a commit of its own, which runs `python -m tests.digests --update` and names the rule.
"""

from __future__ import annotations

import pytest

from pycontrol.policies import registry
from tests.digests import planted, workloads
from tests.digests.__main__ import difference, kept
from tests.faults.mutants import ROOT
from tests.faults.patch import replaced

pytestmark = pytest.mark.interpreted
QUICK = ("types", "world-54", "world-63")
STARTS = 2_000


@pytest.mark.parametrize("policy", registry.POLICIES)
def test_decisions_are_as_kept(policy: str) -> None:
    assert difference(policy, list(QUICK)) == []


@pytest.mark.parametrize("policy", registry.POLICIES)
def test_the_kept_text_is_of_all_workloads_and_large_enough(policy: str) -> None:
    lines = kept(policy)
    heads = {line for line in lines if line.startswith("# ")}
    assert {f"# {name} {policy}" for name in workloads.names()} <= heads
    assert sum(line.split()[1:2] == ["start"] for line in lines) >= STARTS


@pytest.mark.parametrize("name", planted.PLANTED)
def test_each_planted_change_applies(name: str) -> None:
    folder, old, new = planted.PLANTED[name]
    replaced(old, new, ROOT / folder)
