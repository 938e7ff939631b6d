"""`isonomy preflight` on machines of a ResourceManager and with GPUs, each with one thing missing."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol.cli import main
from pycontrol.config import Config, load_config
from pycontrol.hadoopconf.check import check
from pycontrol.hadoopconf.distribution import Distribution
from pycontrol.hadoopconf.preflight import DENIES, Machine, evidence, findings
from tests.httpd import Reply, name_a_proxy, serving

YARN = "yarn-site.xml"
NM = "yarn.nodemanager."
GPUS = f"{NM}resource-type.yarn.io/gpu"
EXECUTOR = f"{NM}container-executor.class"
LINUX = f"{NM}linux-container-executor."


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


class World:
    """A machine in a folder, with everything that it needs until a test takes something away."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "root", folder / "bin"
        self.machine = Machine(self.root, str(self.bin))
        self.hadoop = Distribution("3.4", folder / "hadoop")
        self.library = folder / "hadoop" / "share" / "hadoop" / "yarn" / "lib"
        self.library.mkdir(parents=True)
        self.root.mkdir()
        self.bin.mkdir()
        self.sites: dict[str, dict[str, str]] = {"yarn-site.xml": {}, "node-resources.xml": {}}
        self.config: Config | None = None
        self.rm_time_s: float | None = time.time()

    def gpu_node(self) -> None:
        program(self.bin, "nvidia-smi", "echo 0; echo 1")
        program(self.bin, "dmesg", "echo fine")
        self.libraries("libc.so.6", "libcuda.so.1")
        program(self.bin, "sudo", f'[ "$*" = "-n {DENIES} --check" ]')
        program(self.root / "opt/isonomy/venv/bin", "python", '[ "$*" = "-c import submarine_patch.worker" ]')
        self.mkdir("/proc/1", "/dev/nvidia0", "/data/nm-local", "/sys/fs/cgroup/devices/hadoop-yarn")
        (self.root / "proc/1/stat").touch()
        (self.library / "isonomy-yarn-nm.jar").touch()
        self.sites["yarn-site.xml"] = {
            f"{NM}container-executor.class": "isonomy.nm.IsonomyLinuxContainerExecutor",
            f"{NM}local-dirs": "/data/nm-local",
            f"{LINUX}resources-handler.class": "isonomy.nm.GpuDevices",
        }
        self.sites["node-resources.xml"] = {GPUS: "2"}

    def resourcemanager(self, folder: Path) -> None:
        file = folder / "isonomy.yaml"
        ports = [free_port(), free_port()]
        file.write_text(f"state_dir: /var/lib/isonomy\nbridge: {{port: {ports[0]}}}\nagents: {{port: {ports[1]}}}\n")
        self.config = load_config(file)
        self.mkdir("/var/lib/isonomy", "/proc")
        (self.root / "proc/mounts").write_text("/dev/sda1 / ext4 rw 0 0\n")
        (self.library / "isonomy-yarn-rm.jar").touch()
        self.sites["yarn-site.xml"] = {
            "yarn.resourcemanager.recovery.enabled": "true",
            "isonomy.bridge.token-file": "/var/lib/isonomy/bridge.token",
        }

    def libraries(self, *names: str) -> None:
        """What the machine's ldconfig knows."""
        rows = (f"\t{x} (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/{x}" for x in names)
        program(self.root / "sbin", "ldconfig", "cat << END\n" + "\n".join(rows) + "\nEND")

    def mkdir(self, *paths: str) -> None:
        for path in paths:
            self.machine.at(path).mkdir(parents=True)

    def found(self) -> list[str]:
        return [str(f) for f in findings(self.machine, self.sites, self.config, self.hadoop, self.rm_time_s)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


REFUSED = f"`sudo -n {DENIES} --check` fails: it is not installed, or this user or kernel may not"


def test_variables_of_local_dirs_are_those_of_hadoop(world: World) -> None:
    world.gpu_node()
    world.sites["core-site.xml"] = {"hadoop.tmp.dir": "${base.dir}/tmp", "base.dir": "/data"}
    world.sites[YARN][f"{NM}local-dirs"] = "file://${hadoop.tmp.dir}/nm,/data/${user.name}"
    (line,) = world.found()
    assert "local-dirs: ///data/tmp/nm does not exist" in line
    world.mkdir("/data/tmp/nm")
    assert world.found() == []
    assert str(evidence(world.sites["core-site.xml"] | world.sites[YARN])) == "/data/tmp/isonomy-evidence.jsonl"
    world.sites[YARN]["isonomy.nm.evidence-file"] = "${hadoop.tmp.dir}/own.jsonl"
    assert str(evidence(world.sites["core-site.xml"] | world.sites[YARN])) == "/data/tmp/own.jsonl"


def as_another(w: World) -> None:
    w.machine = replace(w.machine, user=os.geteuid() + 1)


def unhelped(w: World) -> None:
    program(w.bin, "sudo", "exit 1")


def v2(w: World) -> None:
    (w.root / "sys/fs/cgroup/cgroup.controllers").touch()


@pytest.mark.parametrize(
    ("lost", "line"),
    [
        (lambda w: program(w.bin, "nvidia-smi", "exit 9"), "error: host: nvidia-smi: does not answer"),
        (
            lambda w: program(w.bin, "nvidia-smi", "echo 0"),
            "error: node-resources.xml: yarn.nodemanager.resource-type.yarn.io/gpu: is 2, and nvidia-smi names 1",
        ),
        (
            lambda w: w.sites["node-resources.xml"].clear(),
            "error: node-resources.xml: yarn.nodemanager.resource-type.yarn.io/gpu: is missing, and nvidia-smi names 2",
        ),
        (
            lambda w: w.sites[YARN].update(w.sites.pop("node-resources.xml"), **{GPUS: "3"}),
            "error: yarn-site.xml: yarn.nodemanager.resource-type.yarn.io/gpu: is 3, and nvidia-smi names 2",
        ),
        (
            lambda w: w.libraries("libc.so.6"),
            "note: host: ldconfig -p: lists no libcuda.so.1, and YARN gives containers",
        ),
        (lambda w: (w.bin / "dmesg").unlink(), "note: host: dmesg: cannot be read"),
        (
            lambda w: w.machine.at("/data/nm-local").rmdir(),
            "error: yarn-site.xml: yarn.nodemanager.local-dirs: /data/nm-l",
        ),
        (lambda w: (w.root / "proc/1/stat").unlink(), "error: host: /proc: hides the processes of others"),
        (lambda w: (w.library / "isonomy-yarn-nm.jar").unlink(), "error: host: isonomy-yarn-nm.jar: is not in"),
        (v2, "error: host: GPUs are not isolated on this host: the cgroup"),
        (unhelped, f"error: host: GPUs are not isolated on this host: {REFUSED}"),
        (lambda w: w.machine.at("/sys/fs/cgroup/devices/hadoop-yarn").rmdir(), "error: host: GPUs are not isolated"),
        (
            lambda w: w.sites["yarn-site.xml"].pop(f"{LINUX}resources-handler.class"),
            "error: host: GPUs are not isolated",
        ),
        (
            lambda w: w.sites["yarn-site.xml"].update({EXECUTOR: "isonomy.nm.IsonomyContainerExecutor"}),
            "error: host: GPUs are not isolated on this host: containers run as the NodeManager's user",
        ),
        (as_another, "note: host: user: /data/nm-local is another user's: run this as that"),
        (
            lambda w: w.sites[YARN].update({"isonomy.nm.evidence-file": "/opt/isonomy/venv/bin/python/x"}),
            "note: yarn-site.xml: isonomy.nm.evidence-file: /opt/isonomy/venv/bin/python/x cannot be written by this",
        ),
        (
            lambda w: w.machine.at("/opt/isonomy/venv/bin/python").unlink(),
            "note: host: isonomy.python: /opt/isonomy/venv",
        ),
        (
            lambda w: w.sites.update({"submarine-site.xml": {"isonomy.python": "/x/python"}}),
            "note: host: isonomy.python: /x/python is not a Python with isonomy",
        ),
        (
            lambda w: w.sites[YARN].update({f"{LINUX}cgroups.hierarchy": "yarn"}),
            "error: host: GPUs are not isolated on this host: the cgroup",
        ),
        (
            lambda w: setattr(w, "rm_time_s", time.time() - 60),
            "error: host: clock: is +60 s from the ResourceManager's",
        ),
        (lambda w: setattr(w, "rm_time_s", None), "note: host: clock: is not compared"),
    ],
)
def test_a_gpu_node_says_what_it_lacks(world: World, lost: Callable[[World], object], line: str) -> None:
    world.gpu_node()
    assert world.found() == []
    lost(world)
    (found,) = world.found()
    assert found.startswith(line)


def test_before_the_executors_a_missing_isolation_is_a_note(world: World) -> None:
    world.gpu_node()
    v2(world)
    world.mkdir("/sys/fs/cgroup/hadoop-yarn")
    unhelped(world)
    hadoops = "org.apache.hadoop.yarn.server.nodemanager.LinuxContainerExecutor"
    world.sites["yarn-site.xml"][f"{NM}container-executor.class"] = hadoops
    assert world.found() == [f"note: host: with Isonomy's executor GPUs will not be isolated on this host: {REFUSED}"]


@pytest.mark.parametrize("mine", [True, False])
def test_config_check_says_so_of_the_machines_own_folder(
    world: World, monkeypatch: pytest.MonkeyPatch, mine: bool
) -> None:
    world.gpu_node()
    v2(world)
    world.mkdir("/sys/fs/cgroup/hadoop-yarn")
    folder = world.root / "etc/hadoop/conf"
    folder.mkdir(parents=True)
    own = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in world.sites[YARN].items())
    (folder / YARN).write_text(f"<configuration>{own}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop/conf" if mine else "/etc/other")

    def told() -> list[str]:
        return [str(f) for f in check(folder, world.hadoop, world.machine) if "isolated" in f.message]

    assert told() == []
    unhelped(world)
    assert told() == [f"error: host: GPUs are not isolated on this host: {REFUSED}"] * mine


