"""The Agent's I/O: the stream to the Arbiter, the AM shell over py4j, the state and the speeds on HDFS."""

from __future__ import annotations

import json
import logging
import queue
import re
import socket
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
from py4j.java_gateway import GatewayClient, GatewayConnection, GatewayParameters, JavaGateway

from pycontrol.model import bounds
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import agent_pb2_grpc
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.worker.checkpoints import Files
from submarine_patch.worker.link import BACKOFF_S, channel_to

log = logging.getLogger("isonomy.agent")
POLL_MS = 1000
CALL_TIMEOUT_S = 60
OUTBOX = 5000
COMMANDS = 5000
STATES_KEPT = 3
_STATE = re.compile(r"state-(\d{6})-(\d{8})\.json")
_PART = re.compile(r"_[0-9a-f]{32}")

Outbox = deque["pb.AgentMessage | None"]


class ArbiterSession:
    """The stream to the Arbiter; reconnects by itself and sends Register first.

    Messages that a broken stream did not carry are dropped: after Registered the AgentCore resends what still matters.
    Only Done is sent on each stream, until one ends whole.
    """

    def __init__(
        self,
        address: str,
        token: str,
        ca_pem: bytes | None,
        register: Callable[[], pb.AgentMessage],
        deliver: Callable[[pb.ArbiterMessage], None],
        lost: Callable[[], None],
    ) -> None:
        self._addresses, self._ca_pem = address.split(","), ca_pem
        """The addresses of a pair of control planes, of which one serves at a time."""
        self._metadata = (("isonomy-token", token),)
        self._register, self._deliver, self._lost = register, deliver, lost
        self._outbox: Outbox = deque(maxlen=OUTBOX)
        """The present stream's messages; each stream has its own, so that a broken one cannot take the next one's."""
        self._changed = threading.Condition()
        self._last: list[pb.AgentMessage | None] = []
        """Done and the end, for each stream until one ends whole."""
        self._thread = threading.Thread(target=self._run, name="arbiter", daemon=True)

    def start(self) -> None:
        """Connect in the background."""
        self._thread.start()

    def send(self, message: pb.AgentMessage | None) -> None:
        """Send without blocking; if OUTBOX messages wait, the oldest is dropped. None: end the stream."""
        with self._changed:
            self._outbox.append(message)
            if message is None or message.HasField("done"):
                self._last.append(message)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Send the waiting messages, then end the stream; after a break only Done is sent again."""
        self.send(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _messages(self, outbox: Outbox) -> Iterator[pb.AgentMessage]:
        yield self._register()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: outbox)
                message = outbox.popleft()
            if message is None:
                return
            yield message

    def _run(self) -> None:
        failures = 0
        problems: dict[str, str] = {}
        """By address: the problem that was last logged."""
        while True:
            try:
                with channel_to(self._addresses[0], self._ca_pem) as channel:
                    stub = agent_pb2_grpc.ArbiterStub(channel)  # type: ignore[no-untyped-call]
                    for message in stub.Session(self._messages(self._outbox), metadata=self._metadata):
                        failures, problems = 0, {}
                        self._deliver(message)
                if None in self._last and not any(self._outbox):
                    return
            except grpc.RpcError as e:
                why = e.details() if isinstance(e, grpc.Call) else str(e)
                if why != problems.get(self._addresses[0]):
                    log.warning("the Arbiter at %s is away: %s", self._addresses[0], why)
                problems[self._addresses[0]] = why
            self._lost()
            self._renew()
            self._addresses.append(self._addresses.pop(0))
            failures += 1
            pause_s = BACKOFF_S[min(failures, len(BACKOFF_S)) - 1]
            with self._changed:
                if self._changed.wait_for(lambda: self._last[:1] == [None], pause_s):
                    return

    def _renew(self) -> None:
        """Replace the outbox, keep Done and the end, and end the broken stream's generator."""
        with self._changed:
            old = self._outbox
            self._outbox = deque(self._last, OUTBOX)
            old.clear()
            old.append(None)
            self._changed.notify_all()


class _NoDelayClient(GatewayClient):  # type: ignore[misc]
    """py4j leaves Nagle's algorithm on, which stalls larger messages by 40 ms."""

    def _create_connection(self) -> GatewayConnection:
        connection = super()._create_connection()
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


class _Gateway(JavaGateway):  # type: ignore[misc]
    def _create_gateway_client(self) -> GatewayClient:
        return _NoDelayClient(gateway_parameters=self.gateway_parameters)


