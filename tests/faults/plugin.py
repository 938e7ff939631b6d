"""The plugin inside the ResourceManager, as yarn-plugin/rm has it: queue, book of asks, log, bridge."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pycontrol.wire.v1 import bridge_pb2 as pb
from tests.faults.clock import Net, Violation

EXCHANGE_S, POLL_MS, IDLE_S = 10.0, 2_000, 0.25
BACKOFF_S = (0.1, 2.0)
EVENTS_AT_ONCE = 1_000
PATIENCE_S, HEARTBEATS = 60.0, 2
Key = tuple[int, int]
"""(priority, allocationRequestId)"""


class EventQueue:
    """EventQueue.java: a full queue is emptied, and a snapshot replaces the events."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.events, self.last_seq, self.overflowed = capacity, list[pb.Event](), 0, False

    def add(self, event: pb.Event) -> None:
        """Adds an event under the next sequence number."""
        self.last_seq += 1
        event.seq = self.last_seq
        if len(self.events) >= self.capacity:
            self.events.clear()
            self.overflowed = True
        if not self.overflowed:
            self.events.append(event)

    def discard(self, up_to: int) -> None:
        """Discards acknowledged events."""
        self.events = [e for e in self.events if e.seq > up_to]

    def restart(self) -> int:
        """A snapshot is about to be taken."""
        self.events.clear()
        self.overflowed = False
        return self.last_seq


@dataclass
class Entry:
    """An outstanding ask: (gpus, memory, vcores) and its absolute count."""

    gpus: int
    memory_mb: int
    count: int = 0
    asks: int = 0


class AskBook:
    """AskBook.java."""

    def __init__(self, sink: Callable[[pb.Ask], None]) -> None:
        self.attempts: dict[str, dict[Key, Entry]] = {}
        self.recovered_of: dict[str, dict[Key, int]] = {}
        self._sink = sink

    def open(self, attempt: str) -> None:
        """Accepts an attempt's asks from now on."""
        self.attempts.setdefault(attempt, {})
        self.recovered_of.setdefault(attempt, {})

    def close(self, attempt: str) -> None:
        """Voids an attempt's asks."""
        self.attempts.pop(attempt, None)
        self.recovered_of.pop(attempt, None)

    def ask(self, attempt: str, key: Key, gpus: int, memory_mb: int, asked: int, not_pulled: int) -> None:
        """Records an AM's ask; `asked` is absolute."""
        entries = self.attempts.get(attempt)
        if entries is None:
            return
        entry = entries.get(key)
        if entry is None or (entry.gpus, entry.memory_mb) != (gpus, memory_mb):
            if asked == 0:
                return
            if entry is not None:
                self._tell(attempt, key, entry, 0)
            entry = entries[key] = Entry(gpus, memory_mb)
        known = not_pulled + self.recovered_of[attempt].pop(key, 0)
        entry.asks += 1
        entry.count = max(0, asked - known)
        self._tell(attempt, key, entry, entry.count)
        if entry.count == 0:
            del entries[key]

    def recovered(self, attempt: str, key: Key) -> None:
        """Records a container from before a restart."""
        entries = self.attempts.get(attempt)
        if entries is None or key[1] <= 0:
            return
        entry = entries.get(key)
        if entry is None:
            mine = self.recovered_of[attempt]
            mine[key] = mine.get(key, 0) + 1
        elif entry.asks == 1:
            self.change(attempt, key, -1)

    def change(self, attempt: str, key: Key, by: int) -> None:
        """A container was placed (-1), or ended before its AM had it (1)."""
        entry = self.attempts.get(attempt, {}).get(key)
        if entry is not None:
            entry.count = max(0, entry.count + by)
            self._tell(attempt, key, entry, entry.count)

    def find(self, attempt: str, key: Key) -> Entry | None:
        """What is outstanding."""
        entry = self.attempts.get(attempt, {}).get(key)
        return entry if entry is not None and entry.count else None

    def all(self) -> list[pb.Ask]:
        """Every outstanding ask."""
        return [
            self._message(a, key, e, e.count)
            for a, entries in self.attempts.items()
            for key, e in entries.items()
            if e.count
        ]

    def _tell(self, attempt: str, key: Key, entry: Entry, count: int) -> None:
        self._sink(self._message(attempt, key, entry, count))

    @staticmethod
    def _message(attempt: str, key: Key, entry: Entry, count: int) -> pb.Ask:
        return pb.Ask(
            attempt_id=attempt,
            app_id=app_of(attempt),
            priority=key[0],
            allocation_request_id=key[1],
            gpus=entry.gpus,
            memory_mb=entry.memory_mb,
            vcores=1,
            count=count,
        )


