"""The HDFS token of this process: the container's, replaced by the control plane once half of its life has passed.

Callers fetch the token at each use. So no process needs a notification of a new token, and a process that starts after
the submission's token has expired needs no special case.
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
from submarine_patch.worker.worker_settings import TOKEN_ALIAS, SettingsError, ca_pem

ASK_S = 15.0
"""Timeout of a request to one control plane."""
AGAIN_S = (5.0, 60.0)
"""Bounds of the pause between failed requests, which is a tenth of the token's remaining life."""
_LIFE_S = 7 * 86400.0
"""Assumed life of a token that does not say when it expires."""

Ask = Callable[[], tuple[str, float]]
"""Returns a new token in WebHDFS's form and its expiry in Unix seconds; raises NoToken."""


class NoToken(Exception):
    """No control plane gave a token; the message is one line."""


class HdfsToken:
    """One process's token; thread-safe."""

    def __init__(self, url: str, issued_s: float, ends_s: float, ask: Ask, now_s: Callable[[], float] = time.time):
        self.issued_s, self.ends_s = issued_s, ends_s
        self._url, self._ask, self._now_s = url, ask, now_s
        self._ask_from_s = issued_s + (ends_s - issued_s) / 2.0
        self._refused_from_s = 0.0
        """From when on a refusal may trigger another request."""
        self._problem = ""
        self._lock = threading.Lock()

    def url(self) -> str:
        """The token in WebHDFS's form; requests a new one if due, and returns the old one if that fails."""
        with self._lock:
            if self._now_s() >= self._ask_from_s:
                self._renew()
            return self._url

    def refused(self, url: str) -> bool:
        """Note that HDFS refused this token, e.g. because it was not renewed; returns whether there is a new one."""
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
    """This container's token; None without security. Raises CredentialsError if the token file is damaged."""
    return _of(os.environ.get(FILE_VARIABLE, ""))


@cache
def _of(file: str) -> HdfsToken | None:
    token = hdfs_token(file)
    if token is None:
        return None
    issued_s, ends_s = validity_s(token) or (time.time(), time.time() + _LIFE_S)
    return HdfsToken(url_string(token), issued_s, ends_s, lambda: ask(os.environ))


def ask(env: Mapping[str, str]) -> tuple[str, float]:
    """Request a token from the serving control plane, with the app's Isonomy token; raises NoToken."""
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
