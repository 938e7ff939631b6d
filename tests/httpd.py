"""A web server of a test on loopback: a function answers each request."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

from pycontrol.bridge.endpoint import to_json


class Asked(NamedTuple):
    """A request; `url` is as it was sent, `path` without parameters."""

    method: str
    url: str
    path: str
    params: dict[str, str]
    headers: Mapping[str, str]
    body: bytes


class Reply(NamedTuple):
    """An answer; `body`: bytes, or a value that is sent as JSON."""

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = {}


def name_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names a proxy that is not there."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def serving(answer: Callable[[Asked], Reply], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The URL of a server, which has a thread for each connection."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            url = urlsplit(self.path)
            params = dict(parse_qsl(url.query, keep_blank_values=True))
            reply = answer(Asked(self.command, self.path, unquote(url.path), params, self.headers, self._body()))
            body = reply.body if isinstance(reply.body, bytes) else to_json(reply.body)
            self.send_response(reply.status)
            said = {"Content-Type": "application/json", **reply.headers, "Content-Length": str(len(body))}
            for name, value in said.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = _serve

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)
