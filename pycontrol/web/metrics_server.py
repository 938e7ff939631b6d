"""Serves metrics on a port of its own: only GET /metrics, one request at a time."""

from __future__ import annotations

import hmac
import queue
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from pycontrol import secretfile
from pycontrol.config import ConfigError, MetricsListener, Tls, on_loopback
from pycontrol.queries.metrics import CONTENT_TYPE
from pycontrol.runtime.driver import Overloaded

REQUEST_S = 5.0
"""The longest request, TLS handshake included, as the next client waits meanwhile."""


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_S
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, "there is only /metrics\n")
            return
        given = self.headers.get("Authorization", "").encode()
        if self.server.token and not hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
            self._answer(401, "needs the bearer token in metrics.token of the control plane's state_dir\n")
            return
        try:
            self._answer(200, self.server.text())
        except (TimeoutError, queue.Full, Overloaded):
            self._answer(503, "the control plane is busy\n")

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, as scrapes are frequent."""


class _Server(HTTPServer):
    def __init__(
        self, address: tuple[str, int], text: Callable[[], str], tls: ssl.SSLContext | None, token: str
    ) -> None:
        self.text, self._tls, self.token = text, tls, token
        super().__init__(address, _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer, or end the connection after `REQUEST_S`, however slowly the client sends."""
        if self._tls is not None:  # shakes hands with the first byte that is read
            request = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        late = threading.Timer(REQUEST_S, _end, [request])
        late.start()
        try:
            super().finish_request(request, client_address)
        finally:
            late.cancel()
            request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has disconnected."""


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # the socket below TLS, from another thread


class MetricsServer:
    """The metrics' HTTP server: on loopback for everybody there, else with TLS, for those that have the token."""

    def __init__(self, at: MetricsListener, text: Callable[[], str], tls: Tls | None, token_file: Path) -> None:
        """`tls`: the Agents' certificate, which other machines are shown, too; `token_file` is made where needed."""
        self._at, self._text, self._tls, self._token_file = at, text, tls, token_file
        self._server: _Server | None = None

    def start(self) -> None:
        """Start to listen; raises ConfigError."""
        context, token = None, ""
        try:
            if self._tls is not None and not on_loopback(self._at.host):
                context, token = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), secretfile.token(self._token_file)
                context.load_cert_chain(self._tls.cert, self._tls.key)
            self._server = _Server((self._at.host, self._at.port), self._text, context, token)
        except secretfile.SecretFileError as e:
            raise ConfigError([f"metrics: {e}"]) from e
        except OSError as e:
            raise ConfigError([f"metrics: cannot listen on {self._at.host}:{self._at.port}: {e.strerror}"]) from e
        threading.Thread(target=self._server.serve_forever, name="isonomy-metrics", daemon=True).start()

    @property
    def port(self) -> int:
        """The port, once started."""
        assert self._server is not None
        return self._server.server_port

    def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
