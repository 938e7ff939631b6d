"""Who is connected, and what waits for whom: the Agents' streams, the workers' streams and the relay.

All of it belongs to the server's event loop; nothing here blocks or is called from another thread.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import grpc
import structlog

from pycontrol.wire.v1 import agent_pb2 as pb

OUTBOX_MAX = 10_000
"""Messages that wait for one stream's peer; one that reads no faster is cut off and comes back."""
KEPT_MAX = 2048
"""Messages (and commands) kept per app while their reader is away."""
WORKERS_MAX = 2048
"""Worker streams of one app."""
APPS_MAX = 4096
"""Apps of which anything is kept while none of their streams is open."""
_KEPT_KINDS = frozenset({"ready", "progress", "checkpoint", "exit"})

M = TypeVar("M")
log = structlog.get_logger("isonomy.rpc")


class Stream(Generic[M]):
    """The sending side of one stream: a bounded outbox, and how the stream is to end."""

    def __init__(self, app_id: str, name: str, limit: int = OUTBOX_MAX) -> None:
        self.app_id = app_id
        self.name = name
        """The attempt of an Agent, the id of a worker."""
        self.greeted = False
        """An Agent's stream: Registered is in the outbox, so other messages may follow."""
        self.ended: tuple[grpc.StatusCode, str] | None = None
        self._limit = limit
        self._outbox: deque[M] = deque()
        self._changed = asyncio.Event()

    def put(self, message: M) -> bool:
        """Queues a message; a full outbox ends the stream. False where the message will not be sent."""
        if self.ended:
            return False
        if len(self._outbox) >= self._limit:
            self.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "messages are read too slowly; connect again")
            return False
        self._outbox.append(message)
        self._changed.set()
        return True

    def end(self, code: grpc.StatusCode, why: str) -> None:
        """Ends the stream with this status; the first call counts."""
        if self.ended is None:
            self.ended = (code, why)
            self._changed.set()

    async def until_ended(self) -> None:
        """Returns when end() was called."""
        while self.ended is None:
            await self._wait()

    async def peek(self) -> M:
        """The next message to send; it stays in the outbox until sent()."""
        while not self._outbox:
            await self._wait()
        return self._outbox[0]

    def sent(self) -> None:
        """The message of peek() is on its way."""
        self._outbox.popleft()

    def unsent(self) -> list[M]:
        """What is left in the outbox."""
        return list(self._outbox)

    async def _wait(self) -> None:
        changed = self._changed
        await changed.wait()
        if changed is self._changed:
            self._changed = asyncio.Event()


@dataclass
class Mailbox:
    """What is kept for one app: for its Agent from its workers, and for workers from its Agent."""

    latest: dict[str, dict[str, pb.ArbiterMessage]] = field(default_factory=dict)
    """The last message of each kind of the workers whose streams are open: an Agent that registers gets
    them all, as it may be new, or may have missed some when its stream broke."""
    unread: OrderedDict[tuple[str, str], pb.ArbiterMessage] = field(default_factory=OrderedDict)
    """By worker and kind: what no Agent has got, oldest first."""
    commands: OrderedDict[str, pb.WorkerCommand] = field(default_factory=OrderedDict)
    """The last command for each worker that is not connected."""

    def keep(self, worker_id: str, kind: str, message: pb.ArbiterMessage, newer: bool = True) -> None:
        """Keeps a message for the Agent; of each worker and kind the newest."""
        key = (worker_id, kind)
        if not newer and key in self.unread:
            return
        self.unread[key] = message
        self.unread.move_to_end(key)
        if len(self.unread) > KEPT_MAX:
            self.unread.popitem(last=False)

    def take(self) -> list[pb.ArbiterMessage]:
        """What an Agent that registers needs to know of its workers."""
        ended = [m for (worker_id, _), m in self.unread.items() if worker_id not in self.latest]
        self.unread.clear()
        return ended + [m for kinds in self.latest.values() for m in kinds.values()]

    def command(self, command: pb.WorkerCommand) -> None:
        """Keeps a command for a worker that is not connected."""
        self.commands[command.worker_id] = command
        self.commands.move_to_end(command.worker_id)
        if len(self.commands) > KEPT_MAX:
            self.commands.popitem(last=False)


AgentStream = Stream[pb.ArbiterMessage]
WorkerStream = Stream[pb.WorkerCommand]


