"""From `submarine job run` through the AM shell to worker containers, on a real YARN.

The control plane is not there: a web server of the test answers the client's question for the token, and a
scripted Agent stands in for ours.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import requests

from submarine_patch.cli.stock import MAIN_CLASS
from submarine_patch.worker.credentials import read_secret

REPO = Path(__file__).resolve().parents[2]
WATCH_S = 60.0
SECRET = "a-secret-of-the-test"
TOPOLOGY = """\
virtual_gpus: true
racks:
  - name: rack-a
    machines: [{host: 127.0.61.1, gpus: 2, type: virtual, memory_mb: 4096, vcores: 4}]
"""
pytestmark = pytest.mark.cluster


class ControlPlane(BaseHTTPRequestHandler):
    """Answers as the ResourceManager's web app would with a control plane behind it.

    The scripted Agent asks /watched before its app continues: the client polls, and must have seen the app run.
    """

    watched = threading.Event()
    rm_web: ClassVar[str] = ""
    """The ResourceManager's own address."""

    def do_GET(self) -> None:
        if self.path.startswith("/ws/v1/cluster/isonomy/token?app=application_") and "user.name=" in self.path:
            self._answer({"token": SECRET, "arbiter": "127.0.0.1:1", "ca": "", "expires_s": 600})
        elif self.path.startswith("/ws/v1/cluster/isonomy/explain?app=application_"):
            self.watched.set()
            self._answer(
                {
                    "now_s": 0.0,
                    "app": {"gpus_held": 1},
                    "estimate": {"start_s": [0, 0, 0], "end_s": [60, 600, 6000]},
                }
            )
        elif self.path == "/watched" and self.watched.wait(WATCH_S):
            self._answer({})
        elif self.path.startswith("/ws/v1/cluster/apps/"):
            self._answer(requests.get(self.rm_web + self.path, timeout=30).json())
        else:
            self.send_error(404)

    def _answer(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@dataclass(frozen=True)
class Cluster:
    """A real cluster, and a configuration whose ResourceManager web app is the test's own."""

    description: dict[str, Any]
    conf: Path
    web: str

    def submarine(self, *arguments: str, conf: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from submarine_patch.cli import main; main()", "job", *arguments]
        env = os.environ | {"HADOOP_CONF_DIR": str(conf or self.conf)}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)

    def rest(self, path: str) -> Any:
        return json.loads(self.text(path))

    def text(self, path: str) -> str:
        url = f"{self.description['rm_web']}/ws/v1/cluster/{path}"
        with urllib.request.urlopen(url, timeout=20) as reply:
            return str(reply.read().decode())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "topology.yaml").write_text(TOPOLOGY)
    place = ["--dir", str(folder / "state")]
    devcluster = REPO / "dev-cluster"
    subprocess.run(
        [devcluster / "up", "--plain", "--topology", folder / "topology.yaml", *place], check=True, timeout=400
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), ControlPlane)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        description = json.loads((folder / "state" / "cluster.json").read_text())
        conf = folder / "conf"
        shutil.copytree(description["conf"], conf)
        yarn_site = conf / "yarn-site.xml"
        ControlPlane.rm_web = description["rm_web"]
        own = description["rm_web"].removeprefix("http://")
        web = f"127.0.0.1:{server.server_port}"
        yarn_site.write_text(yarn_site.read_text().replace(own, web))
        yield Cluster(description, conf, f"http://{web}")
    finally:
        server.shutdown()
        subprocess.run([devcluster / "down", *place], check=False, timeout=100)


def scripted_python(folder: Path, web: str) -> Path:
    """A `python` whose Agent is the scripted one."""
    python = folder / "python"
    script = Path(__file__).with_name("scripted_agent.py")
    python.write_text(
        f"#!/bin/bash\nSCRIPT_OUT={folder} SCRIPT_WEB={web} PYTHONPATH={REPO} exec {sys.executable} {script}\n"
    )
    python.chmod(0o755)
    return python


