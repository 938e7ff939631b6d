"""WebHDFS clients: authenticated by the app's delegation token on a secure cluster, else by a user name."""

from __future__ import annotations

import os
import re
import tempfile
from functools import cache
from typing import Any

from submarine_patch.worker.own_hdfs_token import HdfsToken, of_container

TIMEOUT_S = (5.0, 20.0)
"""Timeouts for connecting to WebHDFS, and for each answer."""
CA_VARIABLE = "ISONOMY_WEBHDFS_CA"
"""PEM certificate of the authority that signed the NameNode's and DataNodes'; default: those this machine trusts."""
_SECRET = re.compile(r"(?i)\b(delegation|signature)=[^&\s'\")]+")


def client(webhdfs: str, user: str, ca: str = "") -> Any:
    """A client of the package hdfs; `ca` is PEM text. Raises CredentialsError if the container's tokens are damaged."""
    from hdfs import InsecureClient, TokenClient

    token = of_container()
    session = _session(token)
    session.trust_env = False  # no proxy and no .netrc, like Hadoop's clients; also, they override `verify`
    session.verify = ca_file(ca) if ca else os.environ.get("REQUESTS_CA_BUNDLE") or True
    if token is not None:
        return TokenClient(webhdfs, token.url(), timeout=TIMEOUT_S, session=session)
    return InsecureClient(webhdfs, user=user, timeout=TIMEOUT_S, session=session)


def _session(token: HdfsToken | None) -> Any:
    """A session that adds the current token to each request, and retries once with a new one if it is refused."""
    import requests

    class HttpSession(requests.Session):
        def request(self, *arguments: Any, **options: Any) -> requests.Response:
            if token is None:
                return super().request(*arguments, **options)
            url = token.url()
            self.params = {"delegation": url}
            reply = super().request(*arguments, **options)
            again = reply.status_code in (401, 403) and not options.get("data") and "InvalidToken" in reply.text
            if again and token.refused(url):
                return self.request(*arguments, **options)
            return reply

    return HttpSession()


@cache
def ca_file(pem: str) -> str:
    """The path of a temporary file with this text, for libraries that need a file."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
        file.write(pem)
    return file.name


def first_line(error: Exception) -> str:
    """The first line of a WebHDFS error, without the secrets in its URLs."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return _SECRET.sub(r"\1=...", text)[:300]
