"""The connected streams of Agents and workers, and the relay between them.

All of it belongs to the server's event loop; nothing blocks, and no other thread may call it.
"""

from __future__ import annotations

from collections import OrderedDict

import grpc
import structlog

from pycontrol.rpc.byte_budget import ByteBudget
from pycontrol.rpc.mailbox import KEPT_KINDS, Mailbox
from pycontrol.rpc.outbox import TOO_SLOW, Stream
from pycontrol.rpc.tally import Tally
from pycontrol.wire.v1 import agent_pb2 as pb

WORKERS_MAX = 2048
"""The most worker streams of one app."""
APPS_MAX = 4096
"""The most apps without an open stream for which messages are kept."""

AgentStream = Stream[pb.ArbiterMessage]
WorkerStream = Stream[pb.WorkerCommand]
log = structlog.get_logger("isonomy.rpc")


class Sessions:
    """The open streams by app, and the relay between an app's Agent and its workers."""

    def __init__(self, ledger: ByteBudget | None = None) -> None:
        self.ledger = ledger or ByteBudget()
        """Counts all bytes that wait here and in the streams."""
        self.agents: dict[str, AgentStream] = {}
        self.workers: dict[str, dict[str, WorkerStream]] = {}
        self.mail: OrderedDict[str, Mailbox] = OrderedDict()
        self.tally = Tally()

    # ---- Agents

    def agent_up(self, stream: AgentStream) -> None:
        """Add an Agent's stream; an older one of the same app is ended."""
        older = self.agents.get(stream.app_id)
        self.agents[stream.app_id] = stream
        if older is not None:
            older.end(grpc.StatusCode.ABORTED, "a newer Agent of this app has registered")
            self._take_back(older)

    def agent_gone(self, stream: AgentStream) -> bool:
        """Remove an Agent's stream; returns whether it was the app's current one."""
        if self.agents.get(stream.app_id) is not stream:
            return False
        del self.agents[stream.app_id]
        self._take_back(stream)
        self._forget_some()
        return True

    def to_agent(self, app_id: str, message: pb.ArbiterMessage) -> None:
        """Send an Arbiter's message; after Registered, also the workers' kept messages."""
        stream = self.agents.get(app_id)
        if stream is None:
            return
        kind = message.WhichOneof("kind")
        if kind == "registered":
            stream.greeted = True
            self._put(stream, message)
            for kept in self.mailbox(app_id).take():
                stream.put(kept)
        elif stream.greeted or kind == "finish":
            self._put(stream, message)

    def _put(self, stream: AgentStream, message: pb.ArbiterMessage) -> bool:
        """Queue a message; if the total limit is exceeded, drops the messages of the app with the most bytes."""
        if self.ledger.in_all + message.ByteSize() > self.ledger.limits.in_all:
            self._cut_off(self.ledger.heaviest())
        return stream.put(message)

    def _cut_off(self, app_id: str) -> None:
        """Drop all waiting messages of one app."""
        log.warning(
            "messages for an app are dropped: it has the most waiting", app_id=app_id, bytes=self.ledger.of_app(app_id)
        )
        streams: list[AgentStream | WorkerStream] = list(self.workers.get(app_id, {}).values())
        if app_id in self.agents:
            streams.append(self.agents[app_id])
        for stream in streams:
            stream.end(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{app_id} has the most bytes waiting of all; {TOO_SLOW}")
            stream.empty()
        self.mailbox(app_id).clear()

    def _take_back(self, stream: AgentStream) -> None:
        """Keep the workers' messages that did not reach this Agent for the next one."""
        mailbox = self.mailbox(stream.app_id)
        for message in stream.empty():
            kind = message.WhichOneof("kind")
            if kind == "worker_gone":
                mailbox.keep(message.worker_gone.worker_id, "gone", message, newer=False)
            elif kind == "from_worker":
                sent = message.from_worker
                sent_kind = sent.WhichOneof("kind")
                if sent_kind in KEPT_KINDS:
                    mailbox.keep(sent.worker_id, sent_kind, message, newer=False)

    # ---- workers

    def worker_up(self, stream: WorkerStream) -> bool:
        """Add a worker's stream and send it the waiting command; False if the app has too many workers."""
        workers = self.workers.setdefault(stream.app_id, {})
        older = workers.get(stream.name)
        if older is None and len(workers) >= WORKERS_MAX:
            return False
        workers[stream.name] = stream
        self.tally.up(stream.app_id, stream.name)
        mailbox = self.mailbox(stream.app_id)
        if older is not None:
            older.end(grpc.StatusCode.ABORTED, "a newer stream of this worker has begun")
            self._take_back_command(older)
        mailbox.unread.pop((stream.name, "gone"))
        waiting = mailbox.commands.pop(stream.name)
        if waiting is not None:
            self.tally.told(stream.app_id, waiting)
            stream.put(waiting)
        return True

    def worker_gone(self, stream: WorkerStream, reason: str) -> None:
        """Remove a worker's stream, and tell its Agent unless a newer stream has replaced it."""
        workers = self.workers.get(stream.app_id, {})
        if workers.get(stream.name) is not stream:
            return
        del workers[stream.name]
        self.tally.gone(stream.app_id, stream.name)
        if not workers:
            self.workers.pop(stream.app_id, None)
        self._take_back_command(stream)
        gone = pb.ArbiterMessage(worker_gone=pb.WorkerGone(worker_id=stream.name, reason=reason))
        self._relay(stream.app_id, stream.name, "gone", gone)
        self.mailbox(stream.app_id).closed(stream.name)
        self._forget_some()

    def _take_back_command(self, stream: WorkerStream) -> None:
        for command in stream.empty()[-1:]:
            self.mailbox(stream.app_id).command(command)

    def from_worker(self, app_id: str, message: pb.WorkerMessage) -> None:
        """Relay a worker's message to its app's Agent, or keep it."""
        self.tally.reported(app_id, message)
        kind = message.WhichOneof("kind")
        if kind is None:
            return
        relayed = pb.ArbiterMessage(from_worker=message)
        if kind in KEPT_KINDS:
            self.mailbox(app_id).heard(message.worker_id, kind, relayed)
        self._relay(app_id, message.worker_id, kind, relayed)

    def _relay(self, app_id: str, worker_id: str, kind: str, message: pb.ArbiterMessage) -> None:
        agent = self.agents.get(app_id)
        if agent is not None and agent.greeted and self._put(agent, message):
            return
        if kind in KEPT_KINDS or kind == "gone":
            self.mailbox(app_id).keep(worker_id, kind, message)

    def to_worker(self, app_id: str, command: pb.WorkerCommand) -> None:
        """Relay an Agent's command to the worker's stream, or keep it until there is one."""
        self.tally.told(app_id, command)
        stream = self.workers.get(app_id, {}).get(command.worker_id)
        if stream is None or not stream.put(command):
            self.mailbox(app_id).command(command)

    # ---- all

    def end_all(self, code: grpc.StatusCode, why: str) -> None:
        """End every stream."""
        for agent in list(self.agents.values()):
            agent.end(code, why)
        for workers in list(self.workers.values()):
            for worker in list(workers.values()):
                worker.end(code, why)

    def mailbox(self, app_id: str) -> Mailbox:
        mailbox = self.mail.get(app_id)
        if mailbox is None:
            mailbox = self.mail[app_id] = Mailbox(app_id, self.ledger, WORKERS_MAX)
        self.mail.move_to_end(app_id)
        return mailbox

    def _forget_some(self) -> None:
        """Drop the messages of the longest silent apps without an open stream, beyond APPS_MAX."""
        silent = [a for a in self.mail if a not in self.agents and a not in self.workers]
        for app_id in silent[: max(0, len(silent) - APPS_MAX)]:
            log.warning("messages for a silent app are dropped", app_id=app_id)
            self.mail.pop(app_id).clear()
            self.ledger.forget(app_id)
