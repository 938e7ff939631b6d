"""The HDFS token of this process: the container's, and once half of its life has passed a new one of the control plane.

Whoever needs a token asks for it when it uses it, so that no process has to be told, and one that starts after the
submission's token has ended is no special case.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache

import grpc

from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import agent_pb2_grpc
from submarine_patch.worker.credentials import (
    FILE_VARIABLE,
    CredentialsError,
    hdfs_token,
    read_secret,
    url_string,
    validity_s,
)
from submarine_patch.worker.link import channel_to
from submarine_patch.worker.settings import TOKEN_ALIAS, SettingsError, ca_pem

ASK_S = 15.0
"""For an answer of one control plane."""
AGAIN_S = (5.0, 60.0)
"""Pauses between tries without an answer: a tenth of what is left of the token's life, within these."""
_LIFE_S = 7 * 86400.0
"""Of a token that does not say when it ends."""

Ask = Callable[[], tuple[str, float]]
"""A new token as WebHDFS takes it, and its end, Unix seconds; raises NoToken."""


class NoToken(Exception):
    """The control plane gives none; one line."""


class HdfsToken:
    """One process's token; from any thread."""

    def __init__(self, url: str, issued_s: float, ends_s: float, ask: Ask, now_s: Callable[[], float] = time.time):
        self.issued_s, self.ends_s = issued_s, ends_s
        self._url, self._ask, self._now_s = url, ask, now_s
        self._ask_from_s = issued_s + (ends_s - issued_s) / 2.0
        self._refused_from_s = 0.0
        """When a refusal is a reason to ask again."""
        self._problem = ""
        self._lock = threading.Lock()

    def url(self) -> str:
        """As WebHDFS takes it; the old one as long as there is no new one."""
        with self._lock:
            if self._now_s() >= self._ask_from_s:
                self._renew()
            return self._url

    def refused(self, url: str) -> bool:
        """HDFS does not know this one any more (nobody renewed it in time); whether there is another one now."""
        with self._lock:
            if url == self._url and self._now_s() >= self._refused_from_s:
                self._refused_from_s = self._now_s() + AGAIN_S[0]
                self._renew()
            return url != self._url

    def _renew(self) -> None:
        asked_s = self._now_s()
        try:
            self._url, self.ends_s = self._ask()
        except NoToken as e:
            shortest, longest = AGAIN_S
            self._ask_from_s = asked_s + min(max((self.ends_s - asked_s) / 10.0, shortest), longest)
            if str(e) != self._problem:
                self._problem = str(e)
                print(f"isonomy: no new HDFS token: {e}", file=sys.stderr, flush=True)
        else:
            self.issued_s, self._problem = asked_s, ""
            self._ask_from_s = asked_s + (self.ends_s - asked_s) / 2.0


def of_container() -> HdfsToken | None:
    """This container's; None where security is off. CredentialsError where the container's tokens are damaged."""
    return _of(os.environ.get(FILE_VARIABLE, ""))


@cache
def _of(file: str) -> HdfsToken | None:
    token = hdfs_token(file)
    if token is None:
        return None
    issued_s, ends_s = validity_s(token) or (time.time(), time.time() + _LIFE_S)
    return HdfsToken(url_string(token), issued_s, ends_s, lambda: ask(os.environ))


def ask(env: Mapping[str, str]) -> tuple[str, float]:
    """The control plane that serves, with the app's Isonomy token, as this environment says."""
    try:
        secret = read_secret(TOKEN_ALIAS).decode("ascii").strip()
        ca = ca_pem(env.get("ISONOMY_ARBITER_CA", ""))
    except (CredentialsError, SettingsError, UnicodeDecodeError) as e:
        raise NoToken(str(e)) from e
    problem = "ISONOMY_ARBITER is not set"
    for address in filter(None, env.get("ISONOMY_ARBITER", "").split(",")):
        try:
            with channel_to(address, ca) as channel:
                stub = agent_pb2_grpc.ArbiterStub(channel)  # type: ignore[no-untyped-call]
                metadata = (("isonomy-token", secret),)
                reply = stub.HdfsToken(pb.HdfsTokenRequest(), metadata=metadata, timeout=ASK_S)
                return reply.token, reply.ends_s
        except grpc.RpcError as e:
            problem = f"{address}: {e.details() if isinstance(e, grpc.Call) else e}"
    raise NoToken(problem)
