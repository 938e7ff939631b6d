"""Admission of streams: a token's holder may open one if YARN says that the application is the token's user's.

A token alone proves only that its user requested it: application ids are sequential, so anyone can request a token for
the next id before it is submitted. So each stream is checked against YARN before it can affect the app.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from pycontrol.rpc.intake import counted
from pycontrol.rpc.tokens import TokenClaims, TokenError, Tokens

OWNER_WAIT_S = 10.0
"""How long a stream waits for YARN to know its app before it is refused and must retry."""
LOOK_EVERY_S = 0.2
WAITING_PER_USER = 64
WAITING_MAX = 1024
STREAMS_PER_USER = 8192
STREAMS_MAX = 32_768


@dataclass(frozen=True, slots=True)
class Owner:
    """A live application's user and submission time (Unix seconds)."""

    user: str
    submitted_s: float


Owners = Callable[[str], Owner | None]
"""Returns a live application's owner, None if YARN does not know it. From any thread, never blocks."""


class StreamRefused(Exception):
    """The stream is not opened: a status and one line."""

    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class Admission:
    """Admits streams; belongs to the server's event loop."""

    def __init__(self, tokens: Tokens, owners: Owners, wait_s: float = OWNER_WAIT_S) -> None:
        self._tokens, self._owners, self._wait_s = tokens, owners, wait_s
        self.waiting, self._open = Counter[str](), Counter[str]()

    @asynccontextmanager
    async def stream(self, token: str) -> AsyncIterator[TokenClaims]:
        """Context manager for an open stream; gives the token's claims. Raises StreamRefused."""
        claims = self._verified(token)
        owner = await self._owner(claims)
        if owner.user != claims.user:
            why = f"the token is {claims.user}'s, {claims.app_id} is {owner.user}'s"
            raise StreamRefused(grpc.StatusCode.PERMISSION_DENIED, why)
        if claims.expires_s <= owner.submitted_s:
            why = f"the token expired before {claims.app_id} was submitted; fetch a new one"
            raise StreamRefused(grpc.StatusCode.UNAUTHENTICATED, why)
        _need_room(self._open, claims.user, STREAMS_PER_USER, STREAMS_MAX, "streams are open")
        with counted(self._open, claims.user):
            yield claims

    def _verified(self, token: str) -> TokenClaims:
        try:
            return self._tokens.verify(token)
        except TokenError as e:
            raise StreamRefused(grpc.StatusCode.UNAUTHENTICATED, str(e)) from e

    async def _owner(self, claims: TokenClaims) -> Owner:
        owner = self._owners(claims.app_id)
        if owner is not None:
            return owner
        _need_room(self.waiting, claims.user, WAITING_PER_USER, WAITING_MAX, "streams wait for their apps")
        end_s = time.monotonic() + self._wait_s
        with counted(self.waiting, claims.user):
            while time.monotonic() < end_s:
                await asyncio.sleep(LOOK_EVERY_S)
                owner = self._owners(claims.app_id)
                if owner is not None:
                    return owner
        raise StreamRefused(grpc.StatusCode.UNAVAILABLE, f"YARN knows no running {claims.app_id} yet; connect again")


def _need_room(counts: Counter[str], user: str, per_user: int, in_all: int, what: str) -> None:
    if counts[user] >= per_user:
        raise StreamRefused(grpc.StatusCode.RESOURCE_EXHAUSTED, f"too many {what} of {user}; connect again later")
    if counts.total() >= in_all:
        raise StreamRefused(grpc.StatusCode.RESOURCE_EXHAUSTED, f"too many {what}; connect again later")
