"""The nodes that are up and their topology, updated node by node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pycontrol.model.cluster import Node, attribute
from pycontrol.model.topology import Gpu, Machine, Topology


class Machines:
    """The machines of the cluster.

    A change of a node costs time for that node only; topologies are built when they are read. Other threads may read
    `known`.
    """

    def __init__(self, configured: Topology | None) -> None:
        self._configured = configured.machines if configured is not None else {}
        self.node_at: dict[str, Node] = {}
        """Host -> its node, for hosts that are up."""
        self._nodes_on: dict[str, dict[str, Node]] = {}
        """Host -> id -> node; for a moment a host may have two."""
        self._machines: dict[str, Machine] = {}
        self._known: dict[str, Machine] = {h: replace(m, gpus=0) for h, m in self._configured.items()}
        self._most: dict[str, int] = {}
        """Host -> the most GPUs that it ever had."""
        self._announced: dict[str, Machine] = {}
        """Host -> machine as last announced to Agents."""
        self.gpus = 0
        """GPUs of the cluster that are in order (R_C)."""
        self._version = 0
        self._topology: tuple[int, Topology] = (-1, Topology())
        self._known_topology: tuple[int, Topology] = (-1, Topology())
        self._bad: dict[str, list[Gpu]] = {}

    def copy(self) -> Machines:
        """An independent copy."""
        other = Machines(None)
        other._configured, other.gpus, other._version = self._configured, self.gpus, self._version
        other.node_at, other._most, other._announced = dict(self.node_at), dict(self._most), dict(self._announced)
        other._machines, other._known, other._bad = dict(self._machines), dict(self._known), dict(self._bad)
        other._nodes_on = {host: dict(nodes) for host, nodes in self._nodes_on.items()}
        other._topology, other._known_topology = self._topology, self._known_topology
        return other

    def put(self, node: Node) -> None:
        """Adds or updates a node that is up."""
        self._nodes_on.setdefault(node.host, {})[node.node_id] = node
        self._changed(node.host)

    def remove(self, node: Node) -> None:
        """Removes a node that is down."""
        here = self._nodes_on.get(node.host, {})
        here.pop(node.node_id, None)
        if not here:
            self._nodes_on.pop(node.host, None)
        self._changed(node.host)

    def reset(self, nodes: Iterable[Node]) -> None:
        """Replaces all nodes."""
        gone = list(self._nodes_on)
        self._nodes_on.clear()
        for node in nodes:
            self._nodes_on.setdefault(node.host, {})[node.node_id] = node
        for host in dict.fromkeys([*gone, *self._nodes_on]):
            self._changed(host)

    def others(self, node: Node) -> list[Node]:
        """Nodes on the same host with other ids."""
        return [n for n in self._nodes_on.get(node.host, {}).values() if n.node_id != node.node_id]

    def note(self, gpu: Gpu) -> None:
        """Notes that the host has or had this GPU."""
        if gpu.index >= self._most.get(gpu.host, 0):
            self._most[gpu.host] = gpu.index + 1

    def on(self, host: str) -> list[Gpu]:
        """All GPUs that the host ever had."""
        return [Gpu(host, i) for i in range(self._most.get(host, 0))]

    def _changed(self, host: str) -> None:
        node = next(reversed(self._nodes_on.get(host, {}).values()), None)
        before = self._machines.pop(host, None)
        self._bad.pop(host, None)
        if node is None:
            self.node_at.pop(host, None)
        else:
            self.node_at[host] = node
            self._most[host] = max(self._most.get(host, 0), node.gpus)
            if node.bad_gpus:
                self._bad[host] = [Gpu(host, i) for i in sorted(node.bad_gpus)]
        machine = self._machine(node) if node is not None else None
        if machine is not None and machine.gpus:
            self._machines[host] = self._known[host] = machine
        elif before is not None:
            self._known[host] = replace(before, gpus=0)
        self.gpus += (machine.gpus if machine is not None else 0) - (before.gpus if before is not None else 0)
        self._version += 1

    def _machine(self, node: Node) -> Machine:
        """The machine of a node, without bad GPUs; rack and type as configured, if it is."""
        configured = self._configured.get(node.host)
        if configured is not None:
            return replace(configured, gpus=len(node.good_gpus))
        gpu_type = next(iter(attribute(node.attributes, "gpu_type")), "gpu")
        return Machine(node.host, node.rack, len(node.good_gpus), gpu_type)

    def is_news(self, host: str) -> bool:
        """Whether the machine changed since it was announced to Agents."""
        machine = self._machines.get(host)
        return machine is not None and self._announced.get(host) != machine

    def announced(self) -> bool:
        """Marks all machines announced; returns whether any had changed."""
        is_news = any(self._announced.get(host) != machine for host, machine in self._machines.items())
        self._announced.update(self._machines)
        return is_news

    @property
    def topology(self) -> Topology:
        """The machines with GPUs in order, sorted by host."""
        version, topology = self._topology
        if version != self._version:
            topology = Topology({host: self._machines[host] for host in sorted(self._machines)})
            self._topology = (self._version, topology)
        return topology

    @property
    def known(self) -> Topology:
        """`topology`, and with 0 GPUs also machines that are configured or were up: they may come back."""
        now, (version, topology) = self._version, self._known_topology
        if version != now:
            topology = Topology(dict(self._known))
            self._known_topology = (now, topology)
        return topology

    @property
    def bad_gpus(self) -> list[Gpu]:
        """GPUs out of order on nodes that are up."""
        return [gpu for host in sorted(self._bad) for gpu in self._bad[host]] if self._bad else []
