"""YARN's view of the cluster: nodes, applications, asks and containers; each of its snapshots replaces it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from pycontrol.arbiter.views.workers import Asks, Refusals
from pycontrol.model.cluster import Ask, Container, Mode, ModeSwitch, Node, Queue, YarnApp, attribute
from pycontrol.model.events import ClusterSnapshot, NodeDown
from pycontrol.model.grouping import Tables
from pycontrol.model.topology import Gpu, Machine, Topology, count_by_host


class ClusterView:
    """What YARN last reported. Only its methods change it; any part may read it."""

    def __init__(self, configured: Topology | None) -> None:
        self.seen = False
        """Whether a snapshot has come; before it, leases are known from the journal, but no containers."""
        self.rm_life = ""
        self._unnamed_until_s = 0.0
        """Until when snapshots that name no life are of the same ResourceManager."""
        """The id of the ResourceManager process that was ready last."""
        self._next_life = ""
        """The id in the newest snapshot."""
        self.ready = False
        self.switch = ModeSwitch()
        """The mode; in all but on the cluster never becomes ready."""
        self.heard = False
        """Whether the plugin is connected."""
        self.recovering_until_s = 0.0
        self.nodes: dict[str, Node] = {}
        """Node id -> node, for those that are up."""
        self.down: dict[str, tuple[str, str]] = {}
        """Host that may come back -> (node id, why it is down)."""
        self.queues: dict[str, Queue] = {}
        self.apps: dict[str, YarnApp] = {}
        self.starting: set[str] = set()
        """Apps with an attempt that was seen to begin, without containers but, since then, its master's."""
        self.asks = Asks()
        self.containers: dict[str, Container] = {}
        self.container_at: dict[Gpu, str] = {}
        """GPU -> the container that uses it."""
        self.unleased: dict[str, Container] = {}
        """The containers whose GPUs nobody leases."""
        self.unleased_changed = False
        """Whether they, or whose they are, changed since `told_unleased`."""
        self.watched_since_s: float | None = None
        """Since when each container is seen, as far as that was not yet told; None: they are not, as in mode off."""
        self.machines = Machines(configured)
        self.node_at: dict[str, Node] = self.machines.node_at
        """Host -> its node, for hosts that are up."""
        self.refusals = Refusals()
        self.closed: dict[str, str] = {}
        """Host that takes no new container -> why; running containers continue."""
        self.hosts_changes = 0
        """Counts changes of nodes and of `closed`, so that caches can tell that they are stale."""

    def copy(self) -> ClusterView:
        """An independent copy."""
        other = ClusterView(None)
        other.seen, other.rm_life, other._next_life = self.seen, self.rm_life, self._next_life
        other._unnamed_until_s = self._unnamed_until_s
        other.ready, other.heard, other.switch = self.ready, self.heard, self.switch
        other.recovering_until_s, other.starting = self.recovering_until_s, set(self.starting)
        other.nodes, other.down, other.queues = dict(self.nodes), dict(self.down), dict(self.queues)
        other.apps, other.asks, other.containers = dict(self.apps), self.asks.copy(), dict(self.containers)
        other.container_at, other.machines = dict(self.container_at), self.machines.copy()
        other.node_at, other.refusals = other.machines.node_at, self.refusals.copy()
        other.closed, other.unleased = dict(self.closed), dict(self.unleased)
        return other

    # ---- the ResourceManager

    def replaced(self, e: ClusterSnapshot, now_s: float, patience_s: float) -> bool:
        """Replaces the view by a snapshot; returns whether it comes from the ResourceManager that was ready last.

        Of one that does not name its life, that is unknown: it counts as another once in `patience_s`, so that a plugin
        that connects again and again does not suspend leases for ever.
        """
        resumed = e.rm_life == self.rm_life if e.rm_life else now_s < self._unnamed_until_s
        if not e.rm_life and not resumed and self.seen:
            self._unnamed_until_s = now_s + patience_s
        self.rm_life = e.rm_life if resumed else ""
        self._next_life = e.rm_life
        self.seen, self.heard, self.ready, self.switch = True, True, False, e.switch
        self.nodes = {n.node_id: n for n in e.nodes}
        self.apps = {a.app_id: a for a in e.apps}
        self.refusals.keep({n.host for n in e.nodes}, self.apps)
        self.asks = Asks(e.asks, now_s, self.asks.since_s)
        self.starting = self.starting & self.apps.keys() - {c.app_id for c in e.containers if not c.is_master}
        self.containers = {c.container_id: c for c in e.containers}
        self.container_at = {gpu: c.container_id for c in e.containers for gpu in c.gpus}
        self.unleased = {c.container_id: c for c in e.containers if c.unleased_gpus}
        self.unleased_changed = True
        self.watched_since_s = None if e.switch.mode is Mode.OFF else now_s
        self.machines.reset(e.nodes)
        self.changed(e.queues, e.down)
        return resumed

    def became_ready(self) -> None:
        """The ResourceManager of the newest snapshot has recovered."""
        self.ready, self.rm_life = True, self._next_life

    def settled(self, now_s: float) -> bool:
        """Whether the ResourceManager has recovered, and machines had the time to come back."""
        return self.ready and now_s >= self.recovering_until_s

    def changed(self, queues: Iterable[Queue], down: Iterable[NodeDown]) -> None:
        """Replaces the queues, and the nodes that are not there; one that is up goes down by its own event alone."""
        self.queues = {q.path: q for q in queues}
        self.down.clear()
        for gone in (x for x in down if x.node_id not in self.nodes):
            self.node_down(gone.node_id, gone.reason)
        self.hosts_changes += 1

    def forget_gone(self) -> None:
        """Forgets machines that YARN does not know, not even as lost, unless they are configured."""
        self.machines.forget(self.machines.known.machines.keys() - self.down.keys())

    def lost(self) -> None:
        """The connection to the ResourceManager is lost."""
        self.ready = self.heard = False
        self.watched_since_s = None

    def recovers_until(self, at_s: float) -> None:
        """Agents and nodes have until `at_s` to come back; 0: none is awaited."""
        self.recovering_until_s = at_s

    # ---- machines

    def node_up(self, node: Node) -> None:
        """The node is up, or its report changed."""
        self.nodes[node.node_id] = node
        self.down.pop(node.host, None)
        self.refusals.forget(node.host)
        self.machines.put(node)
        self.hosts_changes += 1

    def node_down(self, node_id: str, reason: str) -> Node | None:
        """The node is down; returns its last report, if there was one. One that was taken out is not awaited."""
        node, host = self.nodes.pop(node_id, None), node_id.rpartition(":")[0]
        self.hosts_changes += 1
        if node is not None:
            self.machines.remove(node)
            self.refusals.forget(node.host)
        taken_out = reason in ("DECOMMISSIONED", "SHUTDOWN") and host not in self.machines.configured
        if host not in self.node_at and not taken_out:
            self.down[host] = node_id, reason
        return node

    def bad(self, gpu: Gpu) -> bool:
        """Whether the GPU's node is up and the GPU is bad or no longer there."""
        node = self.node_at.get(gpu.host)
        return node is not None and (gpu.index >= node.gpus or gpu.index in node.bad_gpus)

    def close(self, host: str = "") -> set[str]:
        """Decides anew which hosts take no new container, or only whether this one does; returns those that changed.

        A host is closed if the plugin withholds it, if it refuses all apps, or if foreign containers use unknown GPUs.
        """
        closed, here = self.refusals.closed(), self.node_at.get(host)
        for node in self.nodes.values() if not host else [here] if here is not None else ():
            if node.withheld:
                closed[node.host] = node.withheld
            elif node.untagged_gpus:
                others = f"{node.untagged_gpus} of {node.gpus} GPUs are used by containers that Isonomy did not place"
                closed[node.host] = f"{others}; which ones is not known"
        if host:
            others_closed = {h: why for h, why in self.closed.items() if h != host}
            closed = {**others_closed, host: closed[host]} if host in closed else others_closed
        changed = closed.keys() ^ self.closed.keys()
        self.closed = closed
        self.hosts_changes += 1
        return changed

    # ---- applications and containers

    def told_unleased(self) -> None:
        """It was recorded which GPUs nobody leases."""
        self.unleased_changed = False

    def told_watched(self, now_s: float) -> None:
        """It was recorded that each container was seen until now."""
        self.watched_since_s = now_s

    def app_known(self, app: YarnApp) -> None:
        """Adds or replaces an application."""
        self.unleased_changed |= bool(self.unleased)
        self.apps[app.app_id] = app

    def attempt_began(self, app_id: str, attempt_id: str) -> None:
        """The application has a new attempt."""
        app = self.apps.get(app_id)
        if app is not None:
            self.apps[app_id] = replace(app, attempt_id=attempt_id)
            # One that is told again before the ResourceManager has recovered began long ago.
            if self.ready and not any(c.app_id == app_id and not c.ending for c in self.containers.values()):
                self.starting.add(app_id)

    def attempt_ended(self, app_id: str, attempt_id: str) -> None:
        """Removes the asks of an attempt that ended."""
        self.asks.drop(app_id, attempt_id)

    def asked(self, ask: Ask, now_s: float) -> None:
        """Adds, changes or removes an ask."""
        self.asks.put(ask, now_s)

    def app_gone(self, app_id: str) -> None:
        """YARN has removed the application."""
        self.apps.pop(app_id, None)
        self.starting.discard(app_id)
        self.asks.drop(app_id)
        self.refusals.forget_app(app_id)

    def default_partition(self, app_id: str) -> str:
        """The partition of an app's asks without a node label."""
        app = self.apps.get(app_id)
        queue = self.queues.get(app.queue) if app is not None else None
        return queue.default_partition if queue is not None else ""

    def plain(self, gpu: Gpu) -> bool:
        """Whether a container that CapacityScheduler placed uses the GPU."""
        container = self.containers.get(self.container_at.get(gpu, ""))
        return container is not None and container.plain

    def containers_on(self, host: str) -> list[str]:
        """The containers that use GPUs of a host."""
        found = (self.container_at.get(gpu) for gpu in self.machines.on(host))
        return list(dict.fromkeys(c for c in found if c is not None))

    def container_up(self, container: Container) -> None:
        """Notes a container and its GPUs, replacing those it had before."""
        self._vacate(container.container_id)
        self.containers[container.container_id] = container
        if not container.is_master and not container.ending:
            self.starting.discard(container.app_id)
        if container.unleased_gpus:
            self.unleased[container.container_id], self.unleased_changed = container, True
        for gpu in container.gpus:
            self.container_at[gpu] = container.container_id

    def _vacate(self, container_id: str) -> None:
        known = self.containers.get(container_id)
        for gpu in known.gpus if known is not None else ():
            if self.container_at.get(gpu) == container_id:
                del self.container_at[gpu]

    def container_gone(self, container_id: str) -> Container | None:
        """Removes a container and returns it, if it was known; its GPUs stay occupied until `vacate`."""
        self.unleased_changed |= self.unleased.pop(container_id, None) is not None
        return self.containers.pop(container_id, None)

    def vacate(self, gpu: Gpu) -> None:
        """No container uses the GPU."""
        self.container_at.pop(gpu, None)

    def validate(self) -> Iterator[tuple[Gpu | None, str]]:
        """Yields (GPU or None, what is wrong) for each contradiction."""
        for gpu, container_id in self.container_at.items():
            container = self.containers.get(container_id)
            if container is None:
                yield gpu, f"{container_id} is recorded as using it but does not exist"
            elif gpu not in container.gpus:
                yield gpu, f"{container_id} is recorded as using it but has other GPUs"
        hosts = {n.host for n in self.nodes.values()}
        if hosts != self.node_at.keys():
            yield None, f"nodes are up on {sorted(hosts)}, machines on {sorted(self.node_at)}"
        good = count_by_host(Gpu(n.host, i) for n in self.node_at.values() for i in n.good_gpus)
        if good != dict(self.machines.topology.gpus_by_host) or sum(good.values()) != self.machines.gpus:
            yield None, f"good GPUs are {good}, the topology has {dict(self.machines.topology.gpus_by_host)}"


