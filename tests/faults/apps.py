"""Application masters: the AM shell with the real AgentCore and its edges, and masters of unmanaged apps."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent.agent_core import AgentCore
from submarine_patch.agent.agent_state import gpus_in
from submarine_patch.agent.messages import (
    Command,
    CommandRefused,
    End,
    LinkLost,
    Publish,
    Published,
)
from submarine_patch.agent.spec import AppSpec
from tests.faults.clock import Life, Sim, Stream, Violation
from tests.faults.nodes import EXIT_LOST, Run
from tests.faults.plugin import Key
from tests.faults.records import MALLORY, App, RmContainer, Told
from tests.faults.workers import STUCK, Worker

AM_HEARTBEAT_S = 0.25
AGENT_TICK_S = 0.5
BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
SAVE_S = (0.02, 0.4)
LOST_S = 60.0
HOG_S = 100.0
"""The time by which the Arbiter must have had the container killed."""


class Master:
    """The common part of AMs: asks by key, a heartbeat, and the containers that it holds."""

    def __init__(self, world: Any, app: App) -> None:
        self.world, self.app = world, app
        self.sim: Sim = world.sim
        self.life = Life()
        self.attempt_id = app.attempt_id
        self.name = f"am {app.app_id}"
        self.asks: dict[Key, tuple[int, int, int]] = {}
        """(gpus, memory, count): absolute, as AMRMClient keeps them."""
        self.sizes: dict[Key, tuple[int, int]] = {}
        """(gpus, memory) of all that it ever asked for."""
        self.changed: list[Key] = []
        self.releases: list[str] = []
        self.held: dict[str, RmContainer] = {}
        self._rm = ""
        self._told: dict[str, None] = {}

    def start(self) -> None:
        """Starts when the AM's container runs."""
        self.sim.every(AM_HEARTBEAT_S, self.heartbeat, self.life)

    def die(self, why: str) -> None:
        """Kills the JVM."""
        if not self.life.dead:
            self.sim.tell(self.app.app_id, f"its AM dies: {why}")
            self.life.dead = True
            self.ended()

    def ended(self) -> None:
        """Closes the connections of the ended process."""

    def heartbeat(self) -> None:
        """Reports changes to the RM and receives its news."""
        rm, net = self.world.rm, self.world.net
        if rm is None or not net.open(self.name, "rm") or not net.open("rm", self.name):
            return
        if self._rm != rm.epoch:
            self._rm = rm.epoch
            for container in rm.register_am(self.app):
                self.previous(container)
            self.changed = list(self.asks)
        asks = [(k, *self.asks.get(k, (*self.sizes.get(k, (1, 1)), 0))) for k in dict.fromkeys(self.changed)]
        told = rm.allocate(self.app, asks, self.releases, False)
        self.changed, self.releases = [], []
        if told is not None:
            self.take(told)

    def ask(self, key: Key, gpus: int, memory_mb: int, count: int) -> None:
        """Asks for a total number of containers; 0 withdraws the ask."""
        if count:
            self.asks[key] = (gpus, memory_mb, count)
        else:
            self.asks.pop(key, None)
        self.sizes[key] = (gpus, memory_mb)
        self.changed.append(key)

    def take(self, told: Told) -> None:
        """Handles the heartbeat's answer."""
        for container in told.previous:
            self.previous(container)
        for container in told.allocated:
            self.allocated(container)
        for container_id, status, why in told.completed:
            self.held.pop(container_id, None)
            self.completed(container_id, status, why)

    def previous(self, container: RmContainer) -> None:
        """Handles a container of an earlier attempt."""

    def allocated(self, container: RmContainer) -> None:
        """Handles a new container."""
        raise NotImplementedError

    def completed(self, container_id: str, status: int, why: str) -> None:
        """Handles the end of a container."""

    def start_on_node(self, c: RmContainer, process: Callable[[Run], Any], failed: Callable[[str], None]) -> None:
        """NMClient.startContainer."""
        host = c.node_id.split(":")[0]
        nm, net, rm_epoch = self.world.nms[host], self.world.net, self._rm

        def arrive() -> None:
            if not nm.up or not net.open(self.name, host):
                self.sim.at(2.0, lambda: failed("no route to the NodeManager"), self.life)
                return
            run = Run(c.container_id, c.app_id, c.gpus, c.lease_id, c.key[1])
            why = nm.launch(run, rm_epoch, process)
            if why:
                self.sim.at(net.delay(host, self.name), lambda: failed(why), self.life)

        self.sim.at(net.delay(self.name, host), arrive)

    def stop_on_node(self, c: RmContainer) -> None:
        """NMClient.stopContainer; if the node cannot be reached the container is released."""
        host = c.node_id.split(":")[0]
        nm, net = self.world.nms[host], self.world.net

        def arrive() -> None:
            if nm.up and net.open(self.name, host):
                nm.stop(c.container_id)
            else:
                self.releases.append(c.container_id)

        self.sim.at(net.delay(self.name, host), arrive)


