"""The baselines in the Arbiter itself: apps finish, no GPU is in two containers, and no gang restarts needlessly."""

from __future__ import annotations

import pytest

from pycontrol.policies import registry
from tests.arbiter.world import World

NAMES = [n for n in registry.names() if not registry.make(n).asks_agents]


@pytest.mark.parametrize("name", NAMES)
def test_contending_apps_all_finish(name: str) -> None:
    """12 GPUs; three apps that want 24. The world checks its invariants after every event."""
    w = World(name, 1)
    apps = [w.add_app("wide", 4, 2, 200)]
    w.run(20)
    apps += [w.add_app("small", 1, 4, 100), w.add_app("pairs", 2, 6, 100)]
    w.run(6000)
    assert [a.app_id for a in apps if not a.finished] == []
    assert not w.arbiter.durable.leases


@pytest.mark.parametrize("name", NAMES)
def test_an_app_without_contenders_is_renewed_in_place(name: str) -> None:
    w = World(name, 2)
    w.add_app("a", 2, 2, 800)
    w.add_app("b", 2, 2, 800)
    w.run(150)
    granted = [x for r in w.arbiter.receipts for x in r.done.granted]
    assert len(granted) == 8, "each GPU was granted once"
