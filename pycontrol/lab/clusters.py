"""Clusters to simulate: those of the Themis paper, uniform ones, any topology file, and smaller ones.

The model has three scopes (machine, rack, cluster): the paper's fourth level, the slot inside a machine, has no
slowdown of its own (S is 1 on one machine). The paper gives no racks; each layout here states its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pycontrol.config import load_topology
from pycontrol.model.topology import Machine, Topology
from pycontrol.simulation.trace_apps import Workload

UNIFORM = re.compile(r"(?P<machines>[1-9]\d*)x(?P<gpus>[1-9]\d*)(/(?P<rack>[1-9]\d*))?")


NAMED: Mapping[str, Sequence[Sequence[int]]] = {
    "testbed-64": [[4, 4, 4, 2, 2]] * 4,  # Themis, section 8.1: 64 GPUs, 8 machines with 2 and 12 with 4
    "paper-168": [*[[8] * 4] * 4, *[[4] * 3] * 2, *[[1] * 8] * 2],  # its simulated cluster: 16 x 8, 6 x 4, 16 x 1
    "paper-256": [*[[8] * 4] * 6, *[[4] * 4] * 3, *[[1] * 8] * 2],  # 256 GPUs in a similar mix: 24 x 8, 12 x 4, 16 x 1
}
"""Of each rack the GPUs of its machines."""


class UnknownCluster(Exception):
    """The name is neither a cluster, nor N x G, nor a topology file."""


def racks_of(layouts: Iterable[Iterable[int]]) -> Topology:
    """A topology with one rack per layout; a layout has the GPUs of each machine."""
    machines = []
    for r, rack in enumerate(layouts):
        machines += [Machine(f"r{r:02d}m{i:02d}", f"rack{r:02d}", gpus) for i, gpus in enumerate(rack)]
    return Topology.of(machines)


def uniform(machines: int, gpus: int, per_rack: int = 8) -> Topology:
    """Machines of one size, `per_rack` to a rack."""
    sizes = [gpus] * machines
    return racks_of(sizes[i : i + per_rack] for i in range(0, machines, per_rack))


def cluster(name: str) -> Topology:
    """The cluster of a name, of NxG (16x8: 16 machines with 8 GPUs; 16x8/4: 4 per rack), or of a topology file.

    Raises UnknownCluster, or ConfigError for a wrong topology file.
    """
    if name in NAMED:
        return racks_of(NAMED[name])
    found = UNIFORM.fullmatch(name)
    if found:
        return uniform(int(found["machines"]), int(found["gpus"]), int(found["rack"] or 8))
    if Path(name).exists():
        return load_topology(Path(name))
    known = ", ".join(NAMED)
    raise UnknownCluster(f"{name}: is none of {known}, no N x G such as 16x8, and no topology file")


def shrunk(topology: Topology, factor: float) -> Topology:
    """The cluster with 1/factor of the machines of each size and GPU type; racks keep their proportions.

    This also changes locality (fewer machines per rack); `denser` does not. Raises ValueError if factor < 1.
    """
    if factor < 1:
        raise ValueError(f"factor {factor:g}: a cluster can only be made smaller, by 1 or more")
    kinds: dict[tuple[int, str], list[Machine]] = {}
    for machine in topology.machines.values():
        kinds.setdefault((machine.gpus, machine.gpu_type), []).append(machine)
    kept = []
    for machines in kinds.values():
        n = max(1, round(len(machines) / factor))
        kept += [machines[i * len(machines) // n] for i in range(n)]
    return Topology.of(kept)


def denser(workload: Workload, factor: float) -> Workload:
    """The same apps, arriving `factor` times as fast."""
    if factor <= 0:
        raise ValueError(f"factor {factor:g}: must be more than 0")
    apps = tuple(replace(a, submitted_s=a.submitted_s / factor) for a in workload.apps)
    return Workload(workload.name, apps, f"{workload.source}; arrivals x {factor:g}".lstrip("; "))
