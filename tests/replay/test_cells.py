"""Steps of a case: discarded ones leave no trace, impossible ones are errors, and a group ends with its workers."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pycontrol.lab.solve.cells_replay import replay_cells

CLUSTER: dict[str, Any] = {
    "cell_types": {"node": {"child": "gpu", "count": 2, "node_level": True}},
    "physical_cells": [{"type": "node", "hosts": ["n0"]}, {"type": "node", "hosts": ["n1"]}],
    "virtual_clusters": {vc: {"cells": [{"type": "node", "count": 1}]} for vc in ("a", "b")},
}


def schedule(step: int, pod: str, group: str, workers: int = 2, **more: Any) -> dict[str, Any]:
    members = [{"pods": workers, "leaf_cells": 1}]
    request = {
        "vc": more.pop("vc", "a"),
        "priority": more.pop("priority", 0),
        "leaf_number": 1,
        "group": {"name": group, "members": members},
    }
    return {"step": step, "op": "schedule", "pod": pod, "kind": "property", "expect": {}, "request": request, **more}


def delete(step: int, pod: str) -> dict[str, Any]:
    return {"step": step, "op": "delete_allocated", "pod": pod}


def exists(step: int, group: str) -> dict[str, Any]:
    return {"step": step, "op": "assert_group", "group": group}


def answers(*steps: dict[str, Any], cluster: dict[str, Any] = CLUSTER) -> list[dict[str, Any]]:
    case = {"id": "t", "cluster": copy.deepcopy(cluster), "steps": list(steps)}
    return [answer["result"] for answer in replay_cells(case, False)]


def test_a_discarded_step_leaves_nothing_behind() -> None:
    first, there, second, third, fourth = answers(
        schedule(1, "p1", "g", commit_if_bound=False),
        exists(2, "g"),
        schedule(3, "p2", "g"),
        schedule(4, "p3", "g"),
        schedule(5, "p1", "g"),
    )
    assert first["outcome"] == "bind"
    assert there == {"exists": False}
    assert {second["outcome"], third["outcome"]} == {"bind"}
    assert fourth["outcome"] == "error"
    assert "no place left" in fourth["reason"]


def test_a_worker_of_a_placed_group_may_be_discarded_too() -> None:
    placed = answers(schedule(1, "p1", "g"), schedule(2, "p2", "g", commit_if_bound=False), schedule(3, "p3", "g"))
    assert [x["outcome"] for x in placed] == ["bind"] * 3


def test_an_impossible_cluster_is_an_error() -> None:
    more = copy.deepcopy(CLUSTER)
    more["virtual_clusters"]["a"]["cells"][0]["count"] = 2
    *refused, fine = answers(
        {"step": 1, "op": "build_cluster", "cluster": more},
        {"step": 2, "op": "build_cluster", "cluster": {}},
        {"step": 3, "op": "build_cluster", "cluster": {"levels": {"rack": 2}, "virtual_clusters": {}}},
        {"step": 4, "op": "build_cluster", "cluster": CLUSTER},
    )
    assert [x["outcome"] for x in refused] == ["error"] * 3
    assert "falls short by 1" in refused[0]["reason"]
    assert fine["outcome"] == "ok"


def test_a_case_whose_own_cluster_is_impossible_is_answered() -> None:
    more = copy.deepcopy(CLUSTER)
    more["virtual_clusters"]["a"]["cells"][0]["count"] = 2
    own, placed, fine, again, now = answers(
        {"step": 1, "op": "build_cluster"},
        schedule(2, "p1", "g"),
        {"step": 3, "op": "build_cluster", "cluster": CLUSTER},
        {"step": 4, "op": "reconfigure", "cluster": CLUSTER, "replay_allocated": []},
        schedule(5, "p1", "g"),
        cluster=more,
    )
    assert own == placed
    assert own["outcome"] == "error"
    assert "falls short by 1" in own["reason"]
    assert fine["outcome"] == "ok"
    assert again == {}
    assert now["outcome"] == "bind"


@pytest.mark.parametrize("order", [("low", "high"), ("high", "low")])
def test_a_smaller_virtual_cluster_downgrades_the_lowest_priority(order: tuple[str, str]) -> None:
    both = copy.deepcopy(CLUSTER)
    both["virtual_clusters"]["a"]["cells"][0]["count"] = 2
    del both["virtual_clusters"]["b"]
    pods = [f"{name}{k}" for name in order for k in (1, 2)]
    *_, low, high = answers(
        *(schedule(1, pod, pod[:-1], priority=5 * pod.startswith("high")) for pod in pods),
        {"step": 5, "op": "reconfigure", "cluster": CLUSTER, "replay_allocated": pods},
        exists(6, "low"),
        exists(7, "high"),
        cluster=both,
    )
    assert (low["lazy_preempted"], high["lazy_preempted"]) == (True, False)


def test_a_group_ends_with_its_last_placed_worker() -> None:
    *_, gone = answers(
        *(schedule(k, f"x{k}", "x", vc="b", priority=-1, workers=4) for k in range(1, 5)),
        schedule(5, "p1", "g"),
        schedule(6, "p2", "g"),
        *(delete(6 + k, f"x{k}") for k in range(1, 5)),
        schedule(11, "p1", "g"),
        delete(12, "p1"),
        exists(13, "g"),
    )
    assert gone == {"exists": False}


def test_a_group_on_cells_no_longer_owned_counts_as_lazily_preempted() -> None:
    less = copy.deepcopy(CLUSTER)
    less["virtual_clusters"]["a"]["cells"][0]["count"] = 0
    *_, found = answers(
        schedule(1, "p1", "g"),
        schedule(2, "p2", "g"),
        {"step": 3, "op": "reconfigure", "cluster": less, "replay_allocated": ["p1", "p2"]},
        exists(4, "g"),
    )
    assert found["exists"]
    assert found["lazy_preempted"]


def test_no_step_ends_in_a_traceback_and_an_error_changes_nothing() -> None:
    smaller = copy.deepcopy(CLUSTER)
    smaller["physical_cells"] = smaller["physical_cells"][1:]
    smaller["virtual_clusters"].pop("b")
    placed, *wrong, still = answers(
        schedule(1, "p1", "g"),
        {"step": 2, "op": "set_bad", "node": "elsewhere"},
        {"step": 3, "op": "schedule"},
        {"step": 4, "op": "run"},
        {"step": 5, "op": "reconfigure", "cluster": {"virtual_clusters": {}}, "replay_allocated": ["p1"]},
        schedule(6, "q", "h", vc="nobody"),
        exists(7, "g"),
    )
    assert placed["outcome"] == "bind"
    assert [x["outcome"] for x in wrong] == ["error"] * 5
    assert still["exists"]
    *_, gone = answers(
        schedule(1, "p1", "g"),
        {"step": 2, "op": "reconfigure", "cluster": smaller, "replay_allocated": ["p1"]},
        exists(3, "g"),
    )
    assert "exists" in gone
