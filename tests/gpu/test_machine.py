"""What the product reads of a machine: its GPUs for Spark and for the dev cluster, what it declares, what is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pycontrol.hadoopconf.distribution import Distribution
from pycontrol.hadoopconf.findings import Finding
from pycontrol.hadoopconf.preflight import Machine, findings
from pycontrol.hadoopconf.render import confs_dir
from tests.gpu.conftest import Seen, smi

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev-cluster"))
from devcluster.gpus import real_gpus, topology

SCRIPTS = confs_dir() / "nodemanager"
GPU_KEY = "yarn.nodemanager.resource-type.yarn.io/gpu"
DRIVER = Path("/proc/driver/nvidia/gpus")


def run(script: str, *words: str, **env: str) -> str:
    done = subprocess.run(
        [SCRIPTS / script, *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_gpu_is_found(gpus: int, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus > 0
    names = real_gpus()
    assert len(names) == gpus == topology(None, "real").machines[0].gpus
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    told = json.loads(run("isonomy-spark-gpus"))
    assert told == {"name": "gpu", "addresses": [str(i) for i in range(gpus)]}
    assert json.loads(run("isonomy-spark-gpus", CUDA_VISIBLE_DEVICES="0"))["addresses"] == ["0"]
    seen(f"libcuda, nvidia-smi and Spark's script: {gpus}, {names[0]}")


def of_preflight(declared: int) -> list[Finding]:
    sites = {"yarn-site.xml": {}, "node-resources.xml": {GPU_KEY: str(declared)}}
    return list(findings(Machine(), sites, None, Distribution("3.5", None), None))


def test_preflight_compares_the_declaration_with_the_machine(gpus: int, seen: Seen) -> None:
    assert not [f for f in of_preflight(gpus) if f.key in (GPU_KEY, "nvidia-smi")]
    wrong = [f.message for f in of_preflight(gpus + 1) if f.key == GPU_KEY]
    assert wrong == [f"is {gpus + 1}, and nvidia-smi names {gpus}"]
    seen(f"{gpus + 1} declared: {wrong[0]}")


def bad(expected: int, **env: str) -> list[str]:
    lines = run("isonomy-bad-gpus", str(expected), **env).splitlines()
    return [line.removeprefix("NODE_ATTRIBUTE:") for line in lines if "gpu-xids" not in line]


def test_a_healthy_gpu_is_not_bad_and_a_missing_one_is_missed(gpus: int, seen: Seen) -> None:
    ecc = smi("--query-gpu=index,pci.bus_id,ecc.errors.uncorrected.volatile.total", "--format=csv,noheader")
    rows = "gpu_bus_id,remapped_rows.pending,remapped_rows.failure"
    assert bad(gpus) == ["bad-gpus,STRING,none"], ecc
    assert bad(gpus + 1) == ["bad-gpus,STRING,all"]
    remapped = smi(f"--query-remapped-rows={rows}", "--format=csv,noheader")
    seen(f"uncorrected errors {'; '.join(ecc)}; rows to be remapped {'; '.join(remapped)}: none is bad")


def test_an_xid_of_broken_hardware_names_its_gpu(tmp_path: Path, seen: Seen) -> None:
    """The kernel's line is planted, with the place as this driver writes it; who reads it as nvidia-smi's is real."""
    if not DRIVER.is_dir():
        pytest.skip(f"no {DRIVER} here")
    places = sorted(path.name for path in DRIVER.iterdir())
    log = tmp_path / "dmesg"
    for number, place in enumerate(places):
        log.write_text(f"#!/bin/sh\necho '[ 1.0] NVRM: Xid (PCI:{place.rpartition('.')[0]}): 79, pid=1, off the bus'\n")
        log.chmod(0o755)
        assert bad(len(places), PATH=f"{tmp_path}:{os.environ['PATH']}") == [f"bad-gpus,STRING,{number}"]
    seen(f"an Xid at {', '.join(places)} is that GPU's")
