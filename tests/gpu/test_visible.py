"""How many GPUs libcuda counts in containers of the real executor: by their environment, and by their cgroup."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pycontrol.hadoopconf.preflight import Machine
from pycontrol.hadoopconf.render import confs_dir
from tests.gpu import cuda
from tests.gpu.conftest import Seen, smi
from tests.worker.gangs import REPO

DENY = confs_dir() / "nodemanager" / "isonomy-devices"
NM = REPO / "yarn-plugin" / "nm" / "target"
CLASSES = [str(NM / "test-classes"), str(NM / "classes"), f"{REPO}/yarn-plugin/wire/target/classes"]
HADOOP = REPO / "build" / "hadoop" / "lib"
"""Jars of a NodeManager: those of the dev cluster, or of a Hadoop that is installed."""
HIERARCHY = "yarn.nodemanager.linux-container-executor.cgroups.hierarchy"
EXPECTED = {"leased": 1, "none": 0, "allotted": 1}


def containers(folder: Path, gpus: int, **site: str) -> dict[str, Any]:
    """What the probe says in each container; `site`: more of its yarn-site.xml."""
    java, hadoop = shutil.which("java"), f"{HADOOP}/*" if HADOOP.exists() else Machine().says("hadoop", "classpath")
    if java is None or hadoop is None or not (NM / "test-classes" / "isonomy" / "nm" / "RealGpus.class").exists():
        pytest.skip("no java, no jars of Hadoop (dev-cluster/up fetches them) or nothing that Maven compiled")
    site = {"isonomy.nm.evidence-file": str(folder / "evidence.jsonl"), **site}
    for name, values in {
        "yarn-site": site,
        "node-resources": {"yarn.nodemanager.resource-type.yarn.io/gpu": str(gpus)},
    }.items():
        rows = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in values.items())
        (folder / f"{name}.xml").write_text(f"<configuration>{rows}</configuration>")
    words = [java, "-cp", ":".join([str(folder), *CLASSES, hadoop.strip()]), "isonomy.nm.RealGpus", str(folder)]
    words += [f"{sys.executable} {cuda.__file__}", *([str(DENY)] if site.get(HIERARCHY) else [])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    printed = "".join((folder / name).read_text() for name in EXPECTED if (folder / name).exists())
    assert done.returncode == 0, printed + done.stdout[-3000:] + done.stderr[-3000:]
    return {name: json.loads((folder / name).read_text()) for name in EXPECTED}


def test_a_container_sees_the_gpus_of_its_token(tmp_path: Path, gpus: int, seen: Seen) -> None:
    found = containers(tmp_path, gpus)
    assert {name: one["visible"] for name, one in found.items()} == EXPECTED, found
    assert [one["value"] for one in found.values()] == ["0", "", str(gpus - 1)]
    assert {one["order"] for one in found.values()} == {"PCI_BUS_ID"}
    lines = [json.loads(line) for line in (tmp_path / "evidence.jsonl").read_text().splitlines()]
    assert [(line["event"], line["gpu_ids"]) for line in lines] == [
        (event, ids) for ids in ([0], [gpus - 1]) for event in ("start", "end")
    ]
    seen(f"cuDeviceGetCount: {EXPECTED}")
    seen(f"not denied by the environment alone: without CUDA_VISIBLE_DEVICES they see {found['none']['all']}")


@pytest.fixture
def cgroup(tmp_path: Path) -> Iterator[str]:
    """A hierarchy of containers' cgroups of its own, in v2 or v1."""
    if Machine().says(str(DENY), "--check") is None:
        pytest.skip("this user or kernel can deny no devices (isonomy-devices --check)")
    name = f"isonomy-gpu-test-{os.getpid()}"
    root = Path("/sys/fs/cgroup")
    folder = (root if (root / "cgroup.controllers").exists() else root / "devices") / name
    try:
        folder.mkdir()
    except OSError as problem:
        pytest.skip(f"no cgroup can be made here: {problem}")
    yield name
    folder.rmdir()


def test_a_container_cannot_open_the_gpus_of_others(tmp_path: Path, gpus: int, cgroup: str, seen: Seen) -> None:
    """As by LinuxContainerExecutor, whatever the program does with its environment."""
    minors = re.findall(r"Minor Number\s*: (\d+)", "\n".join(smi("-q")))
    found = containers(tmp_path, gpus, **{HIERARCHY: f"/{cgroup}", "isonomy.nm.gpu-minors": ",".join(minors)})
    assert {name: one["visible"] for name, one in found.items()} == EXPECTED, found
    assert {name: one["all"] for name, one in found.items()} == EXPECTED, found
    seen(f"cuDeviceGetCount where the cgroup denies /dev/nvidiaN, without CUDA_VISIBLE_DEVICES: {EXPECTED}")
