"""What YARN said of the cluster: nodes, applications, asks and containers; rebuilt with each of its snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pycontrol.arbiter.asks import Asks
from pycontrol.arbiter.machines import Machines
from pycontrol.arbiter.refusals import Refusals
from pycontrol.model.cluster import Ask, Container, Node, Queue, YarnApp
from pycontrol.model.events import ClusterSnapshot
from pycontrol.model.topology import Gpu, Topology, count_by_host


class ClusterView:
    """Changes by its methods alone; any part may read it."""

    def __init__(self, configured: Topology | None) -> None:
        self.seen = False
        """Whether there was a snapshot of the cluster: before that leases are known and no containers."""
        self.rm_life = ""
        """The life of the ResourceManager that was ready last."""
        self._next_life = ""
        """That of the newest snapshot."""
        self.ready = False
        self.shadow = False
        """The plugin only tells; it never becomes ready."""
        self.recovering_until_s = 0.0
        self.nodes: dict[str, Node] = {}
        """Those that are up, by id."""
        self.down: dict[str, str] = {}
        """Why the others are not."""
        self.queues: dict[str, Queue] = {}
        self.apps: dict[str, YarnApp] = {}
        self.asks = Asks()
        self.containers: dict[str, Container] = {}
        self.container_at: dict[Gpu, str] = {}
        """The container that uses a GPU."""
        self.machines = Machines(configured)
        self.node_at: dict[str, Node] = self.machines.node_at
        """The node of each host that is up."""
        self.refusals = Refusals()
        self.closed: dict[str, str] = {}
        """Hosts on which nobody's new container may start, and why; what runs there continues."""
        self.hosts_changes = 0
        """How often nodes came, went, changed, or began or ceased to take containers."""

    def copy(self) -> ClusterView:
        """The same cluster, apart."""
        other = ClusterView(None)
        other.seen, other.rm_life, other._next_life = self.seen, self.rm_life, self._next_life
        other.ready, other.shadow, other.recovering_until_s = self.ready, self.shadow, self.recovering_until_s
        other.nodes, other.down, other.queues = dict(self.nodes), dict(self.down), dict(self.queues)
        other.apps, other.asks, other.containers = dict(self.apps), self.asks.copy(), dict(self.containers)
        other.container_at, other.machines = dict(self.container_at), self.machines.copy()
        other.node_at, other.refusals = other.machines.node_at, self.refusals.copy()
        other.closed = dict(self.closed)
        return other

    # ---- the ResourceManager

    def replaced(self, e: ClusterSnapshot) -> bool:
        """All is as the snapshot says; returns whether the ResourceManager's life is the one that was ready last."""
        resumed = bool(e.rm_life) and e.rm_life == self.rm_life
        self.rm_life = e.rm_life if resumed else ""
        self._next_life = e.rm_life
        self.seen, self.ready, self.shadow = True, False, e.shadow
        self.nodes = {n.node_id: n for n in e.nodes}
        self.down.clear()
        self.queues = {q.path: q for q in e.queues}
        self.apps = {a.app_id: a for a in e.apps}
        self.asks = Asks(e.asks)
        self.containers = {c.container_id: c for c in e.containers}
        self.container_at = {gpu: c.container_id for c in e.containers for gpu in c.gpus}
        self.machines.reset(e.nodes)
        self.hosts_changes += 1
        return resumed

    def became_ready(self) -> None:
        """The ResourceManager of the newest snapshot has recovered."""
        self.ready, self.rm_life = True, self._next_life

    def lost(self) -> None:
        """Nothing is heard of it."""
        self.ready = False

    def recovers_until(self, at_s: float) -> None:
        """Agents and nodes have so long to come back; 0: none is awaited."""
        self.recovering_until_s = at_s

    # ---- machines

    def node_up(self, node: Node) -> None:
        """It is up, or what was said of it changed."""
        self.nodes[node.node_id] = node
        self.down.pop(node.node_id, None)
        self.refusals.forget(node.host)
        self.machines.put(node)
        self.hosts_changes += 1

    def node_down(self, node_id: str, reason: str) -> Node | None:
        """It is down; returns what was known of it."""
        node = self.nodes.pop(node_id, None)
        self.down[node_id] = reason
        self.hosts_changes += 1
        if node is not None:
            self.machines.remove(node)
            self.refusals.forget(node.host)
        return node

    def bad(self, gpu: Gpu) -> bool:
        """Whether the GPU of a node that is up is out of order, or not there any more."""
        node = self.node_at.get(gpu.host)
        return node is not None and (gpu.index >= node.gpus or gpu.index in node.bad_gpus)

    def close(self, closed: Mapping[str, str]) -> set[str]:
        """These hosts take no new container, and why; returns those of which that is news, either way."""
        changed = closed.keys() ^ self.closed.keys()
        self.closed = dict(closed)
        self.hosts_changes += 1
        return changed

    def close_host(self, host: str, why: str | None) -> set[str]:
        """The same of one host; None: it takes containers."""
        changed = {host} if (why is not None) != (host in self.closed) else set()
        self.closed.pop(host, None)
        self.hosts_changes += 1
        if why is not None:
            self.closed[host] = why
        return changed

    # ---- applications and containers

    def app_known(self, app: YarnApp) -> None:
        """An application as YARN has it now."""
        self.apps[app.app_id] = app

    def attempt_began(self, app_id: str, attempt_id: str) -> None:
        """The application has a new attempt."""
        app = self.apps.get(app_id)
        if app is not None:
            self.apps[app_id] = replace(app, attempt_id=attempt_id)

    def attempt_ended(self, app_id: str, attempt_id: str) -> None:
        """What the attempt asked for is asked for no more."""
        self.asks.drop(app_id, attempt_id)

    def asked(self, ask: Ask) -> None:
        """The ask as it is now."""
        self.asks.put(ask)

    def app_gone(self, app_id: str) -> None:
        """YARN does not know the application any more."""
        self.apps.pop(app_id, None)
        self.asks.drop(app_id)
        self.refusals.forget_app(app_id)

    def containers_on(self, host: str) -> list[str]:
        """The containers that use GPUs of a host."""
        found = (self.container_at.get(gpu) for gpu in self.machines.on(host))
        return list(dict.fromkeys(c for c in found if c is not None))

    def container_up(self, container: Container) -> None:
        """It uses its GPUs, and no others that it was said to use."""
        self._vacate(container.container_id)
        self.containers[container.container_id] = container
        for gpu in container.gpus:
            self.container_at[gpu] = container.container_id

    def _vacate(self, container_id: str) -> None:
        known = self.containers.get(container_id)
        for gpu in known.gpus if known is not None else ():
            if self.container_at.get(gpu) == container_id:
                del self.container_at[gpu]

    def container_gone(self, container_id: str) -> Container | None:
        """Returns it, if it was known; `vacate` says of which GPUs."""
        return self.containers.pop(container_id, None)

    def vacate(self, gpu: Gpu) -> None:
        """No container uses the GPU."""
        self.container_at.pop(gpu, None)

    def validate(self) -> Iterator[tuple[Gpu | None, str]]:
        """(GPU, what is wrong) for each contradiction within."""
        for gpu, container_id in self.container_at.items():
            container = self.containers.get(container_id)
            if container is None:
                yield gpu, f"{container_id} is said to use it and is not there"
            elif gpu not in container.gpus:
                yield gpu, f"{container_id} is said to use it and has others"
        hosts = {n.host for n in self.nodes.values()}
        if hosts != self.node_at.keys():
            yield None, f"nodes are up on {sorted(hosts)}, machines on {sorted(self.node_at)}"
        good = count_by_host(Gpu(n.host, i) for n in self.node_at.values() for i in n.good_gpus)
        if good != dict(self.machines.topology.gpus_by_host) or sum(good.values()) != self.machines.gpus:
            yield None, f"GPUs in order are {good}, the topology has {dict(self.machines.topology.gpus_by_host)}"
