"""A ResourceManager with the plugin: applications, attempts, containers; its lives, recovery and state store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pycontrol.wire.v1 import bridge_pb2 as pb
from tests.faults.clock import Life, Sim
from tests.faults.nodes import EXIT_LOST, NodeManager, Run
from tests.faults.plugin import Ended, Entry, Key, Plugin, app_of
from tests.faults.records import App, Refused, RmContainer, RmNode, Told

EXPIRY_S = 12.0
RECOVERY_S = 4.0
"""How long nothing is placed after a restart (work-preserving recovery)."""
PREEMPTED, RELEASED, ABORTED = -102, -100, -100
LAUNCH_S = 60.0
"""The time after which an unlaunched container expires."""
QUEUES = ("root.a", "root.b", "root.small")


class ResourceManager:
    """One life of the RM."""

    def __init__(self, world: Any, number: int, capacity: int) -> None:
        self.world, self.name = world, "rm"
        self.sim: Sim = world.sim
        self.life = Life()
        self.epoch = f"rm{number}"
        self.plane = world.plane
        self.nodes: dict[str, RmNode] = {}
        self.containers: dict[str, RmContainer] = {}
        self.told: dict[str, Told] = {}
        """By attempt."""
        self.registered: set[str] = set()
        """Attempts whose AM has registered with this life."""
        self.heard: set[str] = set()
        """Containers of whose end no AM has to be told any more: their NodeManagers may forget them."""
        self.began_s = self.sim.now
        self.recovering = number > 1
        self.plugin = Plugin(self, world.net, capacity, f"{self.epoch}-plugin")
        self.apps: dict[str, App] = world.store
        """The state store: it survives."""

    def start(self) -> None:
        """Recovers the applications, then serves."""
        self.sim.tell("rm", f"starts as {self.epoch}")
        for app in self.apps.values():
            if not app.final:
                self._tell_app(app)
                self._recover_attempt(app)
        self.plugin.start()
        self.sim.every(1.0, self._expire, self.life)

    def _recover_attempt(self, app: App) -> None:
        """Its newest attempt, if that runs; one that ended unnoticed is followed by the next."""
        if not app.running:
            self._next_attempt(app)
            return
        self._open_attempt(app)
        master = self.world.masters.get(app.app_id)
        if master is not None and master.life.dead and master.attempt_id == app.attempt_id:
            self.sim.at(1.0, lambda: self.attempt_failed(app), self.life)

    def stop(self) -> None:
        """kill -9."""
        self.sim.tell("rm", "dies")
        self.life.dead = True

    @property
    def ready(self) -> bool:
        """Recovery has ended."""
        return not self.recovering or self.sim.now - self.began_s >= RECOVERY_S

    # ---- applications

    def submit(self, app: App) -> None:
        """Submits an app for a client; its first attempt begins."""
        self.apps[app.app_id] = app
        self._tell_app(app)
        self.new_attempt(app)

    def _tell_app(self, app: App) -> None:
        self.plugin.emit(app_added=self.app_message(app))

    def app_message(self, app: App) -> pb.Application:
        """As ClusterView.java has it."""
        return pb.Application(
            app_id=app.app_id,
            user=app.user,
            queue=app.queue,
            name=app.name,
            application_type=app.kind,
            submit_time_ms=int(app.submitted_s * 1000),
            tags=app.tags,
            attempt_id=app.attempt_id if app.running else "",
        )

    def new_attempt(self, app: App) -> None:
        """Begins an attempt when the AM's container is allocated."""
        before = self.told.pop(app.attempt_id, Told())
        app.attempt += 1
        app.running = True
        if app.keeps:  # RMAppAttemptImpl.transferStateFromAttempt
            self.told[app.attempt_id] = Told(completed=before.completed)
            self.heard.update(before.sent)
        else:
            self.heard.update([*before.sent, *(c for c, _, _ in before.completed)])
        self._open_attempt(app)
        self.world.start_am(app)

    def _open_attempt(self, app: App) -> None:
        self.told.setdefault(app.attempt_id, Told())
        self.plugin.asks.open(app.attempt_id)
        self.plugin.emit(attempt_added=pb.AttemptAdded(attempt_id=app.attempt_id, app_id=app.app_id))

    def attempt_failed(self, app: App) -> None:
        """Handles the death of an AM: the next attempt follows."""
        if app.final or not app.running or self.world.rm is not self:  # another one serves: the store is closed to it
            return
        app.running = False
        self._close_attempt(app)
        if not app.keeps:
            for c in [c for c in self.containers.values() if c.app_id == app.app_id]:
                self.complete(c, "KILL", RELEASED, "its attempt ended")
        self._next_attempt(app)

    def _next_attempt(self, app: App) -> None:
        def begin() -> None:
            if not app.final and self.world.rm is self:
                self.new_attempt(app)

        self.sim.at(self.sim.rng.uniform(1.0, 3.0), begin, self.life)

    def _close_attempt(self, app: App) -> None:
        self.plugin.asks.close(app.attempt_id)
        # doneApplicationAttempt spares only running containers, even if containers are kept
        for c in [c for c in self.containers.values() if c.app_id == app.app_id and c.state != "RUNNING"]:
            self.complete(c, "KILL", ABORTED, "its attempt ended")
        self.plugin.emit(
            attempt_removed=pb.AttemptRemoved(attempt_id=app.attempt_id, app_id=app.app_id, keep_containers=app.keeps)
        )

    def finish(self, app: App, final: str) -> None:
        """Ends an application after its AM unregistered or a kill, with its containers."""
        if app.final:
            return
        app.final = final
        if app.running:
            app.running = False
            self._close_attempt(app)
        for c in [c for c in self.containers.values() if c.app_id == app.app_id]:
            self.complete(c, "KILL", RELEASED, "its application ended")
        self.plugin.emit(app_removed=pb.AppRemoved(app_id=app.app_id, final_state=final))
        self.sim.tell("rm", f"{app.app_id} has ended: {final}")
        self.world.app_over(app)

    def move(self, app: App, queue: str) -> None:
        """`yarn application -movetoqueue`."""
        app.queue = queue
        self.plugin.emit(app_updated=self.app_message(app))

    # ---- AMs

    def register_am(self, app: App) -> list[RmContainer]:
        """Registers an AM; returns the containers of earlier attempts."""
        self.registered.add(app.attempt_id)
        self.told.setdefault(app.attempt_id, Told())
        for c in self.containers.values():
            if c.app_id == app.app_id and c.state == "ALLOCATED" and c.attempt_id == app.attempt_id:
                c.state = "ACQUIRED"
        return [c for c in self.containers.values() if c.app_id == app.app_id and c.attempt_id != app.attempt_id]

    def allocate(
        self, app: App, asks: list[tuple[Key, int, int, int]], releases: list[str], fresh: bool
    ) -> Told | None:
        """An AM's heartbeat: (key, gpus, memory, absolute count) each; None: it must register (again) first."""
        attempt = app.attempt_id
        if attempt not in self.registered or fresh:
            return None
        for key, gpus, memory_mb, count in asks:
            live = (c for c in self.containers.values() if c.attempt_id == attempt and c.key == key)
            not_pulled = sum(c.state == "ALLOCATED" for c in live)
            self.plugin.asks.ask(attempt, key, gpus, memory_mb, count, not_pulled)
        for container_id in releases:
            container = self.containers.get(container_id)
            if container is not None and container.app_id == app.app_id:
                self.complete(container, "RELEASED", RELEASED, "released by its application")
        told = self.told[attempt]
        self.told[attempt] = Told(sent=[c for c, _, _ in told.completed])
        self.heard.update(told.sent)
        mine = [c for c in self.containers.values() if c.attempt_id == attempt and c.state == "ALLOCATED"]
        for c in mine:
            c.state = "ACQUIRED"
        told.allocated = mine
        return told

    # ---- nodes

    def knows(self, node_id: str) -> bool:
        """Whether that node is registered."""
        return node_id in self.nodes

    def register(self, nm: NodeManager) -> None:
        """A NodeManager registers with what runs on it; one that has no app's containers any more begins anew.

        (RMNodeImpl.ReconnectNodeTransition: the node is removed and added.)
        """
        if nm.node_id in self.nodes and not nm.runs:
            self.remove_node(self.nodes[nm.node_id], "REBOOTED")
        self.nodes[nm.node_id] = RmNode(nm, nm.gpus, self.sim.now)
        back: list[tuple[RmContainer, Run]] = []
        for run in list(nm.runs.values()):
            app = self.apps.get(run.app_id)
            if run.state == "ended":
                self._ended_before(run, app)
                continue
            if app is None or app.final or not (app.keeps or app.running):
                self.nodes[nm.node_id].orders.append(run.container_id)
                continue
            back.append((self._recover(nm, run, app), run))
        here = [c for c in self.containers.values() if c.node_id == nm.node_id and c.state == "RUNNING"]
        for c in [c for c in here if c.container_id not in nm.runs]:
            self.complete(c, "FINISHED", EXIT_LOST, "its NodeManager does not know it any more")
        self.plugin.emit(node_up=self.node_message(self.nodes[nm.node_id]))
        self.sim.tell("rm", f"{nm.node_id} registers with {len(back)} containers")
        for container, run in back:
            self.plugin.asks.recovered(container.attempt_id, container.key)
            self.plugin.emit(container_allocated=container.message())
            if run.state == "running":
                self.plugin.emit(container_running=container.message())

    def _ended_before(self, run: Run, app: App | None) -> None:
        """Handles a container that ended unnoticed: its AM is informed."""
        run.told_ended = True
        known = run.container_id in self.containers
        self._ended_on_node(run)
        if not known and app is not None and not self._told_of(app, run.container_id):
            self._tell_end(app, run.container_id, run.exit_code, "ended")

    def _told_of(self, app: App, container_id: str) -> bool:
        """Whether this life of the RM has told, or is about to tell, an AM of the container's end."""
        told = self.told.get(app.attempt_id, Told())
        return container_id in self.heard or container_id in (*told.sent, *(c for c, _, _ in told.completed))

    def _tell_end(self, app: App, container_id: str, status: int, why: str) -> None:
        """With the AM's next heartbeat; between two attempts, with the first of the next attempt."""
        if not app.final and (app.running or app.keeps):
            self.told.setdefault(app.attempt_id, Told()).completed.append((container_id, status, why))
        else:
            self.heard.add(container_id)

    def _recover(self, nm: NodeManager, run: Run, app: App) -> RmContainer:
        known = self.containers.get(run.container_id)
        if known is not None:
            return known
        attempt = self.world.attempt_of[run.container_id]
        container = RmContainer(
            run.container_id,
            run.app_id,
            attempt,
            nm.node_id,
            run.gpus,
            run.lease_id,
            (1, run.request_id),
            1,
            "RUNNING",
            self.sim.now,
        )
        self.containers[run.container_id] = container
        if attempt != app.attempt_id and app.running:
            self.told.setdefault(app.attempt_id, Told()).previous.append(container)
        return container

    def node_message(self, node: RmNode) -> pb.Node:
        """As ClusterView.java has it."""
        nm = node.nm
        return pb.Node(
            node_id=nm.node_id,
            host=nm.host,
            rack=nm.rack,
            gpus=node.gpus,
            memory_mb=64_000,
            vcores=64,
            attributes=nm.attributes,
            decommissioning=node.state == "DECOMMISSIONING",
            partition=nm.partition,
        )

    def to_forget(self, nm: NodeManager) -> list[str]:
        """Ended containers that their AM knows of, or whose application has ended (containersToBeRemovedFromNM)."""
        ended = [r for r in nm.runs.values() if r.state == "ended" and r.told_ended]
        apps = self.apps
        return [
            r.container_id
            for r in ended
            if r.container_id in self.heard or r.app_id not in apps or apps[r.app_id].final
        ]

    def node_heartbeat(self, nm: NodeManager, started: list[Run], ended: list[Run]) -> list[str]:
        """Handles started and ended containers; returns the containers to end."""
        node = self.nodes[nm.node_id]
        node.last_heard_s = self.sim.now
        for run in started:
            container = self.containers.get(run.container_id)
            if container is None:
                self.plugin.ending.started(nm.node_id, run.container_id)
                node.orders.append(run.container_id)
            elif container.state != "RUNNING":
                container.state = "RUNNING"
                self.plugin.emit(container_running=container.message())
        for run in ended:
            self._ended_on_node(run)
        self.plugin.ending.heartbeat(nm.node_id, self.sim.now)
        orders, node.orders = node.orders, []
        return orders

    def _ended_on_node(self, run: Run) -> None:
        container = self.containers.get(run.container_id)
        if container is None:
            self.plugin.ending.ended(run.container_id)
        else:
            self.complete(container, "FINISHED", run.exit_code, "")

    def _expire(self) -> None:
        now = self.sim.now
        for node in [n for n in self.nodes.values() if now - n.last_heard_s > EXPIRY_S]:
            self.remove_node(node, "LOST")
        for c in [c for c in self.containers.values() if c.state == "ACQUIRED" and now - c.since_s > LAUNCH_S]:
            self.complete(c, "EXPIRE", RELEASED, "was not launched")

    def remove_node(self, node: RmNode, state: str) -> None:
        """Removes a lost or decommissioned node with its containers."""
        del self.nodes[node.nm.node_id]
        node.state = state
        for c in [c for c in self.containers.values() if c.node_id == node.nm.node_id]:
            self.complete(c, "KILL", EXIT_LOST, f"its node is {state}")
        self.plugin.emit(node_down=pb.NodeDown(node_id=node.nm.node_id, reason=state))
        self.plugin.ending.node_gone(node.nm.node_id)
        self.sim.tell("rm", f"{node.nm.node_id} is {state}")

    def changed(self, node_id: str) -> None:
        """Handles a change of a node's resources or attributes."""
        node = self.nodes.get(node_id)
        if node is not None:
            node.gpus = node.nm.gpus
            self.plugin.emit(node_up=self.node_message(node))

    def decommission(self, node_id: str, on: bool) -> None:
        """Decommissions gracefully: no new containers, running ones continue."""
        node = self.nodes.get(node_id)
        if node is not None:
            node.state = "DECOMMISSIONING" if on else "RUNNING"
            self.plugin.emit(node_up=self.node_message(node))

    # ---- containers

    def complete(self, c: RmContainer, event: str, status: int, why: str) -> None:
        """Ends a container from the RM's point of view."""
        before = c.state
        if self.containers.pop(c.container_id, None) is None:
            return
        c.state = {"KILL": "KILLED", "RELEASED": "RELEASED", "EXPIRE": "EXPIRED"}.get(event, "COMPLETED")
        end = pb.ContainerCompleted(container_id=c.container_id, app_id=c.app_id, node_id=c.node_id, exit_status=status)
        if event == "FINISHED" or before == "ALLOCATED":
            self.plugin.emit(container_completed=end)
        else:
            self.plugin.ending.begin(Ended(c.message(), end, before == "RUNNING", self.sim.now))
        if before == "ALLOCATED":
            self.plugin.asks.change(c.attempt_id, c.key, 1)
        else:
            self._tell_end(self.apps[c.app_id], c.container_id, status, why)
        node = self.nodes.get(c.node_id)
        if node is not None and event != "FINISHED":
            node.orders.append(c.container_id)

    # ---- the plugin's side

    def snapshot(self, last_seq: int) -> pb.Snapshot:
        """YARN's state, as in IsonomyScheduler.snapshot."""
        live = [c.message() for c in self.containers.values() if c.node_id in self.nodes]
        return pb.Snapshot(
            last_seq=last_seq,
            rm_life=self.epoch,
            ready=self.ready,
            nodes=[self.node_message(n) for n in self.nodes.values()],
            applications=[self.app_message(a) for a in self.apps.values() if not a.final],
            asks=self.plugin.asks.all(),
            containers=[*live, *self.plugin.ending.all()],
            queues=[
                pb.Queue(path=q, absolute_capacity=0.3, absolute_max_capacity=self.world.queue_max.get(q, 1.0))
                for q in QUEUES
            ],
        )

    def carry_out(self, directive: pb.Directive) -> pb.DirectiveResult:
        """Directives.java."""
        kinds: dict[str, Callable[[], str]] = {
            "place": lambda: self._place(directive.place),
            "preempt": lambda: self._preempt(directive.preempt.container_id),
            "kill": lambda: self._kill(directive.kill),
        }
        try:
            container_id = kinds[directive.WhichOneof("kind")]()
            self._place_answered(directive, "")
            return pb.DirectiveResult(ok=True, container_id=container_id)
        except Refused as e:
            self._place_answered(directive, str(e))
            return pb.DirectiveResult(ok=False, reason=str(e))

    def _place_answered(self, directive: pb.Directive, refusal: str) -> None:
        if directive.HasField("place"):
            host = directive.place.node_id.split(":")[0]
            self.world.oracles.machines.answered(self, app_of(directive.place.attempt_id), host, refusal)

    def _place(self, place: pb.Place) -> str:
        app, entry = self._checked(place)
        container_id = self.world.container_id(place.attempt_id)
        container = RmContainer(
            container_id,
            app.app_id,
            place.attempt_id,
            place.node_id,
            tuple(place.gpu_ids),
            place.lease_id,
            (place.priority, place.allocation_request_id),
            entry.memory_mb,
            "ALLOCATED",
            self.sim.now,
        )
        self.containers[container_id] = container
        self.world.oracles.placed(self, container)
        self.plugin.asks.change(place.attempt_id, container.key, -1)
        self.plugin.emit(container_allocated=container.message())
        return container_id

    def _checked(self, place: pb.Place) -> tuple[App, Entry]:
        if not self.ready:
            raise Refused("the ResourceManager is recovering")
        app = self.apps.get(app_of(place.attempt_id))
        if app is None or app.final or not app.running or app.attempt_id != place.attempt_id:
            raise Refused(f"attempt {place.attempt_id} is not running")
        entry = self.plugin.asks.find(place.attempt_id, (place.priority, place.allocation_request_id))
        if entry is None:
            raise Refused(f"attempt {place.attempt_id} does not ask under {place.allocation_request_id} (any more)")
        if (entry.gpus, entry.memory_mb) != (len(place.gpu_ids), place.memory_mb):
            raise Refused("the ask has changed")
        node = self.nodes.get(place.node_id)
        if node is None:
            raise Refused(f"node {place.node_id} is not registered")
        if node.state != "RUNNING":
            raise Refused(f"node {place.node_id} is {node.state}")
        if any(i >= node.gpus for i in place.gpu_ids):
            raise Refused(f"node {place.node_id} has {node.gpus} GPUs")
        self._check_free(place)
        if node.nm.partition:
            raise Refused(f"node {place.node_id} is in partition {node.nm.partition}, which the ask is not for")
        if (app.app_id, node.nm.host) in self.world.blacklist:
            raise Refused(f"node {place.node_id} is in the application's blacklist")
        mine = sum(self.apps[c.app_id].user == app.user for c in self.containers.values())
        if mine >= self.world.user_max.get(app.user, mine + 1):
            raise Refused(f"user {app.user} is at the limit of the queue {app.queue}")
        if node.nm.refuses:
            raise Refused(f"node {place.node_id} has only <memory:0> free")
        return app, entry

    def _check_free(self, place: pb.Place) -> None:
        wanted = set(place.gpu_ids)
        on_node = [c.message() for c in self.containers.values() if c.node_id == place.node_id]
        for c in [*on_node, *(e.container for e in self.plugin.ending.by_node.get(place.node_id, {}).values())]:
            if wanted & set(c.gpu_ids):
                raise Refused(f"GPU {min(wanted & set(c.gpu_ids))} is in use: {c.container_id} holds it")

    def _live(self, container_id: str) -> RmContainer:
        container = self.containers.get(container_id)
        if container is None:
            raise Refused(f"{container_id} is not live")
        return container

    def _preempt(self, container_id: str) -> str:
        self._live(container_id)
        return ""

    def _kill(self, kill: pb.Kill) -> str:
        container = self._live(kill.container_id)
        if self.world.kills_refused:
            self.world.kills_refused -= 1
            raise Refused(f"{kill.container_id} is not live")
        self.complete(container, "KILL", ABORTED if kill.again else PREEMPTED, kill.reason)
        crash, node = self.world.rm_crashes_nm, self.nodes.get(container.node_id)
        if crash is not None and node is not None:
            self.world.rm_crashes_nm = None
            crash(node.nm)
        return ""