class Shell:
    """The AM shell: long polls for events; commands are sent one by one on their own thread."""

    def __init__(self, port: int, token: str) -> None:
        parameters = GatewayParameters(
            address="127.0.0.1", port=port, auth_token=token, auto_convert=True, read_timeout=CALL_TIMEOUT_S
        )
        self._api = _Gateway(gateway_parameters=parameters).entry_point
        self._waiting: queue.Queue[am.AmCommand | None] = queue.Queue(COMMANDS)
        self._thread = threading.Thread(target=self._run, name="commands", daemon=True)
        self._refused: Callable[[am.AmCommand, str], None] = lambda _command, _error: None

    def start(self, refused: Callable[[am.AmCommand, str], None]) -> None:
        """Start the command thread; it calls `refused` for a command that the shell refuses."""
        self._refused = refused
        self._thread.start()

    def poll(self) -> list[am.AmEvent]:
        """The next events; [] after POLL_MS without any. Raises if the shell is gone."""
        events = am.AmEvents()
        events.ParseFromString(bytes(self._api.poll(POLL_MS)))
        for beyond in bounds.clip(events):
            log.warning("a number of the AM shell is beyond its bounds, the nearest within counts: %s", beyond)
        return list(events.events)

    def send(self, command: am.AmCommand) -> None:
        """Queue a command."""
        self._waiting.put(command)

    def drain(self, timeout_s: float) -> None:
        """Wait until all commands are carried out; no command may follow."""
        self._waiting.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (command := self._waiting.get()) is not None:
            try:
                reply = am.AmReply()
                reply.ParseFromString(bytes(self._api.call(command.SerializeToString())))
            except Exception as e:
                log.error("the AM shell did not answer %s: %s", command.WhichOneof("kind"), e)
                return  # the shell is gone: poll notices that and ends the Agent
            if not reply.ok:
                log.error("the AM shell refused %s: %s", command.WhichOneof("kind"), reply.error)
                self._refused(command, reply.error)


class StateStore:
    """The Agent's state, in files numbered by attempt and write; `load` reads the newest readable one.

    An earlier attempt that still runs, cut off from YARN, can neither supersede a later attempt's files nor delete
    them. Writes happen in the background and never block the Agent.
    """

    def __init__(self, files: Files, attempt: int = 1) -> None:
        self._files, self._attempt = files, attempt
        self._next: dict[str, Any] | None = None
        self._wake = threading.Condition()
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="state", daemon=True)

    def start(self) -> None:
        """Start the writing thread."""
        self._thread.start()

    def load(self) -> dict[str, Any] | None:
        """The newest readable state; None if there is none."""
        for attempt, number in sorted(self._kept(), reverse=True):
            if attempt == self._attempt:
                self._number = max(self._number, number)
            name = _name(attempt, number)
            try:
                state = json.loads(self._files.read(name))
                if isinstance(state, dict):
                    return state
                log.warning("%s is no state", name)
            except (ValueError, FileNotFoundError) as e:
                log.warning("%s is no state: %s", name, e)
        return None

    def _kept(self) -> list[tuple[int, int]]:
        """(attempt, number) of the existing files."""
        found = (_STATE.fullmatch(n) for n in self._files.names(""))
        return [(int(m[1]), int(m[2])) for m in found if m]

    def save(self, state: dict[str, Any]) -> None:
        """Write the state in the background; replaces one that still waits."""
        with self._wake:
            self._next = state
            self._wake.notify_all()

    def flush(self, timeout_s: float) -> None:
        """Wait until the newest state has been written, or `timeout_s` has passed."""
        with self._wake:
            self._wake.wait_for(lambda: self._next is None, timeout_s)

    def _run(self) -> None:
        failures = 0
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._next is not None)
                state = self._next
            try:
                self.write(json.dumps(state).encode())
                failures = 0
            except Exception as e:  # e.g. HDFS is away
                failures += 1
                log.warning("the state could not be saved and is tried again: %s", e)
            with self._wake:
                if not failures and self._next is state:
                    self._next = None
                elif self._next is state:
                    self._wake.wait(BACKOFF_S[min(failures, len(BACKOFF_S)) - 1])
                self._wake.notify_all()

    def write(self, data: bytes) -> None:
        self._number += 1
        part = f"_{uuid.uuid4().hex}"
        self._files.write(part, data)
        self._files.rename(part, _name(self._attempt, self._number))
        if self._number > STATES_KEPT:
            self._files.delete(_name(self._attempt, self._number - STATES_KEPT))
        if self._number == STATES_KEPT:
            for attempt, number in self._kept():
                if attempt < self._attempt:
                    self._files.delete(_name(attempt, number))
            for begun in filter(_PART.fullmatch, self._files.names("")):  # left by an attempt that was killed
                self._files.delete(begun)


class SpeedStore:
    """Measured times, one file per job type, shared by a user's apps; the last writer wins."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def load(self, file: str) -> dict[str, Any] | None:
        """What earlier apps measured; None if there is nothing readable."""
        try:
            known: dict[str, Any] = json.loads(self._files.read(file))
            return known
        except FileNotFoundError:
            return None
        except Exception as e:  # whatever HDFS or the way to it raises
            log.warning("the kept speeds cannot be read: %s", e)
            return None

    def save(self, file: str, speeds: Mapping[str, Any]) -> None:
        """Write in the background."""
        data = json.dumps(speeds).encode()
        threading.Thread(target=self._write, args=(file, data), name="speeds", daemon=True).start()

    def _write(self, file: str, data: bytes) -> None:
        try:
            self._files.write(file, data)
        except Exception as e:  # the next app tries again
            log.warning("the speeds could not be kept: %s", e)


def _name(attempt: int, number: int) -> str:
    return f"state-{attempt:06d}-{number:08d}.json"