def app_of(attempt_or_container: str) -> str:
    """application_1_0001 of appattempt_1_0001_000002 or container_1_0001_02_000003."""
    return "application_" + "_".join(attempt_or_container.split("_")[1:3])


@dataclass
class Ended:
    """A container that the RM has ended but its NodeManager has not."""

    container: pb.GpuContainer
    end: pb.ContainerCompleted
    started: bool
    since_s: float
    heartbeats: int = 0


class EndingContainers:
    """EndingContainers.java."""

    def __init__(self, sink: Callable[[pb.ContainerCompleted], None]) -> None:
        self.by_node: dict[str, dict[str, Ended]] = {}
        self._sink = sink

    def begin(self, ended: Ended) -> None:
        """Notes that the RM has ended a container."""
        self.by_node.setdefault(ended.container.node_id, {})[ended.container.container_id] = ended

    def started(self, node_id: str, container_id: str) -> None:
        """Notes that the NodeManager reports a container as running."""
        found = self.by_node.get(node_id, {}).get(container_id)
        if found is not None:
            found.started = True

    def ended(self, container_id: str) -> None:
        """Notes that the NodeManager reports a container as ended."""
        for node_id in list(self.by_node):
            self._finish(node_id, lambda e: e.container.container_id == container_id)

    def heartbeat(self, node_id: str, now_s: float) -> None:
        """Handles a NodeManager's heartbeat."""

        def over(e: Ended) -> bool:
            e.heartbeats += 1
            return (e.heartbeats >= HEARTBEATS and not e.started) or now_s - e.since_s > PATIENCE_S

        self._finish(node_id, over)

    def node_gone(self, node_id: str) -> None:
        """Handles the loss of a node with all its containers."""
        self._finish(node_id, lambda e: True)

    def _finish(self, node_id: str, over: Callable[[Ended], bool]) -> None:
        mine = self.by_node.get(node_id, {})
        for container_id, e in list(mine.items()):
            if over(e):
                del mine[container_id]
                self._sink(e.end)

    def all(self) -> list[pb.GpuContainer]:
        """All of them."""
        found = [e.container for mine in self.by_node.values() for e in mine.values()]
        for container in found:
            container.ending = True
        return found