def run_options(cluster: Cluster, folder: Path) -> list[str]:
    (folder / "train.py").write_text("print('trains')\n")
    return [
        "run",
        "--name",
        folder.name,
        "--queue",
        "research",
        "--input_path",
        "/data",
        "--num_workers",
        "1",
        "--worker_resources",
        "memory=256M,vcores=1",
        "--worker_launch_cmd",
        "python train.py",
        "--localization",
        f"{folder}/train.py:./",
        "--env",
        "A=b",
        "--python",
        str(scripted_python(folder, cluster.web)),
    ]


def test_a_job_runs_and_its_second_attempt_adopts_the_worker(cluster: Cluster, tmp_path: Path) -> None:
    ended = cluster.submarine(*run_options(cluster, tmp_path), "--wait_job_finish", "-o", "json")
    assert ended.returncode == 0, ended.stderr
    application = json.loads(ended.stdout)["application_id"]
    assert "1 GPU, ends in ~10 min" in ended.stderr
    assert (tmp_path / "greeting").read_text() == 'say "hi" single "and" double\n'
    assert read_secret("isonomy.token", tmp_path / "token") == SECRET.encode()
    assert b"YARN_AM_RM_TOKEN" not in (tmp_path / "token").read_bytes()
    report = cluster.rest(f"apps/{application}")["app"]
    assert (report["finalStatus"], report["applicationType"]) == ("SUCCEEDED", "SUBMARINE")
    assert "adopted and finished" in report["diagnostics"]
    attempts = cluster.rest(f"apps/{application}/appattempts")["appAttempts"]["appAttempt"]
    attempt_id = min(attempt["appAttemptId"] for attempt in attempts)
    first = cluster.text(f"apps/{application}/appattempts/{attempt_id}")
    assert "the Agent ended with exit code 1 before the app was finished" in first
    assert "the first attempt dies on purpose" in first
    stock = ["java", f"-Disonomy.conf={cluster.conf}", "-cp", f"{REPO}/build/submarine/lib/*", MAIN_CLASS]
    show = [*stock, "job", "show", "--name", tmp_path.name]
    shown = subprocess.run(show, capture_output=True, text=True, timeout=180, check=True)
    assert f"Application Id: {application}" in shown.stdout


def test_a_failed_job_gives_exit_status_1(cluster: Cluster, tmp_path: Path) -> None:
    ended = cluster.submarine(*run_options(cluster, tmp_path), "--seed", "1", "--wait_job_finish")
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1] == f"submarine: {tmp_path.name} FAILED: adopted and finished"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--queue", "nope"], "-queue nope: no such queue; the leaf queues are root.default, root.prod"),
        (["--queue", "root"], "-queue root: not a leaf queue"),
        (["--gpus-per-job", "3"], "the largest gang that the cluster can hold has 2"),
        (["--worker_resources", "memory=9G,vcores=1"], "no running machine has as much"),
        (
            ["--num_ps", "9", "--ps_resources", "memory=1G,vcores=1", "--num_workers", "2", "--input_path", "x"],
            "-ps_resources for each of 9 servers: no running machine has as much",
        ),
        (["--localization", "/nowhere:./"], "--localization /nowhere: no such file or folder here"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_submitted(cluster: Cluster, options: list[str], message: str) -> None:
    before = cluster.rest("metrics")["clusterMetrics"]["appsSubmitted"]
    stock = {"--worker_resources": "memory=256M,vcores=1"} | dict(zip(options[::2], options[1::2], strict=True))
    arguments = [word for pair in stock.items() for word in pair]
    ended = cluster.submarine("run", "--name", "bad", "--worker_launch_cmd", "true", *arguments)
    assert ended.returncode == 2
    *notes, line = ended.stderr.strip().splitlines()
    assert all(note.startswith("submarine: note: ") for note in notes)
    assert line.startswith("submarine: ")
    assert message in line
    assert cluster.rest("metrics")["clusterMetrics"]["appsSubmitted"] == before


def test_without_a_control_plane_nothing_is_submitted(cluster: Cluster, tmp_path: Path) -> None:
    ended = cluster.submarine(*run_options(cluster, tmp_path), conf=Path(cluster.description["conf"]))
    assert ended.returncode == 1
    assert "submarine: no Isonomy token, nothing was submitted" in ended.stderr
