"""Metrics on a loopback port of their own: GET /metrics and nothing else, one request at a time."""

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
"""A client that is slower is given up, for the next one waits."""


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
        """Nothing: a scrape each few seconds is no news."""


class _Server(HTTPServer):
    def __init__(self, address: tuple[str, int], text: Callable[[], str]) -> None:
        self.text = text
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away."""


class MetricsServer:
    """Serves until `stop`; ConfigError where the port is taken."""

    def __init__(self, at: MetricsListener, text: Callable[[], str]) -> None:
        self._at, self._text = at, text
        self._server: _Server | None = None

    def start(self) -> None:
        """Listens."""
        try:
            self._server = _Server((self._at.host, self._at.port), self._text)
        except OSError as e:
            raise ConfigError([f"metrics: cannot listen on {self._at.host}:{self._at.port}: {e.strerror}"]) from e
        threading.Thread(target=self._server.serve_forever, name="isonomy-metrics", daemon=True).start()

    def stop(self) -> None:
        """Closes the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
