"""The queues that a capacity-scheduler.xml describes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycontrol.configerror import ConfigError
from pycontrol.hadoopconf.queues import PREFIX, read_queues
from pycontrol.model.cluster import Queue


def written(folder: Path, values: dict[str, str]) -> Path:
    """The file with these properties."""
    file = folder / "capacity-scheduler.xml"
    rows = "".join(f"<property><name>{PREFIX}{k}</name><value>{v}</value></property>" for k, v in values.items())
    file.write_text(f"<configuration>{rows}</configuration>")
    return file


def read(folder: Path, values: dict[str, str], gpus: int = 40) -> dict[str, Queue]:
    """The queues by path."""
    return {queue.path: queue for queue in read_queues(written(folder, values), {"": gpus})}


def test_percent_is_of_the_parent(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "root.queues": "a, b",
            "root.a.capacity": "75",
            "root.a.maximum-capacity": "80",
            "root.b.capacity": "25",
            "root.a.queues": "x,y",
            "root.a.x.capacity": "40",
            "root.a.y.capacity": "60",
            "root.a.x.maximum-capacity": "50",
        },
    )
    assert list(found) == ["root", "root.a", "root.a.x", "root.a.y", "root.b"]
    assert {path: round(q.capacity, 6) for path, q in found.items() if q.leaf} == {
        "root.a.x": 0.3,
        "root.a.y": 0.45,
        "root.b": 0.25,
    }
    assert [found[p].max_capacity for p in ("root.a", "root.a.x", "root.a.y", "root.b")] == [0.8, 0.4, 0.8, 1.0]


def test_weights_are_of_all_siblings(tmp_path: Path) -> None:
    found = read(tmp_path, {"root.queues": "a,b", "root.a.capacity": "3w", "root.b.capacity": "1w"})
    assert [found[p].capacity for p in ("root.a", "root.b")] == [0.75, 0.25]


def test_of_resources_the_gpus_count(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "root.queues": "a,b",
            "root.a.capacity": "[memory=1024, vcores=4, yarn.io/gpu=8]",
            "root.a.maximum-capacity": "[memory=2048,yarn.io/gpu=10]",
            "root.b.capacity": "[memory=10]",
        },
    )
    assert (found["root.a"].capacity, found["root.a"].max_capacity, found["root.b"].capacity) == (0.2, 0.25, 0.0)
    assert found["root.a"].partitions[""].max_gpus == 10


def test_limits_of_users_and_stopped_queues(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "root.queues": "a,b",
            "root.a.capacity": "50",
            "root.b.capacity": "50",
            "minimum-user-limit-percent": "25",
            "root.a.user-limit-factor": "2",
            "root.b.minimum-user-limit-percent": "50",
            "root.b.state": "STOPPED",
            "root.b.maximum-capacity": "-1",
        },
    )
    a, b = found["root.a"], found["root.b"]
    assert (a.user_limit, a.user_limit_factor, a.stopped) == (0.25, 2.0, False)
    assert (b.user_limit, b.user_limit_factor, b.stopped, b.max_capacity) == (0.5, 1.0, True, 1.0)


ONE = {"root.queues": "a", "root.a.capacity": "100"}
TWO = {"root.queues": "a,b", "root.a.capacity": "50", "root.b.capacity": "50"}


def test_without_the_legacy_mode_of_queues_kinds_mix(tmp_path: Path) -> None:
    values = {
        "legacy-queue-mode.enabled": "false",
        "root.queues": "a,b,c,d",
        "root.a.capacity": "[memory=10%, vcores=2w, yarn.io/gpu=25%]",
        "root.b.capacity": "[memory=10%, yarn.io/gpu=4]",
        "root.c.capacity": "[memory=10%, yarn.io/gpu=1w]",
        "root.d.capacity": "0",
    }
    found = read(tmp_path, values)
    assert [found[f"root.{x}"].capacity for x in "abd"] == [0.25, 0.1, 0.0]


@pytest.mark.parametrize("of", ["0", "0.0", "100"])
def test_capacities_may_all_be_zero(tmp_path: Path, of: str) -> None:
    assert read(tmp_path, {"root.queues": "a,b", "root.a.capacity": of, "root.b.capacity": "0.0"})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "root.queues is missing"),
        ({"root.queues": "a"}, "root.a.capacity: must be percent, a weight"),
        ({"root.queues": "a", "root.a.capacity": "half"}, "(got half)"),
        ({"root.queues": "a", "root.a.capacity": "[yarn.io/gpu=4.5]"}, "root.a.capacity: must be percent, a weight"),
        ({**ONE, "root.a.maximum-capacity": "-5"}, "root.a.maximum-capacity: must be percent, a weight"),
        ({**ONE, "root.a.user-limit-factor": "x"}, "root.a.user-limit-factor: must be a number (got x)"),
        ({**ONE, "minimum-user-limit-percent": "x"}, "minimum-user-limit-percent: must be a number (got x)"),
        (
            {**TWO, "root.b.capacity": "30"},
            "the capacities of the queues below root: YARN takes 100 percent in all (got 80)",
        ),
        ({**TWO, "root.b.capacity": "[yarn.io/gpu=8]"}, "one kind for all (got percent and resources)"),
        ({**TWO, "root.b.capacity": "2w"}, "one kind for all (got percent and weights)"),
    ],
)
def test_a_mistake_names_file_and_key(tmp_path: Path, values: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, values)
    assert said in str(caught.value)
    assert "capacity-scheduler.xml" in str(caught.value)
