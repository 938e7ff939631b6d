"""YARN's view of the cluster: nodes, applications, asks and containers; each of its snapshots replaces it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from pycontrol.arbiter.views.machines import Machines, Refusals
from pycontrol.model.cluster import Ask, Container, ModeSwitch, Node, Queue, YarnApp
from pycontrol.model.events import ClusterSnapshot
from pycontrol.model.topology import Gpu, Topology, count_by_host


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
        self.down: dict[str, str] = {}
        """Node id -> why it is down."""
        self.queues: dict[str, Queue] = {}
        self.apps: dict[str, YarnApp] = {}
        self.asks = Asks()
        self.containers: dict[str, Container] = {}
        self.container_at: dict[Gpu, str] = {}
        """GPU -> the container that uses it."""
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
        other.recovering_until_s = self.recovering_until_s
        other.nodes, other.down, other.queues = dict(self.nodes), dict(self.down), dict(self.queues)
        other.apps, other.asks, other.containers = dict(self.apps), self.asks.copy(), dict(self.containers)
        other.container_at, other.machines = dict(self.container_at), self.machines.copy()
        other.node_at, other.refusals = other.machines.node_at, self.refusals.copy()
        other.closed = dict(self.closed)
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
        self.down.clear()
        self.queues = {q.path: q for q in e.queues}
        self.apps = {a.app_id: a for a in e.apps}
        self.refusals.keep({n.host for n in e.nodes}, self.apps)
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
        """The connection to the ResourceManager is lost."""
        self.ready = self.heard = False

    def recovers_until(self, at_s: float) -> None:
        """Agents and nodes have until `at_s` to come back; 0: none is awaited."""
        self.recovering_until_s = at_s

    # ---- machines

    def node_up(self, node: Node) -> None:
        """The node is up, or its report changed."""
        self.nodes[node.node_id] = node
        self.down.pop(node.node_id, None)
        self.refusals.forget(node.host)
        self.machines.put(node)
        self.hosts_changes += 1

    def node_down(self, node_id: str, reason: str) -> Node | None:
        """The node is down; returns its last report, if there was one."""
        node = self.nodes.pop(node_id, None)
        self.down[node_id] = reason
        self.hosts_changes += 1
        if node is not None:
            self.machines.remove(node)
            self.refusals.forget(node.host)
        return node

    def bad(self, gpu: Gpu) -> bool:
        """Whether the GPU's node is up and the GPU is bad or no longer there."""
        node = self.node_at.get(gpu.host)
        return node is not None and (gpu.index >= node.gpus or gpu.index in node.bad_gpus)

    def close(self, closed: Mapping[str, str]) -> set[str]:
        """Replaces the closed hosts (host -> why); returns the hosts that were closed or opened."""
        changed = closed.keys() ^ self.closed.keys()
        self.closed = dict(closed)
        self.hosts_changes += 1
        return changed

    def close_host(self, host: str, why: str | None) -> set[str]:
        """Closes one host, or opens it (`why` None); returns the host if that changed it."""
        changed = {host} if (why is not None) != (host in self.closed) else set()
        self.closed.pop(host, None)
        self.hosts_changes += 1
        if why is not None:
            self.closed[host] = why
        return changed

    # ---- applications and containers

    def app_known(self, app: YarnApp) -> None:
        """Adds or replaces an application."""
        self.apps[app.app_id] = app

    def attempt_began(self, app_id: str, attempt_id: str) -> None:
        """The application has a new attempt."""
        app = self.apps.get(app_id)
        if app is not None:
            self.apps[app_id] = replace(app, attempt_id=attempt_id)

    def attempt_ended(self, app_id: str, attempt_id: str) -> None:
        """Removes the asks of an attempt that ended."""
        self.asks.drop(app_id, attempt_id)

    def asked(self, ask: Ask) -> None:
        """Adds, changes or removes an ask."""
        self.asks.put(ask)

    def app_gone(self, app_id: str) -> None:
        """YARN has removed the application."""
        self.apps.pop(app_id, None)
        self.asks.drop(app_id)
        self.refusals.forget_app(app_id)

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
        for gpu in container.gpus:
            self.container_at[gpu] = container.container_id

    def _vacate(self, container_id: str) -> None:
        known = self.containers.get(container_id)
        for gpu in known.gpus if known is not None else ():
            if self.container_at.get(gpu) == container_id:
                del self.container_at[gpu]

    def container_gone(self, container_id: str) -> Container | None:
        """Removes a container and returns it, if it was known; its GPUs stay occupied until `vacate`."""
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


AskKey = tuple[str, int, int, int]
"""`Ask.key`."""
NONE: Mapping[AskKey, Ask] = {}


class Asks:
    """The newest ask under each key, without those for no containers."""

    def __init__(self, asks: Iterable[Ask] = ()) -> None:
        self._by_app: dict[str, dict[AskKey, Ask]] = {}
        self._by_request: dict[tuple[str, int], dict[AskKey, Ask]] = {}
        self.local = 0
        """How many asks name hosts or racks outside which they may not start."""
        for ask in asks:
            self.put(ask)

    def __len__(self) -> int:
        return sum(map(len, self._by_app.values()))

    def copy(self) -> Asks:
        """An independent copy."""
        other = Asks()
        other._by_app = {app_id: dict(mine) for app_id, mine in self._by_app.items()}
        other._by_request = {request: dict(alike) for request, alike in self._by_request.items()}
        other.local = self.local
        return other

    def apps(self) -> list[str]:
        """Apps with asks."""
        return list(self._by_app)

    def of(self, app_id: str) -> Mapping[AskKey, Ask]:
        """The asks of an app."""
        return self._by_app.get(app_id, NONE)

    def under(self, app_id: str, request_id: int) -> Iterable[Ask]:
        """The asks of an app under an allocationRequestId."""
        return self._by_request.get((app_id, request_id), NONE).values()

    def put(self, ask: Ask) -> None:
        """Adds or replaces an ask; a count of 0 removes it. An ask for no GPUs is ignored."""
        if ask.gpus <= 0:
            return
        mine = self._by_app.setdefault(ask.app_id, {})
        alike = self._by_request.setdefault((ask.app_id, ask.allocation_request_id), {})
        before = mine.get(ask.key)
        self.local += bool(ask.only_on and ask.count > 0) - bool(before is not None and before.only_on)
        for asks in (mine, alike):
            if ask.count > 0:
                asks[ask.key] = ask
            else:
                asks.pop(ask.key, None)
        if not alike:
            del self._by_request[ask.app_id, ask.allocation_request_id]
        if not mine:
            del self._by_app[ask.app_id]

    def drop(self, app_id: str, attempt_id: str | None = None) -> None:
        """Removes the asks of an app, or of one of its attempts."""
        for ask in list(self.of(app_id).values()):
            if attempt_id is None or ask.attempt_id == attempt_id:
                self.put(Ask(ask.attempt_id, app_id, ask.allocation_request_id, ask.gpus, 0, ask.priority))
