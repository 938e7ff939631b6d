"""The sending side of one stream."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

import grpc

from pycontrol.rpc.byte_budget import ByteBudget

OUTBOX_MAX = 10_000
"""The most messages that wait for one stream's peer; a slower peer is disconnected and must reconnect."""
TOO_SLOW = "messages are read too slowly; connect again"


class Sized(Protocol):
    """A protobuf message."""

    def ByteSize(self) -> int:
        """Bytes on the wire."""


M = TypeVar("M", bound=Sized)


class Stream(Generic[M]):
    """A bounded outbox, and how the stream is to end."""

    def __init__(
        self, app_id: str, name: str, ledger: ByteBudget | None = None, user: str = "", limit: int = OUTBOX_MAX
    ) -> None:
        self.app_id = app_id
        self.name = name
        """The attempt of an Agent, the id of a worker."""
        self.greeted = False
        """An Agent's stream: Registered is in the outbox, so other messages may follow."""
        self.ended: tuple[grpc.StatusCode, str] | None = None
        self._ledger = ledger or ByteBudget()
        self._ledger.own(app_id, user)
        self._limit = limit
        self._outbox: deque[tuple[M, int]] = deque()
        self._bytes = 0
        self._came, self._over = asyncio.Event(), asyncio.Event()

    def put(self, message: M) -> bool:
        """Queue a message; a full outbox ends the stream. False if the message will not be sent."""
        if self.ended:
            return False
        size = message.ByteSize()
        if len(self._outbox) >= self._limit or self._bytes + size > self._ledger.limits.stream:
            self.end(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_SLOW)
            return False
        whose = self._ledger.take(self.app_id, size)
        if whose:
            self.end(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{whose} too many bytes waiting; {TOO_SLOW}")
            return False
        self._outbox.append((message, size))
        self._bytes += size
        self._came.set()
        return True

    def end(self, code: grpc.StatusCode, why: str) -> None:
        """End the stream with this status; only the first call counts."""
        if self.ended is None:
            self.ended = (code, why)
            self._over.set()

    async def until_ended(self) -> None:
        """Wait until `end` is called."""
        await self._over.wait()

    async def peek(self) -> M:
        """The next message to send; it stays in the outbox until sent()."""
        while not self._outbox:
            self._came.clear()
            await self._came.wait()
        return self._outbox[0][0]

    def sent(self) -> None:
        """Remove the message of `peek`, which has been sent."""
        if self._outbox:  # else the outbox was emptied meanwhile
            self._count_off(self._outbox.popleft()[1])

    def unsent(self) -> list[M]:
        """The messages left in the outbox."""
        return [message for message, _ in self._outbox]

    def empty(self) -> list[M]:
        """Remove and return the messages left in the outbox."""
        left = self.unsent()
        self._outbox.clear()
        self._count_off(self._bytes)
        return left

    def _count_off(self, size: int) -> None:
        self._bytes -= size
        self._ledger.give(self.app_id, size)
