"""`isonomy preview`: who would lose which GPUs if files were changed, against a control plane that serves its state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pycontrol.cli import main, preview_command
from pycontrol.cli.preview_command import _queues
from pycontrol.model.cluster import Mode, ModeSwitch
from pycontrol.model.topology import Topology
from pycontrol.policies import registry
from pycontrol.simulation.scene import picture, scene_from
from pycontrol.web.router import Router
from tests.hadoopconf.test_queues import written
from tests.web.stage import QUEUES, Stage, busy, served

FULL = {
    "root.queues": "prod,research,default",
    **{f"{path}.capacity": str(100 * part) for path, part in QUEUES.items()},
    **{f"{path}.user-limit-factor": "-1" for path in QUEUES},
}


@pytest.fixture(scope="module")
def stage() -> Stage:
    return busy(registry.make("isonomy"), machines=2, gpus=4, apps=6, hours=1.0)


@pytest.fixture(scope="module")
def server(stage: Stage) -> Iterator[str]:
    with served(Router(stage, issue=lambda a, u: "", arbiter_address="h:1", picture=picture)) as found:
        yield found.url.partition("/ws/")[0]


def run(server: str, *args: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["--rm", server, "preview", *args], env={"ISONOMY_RM": None})
    assert result.exit_code == code, result.output
    return str(result.output)


def said(server: str, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(server, *args, "-o", "json"))
    return found


def test_queues_that_stay_take_nothing(server: str, tmp_path: Path) -> None:
    found = said(server, "--capacity-scheduler", str(written(tmp_path, FULL)))
    assert not found["restart"]
    assert all(x["anyway"] for x in found["losses"])
    assert found["changes"] == []


def test_queues_that_capacity_scheduler_serves_stay_so(stage: Stage, tmp_path: Path) -> None:
    """As the plugin reports them: those that the mode does not name, and in mode shadow all."""
    scene = scene_from(picture(stage.arbiter, stage.now))
    file = written(tmp_path, {**FULL, "root.queues": "prod,research,default,new", "root.new.capacity": "0"})
    for mode, named, away in (
        (Mode.ON, (), set()),
        (Mode.ON, ("root.prod", "root.re"), {"root.research", "root.default", "root.new"}),
        (Mode.ON, ("root",), set()),
        (Mode.UNREADABLE, (), set()),
        (Mode.SHADOW, (), {"root.prod", "root.research", "root.default", "root.new"}),
    ):
        now = replace(scene, cluster=replace(scene.cluster, switch=ModeSwitch(mode, named)))
        assert {q.path for q in _queues(now, file).cluster.queues if q.unmanaged} == away


def test_a_limit_of_users_takes_what_a_user_has_above_it(server: str, tmp_path: Path) -> None:
    factors = {f"{path}.user-limit-factor": "0.1" for path in QUEUES}
    found = said(server, "--capacity-scheduler", str(written(tmp_path, {**FULL, **factors})))
    assert any(not x["anyway"] for x in found["losses"])


def test_a_lower_maximum_takes_what_is_above_it(server: str, stage: Stage, tmp_path: Path) -> None:
    a = stage.arbiter
    held = {q: sum(a.holdings.holding(x) for x, r in a.durable.live.items() if r.queue == q) for q in QUEUES}
    queue = max(held, key=lambda q: held[q])
    assert held[queue] >= 4
    few = str(written(tmp_path, {**FULL, f"{queue}.maximum-capacity": "25"}))
    found = said(server, "--capacity-scheduler", few)
    mine = [x for x in found["losses"] if not x["anyway"]]
    assert mine
    assert {x["queue"] for x in mine} == {queue}
    assert all(found["now_s"] < x["at_s"] <= found["until_s"] and x["rule"] and x["why"] for x in mine)
    assert sum(x["gpus"] for x in found["changes"] if x["queue"] == queue) < 0
    rows = [(x["app_id"], x["at_s"], x["rule"], x["why"], x["anyway"]) for x in found["losses"]]
    assert len(rows) == len(set(rows)), "one row for all gangs of an app that go alike"
    assert any(len(x["gpu_ids"]) > 1 for x in mine)
    assert {x["why"] for x in mine if x["rule"] == "lost_round"} == {f"its queue is at its limit: {queue}"}
    text = run(server, "--capacity-scheduler", few)
    assert "The change would take " in text
    assert all(x["why"] in text for x in mine)


def test_limits_of_accounts_and_cells_are_changes_too(server: str, stage: Stage, tmp_path: Path) -> None:
    holding = next(x for x in stage.arbiter.durable.live.values() if stage.arbiter.holdings.holding(x.app_id) > 1)
    config = tmp_path / "isonomy.yaml"
    config.write_text(
        f"state_dir: s\npolicy: isonomy\naccounts: {{others: {{users: {{{holding.user}: {{limits: {{gpus: 1}}}}}}}}}}\n"
    )
    found = said(server, "--config", str(config))
    assert found["restart"]
    mine = [x for x in found["losses"] if not x["anyway"]]
    assert holding.user in {x["user"] for x in mine}
    cells = tmp_path / "cells.yaml"
    spec = {
        "cell_types": {"node": {"child": "gpu", "count": 4, "node_level": True}},
        "physical_cells": [{"type": "node", "hosts": [host]} for host in sorted(stage.topology.machines)],
        "virtual_clusters": {"root.prod": {"node": 1}},
    }
    cells.write_text(json.dumps(spec))
    found = said(server, "--cells", str(cells))
    assert found["restart"], "there were no virtual clusters"
    assert found["cells"]["virtual_clusters"][0]["gpus"] == 4
    assert found["cells"]["unknown"] == []
    assert "COULD STILL BE ASSIGNED" in run(server, "--cells", str(cells))
    more = {"type": "node", "hosts": ["nowhere"]}
    wrong = {"physical_cells": [*spec["physical_cells"], more], "virtual_clusters": {"root.prdo": {"node": 1}}}
    cells.write_text(json.dumps(spec | wrong))
    queue, host = said(server, "--cells", str(cells))["cells"]["unknown"]
    assert queue == "root.prdo is no leaf queue of the cluster: no app can use its cells"
    assert host.startswith("the control plane knows no node nowhere")
    assert f"WARNING: {queue}" in run(server, "--cells", str(cells))


def test_a_cells_file_without_hosts_has_those_of_the_topology_file_as_when_it_is_applied(
    server: str, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cells := tmp_path / "cells.yaml").write_text("levels: {node: 4}\nvirtual_clusters: {root.prod: {node: 1}}\n")
    assert said(server, "--cells", str(cells))["cells"]["virtual_clusters"][0]["gpus"] == 4
    registered = replace(scene_from(picture(stage.arbiter, stage.now)), configured=Topology())
    monkeypatch.setattr(preview_command, "scene_at", lambda _: registered)
    assert "no topology file names hosts with GPUs" in run(server, "--cells", str(cells), code=1)


def test_cells_are_checked_with_the_topology_file_of_the_changed_configuration(server: str, tmp_path: Path) -> None:
    (cells := tmp_path / "cells.yaml").write_text("levels: {node: 4}\nvirtual_clusters: {root.prod: {node: 3}}\n")
    (config := tmp_path / "isonomy.yaml").write_text("state_dir: s\ncells: cells.yaml\ntopology: topology.yaml\n")
    changed = ("--cells", str(cells), "--config", str(config))
    assert "root.prod" in run(server, *changed, code=1), "the present machines are two"
    racks = [{"name": "r0", "machines": [{"host": f"r00m0{k}", "gpus": 4} for k in range(3)]}]
    (tmp_path / "topology.yaml").write_text(json.dumps({"racks": racks}))
    assert said(server, *changed)["cells"]["virtual_clusters"][0]["gpus"] == 12
    config.write_text("state_dir: s\ntopology: topology.yaml\n")
    assert "isonomy.yaml names no cells file" in run(server, *changed, code=2), "after a restart there are none"


def test_what_cannot_be_previewed_is_one_line(server: str, tmp_path: Path) -> None:
    other = written(tmp_path, {"root.queues": "other", "root.other.capacity": "100"})
    assert "give a changed file" in run(server, code=2)
    assert "has no leaf queue root." in run(server, "--capacity-scheduler", str(other), code=1)
    assert "cannot be read" in run(server, "--cells", str(tmp_path / "none.yaml"), code=1)
    assert "is not a snapshot" in run(server, "none.zip", "--capacity-scheduler", str(other), code=2)
    (config := tmp_path / "isonomy.yaml").write_text("policy: nosuch\n")
    assert "there is no policy nosuch" in run(server, "--config", str(config), code=1)
    label = f"{next(iter(QUEUES))}.default-node-label-expression"
    ghost = {**FULL, "root.accessible-node-labels": "*", label: "ghost"}
    text = run(server, "--capacity-scheduler", str(written(tmp_path, ghost)), code=1)
    assert "no machine has the node label ghost" in text
    assert f"{label})" in text
