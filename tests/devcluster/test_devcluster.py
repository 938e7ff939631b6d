"""dev-cluster: refused inputs, and a real small Hadoop that starts, survives kills and leaves nothing behind."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import hdfs
import pytest
import requests

REPO = Path(__file__).resolve().parent.parent.parent
TOPOLOGY = """
virtual_gpus: true
racks:
  - {name: rack-a, machines: [{host: 127.0.10.1, gpus: 4}]}
  - {name: rack-b, machines: [{host: 127.0.20.1, gpus: 2}]}
"""


def dev(command: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(REPO / "dev-cluster" / command), *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, env={**os.environ, **(env or {})})


def processes_of(folder: Path) -> list[str]:
    """Command lines of all processes that have the cluster's directory in theirs or in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            if str(folder).encode() in command + (entry / "environ").read_bytes():
                found.append(command.decode(errors="replace")[:200])
        except OSError:
            continue
    return found


def test_missing_java_and_wrong_topology_are_one_line(tmp_path: Path) -> None:
    folder = str(tmp_path / "dc")
    result = dev("up", "--plain", "--dir", folder, env={"JAVA_HOME": str(tmp_path)})
    assert result.returncode == 1
    assert result.stderr.strip().splitlines() == [
        f"dev-cluster: java is missing in JAVA_HOME={tmp_path}: install a JDK 17"
        " (Debian: apt install openjdk-17-jdk-headless) or set JAVA_HOME"
    ]
    result = dev("kill", "rm", "--dir", folder)
    assert result.stderr.strip() == f"dev-cluster: no cluster in {folder}; start one with dev-cluster/up"


@pytest.mark.cluster
def test_two_nodes_up_kill_restart_and_down(tmp_path: Path) -> None:
    folder, topology = tmp_path / "dc", tmp_path / "topology.yaml"
    where = ("--dir", str(folder))
    topology.write_text(TOPOLOGY)
    try:
        up = dev("up", "--plain", "--topology", str(topology), *where)
        assert up.returncode == 0, up.stderr
        cluster = json.loads((folder / "cluster.json").read_text())
        nodes = requests.get(f"{cluster['rm_web']}/ws/v1/cluster/nodes", timeout=10).json()["nodes"]["node"]
        assert {(n["nodeHostName"], n["rack"]) for n in nodes} == {("127.0.10.1", "/rack-a"), ("127.0.20.1", "/rack-b")}
        client = hdfs.InsecureClient(cluster["webhdfs"], user=cluster["user"])
        client.write("/tmp/file", b"kept")

        application = start_sleeper(where, folder)
        killed = [dev("kill", role, *where) for role in ("rm", "nm-0")]
        assert [k.returncode for k in killed] == [0, 0]
        assert dev("status", *where).returncode == 1
        assert dev("up", *where).returncode == 0
        assert dev("status", *where).returncode == 0
        with client.read("/tmp/file") as reader:
            assert reader.read() == b"kept"
        url = f"{cluster['rm_web']}/ws/v1/cluster/apps/{application}"
        assert requests.get(url, timeout=10).json()["app"]["state"] == "RUNNING"
    finally:
        down = dev("down", *where)
    assert down.returncode == 0
    assert processes_of(folder) == []


def start_sleeper(where: tuple[str, ...], folder: Path) -> str:
    """A distributed-shell application on the plain scheduler; its id once a container of it sleeps."""
    script = folder / "sleep.sh"
    script.write_text("setsid sleep 290 &\nsleep 290\n")
    words = [
        sys.executable,
        str(REPO / "dev-cluster" / "hadoop"),
        *where,
        "distributedshell",
        "-shell_script",
        str(script),
        "-num_containers",
        "1",
        "-container_resources",
        "memory-mb=256,vcores=1,yarn.io/gpu=1",
        "-master_memory",
        "256",
        "-queue",
        "research",
        "-keep_containers_across_application_attempts",
    ]
    cluster = json.loads((folder / "cluster.json").read_text())
    client = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            apps = requests.get(f"{cluster['rm_web']}/ws/v1/cluster/apps", timeout=10).json()["apps"]
            for app in (apps or {}).get("app", []):
                if app["state"] == "RUNNING" and app["runningContainers"] == 2:
                    return str(app["id"])
            time.sleep(0.2)
        raise AssertionError("the application did not run")
    finally:
        client.kill()
        client.wait()
