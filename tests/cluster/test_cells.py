"""Cells on a real YARN: two levels below the node, a pinned cell, a raised priority, a control plane that is killed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from submarine_patch.cli import stock
from tests.cluster.rig import BIN, REPO, Rig

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

CELLS = """
cell_types:
  switch: {child: gpu, count: 2}
  big: {child: switch, count: 2, node_level: true}
  small: {child: gpu, count: 2, node_level: true}
physical_cells:
  - {type: big, hosts: [BIG1]}
  - {type: big, hosts: [BIG2]}
  - {type: small, hosts: [SMALL1], pinned_id: corner}
  - {type: small, hosts: [SMALL2]}
virtual_clusters:
  root.prod:
    cells: [{type: switch, chain: big, count: 1}, {type: gpu, chain: big, count: 2}]
    pinned: [corner]
  root.research: {big: 1, small: 1}
"""
SPACE = "parameters: {learning-rate: {type: float, min: 0.01, max: 0.1, log: true}}"


def hosts() -> dict[str, str]:
    """The dev-cluster's hosts by the names that they have in CELLS."""
    topology = yaml.safe_load((REPO / "dev-cluster/topology.yaml").read_text())
    machines = [m for rack in topology["racks"] for m in rack["machines"]]
    big, small = ([m["host"] for m in machines if m["gpus"] == n] for n in (4, 2))
    return dict(zip(("BIG1", "BIG2", "SMALL1", "SMALL2"), (*big, *small), strict=True))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("cells")
    text = CELLS
    for name, host in hosts().items():
        text = text.replace(name, host)
    (folder / "cells.yaml").write_text(text)
    (folder / "space.yaml").write_text(SPACE)
    made = Rig(folder / "dc", "isonomy", "--set", f"isonomy.cells={folder / 'cells.yaml'}")
    yield made
    made.down()


def held(rig: Rig, name: str) -> list[dict[str, Any]]:
    """The leases of an app whose containers run."""
    leases = rig.get("explain", app=name).get("leases", [])
    return [x for x in leases if x["container_id"] and x["state"] == "active"]


def hosts_of(rig: Rig, name: str) -> set[str]:
    return {x["gpu"].rpartition(":")[0] for x in held(rig, name)}


def yarn(rig: Rig, *words: str) -> None:
    """Hadoop's own command line."""
    found = stock.find(rig.env)
    command = [found.java, "-cp", f"{found.conf}:{found.lib}/*", "org.apache.hadoop.yarn.client.cli.ApplicationCLI"]
    done = subprocess.run([*command, *words], env=rig.env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_cells_on_a_real_yarn(rig: Rig) -> None:
    at = hosts()
    group = ["--app-scheduler", "successive_halving", "--search-space", str(rig.folder.parent / "space.yaml"),
             "--jobs", "6", "--eta", "2", "--gpus-per-job", "2", "--min-iterations", "300"]  # fmt: skip
    rig.submit("wide", 600, *group, steps=600)
    rig.wait(lambda: len(held(rig, "wide")) == 12, 180, "research uses all GPUs, its own and borrowed ones")

    rig.submit("corner", 15, "--pinned", "corner", queue="prod")
    rig.submit("first", 120, "--gpus-per-job", "4", "--priority", "1", queue="prod")
    rig.wait(lambda: len(held(rig, "corner")) == 2, 120, "the pinned cell is given back")
    assert hosts_of(rig, "corner") == {at["SMALL1"]}
    rig.wait(lambda: len(held(rig, "first")) == 4, 120, "a switch and two GPUs are one gang's")
    assert len(hosts_of(rig, "first")) == 1
    assert rig.get("explain", app="first")["controls"]["priority"] == 1
    tenants = {t["name"]: t for t in rig.get("cells")["tenants"]}
    assert tenants["root.prod"]["gpus"] == 6

    rig.submit("second", 60, "--gpus-per-job", "4", queue="prod")
    rig.wait(lambda: rig.get("explain", app="second").get("reason", {}).get("code") == "CellsInUse", 60, "it waits")
    yarn(rig, "application", "-appId", rig.app("second")["id"], "-updatePriority", "5")
    rig.wait(lambda: len(held(rig, "second")) == 4, 150, "its raised priority counts at the next end of leases")
    assert rig.get("explain", app="second")["controls"]["priority"] == 5

    before = {x["container_id"] for x in held(rig, "second")}
    assert rig.control is not None
    rig.control.kill()
    rig.control.wait(20)
    rig.serve("isonomy")
    rig.wait(lambda: rig.get("explain", app="wide").get("agent"), 90, "the Agents are back")
    own = [x for x in rig.get("explain", app="second")["leases"] if x["container_id"] in before]
    assert all(x["guaranteed"] for x in own)
    rig.succeeds("corner")
    rig.succeeds("second")
    rig.succeeds("first")
    subprocess.run([BIN / "isonomy", "kill", "wide"], env=rig.env, check=True, timeout=60)
    rig.wait(lambda: rig.app("wide")["state"] in ("FINISHED", "FAILED", "KILLED"), 90, "wide ends")
    rig.audit()
    assert claimed(rig) >= 10, "the guarantees were checked"


def claimed(rig: Rig) -> int:
    """GPUs of virtual clusters whose claims the audit held against the nodes' evidence."""
    words = [BIN / "isonomy", "audit", "--cluster-dir", rig.folder, "-o", "json"]
    done = subprocess.run(words, env=rig.env, capture_output=True, text=True, timeout=60, check=False)
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return int(found["checked"]["guaranteed_gpus_claimed"])
