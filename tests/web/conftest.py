"""Scenes move on faster than pictures age: here each look is a new one."""

import pytest

from pycontrol.queries import pictures


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "FRESH_S", 0.0)
    monkeypatch.setattr(pictures, "SHARE", 1e9)
    monkeypatch.setattr(pictures, "VIEW_SHARE", 1e9)
