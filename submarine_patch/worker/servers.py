"""Parameter servers: what runs in which worker's container.

Servers have no containers of their own. In a worker's container run one worker process for each of its GPUs, server i
if the container is the (i mod n)th, and in the first one the coordinator (TF_CONFIG's `chief`). The coordinator and
the servers get no GPUs. A container's processes listen on consecutive ports, in the order of `tasks`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

CHIEF, WORKER, SERVER = "chief", "worker", "ps"
PORTS = "ISONOMY_PORTS"
"""Environment variable of a job with servers: the number of processes in this container."""
COMMAND = "ISONOMY_PS_COMMAND"
"""Environment variable: the servers' command, if it is not the workers'."""

Task = tuple[str, int]
"""A type and an index of TF_CONFIG."""


def tasks(rank: int, sizes: Sequence[int], servers: int) -> list[Task]:
    """The processes of a worker's container, first the one whose end is the container's; `sizes`: GPUs by container."""
    if not servers:
        return [(WORKER, rank)]
    before = sum(sizes[:rank])
    chief = [(CHIEF, 0)] if rank == 0 else []
    workers = [(WORKER, before + i) for i in range(sizes[rank])]
    return [*chief, *workers, *((SERVER, i) for i in range(rank, servers, len(sizes)))]


def configurations(addresses: Sequence[str], sizes: Sequence[int], servers: int) -> list[str]:
    """TF_CONFIG of each container's first process; `addresses`: host and first port of each container."""
    at: dict[Task, str] = {}
    for rank, address in enumerate(addresses):
        host, _, port = address.rpartition(":")
        at |= {task: f"{host}:{int(port) + i}" for i, task in enumerate(tasks(rank, sizes, servers))}
    kinds = (CHIEF, WORKER, SERVER) if servers else (WORKER,)
    cluster = {kind: [at[task] for task in sorted(at) if task[0] == kind] for kind in kinds}
    firsts = [tasks(rank, sizes, servers)[0] for rank in range(len(sizes))]
    return [json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}}) for kind, index in firsts]


def beside(tf_config: str, ports: int) -> list[tuple[Task, str]]:
    """(task, TF_CONFIG) of the container's processes, by port; `tf_config`: the first one's, `ports`: their number."""
    config = json.loads(tf_config)
    kind, index = config["task"]["type"], int(config["task"]["index"])
    host, _, first = config["cluster"][kind][index].rpartition(":")
    own = [f"{host}:{int(first) + i}" for i in range(ports)]
    of = {at: (kind, i) for kind, places in config["cluster"].items() for i, at in enumerate(places)}
    found = [of[address] for address in own]
    return [(task, json.dumps({**config, "task": {"type": task[0], "index": task[1]}})) for task in found]