def take_port(w: World) -> None:
    assert w.config is not None
    w.held = socket.create_server((w.config.bridge.host, w.config.bridge.port))  # type: ignore[attr-defined]


def on_nfs(w: World) -> None:
    (w.root / "proc/mounts").write_text("/dev/sda1 / ext4 rw 0 0\nnas:/x /var/lib nfs4 rw 0 0\n")


@pytest.mark.parametrize(
    ("lost", "line"),
    [
        (lambda w: w.machine.at("/var/lib/isonomy").rmdir(), "error: host: state_dir: /var/lib/isonomy does not exist"),
        (
            as_another,
            "error: host: state_dir: /var/lib/isonomy is another user's: run this as that, or give it to this one",
        ),
        (on_nfs, "error: host: state_dir: /var/lib/isonomy is on nfs4; the journal needs a local disk"),
        (take_port, "note: host: bridge.port: 127.0.0.1:"),
        (lambda w: (w.library / "isonomy-yarn-rm.jar").unlink(), "error: host: isonomy-yarn-rm.jar: is not in"),
        (
            lambda w: w.sites["yarn-site.xml"].pop("isonomy.bridge.token-file"),
            "error: yarn-site.xml: isonomy.bridge.token-file: is missing: Isonomy places, ends and hides nothing",
        ),
        (lambda w: setattr(w, "hadoop", Distribution()), "note: host: isonomy-yarn-rm.jar: is not looked for"),
    ],
)
def test_a_resourcemanagers_machine_says_what_it_lacks(
    world: World, tmp_path: Path, lost: Callable[[World], object], line: str
) -> None:
    world.resourcemanager(tmp_path)
    assert world.found() == []
    lost(world)
    (found,) = world.found()
    assert found.startswith(line)
    held = getattr(world, "held", None)
    if held is not None:
        held.close()


