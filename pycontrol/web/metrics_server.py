"""Serves metrics on a separate loopback port: only GET /metrics, one request at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from pycontrol.config import ConfigError, MetricsListener
from pycontrol.queries.metrics import CONTENT_TYPE
from pycontrol.runtime.driver import Overloaded

REQUEST_S = 5.0
"""Timeout of a request, as the next client waits meanwhile."""


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_S
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, "there is only /metrics\n")
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
    def __init__(self, address: tuple[str, int], text: Callable[[], str]) -> None:
        self.text = text
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has disconnected."""


class MetricsServer:
    """The metrics' HTTP server."""

    def __init__(self, at: MetricsListener, text: Callable[[], str]) -> None:
        self._at, self._text = at, text
        self._server: _Server | None = None

    def start(self) -> None:
        """Start to listen; raises ConfigError."""
        try:
            self._server = _Server((self._at.host, self._at.port), self._text)
        except OSError as e:
            raise ConfigError([f"metrics: cannot listen on {self._at.host}:{self._at.port}: {e.strerror}"]) from e
        threading.Thread(target=self._server.serve_forever, name="isonomy-metrics", daemon=True).start()

    def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