class AgentMaster(Master):
    """The AM shell (submarine_patch/java/am), the Agent's process with the real AgentCore, and its session."""

    def __init__(self, world: Any, app: App, spec: AppSpec) -> None:
        super().__init__(world, app)
        self.spec = spec
        files: list[Any] = world.hdfs.files.setdefault(f"state of {app.app_id}", [])
        saved = json.loads(files[-1]) if files and app.attempt > 1 else None
        self.brain = AgentCore(spec, app.attempt, saved)
        if saved:
            self.brain.restarted(self.wall_s())
        self.stream: Stream | None = None
        self._outbox: list[pb.AgentMessage] = []
        self._failures = 0
        self._adopted: set[str] = set()
        self._unseen: set[str] = set()
        self._saving = False
        self._unsaved = False
        self.open_requests: dict[int, int] = {}
        """Allocation request -> its priority."""
        self.done = False
        self.links, self.linked_s = 0, None
        """The number of its streams, and the time of the present one's handshake."""
        self.peer = ""
        """The control plane of its newest stream."""
        self._token = world.token(app.app_id, app.user)
        self.mute_until_s = 0.0
        """Its process is suspended until then."""
        self._hog = world.checkpoint_s(app.app_id) == STUCK
        """Whether it stops containers long after it should."""

    def wall_s(self) -> float:
        """The Agent machine's clock."""
        return self.sim.now + float(self.world.skew.get(self.app.app_id, 0.0))

    def start(self) -> None:
        super().start()
        self.heartbeat()  # the shell registers, and the Agent hears of adopted containers, before anything else
        self.sim.every(AGENT_TICK_S, lambda: self.sim.now < self.mute_until_s or self._think(None), self.life)
        self.sim.at(0.1, self._connect, self.life)

    def ended(self) -> None:
        if self.stream is not None:
            self.stream.cut("the Agent died")

    # ---- the AgentCore

    def _think(self, event: Any) -> None:
        if self.life.dead:
            return
        try:
            commands = self.brain.handle(event, self.wall_s())
        except Violation:
            raise
        except Exception as e:
            raise Violation(
                "agent ends",
                f"{self.app.app_id}: the Agent fails on {type(event).__name__}: {type(e).__name__}: {e}",
                self.app.app_id,
            ) from e
        if self.brain.changed:
            self.brain.changed = False
            self._save()
        for command in commands:
            self._carry_out(command)

    def _save(self) -> None:
        """Written a little later; what changes until then is in the same file."""
        self._unsaved = True
        if not self._saving:
            self._saving = True
            self.sim.at(self.sim.rng.uniform(*SAVE_S), self._write, self.life)

    def _write(self) -> None:
        self._saving = False
        if self._unsaved and not self.world.hdfs.away:
            files: list[Any] = self.world.hdfs.files[f"state of {self.app.app_id}"]
            files.append(json.dumps(self.brain.dump()))
            del files[:-3]
        self._unsaved = False

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, pb.AgentMessage):
            self._send(command)
        elif isinstance(command, am.AmCommand):
            self.sim.at(self.sim.rng.uniform(0.001, 0.05), lambda: self._shell(command), self.life)
        elif isinstance(command, Publish):
            missing = self.world.hdfs.files.get(command.from_dir) is None
            published = Published("hdfs:///model", missing=missing, problem="no checkpoint" if missing else "")
            self.sim.at(self.sim.rng.uniform(0.1, 1.0), lambda: self._think(published), self.life)
        elif isinstance(command, End) and command.code:
            self.die(f"End({command.code})")

    # ---- the session

    def _connect(self) -> None:
        stream = Stream(self.world.net, self.name, self.world.plane.name)
        stream.on_message[0] = self._from_arbiter
        stream.on_end[0] = lambda why: self._lost(stream, why)
        net = self.world.net
        if not net.open(self.name, stream.ends[1]) or not self.world.plane.connect(stream, "agent", self._token):
            self._again()
            return
        self.stream, self.links, self.linked_s, stream.app_id = stream, self.links + 1, None, self.app.app_id
        self.peer = self.world.plane.name
        self._send(self.brain.register(), first=True)
        waiting, self._outbox = self._outbox, []
        for message in waiting:
            self._send(message)

    @property
    def is_heard(self) -> bool:
        """Whether it is registered by a stream that is not broken."""
        return self.linked_s is not None and self.stream is not None and not self.stream.broken

    def _again(self) -> None:
        self._failures += 1
        self.sim.at(BACKOFF_S[min(self._failures, len(BACKOFF_S)) - 1], self._connect, self.life)

    def _lost(self, stream: Stream, why: str) -> None:
        if self.life.dead or stream is not self.stream:
            return
        self.stream = self.linked_s = None
        self._think(LinkLost())
        self._again()

    def _from_arbiter(self, message: pb.ArbiterMessage) -> None:
        if self.sim.now < self.mute_until_s:
            self.sim.at(self.mute_until_s - self.sim.now, lambda: self._from_arbiter(message), self.life)
            return
        self._failures = 0
        if message.HasField("registered"):
            self.linked_s = self.sim.now
        elif message.HasField("from_worker"):
            self.world.relay.heard(self.app.app_id, message.from_worker.worker_id, message.from_worker)
        if message.from_worker.exit.message == MALLORY:
            raise Violation("another's app", f"mallory speaks for a worker of {self.app.app_id}", self.app.app_id)
        self._think(message)
        if message.HasField("registered"):
            granted = {g for grant in message.registered.grants for g in gpus_in(grant.gpus)}
            self.world.oracles.registered(self.app.app_id, granted, set(self.brain.held))

    def _send(self, message: pb.AgentMessage, first: bool = False) -> None:
        if self.stream is None:
            if message.WhichOneof("kind") == "done":
                self._outbox.append(message)
            return
        self.stream.send(0, pb.AgentMessage.FromString(message.SerializeToString()))

    # ---- the shell

    def _shell(self, c: am.AmCommand) -> None:
        kind = c.WhichOneof("kind")
        if kind == "ask":
            if c.ask.allocation_request_id in self.open_requests:
                self._refuse(c, f"allocation request {c.ask.allocation_request_id} is open already")
                return
            self.open_requests[c.ask.allocation_request_id] = c.ask.priority
            self.ask((c.ask.priority, c.ask.allocation_request_id), c.ask.gpus, c.ask.memory_mb, 1)
        elif kind == "withdraw":
            self._close(c.withdraw.allocation_request_id)
        elif kind == "launch":
            self._launch(c)
        elif kind == "stop" and c.stop.container_id in self.held:
            container = self.held[c.stop.container_id]
            self.sim.at(HOG_S if self._hog else 0.0, lambda: self.stop_on_node(container), self.life)
        elif kind == "release" and c.release.container_id in self.held:
            self.releases.append(c.release.container_id)
        elif kind == "finish":
            self._finish(c.finish.succeeded, c.finish.message)

    def _finish(self, succeeded: bool, message: str) -> None:
        """Reports Done first; then the AM unregisters, repeatedly while the RM is away."""
        rm, net = self.world.rm, self.world.net
        if rm is None or not net.open(self.name, "rm") or self._rm != rm.epoch:
            self.sim.at(0.5, lambda: self._finish(succeeded, message), self.life)
            return
        self.done = True
        self.sim.tell(self.app.app_id, f"finishes: {succeeded} {message[:160]}")
        self.world.oracles.app_finished(self, succeeded, message)
        rm.finish(self.app, "SUCCEEDED" if succeeded else "FAILED")
        if self.stream is not None:
            self.stream.end(0)
        self.life.dead = True

    def _refuse(self, c: am.AmCommand, why: str) -> None:
        self.sim.at(0.01, lambda: self._think(CommandRefused(c, why)), self.life)

    def _close(self, request_id: int) -> bool:
        priority = self.open_requests.pop(request_id, None)
        if priority is None:
            return False
        self.ask((priority, request_id), 0, 0, 0)
        return True

    def ask(self, key: Key, gpus: int, memory_mb: int, count: int) -> None:
        if not count:
            gpus, memory_mb = self.sizes.get(key, (1, 1))
        super().ask(key, gpus, memory_mb, count)

    def _launch(self, c: am.AmCommand) -> None:
        container = self.held.get(c.launch.container_id)
        if container is None:
            self._refuse(c, f"{c.launch.container_id} is not held")
            return
        env = dict(c.launch.env)

        def failed(why: str) -> None:
            self._event(start_error=am.AmContainerError(container_id=container.container_id, message=why))
            self.releases.append(container.container_id)

        self.start_on_node(container, lambda run: Worker(self.world, run, env, container.node_id), failed)

    def _event(self, **kind: Any) -> None:
        self.sim.at(self.sim.rng.uniform(0.001, 0.05), lambda: self._from_shell(am.AmEvent(**kind)), self.life)

    def _from_shell(self, event: am.AmEvent) -> None:
        if self.sim.now < self.mute_until_s:
            self.sim.at(self.mute_until_s - self.sim.now, lambda: self._from_shell(event), self.life)
            return
        self._think(event)

    @staticmethod
    def _described(c: RmContainer) -> am.AmContainer:
        return am.AmContainer(
            container_id=c.container_id,
            host=c.node_id.split(":")[0],
            gpu_ids=c.gpus,
            node_id=c.node_id,
            allocation_request_id=c.key[1],
            lease_id=c.lease_id,
        )

    def previous(self, container: RmContainer) -> None:
        self._adopted.add(container.container_id)
        if container.container_id not in self.held:
            self.held[container.container_id] = container
            if self._told_of(container.container_id, "adopted"):
                event = am.AmEvent(adopted=self._described(container))
                self.sim.at(0.0, lambda: self._think(event), self.life)

    def _told_of(self, container_id: str, what: str) -> bool:
        return True

    def allocated(self, container: RmContainer) -> None:
        if not self._close(container.key[1]):
            self._unseen.add(container.container_id)
            self.releases.append(container.container_id)
            return
        self.held[container.container_id] = container
        self._event(allocated=self._described(container))

    def completed(self, container_id: str, status: int, why: str) -> None:
        if container_id in self._unseen:
            self._unseen.discard(container_id)
            return
        self._event(completed=am.AmCompleted(container_id=container_id, exit_status=status, diagnostics=why))