class Plugin:
    """Bridge.java in one life of a ResourceManager `rm`, which carries directives out and takes snapshots."""

    def __init__(self, rm: Any, net: Net, capacity: int, epoch: str) -> None:
        self.rm, self.net, self.sim, self.epoch = rm, net, net.sim, epoch
        self.queue = EventQueue(capacity)
        self.asks = AskBook(lambda ask: self.emit(ask=ask))
        self.ending = EndingContainers(lambda end: self.emit(container_completed=end))
        self.log: OrderedDict[str, tuple[bytes, pb.DirectiveResult]] = OrderedDict()
        self.wanted, self.taken, self._last_id = 1, 0, 0
        self._was_ready = False
        self._busy = False
        self._received: list[str] = []
        self._polling = False
        self.hellos = 0

    def start(self) -> None:
        """Both threads."""
        self.sim.every(IDLE_S, self._turn, self.rm.life)
        self._poll()

    def emit(self, **kind: Any) -> None:
        """Queues an event for the control plane."""
        self.queue.add(pb.Event(**kind))
        self.sim.at(0.002, self._turn, self.rm.life)

    def resend(self) -> None:
        """Requests a snapshot before the next events."""
        self.wanted += 1

    @property
    def known(self) -> bool:
        """Whether the control plane has the plugin's snapshot."""
        return self.taken == self.wanted

    # ---- the event thread

    def _turn(self) -> None:
        if self._busy:
            return
        if not self.known or self.queue.overflowed:
            self._hello()
            return
        if not self._was_ready and self.rm.ready:
            self._was_ready = True
            self.queue.add(pb.Event(ready=pb.Ready()))
        if self.queue.events:
            self._busy = True
            request = self._request(events=pb.Events(events=self.queue.events[:EVENTS_AT_ONCE]))
            self._exchange(request, self._sent, hello=False)

    def _hello(self) -> None:
        self._busy = True
        self.hellos += 1
        number, last_seq = self.wanted, self.queue.restart()
        snapshot = self.rm.snapshot(last_seq)
        sizes = f"{len(snapshot.nodes)} nodes, {len(snapshot.containers)} containers, {len(snapshot.asks)} asks"
        self.sim.tell("plugin", f"hello {self.hellos}: {sizes}, ready={snapshot.ready}")

        def answered(response: pb.Response | None) -> None:
            self._was_ready = False
            if response is None:
                self._pause(0.0)
            elif response.error:
                self._pause(0.1)
            else:
                self.taken, self._was_ready = number, snapshot.ready
                self._pause(0.0)
                self._poll()

        self._exchange(self._request(hello=pb.Hello(snapshot=snapshot)), answered, hello=True)

    def _sent(self, response: pb.Response | None) -> None:
        if response is None or response.hello_required:
            self.resend()
            self._pause(0.0)
            return
        if response.HasField("ack"):
            self.queue.discard(response.ack.last_seq)
        self._pause(0.1 if response.error else 0.0)

    def _pause(self, seconds: float) -> None:
        def over() -> None:
            self._busy = False
            self._turn()

        self.sim.at(max(seconds, 0.001), over, self.rm.life)

    # ---- the directive thread

    def _poll(self) -> None:
        if self._polling or not self.known:
            return
        self._polling = True
        request = self._request(poll=pb.Poll(wait_ms=POLL_MS, received=self._received))
        self._received = []
        self._exchange(request, self._polled, hello=False, patience_s=POLL_MS / 1000 + EXCHANGE_S)

    def _polled(self, response: pb.Response | None) -> None:
        self._polling = False
        if response is None or response.hello_required:
            self.resend()
            self._turn()
            return
        for directive in response.directives.directives:
            self._received.append(directive.id)
            self._carry_out(directive)
        self.sim.at(0.1 if response.error else 0.001, self._poll, self.rm.life)

    def _carry_out(self, directive: pb.Directive) -> None:
        said = directive.SerializeToString(deterministic=True)
        known = self.log.get(directive.id)
        if known is not None and known[0] != said:
            raise Violation("directive ids", f"{directive.id} means two things in one life of the plugin", directive.id)
        if known is None:
            result = self.rm.carry_out(directive)
            result.directive_id = directive.id
            self.log[directive.id] = (said, result)
            kind = directive.WhichOneof("kind")
            self.sim.tell("plugin", f"{kind} {directive.id}: {result.reason or result.container_id or 'ok'}")
        self.emit(directive_result=self.log[directive.id][1])

    # ---- requests

    def _request(self, **body: Any) -> pb.Request:
        self._last_id += 1
        return pb.Request(plugin_epoch=self.epoch, id=self._last_id, time_ms=int(self.sim.now * 1000), **body)

    def _exchange(
        self,
        request: pb.Request,
        done: Callable[[pb.Response | None], None],
        hello: bool,
        patience_s: float = EXCHANGE_S,
        backoff_s: float = BACKOFF_S[0],
    ) -> None:
        """Repeats the request until it is answered; None where a snapshot has to go first (unless this is one)."""
        state = {"over": False}
        name, plane = self.rm.name, self.rm.plane
        data = request.SerializeToString()

        def finish(response: pb.Response | None) -> None:
            if not state["over"] and not self.rm.life.dead:
                state["over"] = True
                done(response)

        def answered(answer: bytes) -> None:
            if not self.net.lost(plane.name, name):
                self.sim.at(
                    self.net.delay(plane.name, name), lambda: finish(pb.Response.FromString(answer)), self.rm.life
                )

        def again() -> None:
            if state["over"]:
                return
            state["over"] = True
            if self.queue.overflowed or (not hello and not self.known):
                done(None)
                return
            self._exchange(request, done, hello, patience_s, min(2 * backoff_s, BACKOFF_S[1]))

        if not plane.up and self.net.open(name, plane.name):  # refused at once
            self.sim.at(backoff_s, again, self.rm.life)
            return
        if not self.net.lost(name, plane.name):
            for late_s in (0.0, *((self.sim.rng.uniform(0.0, 4.0),) if self.net.twice() else ())):
                self.sim.at(late_s + self.net.delay(name, plane.name), lambda: plane.request(data, answered))
        plane.broken.append(lambda: self.sim.at(backoff_s, again, self.rm.life))
        self.sim.at(patience_s + backoff_s, again, self.rm.life)
