"""What a machine lacks for its part in a cluster with Isonomy, asked of the machine itself."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pycontrol.config import Config
from pycontrol.hadoopconf.distribution import Distribution
from pycontrol.hadoopconf.findings import Finding, error, note
from pycontrol.hadoopconf.names import CORE, GPU, NODE, OUR_EXECUTORS, SUBMARINE, YARN
from pycontrol.hadoopconf.properties import CONFINES, EXECUTOR, OUR_HANDLER, RM, TABLE, Choices, Sites
from pycontrol.hadoopconf.sitefile import names

HOST = "host"
"""What findings name in place of a file."""
CLOCK_S = 2.0
"""Clocks of machines may differ by this much."""
FREE_BYTES = 4 << 30
_REMOTE = ("nfs", "cifs", "ceph", "fuse", "gluster", "lustre")
_VARIABLE = re.compile(r"\$\{([^${}]+)\}")
_LINUX = "yarn.nodemanager.linux-container-executor."
PYTHON = "/opt/isonomy/venv/bin/python"
"""The Python of Isonomy's workers where submarine-site.xml names no other."""
LDCONFIG = "/sbin/ldconfig"
DENIES = "/usr/local/sbin/isonomy-devices"
"""confs/nodemanager/isonomy-devices where the executor calls it."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that is asked; a test asks one of its own."""

    root: Path = Path("/")
    path: str | None = None
    """Where programs are looked for; None: as the shell does."""
    user: int = field(default_factory=os.geteuid)
    """Number of the user who asks."""

    def says(self, *command: str) -> str | None:
        """What a program prints; None if it is missing or fails."""
        program = shutil.which(command[0], path=self.path)
        if program is None:
            return None
        try:
            done = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def at(self, path: str | Path) -> Path:
        """A path of the machine."""
        return self.root / str(path).lstrip("/")

    def owns(self, folder: Path) -> bool:
        """Whether the folder is the user's who asks."""
        return folder.stat().st_uid == self.user


