"""Rounds and views compute a value once for all equal apps: counted in calls, not in seconds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pycontrol.arbiter.ledger.limits import LimitBook
from pycontrol.arbiter.round import candidates, eligibility
from pycontrol.arbiter.round.candidates import Candidates
from pycontrol.model import events as ev
from pycontrol.model.cluster import Node, Queue
from pycontrol.queries import pending_reasons as cellreasons
from pycontrol.queries import views
from tests.arbiter.mini import CELLS, Mini

pytestmark = pytest.mark.interpreted
APPS = 12
Counted = dict[str, int]


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], Counted]:
    def of(owner: Any, name: str) -> Counted:
        calls, real = {"n": 0}, getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls["n"] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)
        return calls

    return of


def test_apps_alike_wait_for_their_cells_for_one_reason(count: Callable[[Any, str], Counted]) -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)), supply=CELLS)
    for k in range(APPS):
        m.app(f"a{k}", gang=4, queue="root.a")
    m.run(5)
    parts = count(cellreasons, "own_part")
    rows = views.queue(m.a, m.now, {})["apps"]
    assert sum(r["reason"] == "CellsInUse" for r in rows) == APPS - 2  # one has its own cells, one borrows
    assert parts["n"] == 1


def test_a_queues_gpus_are_counted_once_between_changes(count: Callable[[Any, str], Counted]) -> None:
    m = Mini(nodes=(("n1", 8),), queues=(Queue("root.q", 0.5, 0.5),))
    for k in range(APPS):
        m.app(f"a{k}")
    m.run(5)
    counts = count(LimitBook, "of")
    rows = views.queue(m.a, m.now, {})["apps"]
    assert sum(r["reason"] == "QueueLimit" for r in rows) == APPS - 4
    assert counts["n"] <= 4, "once for each app that holds GPUs"
    m.a.settings, counts["n"] = replace(m.a.settings, validate=False), 0
    m.send(ev.AppRemoved(next(f"a{k}" for k in range(APPS) if m.held(f"a{k}")), "FINISHED"))
    m.a.holdings.queue_rooms(rows[0]["app_id"])
    assert counts["n"] <= 2, "only for the apps that facts were about"


def test_a_round_looks_at_what_changed_and_asks_once_for_gangs_alike(count: Callable[[Any, str], Counted]) -> None:
    m = Mini(nodes=(("n1", 4),))
    for k in range(APPS):
        m.app(f"a{k}", gang=3)
    m.run(5)
    before, looked, asked = len(m.a.receipts), count(Candidates, "_refresh"), count(eligibility.Openings, "why_out")
    m.app("late", gang=3)
    m.run(5)
    rounds = len(m.a.receipts) - before
    assert rounds
    assert asked["n"] == rounds
    assert looked["n"] <= 2, "the late one, and the one that got its GPUs"


def test_a_round_makes_no_new_views_of_apps_that_wait_below_a_limit(count: Callable[[Any, str], Counted]) -> None:
    m = Mini(nodes=(("n1", 8),), queues=(Queue("root.q", 0.5, 0.5),))
    m.a.settings = replace(m.a.settings, validate=False)
    for k in range(APPS):
        m.app(f"a{k}", gang=3)
    m.run(5)
    before, made = len(m.a.receipts), count(candidates, "view")
    m.app("late", gang=3)
    m.send(ev.AppRemoved(next(f"a{k}" for k in range(APPS) if m.held(f"a{k}")), "FINISHED"))
    m.run(5)
    assert len(m.a.receipts) > before
    assert made["n"] <= 4, "the late one, and the one that got its GPUs"
    assert sum(len(m.held(f"a{k}")) for k in range(APPS)) == 3, "what the limit leaves is of now"


def test_node_labels_are_compared_once_for_apps_of_a_partition(count: Callable[[Any, str], Counted]) -> None:
    m = Mini(nodes=(("n1", 2), ("n2", 2)), queues=(Queue("root.q", default_partition="gpu"),))
    for k in range(APPS):
        m.app(f"a{k}", gang=2)
    compared = count(eligibility, "_allows")
    m.send(ev.NodeUp(Node("n1:1", "n1", "r", 2, partition="gpu")))
    m.run(1)
    assert 0 < compared["n"] < APPS
