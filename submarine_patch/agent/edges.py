"""The Agent's edges: the stream to the Arbiter, the AM shell over py4j, the state on HDFS."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway

from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import agent_pb2_grpc
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.worker.checkpoints import Files
from submarine_patch.worker.link import BACKOFF_S, channel_to

log = logging.getLogger("isonomy.agent")
POLL_MS = 1000
OUTBOX = 5000


class ArbiterSession:
    """One stream, renewed by itself; Register goes first on each."""

    def __init__(
        self,
        address: str,
        token: str,
        ca_file: str | None,
        register: Callable[[], pb.AgentMessage],
        deliver: Callable[[pb.ArbiterMessage], None],
        lost: Callable[[], None],
    ) -> None:
        self._address, self._ca_file = address, ca_file
        self._metadata = (("isonomy-token", token),)
        self._register, self._deliver, self._lost = register, deliver, lost
        self._outbox: queue.Queue[pb.AgentMessage | None] = queue.Queue(OUTBOX)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arbiter", daemon=True)

    def start(self) -> None:
        """Connects in the background."""
        self._thread.start()

    def send(self, message: pb.AgentMessage) -> None:
        """Sends without blocking; while the Arbiter is away the oldest messages give way."""
        while True:
            try:
                self._outbox.put_nowait(message)
                return
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self._outbox.get_nowait()

    def close(self, timeout_s: float) -> None:
        """Sends what waits, then ends the stream."""
        self._closed.set()
        self._outbox.put(None)
        self._thread.join(timeout_s)

    def _messages(self) -> Iterator[pb.AgentMessage]:
        yield self._register()
        while (message := self._outbox.get()) is not None:
            yield message

    def _run(self) -> None:
        failures = 0
        while True:
            try:
                with channel_to(self._address, self._ca_file) as channel:
                    stream = agent_pb2_grpc.ArbiterStub(channel).Session(self._messages(), metadata=self._metadata)
                    for message in stream:
                        failures = 0
                        self._deliver(message)
            except grpc.RpcError as e:
                log.warning("the Arbiter is away: %s", e.details() if hasattr(e, "details") else e)
            if self._closed.is_set():
                return
            self._lost()
            self._forget()
            failures += 1
            if self._closed.wait(BACKOFF_S[min(failures, len(BACKOFF_S)) - 1]):
                return

    def _forget(self) -> None:
        """What the lost stream did not carry: only commands to workers still mean something."""
        kept = []
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._outbox.get_nowait()
                if message is not None and message.WhichOneof("kind") in ("to_worker", "released", "done"):
                    kept.append(message)
        for message in kept:
            self.send(message)


class _Client(GatewayClient):  # type: ignore[misc]
    """py4j leaves Nagle's algorithm on, which stalls larger messages by 40 ms."""

    def _create_connection(self) -> Any:
        connection = super()._create_connection()
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


class _Gateway(JavaGateway):  # type: ignore[misc]
    def _create_gateway_client(self) -> GatewayClient:
        return _Client(gateway_parameters=self.gateway_parameters)


class Shell:
    """The AM shell: long polls for events, calls with commands."""

    def __init__(self, port: int, token: str) -> None:
        self.gateway = _Gateway(
            gateway_parameters=GatewayParameters(
                address="127.0.0.1", port=port, auth_token=token, auto_convert=True, read_timeout=60
            )
        )
        self._calls = threading.Lock()

    def poll(self) -> list[am.AmEvent]:
        """The next events; [] after a second without any. Raises if the shell is gone."""
        events = am.AmEvents()
        events.ParseFromString(bytes(self.gateway.entry_point.poll(POLL_MS)))
        return list(events.events)

    def call(self, command: am.AmCommand) -> am.AmReply:
        """Carries out a command."""
        reply = am.AmReply()
        with self._calls:
            reply.ParseFromString(bytes(self.gateway.entry_point.call(command.SerializeToString())))
        return reply


class StateStore:
    """The Agent's state in numbered files; the newest readable one wins. Writing never blocks the brain."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._next: dict[str, Any] | None = None
        self._wake = threading.Condition()
        self._number = 0
        self._idle = True
        threading.Thread(target=self._run, name="state", daemon=True).start()

    def load(self) -> dict[str, Any] | None:
        """The newest state, None for a first attempt."""
        names = [n for n in self._files.names("") if n.startswith("state-") and n.endswith(".json")]
        for name in sorted(names, reverse=True):
            with contextlib.suppress(Exception):  # half-written by an attempt that died: the one before it will do
                state: dict[str, Any] = json.loads(self._files.read(name))
                self._number = int(name.split("-")[1].split(".")[0])
                return state
        return None

    def save(self, state: dict[str, Any]) -> None:
        """Writes soon; a later state overtakes one that still waits."""
        with self._wake:
            self._next, self._idle = state, False
            self._wake.notify()

    def flush(self, timeout_s: float) -> None:
        """Waits until nothing waits."""
        with self._wake:
            self._wake.wait_for(lambda: self._idle, timeout_s)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._next is not None)
                state, self._next = self._next, None
            self._number += 1
            name = f"state-{self._number:08d}.json"
            try:
                part = f"_{uuid.uuid4().hex}"
                self._files.write(part, json.dumps(state).encode())
                self._files.rename(part, name)
                old = f"state-{self._number - 3:08d}.json"
                if self._number > 3:
                    self._files.delete(old)
            except Exception as e:  # HDFS away: the next change is saved again
                log.warning("the state could not be saved: %s", e)
            with self._wake:
                self._idle = self._next is None
                self._wake.notify_all()
