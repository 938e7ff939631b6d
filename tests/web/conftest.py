"""Scenes move on faster than pictures age: here each look is a new one."""

import pytest

from pycontrol.policies import registry
from pycontrol.queries import pictures
from tests.web.stage import Stage, add_troubles, busy


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "FRESH_S", 0.0)
    monkeypatch.setattr(pictures, "SHARE", 1e9)
    monkeypatch.setattr(pictures, "VIEW_SHARE", 1e9)


@pytest.fixture(scope="module")
def stage() -> Stage:
    """A busy cluster with troubles."""
    stage = busy(registry.make("isonomy"))
    add_troubles(stage)
    stage.run_until(stage.now + 70)
    return stage
