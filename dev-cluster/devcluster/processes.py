"""Starts, finds and kills the cluster's processes; nothing that is not the cluster's is ever signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from devcluster import kerberos, prerequisites
from devcluster.devcluster_error import DevClusterError
from devcluster.folder import BUILD, DATANODE, KDC, NAMENODE, RESOURCEMANAGER, ZOOKEEPER, Cluster, Layout

MARK = "ISONOMY_DEV_CLUSTER_DAEMON"
"""Environment variable of every daemon, and of a demo's control plane: the cluster's directory."""
TERM_GRACE_S = 3.0
KILL_GRACE_S = 15.0
POLL_S = 0.05
_MAIN = {
    NAMENODE: "org.apache.hadoop.hdfs.server.namenode.NameNode",
    DATANODE: "org.apache.hadoop.hdfs.server.datanode.DataNode",
    RESOURCEMANAGER: "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
    KDC: kerberos.MAIN,
    ZOOKEEPER: "org.apache.zookeeper.server.ZooKeeperServerMain",
}
_HEAP_MB = {RESOURCEMANAGER: 384, ZOOKEEPER: 64, KDC: 64}
_HEAP_DEFAULT_MB = 256
ZOO_CFG = "zoo.cfg"
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")


def java_command(cluster: Cluster, role: str, java_home: Path) -> list[str]:
    """The command line of a role's JVM: a small one, its temporary files in the cluster's directory."""
    root, jars = cluster.layout.root, cluster.jars
    kind = role.split("-")[0]
    plugin = None if cluster.options.plain else prerequisites.plugin_jar(role)
    class_path = [str(cluster.layout.conf_of(role)), str(root / "web"), f"{jars}/lib/*"]
    class_path += [str(plugin)] if plugin else []
    if role == KDC:
        class_path = [f"{BUILD}/kdc/lib/*"]
    return [
        str(java_home / "bin" / "java"),
        f"-Xmx{_HEAP_MB.get(kind, _HEAP_DEFAULT_MB)}m",
        "-Xss512k",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        *prerequisites.opens(cluster.options.hadoop),
        "-Djava.net.preferIPv4Stack=true",
        f"-Djava.io.tmpdir={root}/tmp",
        f"-Dhadoop.log.dir={root}/log",
        f"-XX:ErrorFile={root}/log/{role}-hs_err.log",
        "-cp",
        ":".join(class_path),
        _MAIN[kind],
        *([str(root / ZOO_CFG)] if role == ZOOKEEPER else []),
        *(kerberos.arguments(cluster) if role == KDC else []),
    ]


def environment(cluster: Cluster, java_home: Path) -> dict[str, str]:
    """A daemon's environment; containers get JAVA_HOME, HADOOP_CONF_DIR and PATH of it."""
    layout = cluster.layout
    kept = {k: os.environ[k] for k in _INHERITED if k in os.environ}
    if cluster.options.secure:
        kept |= kerberos.environment(cluster)
    return {**kept, "JAVA_HOME": str(java_home), "HADOOP_CONF_DIR": str(layout.conf), MARK: str(layout.root)}


def start(cluster: Cluster, role: str, java_home: Path) -> subprocess.Popen[bytes]:
    """Starts a role in a session of its own and writes its pid file."""
    layout = cluster.layout
    if role == KDC:  # it makes new keys each time, and says in its log when it has done so
        layout.log(role).unlink(missing_ok=True)
        kerberos.forget(cluster)
    with layout.log(role).open("ab") as log:
        process = subprocess.Popen(
            java_command(cluster, role, java_home),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=layout.root,
            env=environment(cluster, java_home),
            start_new_session=True,
        )
    layout.pid_file(role).write_text(f"{process.pid} {start_ticks(process.pid)}\n")
    return process


def format_namenode(cluster: Cluster, java_home: Path) -> None:
    """Makes the NameNode's directory, the first time only."""
    layout = cluster.layout
    if (layout.data / NAMENODE / "current" / "VERSION").exists():
        return
    command = [*java_command(cluster, NAMENODE, java_home), "-format", "-nonInteractive", "-force"]
    with layout.log("namenode-format").open("ab") as log:
        code = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=layout.root,
            check=False,
            env=environment(cluster, java_home),
            timeout=60,
        ).returncode
    if code:
        raise DevClusterError(f"namenode: format failed (exit {code}):\n{tail(layout.log('namenode-format'))}")


def pid_of(layout: Layout, role: str) -> int | None:
    """The role's process id, if that very process still lives."""
    try:
        pid, ticks = (int(word) for word in layout.pid_file(role).read_text().split())
    except (OSError, ValueError):
        return None
    return pid if ticks and start_ticks(pid) == ticks else None


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def kill(layout: Layout, role: str) -> int | None:
    """kill -9 of a role's JVM, and of that alone; the pid, or None if it did not run."""
    pid = pid_of(layout, role)
    if pid is None:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + KILL_GRACE_S
    while pid_of(layout, role) == pid:
        if time.monotonic() > deadline:
            raise DevClusterError(f"{role}: process {pid} does not die")
        time.sleep(POLL_S)
    layout.pid_file(role).unlink(missing_ok=True)
    return pid


def stop_all(layout: Layout) -> int:
    """Ends all daemons (politely first) and then their containers; how many processes there were."""
    daemons = find_daemons(layout)
    _signal(daemons, signal.SIGTERM)
    _wait_daemons_gone(layout, TERM_GRACE_S)
    ended = set(daemons)
    deadline = time.monotonic() + KILL_GRACE_S
    while left := find_daemons(layout) | find_containers(layout):
        if time.monotonic() > deadline:
            raise DevClusterError(f"processes {sorted(left)} do not die; see /proc/PID/status")
        ended |= left
        _signal(left, signal.SIGKILL)
        time.sleep(POLL_S)
    for file in (layout.root / "run").glob("*.pid"):
        file.unlink()
    return len(ended)


def find_daemons(layout: Layout) -> set[int]:
    """All processes that were started with this cluster's mark."""
    return {p.pid for p in _own() if _environ(p).get(MARK) == str(layout.root)}


def find_containers(layout: Layout) -> set[int]:
    """All processes of this cluster's containers: by environment, by working directory, by session."""
    local = f"{layout.data}/nodemanager-"
    found, sessions = set(), {}
    for process in _own():
        with contextlib.suppress(ProcessLookupError):
            sessions[process.pid] = os.getsid(process.pid)
        folder = _cwd(process)
        works_there = folder.startswith(local) and "/local/usercache/" in folder
        if works_there or _environ(process).get("LOCAL_DIRS", "").startswith(local):
            found.add(process.pid)
    mine = {sessions[pid] for pid in found if pid in sessions} - {os.getsid(0), 0}
    return found | {pid for pid, session in sessions.items() if session in mine}


def _own() -> Iterator[psutil.Process]:
    """Processes of this user, without this one and its ancestors."""
    spared = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid not in spared and process.uids().effective == os.getuid():
                yield process


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def _cwd(process: psutil.Process) -> str:
    try:
        return process.cwd() + "/"
    except psutil.Error:
        return ""


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_daemons_gone(layout: Layout, grace_s: float) -> None:
    deadline = time.monotonic() + grace_s
    while find_daemons(layout) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def tail(log: Path, lines: int = 25) -> str:
    """The log's last lines."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"(no log {log})"
    return "\n".join(text.splitlines()[-lines:])
