"""The nodes that are up and their topology, updated node by node; and the machines that refuse placements.

An app avoids a machine that refused it REFUSALS times in a row over at least REFUSED_S; the time doubles on each
repetition. A machine that apps of several users avoid, and that took no container meanwhile, is closed to all apps,
if each of these refusals was of the machine's own making: an app can bring about others (by its blacklist, its
constraints, its limits, or an ask for more memory than is free) and must not close machines to others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

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


REFUSALS = 5
REFUSED_S = 15.0
AVOIDED_S = 120.0
"""How long an app avoids a machine the first time."""
AVOIDED_MAX_S = 1800.0
CLOSED_USERS = 2
"""If apps of this many users are refused, the fault lies with the machine, not with one user's asks."""


@dataclass(slots=True)
class _Run:
    """Refusals in a row of one app by one machine."""

    user: str
    reason: str
    first_s: float
    machine_at_fault: bool = False
    """Whether the cause of the newest refusal lies with the machine."""
    count: int = 0
    times: int = 0
    until_s: float | None = None
    """Until when the app avoids the machine; None: it does not."""


class Refusals:
    """Refusals by machine and app; times in seconds."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, _Run]] = {}
        """Host -> app -> its refusals."""

    def copy(self) -> Refusals:
        """An independent copy."""
        other = Refusals()
        for host, runs in self._runs.items():
            other._runs[host] = {app_id: replace(run) for app_id, run in runs.items()}
        return other

    def __len__(self) -> int:
        return sum(map(len, self._runs.values()))

    def refused(
        self, host: str, app_id: str, user: str, reason: str, now_s: float, machine_at_fault: bool = False
    ) -> bool:
        """Notes a refused placement; returns whether the app avoids the machine from now on."""
        run = self._runs.setdefault(host, {}).setdefault(app_id, _Run(user, reason, now_s))
        run.count += 1
        run.reason, run.machine_at_fault = reason, machine_at_fault
        if run.until_s is not None or run.count < REFUSALS or now_s < run.first_s + REFUSED_S:
            return False
        run.until_s = now_s + min(AVOIDED_MAX_S, AVOIDED_S * 2**run.times)
        run.times += 1
        return True

    def placed(self, host: str, app_id: str) -> bool:
        """Notes that the machine took a container of the app; returns whether that opened the machine to all."""
        closed = host in self.closed()
        runs = self._runs.get(host, {})
        runs.pop(app_id, None)
        if closed:  # the machine is not at fault
            runs.clear()
        if not runs:
            self._runs.pop(host, None)
        return closed

    def avoided(self, app_id: str) -> dict[str, str]:
        """Machine that the app avoids -> its last reason."""
        found = ((host, runs.get(app_id)) for host, runs in self._runs.items())
        return {host: run.reason for host, run in found if run is not None and run.until_s is not None}

    def closed(self) -> dict[str, str]:
        """Machine that is closed to all -> its last reason."""
        found: dict[str, str] = {}
        for host, runs in self._runs.items():
            barred = [r for r in runs.values() if r.until_s is not None and r.machine_at_fault]
            if len({r.user for r in barred}) >= CLOSED_USERS:
                found[host] = max(barred, key=lambda r: r.until_s or 0.0).reason
        return found

    def next_end_s(self) -> float | None:
        """When an app next stops avoiding a machine; None if none does."""
        return min((r.until_s for r in self._all() if r.until_s is not None), default=None)

    def lapse(self, now_s: float) -> bool:
        """Ends avoidance that is due; returns whether any was. One more refusal starts it again."""
        over = [r for r in self._all() if r.until_s is not None and r.until_s <= now_s]
        for run in over:
            run.until_s, run.count, run.first_s = None, REFUSALS - 1, now_s - REFUSED_S
        return bool(over)

    def keep(self, hosts: Collection[str], app_ids: Collection[str]) -> None:
        """Drops the refusals of all other machines and apps."""
        kept = {h: {a: r for a, r in runs.items() if a in app_ids} for h, runs in self._runs.items() if h in hosts}
        self._runs = {host: runs for host, runs in kept.items() if runs}

    def forget(self, host: str) -> None:
        """Drops the refusals of a machine that changed."""
        self._runs.pop(host, None)

    def forget_app(self, app_id: str) -> None:
        """Drops the refusals of an app."""
        for host in [h for h, runs in self._runs.items() if runs.pop(app_id, None) is not None and not runs]:
            del self._runs[host]

    def _all(self) -> Iterator[_Run]:
        runs: Mapping[str, _Run]
        for runs in self._runs.values():
            yield from runs.values()