class Machines:
    """The machines of the cluster.

    A change of a node costs time for that node only; topologies are built when they are read. Other threads may read
    `known`.
    """

    def __init__(self, configured: Topology | None) -> None:
        self.configured = configured.machines if configured is not None else {}
        """Host -> machine, for those in the topology file."""
        self.node_at: dict[str, Node] = {}
        """Host -> its node, for hosts that are up."""
        self._nodes_on = Tables[str, str, Node]()
        """Host -> id -> node; for a moment a host may have two."""
        self._machines: dict[str, Machine] = {}
        self._known: dict[str, Machine] = {h: replace(m, gpus=0) for h, m in self.configured.items()}
        self._most: dict[str, int] = {}
        """Host -> the most GPUs that it had since it came."""
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
        other.configured, other.gpus, other._version = self.configured, self.gpus, self._version
        other.node_at, other._most, other._announced = dict(self.node_at), dict(self._most), dict(self._announced)
        other._machines, other._known, other._bad = dict(self._machines), dict(self._known), dict(self._bad)
        other._nodes_on = self._nodes_on.copy()
        other._topology, other._known_topology = self._topology, self._known_topology
        return other

    def put(self, node: Node) -> None:
        """Adds or updates a node that is up."""
        self._nodes_on.put(node.host, node.node_id, node)
        self._changed(node.host)

    def remove(self, node: Node) -> None:
        """Removes a node that is down."""
        self._nodes_on.drop(node.host, node.node_id)
        self._changed(node.host)

    def reset(self, nodes: Iterable[Node]) -> None:
        """Replaces all nodes."""
        gone, self._nodes_on = list(self._nodes_on.by_key), Tables()
        for node in nodes:
            self._nodes_on.put(node.host, node.node_id, node)
        for host in dict.fromkeys([*gone, *self._nodes_on.by_key]):
            self._changed(host)

    def forget(self, hosts: Collection[str]) -> None:
        """Forgets those of the hosts that are neither up nor configured; nothing may be leased there."""
        for host in [h for h in hosts if h not in self.node_at and h not in self.configured]:
            self._known.pop(host, None)
            self._most.pop(host, None)
            self._announced.pop(host, None)
        self._version += 1

    def others(self, node: Node) -> list[Node]:
        """Nodes on the same host with other ids."""
        return [n for n in self._nodes_on.at(node.host).values() if n.node_id != node.node_id]

    def note(self, gpu: Gpu) -> None:
        """Notes that the host has or had this GPU."""
        if gpu.index >= self._most.get(gpu.host, 0):
            self._most[gpu.host] = gpu.index + 1

    def on(self, host: str) -> list[Gpu]:
        """All GPUs that the host had since it came."""
        return [Gpu(host, i) for i in range(self._most.get(host, 0))]

    def _changed(self, host: str) -> None:
        node = next(reversed(list(self._nodes_on.at(host).values())), None)
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
        configured = self.configured.get(node.host)
        if configured is not None:
            return replace(configured, gpus=len(node.good_gpus), partition=node.partition)
        gpu_type = next(iter(attribute(node.attributes, "gpu_type")), "gpu")
        return Machine(node.host, node.rack, len(node.good_gpus), gpu_type, partition=node.partition)

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
        """`topology`, and with 0 GPUs also machines that may come back: those configured, and those lost."""
        now, (version, topology) = self._version, self._known_topology
        if version != now:
            topology = Topology(dict(self._known))
            self._known_topology = (now, topology)
        return topology

    @property
    def bad_gpus(self) -> list[Gpu]:
        """GPUs out of order on nodes that are up."""
        return [gpu for host in sorted(self._bad) for gpu in self._bad[host]] if self._bad else []