class ForeignProcess:
    """A program that runs for a time."""

    def __init__(self, world: Any, run: Run, host: str, seconds: float) -> None:
        self.life = Life()
        world.sim.at(seconds, lambda: world.nms[host].exited(run, 0), self.life)

    def end(self) -> None:
        """Ends the process."""
        self.life.dead = True


class ForeignMaster(Master):
    """Like distributed shell: a number of equal containers, each for some seconds."""

    def __init__(self, world: Any, app: App, gpus: int, count: int, seconds: float) -> None:
        super().__init__(world, app)
        self.gpus, self.left, self.seconds = gpus, count, seconds
        self.key: Key = (0, 0)

    def start(self) -> None:
        super().start()
        self.ask(self.key, self.gpus, 64, self.left)
        self.sim.every(LOST_S, self._look_for_lost, self.life)

    def _look_for_lost(self) -> None:
        """Finds containers that were lost together with the ResourceManager, which nobody reports."""
        rm, nms = self.world.rm, self.world.nms.values()
        if rm is None or not rm.ready:
            return
        for container_id in [c for c in self.held if c not in rm.containers and all(c not in n.runs for n in nms)]:
            del self.held[container_id]
            self.completed(container_id, EXIT_LOST, "nobody knows it any more")

    def allocated(self, container: RmContainer) -> None:
        asked = self.asks.get(self.key)
        if asked is None:
            self.releases.append(container.container_id)
            return
        self.ask(self.key, self.gpus, 64, asked[2] - 1)
        self.held[container.container_id] = container
        host = container.node_id.split(":")[0]

        def failed(why: str) -> None:
            self.releases.append(container.container_id)

        self.start_on_node(container, lambda run: ForeignProcess(self.world, run, host, self.seconds), failed)

    def completed(self, container_id: str, status: int, why: str) -> None:
        if status == 0:
            self.left -= 1
        else:
            asked = self.asks.get(self.key)
            self.ask(self.key, self.gpus, 64, (asked[2] if asked else 0) + 1)
        if self.left <= 0 and self.world.rm is not None:
            self.world.rm.finish(self.app, "SUCCEEDED")
            self.life.dead = True