def test_the_command_reads_the_folder_and_counts(tmp_path: Path) -> None:
    (tmp_path / "yarn-site.xml").write_text(
        "<configuration><property><name>yarn.resourcemanager.hostname</name><value>127.0.0.1</value></property>"
        f"<property><name>yarn.resourcemanager.webapp.address</name><value>127.0.0.1:{free_port()}</value></property>"
        "</configuration>"
    )
    (tmp_path / "isonomy.yaml").write_text(f"state_dir: {tmp_path}/none\nbridge: {{port: {free_port()}}}\n")
    result = CliRunner().invoke(main, ["preflight", str(tmp_path), "-o", "json"])
    told = json.loads(result.output)
    found = {(f["level"], f["file"], f["key"]) for f in told["findings"]}
    assert {
        ("error", "host", "state_dir"),
        ("note", "host", "clock"),
        ("error", "yarn-site.xml", "isonomy.bridge.token-file"),
    } <= found
    assert result.exit_code == 1
    assert told["errors"] == len([f for f in told["findings"] if f["level"] == "error"])
    lines = CliRunner().invoke(main, ["preflight", str(tmp_path)]).output.splitlines()
    assert lines[-1].startswith(f"{tmp_path}: {told['errors']} errors, ")


def test_the_clock_is_compared_past_a_proxy_even_if_the_resourcemanager_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_a_proxy(monkeypatch)
    with serving(lambda _: Reply(status=401, headers={"WWW-Authenticate": "Negotiate"})) as url:
        (tmp_path / YARN).write_text(
            "<configuration><property><name>yarn.resourcemanager.webapp.address</name>"
            f"<value>{url.removeprefix('http://')}</value></property></configuration>"
        )
        lines = CliRunner().invoke(main, ["preflight", str(tmp_path)]).output
    assert "host: clock" not in lines


def test_where_the_web_app_is_not_named_all_else_is_checked(tmp_path: Path) -> None:
    (tmp_path / YARN).write_text("<configuration/>")
    (tmp_path / "isonomy.yaml").write_text(f"state_dir: {tmp_path}/none\n")
    lines = CliRunner().invoke(main, ["preflight", str(tmp_path)]).output
    assert "error: host: state_dir: " in lines
    assert "note: host: clock: is not compared" in lines
    (tmp_path / YARN).unlink()
    assert "error: yarn-site.xml: cannot be read" in CliRunner().invoke(main, ["preflight", str(tmp_path)]).output
