"""A gRPC Arbiter for the tests: records workers' messages, sends the test's commands, can stop and restart."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import agent_pb2_grpc

TOKEN = "abc.def"
WAIT_S = 30.0


class FakeArbiter(agent_pb2_grpc.ArbiterServicer):
    """The stream Worker on a port of the loopback interface."""

    def __init__(self) -> None:
        self.messages: list[pb.WorkerMessage] = []
        self.streams = 0
        self.port = 0
        self._commands: dict[str, queue.Queue[pb.WorkerCommand | None]] = {}
        self._changed = threading.Condition()
        self.start()

    def start(self) -> None:
        """Listens, on the same port as before."""
        pool = futures.ThreadPoolExecutor(8)
        self._server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        agent_pb2_grpc.add_ArbiterServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def stop(self) -> None:
        """Breaks all streams."""
        for commands in self._commands.values():
            commands.put(None)
        self._server.stop(0).wait()

    def Worker(self, requests: Iterator[pb.WorkerMessage], context: Any) -> Iterator[pb.WorkerCommand]:
        if dict(context.invocation_metadata()).get("isonomy-token") != TOKEN:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token has expired")
        self.streams += 1
        first = next(requests)
        commands = self._commands[first.worker_id] = queue.Queue()
        self._took(first)  # whoever waits for it may send

        def read() -> None:
            try:
                for message in requests:
                    self._took(message)
            except grpc.RpcError:
                pass
            commands.put(None)

        threading.Thread(target=read, daemon=True).start()
        while (command := commands.get()) is not None:
            yield command

    def send(self, worker_id: str, **kind: Any) -> None:
        """Sends a command to a connected worker."""
        self._commands[worker_id].put(pb.WorkerCommand(worker_id=worker_id, **kind))

    def wait_for(self, kind: str, check: Callable[[Any], bool] = lambda _: True, since: int = 0) -> Any:
        """The first message of this kind (after the first `since` messages) that passes the check."""
        until_s = time.monotonic() + WAIT_S
        with self._changed:
            while True:
                for message in self.messages[since:]:
                    if message.HasField(kind) and check(getattr(message, kind)):
                        return getattr(message, kind)
                if not self._changed.wait(max(0.0, until_s - time.monotonic())):
                    raise AssertionError(f"no such {kind} among {self.messages[since:]}")

    def _took(self, message: pb.WorkerMessage) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()
