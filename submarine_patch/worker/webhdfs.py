"""Who we are to WebHDFS: the app's delegation token in a container of a secure cluster, else a name."""

from __future__ import annotations

import os
import re
import tempfile
from functools import cache
from typing import Any

from submarine_patch.worker.tokens import HdfsToken, of_container

TIMEOUT_S = (5.0, 20.0)
"""To connect to WebHDFS, and to wait for each answer."""
CA_VARIABLE = "ISONOMY_WEBHDFS_CA"
"""PEM certificate of whoever signed the NameNode's and DataNodes'; by default those that this machine trusts."""
_SECRET = re.compile(r"(?i)\b(delegation|signature)=[^&\s'\")]+")


def client(webhdfs: str, user: str, ca: str = "") -> Any:
    """A client of the package hdfs; `ca` is PEM text. CredentialsError where the container's tokens are damaged."""
    from hdfs import InsecureClient, TokenClient

    token = of_container()
    session = _session(token)
    session.trust_env = False  # like Hadoop's clients: no proxy and no .netrc; it would overrule `verify`, too
    session.verify = ca_file(ca) if ca else os.environ.get("REQUESTS_CA_BUNDLE") or True
    if token is not None:
        return TokenClient(webhdfs, token.url(), timeout=TIMEOUT_S, session=session)
    return InsecureClient(webhdfs, user=user, timeout=TIMEOUT_S, session=session)


def _session(token: HdfsToken | None) -> Any:
    """With each request the token as it is then."""
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
    """A file with this text, for libraries that want one."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
        file.write(pem)
    return file.name


def first_line(error: Exception) -> str:
    """What an error of WebHDFS says, without the token that its URLs have."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return _SECRET.sub(r"\1=...", text)[:300]
