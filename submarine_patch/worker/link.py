"""A worker's stream to the Arbiter, which relays it to the app's Agent; it outlives both."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator

import grpc

from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import agent_pb2_grpc

BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
OUTBOX = 200
STICKY = ("ready", "progress", "checkpoint", "exit")
"""The last message of each of these kinds is sent again on a new stream."""


def channel_to(address: str, ca_file: str | None) -> grpc.Channel:
    """A channel to host:port, over TLS where `ca_file` names the authority to trust."""
    options = [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000)]
    if ca_file:
        with open(ca_file, "rb") as f:
            credentials = grpc.ssl_channel_credentials(f.read())
        return grpc.secure_channel(address, credentials, options)
    return grpc.insecure_channel(address, options)


class WorkerLink:
    """Keeps one stream open; `on_command` is called from the link's thread."""

    def __init__(
        self,
        address: str,
        token: str,
        worker_id: str,
        on_command: Callable[[pb.WorkerCommand], None],
        ca_file: str | None = None,
    ) -> None:
        self._address, self._ca_file = address, ca_file
        self._metadata = (("isonomy-token", token),)
        self._worker_id, self._on_command = worker_id, on_command
        self._outbox: queue.Queue[pb.WorkerMessage | None] = queue.Queue(OUTBOX)
        self._sticky: dict[str, pb.WorkerMessage] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._drained = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arbiter-link", daemon=True)

    def start(self) -> None:
        """Connects in the background, and again whenever the stream breaks."""
        self._thread.start()

    def send(self, message: pb.WorkerMessage) -> None:
        """Sends without blocking; what does not fit is dropped, but the last of each kind is never lost."""
        message.worker_id = self._worker_id
        kind = message.WhichOneof("kind") or ""
        with self._lock:
            if kind in STICKY:
                self._sticky[kind] = message
        with contextlib.suppress(queue.Full):
            self._outbox.put_nowait(message)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Sends what waits and closes; False if the Arbiter was not there to take it in time."""
        self._stopping.set()
        with contextlib.suppress(queue.Full):
            self._outbox.put_nowait(None)
        return self._drained.wait(timeout_s)

    def _messages(self) -> Iterator[pb.WorkerMessage]:
        with self._lock:
            again = [self._sticky[k] for k in STICKY if k in self._sticky]
            with contextlib.suppress(queue.Empty):
                while True:
                    self._outbox.get_nowait()
        yield from again
        if self._stopping.is_set():
            return
        while (message := self._outbox.get()) is not None:
            yield message

    def _run(self) -> None:
        failures = 0
        while not self._drained.is_set():
            try:
                with channel_to(self._address, self._ca_file) as channel:
                    stub = agent_pb2_grpc.ArbiterStub(channel)
                    for command in stub.Worker(self._messages(), metadata=self._metadata):
                        failures = 0
                        self._on_command(command)
                if self._stopping.is_set():
                    self._drained.set()
                    return
            except grpc.RpcError:
                pass  # the Arbiter is away: the worker goes on, the link tries again
            failures += 1
            self._drained.wait(BACKOFF_S[min(failures, len(BACKOFF_S)) - 1])
