"""A WebHDFS over a local folder for the tests: it can become unreachable, come back, and be full."""

from __future__ import annotations

import json
import shutil
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PREFIX = "/webhdfs/v1"


class FakeHdfs:
    """The operations that checkpoints need, on a port of the loopback interface."""

    def __init__(self, root: Path, token: str = "", certificate: Path | None = None) -> None:
        """`token`: the delegation token that it requires; `certificate`: PEM with its key, for https."""
        self.root, self.full, self.port = root, False, 0
        self.full_after = ""
        """If set: it is full once a folder has a name that begins so."""
        self.token, self._certificate = token, certificate
        self.server: ThreadingHTTPServer | None = None
        self.come()

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self.port}"

    def come(self) -> None:
        """Listens, on the same port as before."""
        store = self

        class Handler(_Handler):
            hdfs = store

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        if self._certificate:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(self._certificate)
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def go(self) -> None:
        """Accepts no more connections, and answers on none of the existing ones."""
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


def _status(path: Path) -> dict[str, Any]:
    about, kind = path.stat(), "DIRECTORY" if path.is_dir() else "FILE"
    modified_ms = int(about.st_mtime * 1000)
    return {"pathSuffix": path.name, "type": kind, "length": about.st_size, "modificationTime": modified_ms}


class _Handler(BaseHTTPRequestHandler):
    hdfs: FakeHdfs
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def parse_request(self) -> bool:
        """Drops connections from before it became unreachable, like new ones."""
        there = self.hdfs.server is self.server and super().parse_request()
        self.close_connection = self.close_connection or not there
        return there

    def _answer(self, status: int, body: bytes = b"", location: str = "") -> None:
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _known(self, options: dict[str, str]) -> bool:
        """Whether the token is right; else answers as a secure cluster: 401 without one, an error for a wrong one."""
        shown = options.get("delegation", "")
        if self.hdfs.token in ("", shown):
            return True
        if shown:
            self._refuse(403, "SecurityException", "Failed to obtain user group information: InvalidToken: expired")
            return False
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Negotiate")
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False

    def _refuse(self, status: int, exception: str, message: str) -> None:
        told = {"RemoteException": {"exception": exception, "javaClassName": exception, "message": message}}
        self._answer(status, json.dumps(told).encode())

    def _at(self) -> tuple[str, dict[str, str], Path]:
        parts = urlsplit(self.path)
        options = {k.lower(): v[0] for k, v in parse_qs(parts.query).items()}
        path = unquote(parts.path).removeprefix(PREFIX).lstrip("/")
        return options.get("op", ""), options, self.hdfs.root / path

    def do_GET(self) -> None:
        operation, options, path = self._at()
        if not self._known(options):
            return
        if not path.exists():
            self._refuse(404, "FileNotFoundException", f"{path} does not exist")
        elif operation == "LISTSTATUS":
            entries = [_status(p) for p in path.iterdir()]
            self._answer(200, json.dumps({"FileStatuses": {"FileStatus": entries}}).encode())
        elif operation == "GETFILESTATUS":
            self._answer(200, json.dumps({"FileStatus": _status(path)}).encode())
        elif operation == "OPEN":
            self._answer(200, path.read_bytes())
        else:
            self._refuse(400, "UnsupportedOperationException", operation)

    def do_PUT(self) -> None:
        operation, options, path = self._at()
        if not self._known(options):
            return
        if operation == "CREATE" and "isonomytest" not in options:
            self._answer(307, location=f"{self.hdfs.url}{self.path}&isonomytest=1")
        elif operation == "CREATE":
            self._create(path)
        elif operation == "RENAME":
            target = self.hdfs.root / unquote(options["destination"]).lstrip("/")
            done = path.exists() and not target.exists()
            if done:
                path.rename(target)
                after = self.hdfs.full_after
                self.hdfs.full = self.hdfs.full or (bool(after) and target.name.startswith(after))
            self._answer(200, json.dumps({"boolean": done}).encode())
        else:
            self._refuse(400, "UnsupportedOperationException", operation)

    def _create(self, path: Path) -> None:
        data = self._body()
        if self.hdfs.full:
            self._refuse(403, "DSQuotaExceededException", "The DiskSpace quota is exceeded")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self._answer(201)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(data)

    def do_DELETE(self) -> None:
        _, options, path = self._at()
        if not self._known(options):
            return
        there = path.exists()
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif there:
            path.unlink()
        self._answer(200, json.dumps({"boolean": there}).encode())
