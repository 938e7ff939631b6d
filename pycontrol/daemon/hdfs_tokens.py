"""HDFS delegation tokens for apps that outlive the token of their submission.

The control plane is a proxy user of the NameNode. WebHDFS gives it a token (GETDELEGATIONTOKEN with `doas`), and
renewing that token tells when it expires. Tokens are only in memory, and an app gets only its own user's (decision 9).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import requests
import structlog

from pycontrol.config import HdfsTokenSettings
from pycontrol.daemon.standby_store import TIMEOUT_S, session_of
from pycontrol.rpc.service import NoHdfsToken, Token

APPS_MAX = 4096
"""The most apps whose token is cached."""
REFUSED_S = 5.0
"""How long a refusal is told again without asking HDFS."""
log = structlog.get_logger("isonomy.hdfs_tokens")


class HdfsTokens:
    """Tokens by app, cached for half their life, so that a gang asks HDFS once."""

    def __init__(self, at: HdfsTokenSettings, now_s: Callable[[], float] = time.time) -> None:
        self._bases = at.webhdfs.split(";")
        self._session, self._renewer = session_of(at), at.principal or ""
        self._now_s = now_s
        self._given: OrderedDict[str, tuple[float, Token]] = OrderedDict()
        """By app: the time when half of the token's life has passed, and the token."""
        self._refused: dict[str, tuple[float, str]] = {}
        """By user: until when it is not asked for again, and why."""

    def of(self, app_id: str, user: str) -> Token:
        """A token of this user for this app; from several threads, of which each asks for another user. Raises
        NoHdfsToken."""
        asked_s = self._now_s()
        half_s, token = self._given.get(app_id, (0.0, ("", 0.0)))
        if asked_s < half_s:
            return token
        until_s, why = self._refused.get(user, (0.0, ""))
        if asked_s < until_s:
            raise NoHdfsToken(why)
        try:
            token = self._new(user)
        except NoHdfsToken as e:
            self._refused[user] = self._now_s() + REFUSED_S, str(e)
            raise
        self._refused.pop(user, None)
        self._given[app_id] = (asked_s + (token[1] - asked_s) / 2.0, token)
        log.info("an app has a new HDFS token", app_id=app_id, user=user, ends_s=token[1])
        if len(self._given) > APPS_MAX:
            self._given.popitem(last=False)
        return token

    def _new(self, user: str) -> Token:
        found = self._call("GET", op="GETDELEGATIONTOKEN", doas=user, renewer=self._renewer)
        try:
            token = str(found["Token"]["urlString"])
            ends_ms = self._call("PUT", op="RENEWDELEGATIONTOKEN", token=token)["long"]
            return token, float(ends_ms) / 1000.0
        except (LookupError, TypeError, ValueError) as e:
            raise NoHdfsToken("HDFS answers with no delegation token") from e

    def _call(self, method: str, **params: str) -> Any:
        """The active NameNode's answer, as JSON. Error messages omit the URL, because it contains the token."""
        why = ""
        for base in self._bases:
            try:
                reply = self._session.request(method, f"{base}/webhdfs/v1/", params=params, timeout=TIMEOUT_S)
                if reply.ok:
                    return reply.json()
                why = f"{params['op']}: {reply.status_code} {_exception(reply)}"
            except (requests.RequestException, ValueError) as e:
                why = f"{params['op']}: {type(e).__name__}"
        raise NoHdfsToken(f"{self._bases[0]}: {why}")


def _exception(reply: requests.Response) -> str:
    """HDFS's error message, on one line."""
    try:
        told = reply.json()["RemoteException"]
        return " ".join(f"{told['exception']}: {told['message']}".split())[:200]
    except (LookupError, TypeError, ValueError):
        return reply.reason or ""
