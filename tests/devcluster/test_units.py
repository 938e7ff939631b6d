"""dev-cluster's parts that need no Hadoop."""

import socket
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "dev-cluster"))

from devcluster import gpus, ports
from devcluster.errors import DevClusterError


def nvidia_smi(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a program of this name first in PATH."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_real_gpus_are_those_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, "echo NVIDIA H200; echo NVIDIA H200", monkeypatch)
    spec = gpus.topology(None, "real")
    assert [(m.gpus, m.type) for m in spec.machines] == [(2, "NVIDIA-H200")]
    assert not spec.virtual_gpus
    with pytest.raises(DevClusterError, match="one machine with at most 2 GPUs"):
        gpus.topology(gpus.DEFAULT_TOPOLOGY, "real")


def test_no_real_gpu_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, "echo 'No devices were found'; exit 6", monkeypatch)
    with pytest.raises(DevClusterError, match="finds no GPU; use --gpus virtual"):
        gpus.topology(None, "real")


def test_default_topology_has_two_racks_and_machines_of_different_size() -> None:
    topology = gpus.topology(None, "virtual").topology()
    assert len(topology.racks) == 2
    assert {m.gpus for m in topology.machines.values()} == {2, 4}
    assert all(m.virtual for m in topology.machines.values())


def test_ports_are_free_and_a_taken_one_is_named() -> None:
    hosts = ["127.0.10.1", "127.0.20.1"]
    chosen = ports.choose(hosts)
    assert len(set(chosen.values())) == len(chosen)
    assert ports.taken(chosen, hosts) == []
    with socket.create_server(("127.0.20.1", chosen["nm"])):
        assert ports.taken(chosen, hosts) == ["nm"]


@pytest.mark.parametrize("host", ["10.1.2.3", "machine"])
def test_a_host_that_is_no_loopback_address_is_refused(host: str) -> None:
    with pytest.raises(DevClusterError, match=f"host {host} must be a loopback address"):
        ports.check_host(host)
