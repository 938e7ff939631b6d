"""The worker's stream to the Arbiter; reconnects by itself and resends after a break.

Only the newest message of each kind counts, as in the Arbiter's relay. So at most one message per kind waits, and
after a break all of them are resent.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import grpc

from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import agent_pb2_grpc
from submarine_patch.worker import say

CONNECT_S = 10.0
WRITE_S = 10.0
BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses between connection attempts; the last one repeats."""
HEARTBEAT_S = 3.0
_ORDER = ("ready", "progress", "checkpoint", "exit")
_REFUSED = frozenset(
    {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT}
)
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.enable_http_proxy", 0),
]

_Call = Any
"""grpc.aio.StreamStreamCall, generic in its stubs only."""


class Link:
    """One worker's stream; belongs to the event loop that runs it.

    `address`: host:port of the Arbiter; of a pair both, joined by a comma, of which one serves at a time.
    """

    def __init__(
        self,
        address: str,
        token: str,
        ca_pem: bytes | None,
        worker_id: str,
        on_command: Callable[[pb.WorkerCommand], None],
    ) -> None:
        self._addresses, self._ca_pem, self._worker_id = address.split(","), ca_pem, worker_id
        self._metadata = (("isonomy-token", token),)
        self._on_command = on_command
        self._newest: dict[str, pb.WorkerMessage] = {}
        self._unsent: set[str] = set()
        self._changed = asyncio.Event()
        self._finishing = False
        self._delivered = asyncio.Event()
        self._failures = 0
        self.refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set to the reason if the Arbiter refuses this worker."""

    def put(self, message: pb.WorkerMessage) -> None:
        """Send the message once the Arbiter is connected; replaces a waiting one of its kind."""
        message.worker_id = self._worker_id
        kind = message.WhichOneof("kind")
        assert kind in _ORDER
        self._newest[kind] = message
        self._unsent.add(kind)
        self._changed.set()

    async def run(self) -> None:
        """Keep the stream connected until `finish` or cancellation."""
        while not self._delivered.is_set():
            why = await self._once()
            if self._delivered.is_set():
                return
            self._failures += 1
            if self._failures == 1:
                say(f"no stream to the Arbiter at {self._addresses[0]} ({why}); trying on")
            self._addresses.append(self._addresses.pop(0))
            pause_s = BACKOFF_S[min(self._failures, len(BACKOFF_S)) - 1]
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def finish(self, within_s: float) -> bool:
        """End the stream once all messages have reached the Arbiter; False if that took longer than `within_s`."""
        self._finishing = True
        self._changed.set()
        try:
            await asyncio.wait_for(self._delivered.wait(), within_s)
        except TimeoutError:
            return False
        return True

    async def _once(self) -> str:
        """Run one stream until it ends; returns why it ended."""
        async with self._channel() as channel:
            try:
                await asyncio.wait_for(channel.channel_ready(), CONNECT_S / len(self._addresses))
            except TimeoutError:
                return f"no connection within {CONNECT_S / len(self._addresses):g} s"
            call = agent_pb2_grpc.ArbiterStub(channel).Worker(metadata=self._metadata)  # type: ignore[no-untyped-call]
            reader = asyncio.ensure_future(self._read(call))
            writer = asyncio.ensure_future(self._write(call))
            try:
                await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
                if writer.done() and writer.exception() is None:
                    await asyncio.wait({reader}, timeout=WRITE_S)
                return await self._verdict(call, writer)
            finally:
                for task in (reader, writer):
                    task.cancel()
                await asyncio.gather(reader, writer, return_exceptions=True)
                call.cancel()

    async def _verdict(self, call: _Call, writer: asyncio.Future[None]) -> str:
        try:
            code, details = await asyncio.wait_for(
                asyncio.gather(call.code(), call.details()), 1.0 if writer.done() else WRITE_S
            )
        except TimeoutError:
            return "a message was not taken in time"
        if code is grpc.StatusCode.OK and self._finishing:
            await asyncio.wait({writer}, timeout=WRITE_S)  # the writer may not have noticed the end yet
            if writer.done() and not writer.exception():
                self._delivered.set()
        if code in _REFUSED and not self.refused.done():
            self.refused.set_result(details or code.name)
        return f"{code.name} {details or ''}".strip()

    async def _read(self, call: _Call) -> None:
        try:
            async for command in call:
                self._failures = 0
                self._on_command(command)
        except grpc.aio.AioRpcError:
            pass

    async def _write(self, call: _Call) -> None:
        self._unsent = set(self._newest)
        while True:
            self._changed.clear()
            while kind := next((k for k in _ORDER if k in self._unsent), None):
                self._unsent.discard(kind)
                await asyncio.wait_for(call.write(self._newest[kind]), WRITE_S)
            if self._finishing:
                await asyncio.wait_for(call.done_writing(), WRITE_S)
                return
            try:
                await asyncio.wait_for(self._changed.wait(), HEARTBEAT_S)
            except TimeoutError:
                self._failures = 0
                beat = pb.WorkerMessage(worker_id=self._worker_id, heartbeat=pb.Heartbeat(time_s=time.time()))
                await asyncio.wait_for(call.write(beat), WRITE_S)

    def _channel(self) -> grpc.aio.Channel:
        if self._ca_pem is None:
            return grpc.aio.insecure_channel(self._addresses[0], options=_OPTIONS)
        trust = grpc.ssl_channel_credentials(root_certificates=self._ca_pem)
        return grpc.aio.secure_channel(self._addresses[0], trust, options=_OPTIONS)


def channel_to(address: str, ca_pem: bytes | None) -> grpc.Channel:
    """A blocking channel to host:port, over TLS if `ca_pem` is given."""
    if not ca_pem:
        return grpc.insecure_channel(address, _OPTIONS)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca_pem), _OPTIONS)
