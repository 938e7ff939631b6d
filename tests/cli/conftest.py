"""A ResourceManager's REST on loopback: the real router, and hand-written answers for YARN's own resources."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from pycontrol.bridge.endpoint import to_json
from pycontrol.cli import main
from tests.httpd import Asked, Reply, serving
from tests.web.scene import Scene

AM = "container_1_0001_01_000001"
ADMIN = "root"


class Rm:
    """The ResourceManager of the command-line tests. `down`: the control plane is away."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.down, self.plugin, self.native = scene, False, True, True
        self.mode = {
            "mode": "on",
            "queues": ["root.a"],
            "by": "ann",
            "at_s": 1.5,
            "place": "/rm/isonomy-mode.json",
            "problem": "",
            "obsolete": [],
        }
        """What the plugin answers about the mode, with the control plane or without."""
        self.states: list[str] = []
        """What YARN answers next about an app."""
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.authorization = ""
        """The newest caller's header."""
        self.lock = threading.Lock()

        self.address = ""

    def serve(self, asked: Asked) -> Reply:
        self.seen.append((asked.method, asked.path, dict(asked.params)))
        self.authorization = asked.headers.get("Authorization", "")
        status, kind, body = self.answer(asked.method, asked.path, asked.params)
        return Reply(body, status, {"Content-Type": kind})

    def answer(self, method: str, path: str, params: dict[str, str]) -> tuple[int, str, bytes]:
        """(status, content type, body)."""
        if path.startswith("/ws/v1/cluster/isonomy/") and self.plugin:
            if path.endswith("/mode"):
                return self._mode(method, params)
            if self.down:
                return 503, "application/json", b'{"error": "no answer from the control plane at 127.0.0.1:26500"}'
            user = params.pop("user.name", "")
            with self.lock:
                status, found = self.scene.router.handle(
                    method, path.removeprefix("/ws/v1/cluster/isonomy/"), params, user, user == ADMIN
                )
            return status, "application/json", to_json(found)
        if path.startswith("/ws/v1/cluster/apps/") and path.count("/") == 5:
            return 200, "application/json", json.dumps({"app": {"state": self.states.pop(0)}}).encode()
        if path.endswith("/appattempts"):
            attempt = {"id": 1, "containerId": AM, "nodeHttpAddress": self.address, "logsLink": "http://nm/am"}
            return 200, "application/json", json.dumps({"appAttempts": {"appAttempt": [attempt]}}).encode()
        if path == "/ws/v1/cluster/nodes":
            nodes = [{"id": n, "nodeHTTPAddress": self.address} for n in self.scene.world.nodes]
            return 200, "application/json", json.dumps({"nodes": {"node": nodes}}).encode()
        if path.startswith("/ws/v1/node/containers/") and path.endswith("/logs"):
            names = ("App.stderr", "App.stdout", "prelaunch.stdout", "syslog")
            files = [{"fileName": n, "fileSize": "9"} for n in names]
            listing = {"containerLogsInfo": {"containerLogInfo": files, "logAggregationType": "LOCAL"}}
            return 200, "application/json", json.dumps(listing).encode()
        if path.startswith("/ws/v1/node/containers/") and path.endswith("/logs/App.stderr"):
            if not self.native:
                return 500, "application/json", b'{"RemoteException": {"message": "Secure IO is not possible"}}'
            name = path.split("/")[5]
            page = f"LogType:App.stderr\nLogContents:\nfirst line of {name}\nlast line of {name}\nEnd of LogType:App\n*"
            return 200, "text/plain", page.encode()
        if path.endswith("/logs/App.stdout"):
            return 200, "text/plain", b"LogType:App.stdout\nLogContents:\nEnd of LogType:App.stdout. It runs.\n***\n"
        return 404, "text/html", b"<html>not here</html>"

    def _mode(self, method: str, params: dict[str, str]) -> tuple[int, str, bytes]:
        user = params.pop("user.name", "")
        if method == "POST":
            if user != ADMIN:
                return 403, "application/json", b'{"error": "mode: u is not in the admin ACL"}'
            queues = params["queues"].split(",") if "queues" in params else self.mode["queues"]
            self.mode |= {"mode": params["mode"], "queues": queues, "by": user, "at_s": 2.5, "problem": ""}
        return 200, "application/json", to_json(self.mode)


@pytest.fixture
def rm() -> Iterator[Rm]:
    found = Rm(Scene(run_s=60))
    with serving(found.serve) as url:
        found.address = url.removeprefix("http://")
        yield found


def run(server: Rm | None, *args: str, user: str = "u") -> Result:
    """Runs `isonomy ARGS` as this user."""
    env = {"HADOOP_USER_NAME": user, "ISONOMY_RM": server.address if server else None, "HADOOP_CONF_DIR": None}
    return CliRunner().invoke(main, list(args), env=env)