class Sessions:
    """The open streams by app, and the relay between an app's Agent and its workers."""

    def __init__(self) -> None:
        self.agents: dict[str, AgentStream] = {}
        self._workers: dict[str, dict[str, WorkerStream]] = {}
        self._mail: OrderedDict[str, Mailbox] = OrderedDict()

    # ---- Agents

    def agent_up(self, stream: AgentStream) -> None:
        """An Agent's stream began; an older one of the same app ends."""
        older = self.agents.get(stream.app_id)
        self.agents[stream.app_id] = stream
        if older is not None:
            older.end(grpc.StatusCode.ABORTED, "a newer Agent of this app has registered")
            self._take_back(older)

    def agent_gone(self, stream: AgentStream) -> bool:
        """An Agent's stream ended; whether it was the app's current one."""
        if self.agents.get(stream.app_id) is not stream:
            return False
        del self.agents[stream.app_id]
        self._take_back(stream)
        self._forget_some()
        return True

    def to_agent(self, app_id: str, message: pb.ArbiterMessage) -> None:
        """Sends a message of the Arbiter's: Registered first, what came from workers meanwhile after it."""
        stream = self.agents.get(app_id)
        if stream is None:
            return
        kind = message.WhichOneof("kind")
        if kind == "registered":
            stream.greeted = True
            stream.put(message)
            for kept in self._mailbox(app_id).take():
                stream.put(kept)
        elif stream.greeted or kind == "finish":
            stream.put(message)

    def _take_back(self, stream: AgentStream) -> None:
        """What came from workers and did not reach the Agent waits for the next one."""
        mailbox = self._mailbox(stream.app_id)
        for message in stream.unsent():
            kind = message.WhichOneof("kind")
            if kind == "worker_gone":
                mailbox.keep(message.worker_gone.worker_id, "gone", message, newer=False)
            elif kind == "from_worker":
                sent = message.from_worker
                sent_kind = sent.WhichOneof("kind")
                if sent_kind in _KEPT_KINDS:
                    mailbox.keep(sent.worker_id, sent_kind, message, newer=False)

    # ---- workers

    def worker_up(self, stream: WorkerStream) -> bool:
        """A worker's stream began and gets the command that waits; False where the app has too many."""
        workers = self._workers.setdefault(stream.app_id, {})
        older = workers.get(stream.name)
        if older is None and len(workers) >= WORKERS_MAX:
            return False
        workers[stream.name] = stream
        mailbox = self._mailbox(stream.app_id)
        if older is not None:
            older.end(grpc.StatusCode.ABORTED, "a newer stream of this worker has begun")
            self._take_back_command(older)
        mailbox.unread.pop((stream.name, "gone"), None)
        waiting = mailbox.commands.pop(stream.name, None)
        if waiting is not None:
            stream.put(waiting)
        return True

    def worker_gone(self, stream: WorkerStream, reason: str) -> None:
        """A worker's stream ended; its Agent is told unless a newer stream took its place."""
        workers = self._workers.get(stream.app_id, {})
        if workers.get(stream.name) is not stream:
            return
        del workers[stream.name]
        if not workers:
            self._workers.pop(stream.app_id, None)
        self._take_back_command(stream)
        gone = pb.ArbiterMessage(worker_gone=pb.WorkerGone(worker_id=stream.name, reason=reason))
        self._relay(stream.app_id, stream.name, "gone", gone)
        self._mailbox(stream.app_id).latest.pop(stream.name, None)
        self._forget_some()

    def _take_back_command(self, stream: WorkerStream) -> None:
        for command in stream.unsent()[-1:]:
            self._mailbox(stream.app_id).command(command)

    def from_worker(self, app_id: str, message: pb.WorkerMessage) -> None:
        """Relays a worker's message to the Agent of its app, or keeps it."""
        kind = message.WhichOneof("kind")
        if kind is None:
            return
        relayed = pb.ArbiterMessage(from_worker=message)
        if kind in _KEPT_KINDS:
            self._mailbox(app_id).latest.setdefault(message.worker_id, {})[kind] = relayed
        self._relay(app_id, message.worker_id, kind, relayed)

    def _relay(self, app_id: str, worker_id: str, kind: str, message: pb.ArbiterMessage) -> None:
        agent = self.agents.get(app_id)
        if agent is not None and agent.greeted and agent.put(message):
            return
        if kind in _KEPT_KINDS or kind == "gone":
            self._mailbox(app_id).keep(worker_id, kind, message)

    def to_worker(self, app_id: str, command: pb.WorkerCommand) -> None:
        """Routes an Agent's command to the worker's stream, or keeps it until there is one."""
        stream = self._workers.get(app_id, {}).get(command.worker_id)
        if stream is None or not stream.put(command):
            self._mailbox(app_id).command(command)

    # ---- all

    def end_all(self, code: grpc.StatusCode, why: str) -> None:
        """Ends every stream."""
        for agent in list(self.agents.values()):
            agent.end(code, why)
        for workers in list(self._workers.values()):
            for worker in list(workers.values()):
                worker.end(code, why)

    def _mailbox(self, app_id: str) -> Mailbox:
        mailbox = self._mail.get(app_id)
        if mailbox is None:
            mailbox = self._mail[app_id] = Mailbox()
        self._mail.move_to_end(app_id)
        return mailbox

    def _forget_some(self) -> None:
        """Bounds what is kept for apps without an open stream, the longest silent first."""
        silent = [a for a in self._mail if a not in self.agents and a not in self._workers]
        for app_id in silent[: max(0, len(silent) - APPS_MAX)]:
            log.warning("what was kept for a silent app is dropped", app_id=app_id)
            del self._mail[app_id]
