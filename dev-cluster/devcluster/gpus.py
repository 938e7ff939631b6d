"""The machines and GPUs of the cluster: virtual ones from the topology file, real ones from nvidia-smi."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from devcluster import REPO
from devcluster.devcluster_error import DevClusterError
from pycontrol.config import MachineSpec, RackSpec, TopologySpec, load_topology_spec

DEFAULT_TOPOLOGY = REPO / "dev-cluster" / "topology.yaml"
REAL_HOST = "127.0.10.1"


def topology(file: Path | None, gpus: str) -> TopologySpec:
    """The topology that `up` was asked for."""
    if gpus == "virtual":
        spec = load_topology_spec(file or DEFAULT_TOPOLOGY)
        return spec.model_copy(update={"virtual_gpus": True})
    found = real_gpus()
    if file is None:
        machine = MachineSpec(host=REAL_HOST, gpus=len(found), type=found[0].replace(" ", "-"))
        return TopologySpec(racks=[RackSpec(name="rack-a", machines=[machine])])
    spec = load_topology_spec(file)
    if len(spec.machines) != 1 or spec.machines[0].gpus > len(found):
        raise DevClusterError(
            f"{file}: with --gpus real it must name one machine with at most {len(found)} GPUs (nvidia-smi)"
        )
    return spec.model_copy(update={"virtual_gpus": False, "speeds": {}})


def real_gpus() -> list[str]:
    """The names of this machine's GPUs."""
    smi = shutil.which("nvidia-smi")
    if not smi:
        raise DevClusterError("--gpus real: nvidia-smi is missing; install the NVIDIA driver or use virtual")
    command = [smi, "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        raise DevClusterError("--gpus real: nvidia-smi did not answer in 20 s") from None
    names = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    if answer.returncode or not names:
        raise DevClusterError("--gpus real: nvidia-smi finds no GPU; use --gpus virtual")
    return names