def findings(
    machine: Machine, sites: Sites, config: Config | None, hadoop: Distribution, rm_time_s: float | None
) -> Iterator[Finding]:
    """All findings; a machine with isonomy.yaml is a ResourceManager's, one with GPUs a GPU node.

    `rm_time_s` is what the ResourceManager's web app says (Unix), None if it does not answer.
    """
    gpus = machine.says("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
    is_gpu_node = gpus is not None or machine.at("/dev/nvidia0").exists()
    if config is not None:
        yield from _resourcemanager(machine, sites, config)
    if is_gpu_node:
        yield from _gpu_node(machine, sites, gpus)
    if config is None and not is_gpu_node:
        yield note(HOST, "", "has no isonomy.yaml and no GPUs: nothing of Isonomy runs here")
    jars = {"isonomy-yarn-rm.jar": config is not None, "isonomy-yarn-nm.jar": is_gpu_node}
    for jar in (jar for jar, wanted in jars.items() if wanted):
        if hadoop.library is None:
            yield note(HOST, jar, "is not looked for: HADOOP_HOME names no Hadoop")
        elif not hadoop.has(jar):
            yield error(HOST, jar, f"is not in {hadoop.library}: a daemon that names its classes does not start")
    if rm_time_s is None:
        yield note(HOST, "clock", "is not compared: the ResourceManager's web app does not answer")
    elif abs(time.time() - rm_time_s) > CLOCK_S + 1:  # its header has whole seconds
        said = f"is {time.time() - rm_time_s:+.0f} s from the ResourceManager's; synchronise by NTP"
        yield error(HOST, "clock", said)


def _resourcemanager(machine: Machine, sites: Sites, config: Config) -> Iterator[Finding]:
    yarn = sites.get(YARN, {})
    for row in (row for row in TABLE if row.who == RM and row.key.startswith("isonomy.") and row.key not in yarn):
        if row.wanted(sites, Choices()) is not None:
            yield error(YARN, row.key, "is missing: Isonomy places, ends and hides nothing until it is there")
    folder = machine.at(config.state_dir)
    if not folder.is_dir():
        yield error(HOST, "state_dir", f"{config.state_dir} does not exist; make it, mode 0700, of the daemon's user")
    elif not machine.owns(folder):
        yield error(
            HOST, "state_dir", f"{config.state_dir} is another user's: run this as that, or give it to this one"
        )
    else:
        kind = _file_system(machine, config.state_dir)
        if kind.startswith(_REMOTE):
            yield error(HOST, "state_dir", f"{config.state_dir} is on {kind}; the journal needs a local disk")
        if shutil.disk_usage(folder).free < FREE_BYTES:
            yield note(HOST, "state_dir", f"{config.state_dir} has less than {FREE_BYTES >> 30} GiB free")
    for key, host, port in (
        ("bridge.port", config.bridge.host, config.bridge.port),
        ("agents.port", config.agents.host, config.agents.port),
    ):
        try:
            socket.create_server((host, port)).close()
        except OSError as problem:
            yield note(HOST, key, f"{host}:{port} is not free ({problem.strerror}): is that the control plane?")


def _file_system(machine: Machine, path: Path) -> str:
    """The kind of file system that a path is on, by /proc/mounts."""
    rows = (line.split()[1:3] for line in machine.at("/proc/mounts").read_text(encoding="utf-8").splitlines())
    kinds = {Path(at): kind for at, kind in rows}
    return next((kinds[p] for p in (path, *path.parents) if p in kinds), "")


def _gpu_node(machine: Machine, sites: Sites, gpus: str | None) -> Iterator[Finding]:
    yarn, key = sites.get(YARN, {}), f"yarn.nodemanager.resource-type.{GPU}"
    file = YARN if key in yarn and key not in sites.get(NODE, {}) else NODE
    declared = sites.get(file, {}).get(key, "missing" if yarn.get(EXECUTOR) in OUR_EXECUTORS else None)
    found = None if gpus is None else len(gpus.split())
    if found is None:
        yield error(HOST, "nvidia-smi", "does not answer, though there is /dev/nvidia0: is the driver loaded?")
    elif declared is not None and declared != str(found):
        yield error(file, key, f"is {declared}, and nvidia-smi names {found}")
    if found is not None and "libcuda.so.1" not in (machine.says(str(machine.at(LDCONFIG)), "-p") or "libcuda.so.1"):
        said = "lists no libcuda.so.1, and YARN gives containers no LD_LIBRARY_PATH: name its folder in a file in"
        yield note(HOST, "ldconfig -p", f"{said} /etc/ld.so.conf.d and run ldconfig as root, else no job finds a GPU")
    site = {**sites.get(CORE, {}), **yarn}
    for folder in (x for x in local_dirs(site) if "${" not in x):  # ${user.name} is the NodeManager's
        place = machine.at(folder)
        if not place.is_dir():
            yield error(YARN, "yarn.nodemanager.local-dirs", f"{folder} does not exist; evidence lies beside the first")
        elif not machine.owns(place):
            yield note(HOST, "user", f"{folder} is another user's: run this as that, else rights differ from these")
    place = next(p for p in machine.at(evidence(site)).parents if p.exists())
    if not (place.is_dir() and os.access(place, os.W_OK)):
        said = f"{evidence(site)} cannot be written by this user: no audit will know who had which GPUs; set another"
        yield note(YARN, "isonomy.nm.evidence-file", said)
    python = sites.get(SUBMARINE, {}).get("isonomy.python", PYTHON)
    if machine.says(str(machine.at(python)), "-c", "import submarine_patch.worker") is None:
        yield note(HOST, "isonomy.python", f"{python} is not a Python with isonomy: its own jobs would fail here")
    if machine.says("dmesg") is None and not machine.says("journalctl", "--dmesg", "--boot", "--quiet", "-n1"):
        said = "cannot be read (kernel.dmesg_restrict): isonomy-bad-gpus sees ECC errors but no Xids; add the"
        yield note(HOST, "dmesg", f"{said} NodeManager's user to the group systemd-journal")
    if yarn.get(EXECUTOR, "").endswith("LinuxContainerExecutor") and not os.access(machine.at("/proc/1/stat"), os.R_OK):
        said = "hides the processes of others (hidepid, ProtectProc): GPUs are given on while they still use them"
        yield error(HOST, "/proc", f"{said}; mount it with gid= of a group of the NodeManager's user")
    yield from isolation(machine, yarn)


def cgroup(yarn: Mapping[str, str], version: int) -> Path:
    """The folder of the containers' cgroups, where YARN's own handlers have it, of cgroup version 1 or 2."""
    hierarchy = yarn.get(f"{_LINUX}cgroups.hierarchy", "/hadoop-yarn").strip("/")
    return _mount(yarn) / ("devices" if version == 1 else "") / hierarchy


def _mount(yarn: Mapping[str, str]) -> Path:
    return Path(yarn.get(f"{_LINUX}cgroups.mount-path", "/sys/fs/cgroup"))


def local_dirs(site: Mapping[str, str], key: str = "yarn.nodemanager.local-dirs") -> list[str]:
    """The NodeManager's folders, or another key's paths, with the variables that the properties know, as in Hadoop."""
    text = site.get(key, "")
    for _ in range(20):
        text = _VARIABLE.sub(lambda m: site.get(m[1], m[0]), text)
    return [name.removeprefix("file:") for name in names(text)]


def evidence(site: Mapping[str, str]) -> Path:
    """The executor's record of who had which GPUs: beside the first of nm-local-dirs, if no key says otherwise."""
    beside = Path((*local_dirs(site), "/tmp/hadoop-yarn/nm-local-dir")[0]).with_name("isonomy-evidence.jsonl")
    return Path((*local_dirs(site, "isonomy.nm.evidence-file"), str(beside))[0])


def isolation(machine: Machine, yarn: Mapping[str, str]) -> Iterator[Finding]:
    """Whether containers with Isonomy's executor can open the GPUs of others."""
    hole = _not_isolated(machine, yarn)
    if hole and yarn.get(EXECUTOR) in OUR_EXECUTORS:
        yield error(HOST, "", f"GPUs are not isolated on this host: {hole}")
    elif hole:
        yield note(HOST, "", f"with Isonomy's executor GPUs will not be isolated on this host: {hole}")


def _not_isolated(machine: Machine, site: Mapping[str, str]) -> str:
    """Why a container can open the GPUs of others; empty if it cannot."""
    if not site.get(EXECUTOR, "").endswith("LinuxContainerExecutor"):
        return "containers run as the NodeManager's user (no LinuxContainerExecutor)"
    version = 2 if machine.at(_mount(site) / "cgroup.controllers").exists() else 1
    folder = machine.at(cgroup(site, version))
    if not os.access(folder, os.W_OK):
        return f"the cgroup {folder} is missing or not writable for this user"
    if site.get(CONFINES) != OUR_HANDLER:
        return f"{CONFINES} is not {OUR_HANDLER}"
    check = ("sudo", "-n", DENIES, "--check")
    return f"`{' '.join(check)}` fails: it is not installed, or this user or kernel may not" * (
        machine.says(*check) is None
    )
