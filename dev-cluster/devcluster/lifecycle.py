"""Up, down and the start of single roles."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

from devcluster import REPO, configure, free_ports, gpus, kerberos, prerequisites, processes, readiness
from devcluster.devcluster_error import DevClusterError
from devcluster.folder import KDC, NAMENODE, RESOURCEMANAGER, STANDBY_HOST, ZOOKEEPER, Cluster, Layout, Options, load

Say = Callable[[str], None]


class Interrupted(Exception):
    """SIGINT or SIGTERM came."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Signals raise Interrupted, once: what cleans up afterwards is not disturbed."""

    def raise_once(number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    with _handlers(raise_once):
        yield


@contextmanager
def _handlers(handler: Callable[[int, Any], None] | signal.Handlers) -> Iterator[None]:
    before = [(n, signal.signal(n, handler)) for n in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, former in before:
            signal.signal(number, former)


def up(layout: Layout, options: Options | None, topology: Path | None, say: Say) -> Cluster:
    """Brings up what does not run. `options` None: as the cluster runs, or the defaults."""
    begin = time.monotonic()
    for path in (REPO, layout.root):
        if any(map(str.isspace, str(path))):
            raise DevClusterError(f"Hadoop takes no path with a blank: {path}")
    with interruptible(), layout.lock():
        asked = options or Options()
        prerequisites.daemons_java(asked.hadoop, asked.java)
        _fetch_jars(asked, say)
        running = bool(processes.find_daemons(layout))
        cluster = _existing(layout, options, topology) if running else _fresh(layout, options, topology)
        java_home = prerequisites.daemons_java(cluster.options.hadoop, cluster.options.java)
        if not cluster.options.plain:
            for role in (RESOURCEMANAGER, cluster.nodemanagers[0]):
                prerequisites.plugin_jar(role)
        missing = [r for r in cluster.roles if processes.pid_of(layout, r) is None]
        try:
            _start(cluster, missing, cluster.roles, java_home, say)
            readiness.make_directories(cluster)
            if not (running or cluster.options.plain or cluster.options.off):
                readiness.switch_on(cluster)
        except BaseException:
            if running:
                for role in missing:
                    processes.kill(layout, role)
            else:
                down(layout, say)
            raise
    say(f"the cluster is up ({time.monotonic() - begin:.1f} s): export HADOOP_CONF_DIR={layout.conf}")
    return cluster


def _fetch_jars(options: Options, say: Say) -> None:
    """Hadoop's, and for Kerberos the KDC's, unless they are here."""
    prerequisites.hadoop_jars(options.hadoop, say)
    if options.secure:
        prerequisites.kdc_jars(say)


def start_role(layout: Layout, name: str, say: Say) -> None:
    """Starts one role of a cluster that exists."""
    with layout.lock():
        cluster = existing(layout)
        java_home = prerequisites.daemons_java(cluster.options.hadoop, cluster.options.java)
        role = cluster.role(name)
        if processes.pid_of(layout, role) is not None:
            raise DevClusterError(f"{role} runs already; kill it first with dev-cluster/kill {role}")
        _fetch_jars(cluster.options, say)  # another checkout may have brought the cluster up
        _start(cluster, [role], [role], java_home, say)


def existing(layout: Layout) -> Cluster:
    """The cluster in this directory; an error if there is none."""
    cluster = load(layout)
    if cluster is None:
        raise DevClusterError(f"no cluster in {layout.root}; start one with dev-cluster/up")
    return cluster


def _existing(layout: Layout, options: Options | None, topology: Path | None) -> Cluster:
    cluster = existing(layout)
    if (options and options != cluster.options) or topology:
        raise DevClusterError(f"the cluster in {layout.root} runs with other options; dev-cluster/down first")
    return cluster


def _fresh(layout: Layout, options: Options | None, topology: Path | None) -> Cluster:
    """A cluster on free ports; those of the last time if they are free still."""
    before = load(layout)
    options = options or Options()
    spec = gpus.topology(topology, options.gpus)
    hosts = [m.host for m in spec.machines]
    for host in [*hosts, STANDBY_HOST] if options.standby else hosts:
        free_ports.check_host(host)
    chosen = before.ports if before and not free_ports.taken(before.ports, hosts) else free_ports.choose(hosts)
    cluster = Cluster(layout, options, chosen, spec)
    _forget_applications(layout)
    configure.configure(cluster)
    save(cluster)
    return cluster


def _forget_applications(layout: Layout) -> None:
    """Their containers ended with `down`: a new start does not recover them. HDFS and logs are kept."""
    for role in (RESOURCEMANAGER, ZOOKEEPER):
        shutil.rmtree(layout.data / role, ignore_errors=True)
    for folder in layout.data.glob("nodemanager-*"):
        for part in ("local", "recovery"):
            shutil.rmtree(folder / part, ignore_errors=True)
    shutil.rmtree(layout.root / "conf-nodemanagers", ignore_errors=True)
    shutil.rmtree(layout.root / "tmp", ignore_errors=True)


def _start(cluster: Cluster, roles: list[str], await_roles: list[str], java_home: Path, say: Say) -> None:
    """Starts all `roles` at once (YARN beside the NameNode's format); waits until `await_roles` serve."""
    for role in roles:
        (cluster.layout.data / role).mkdir(parents=True, exist_ok=True)
    hdfs = [r for r in roles if r in (NAMENODE, "datanode")]
    started: dict[str, Popen[bytes]] = {}
    if roles:
        say(f"starting {', '.join(roles)}")
    for first in (KDC, ZOOKEEPER):  # daemons that do not find them end
        if first in roles:
            started[first] = processes.start(cluster, first, java_home)
            readiness.wait(cluster, [first], started, say)
    for role in [r for r in roles if r not in (*hdfs, *started)]:
        started[role] = processes.start(cluster, role, java_home)
    if NAMENODE in hdfs:
        processes.format_namenode(cluster, java_home)
    for role in hdfs:
        started[role] = processes.start(cluster, role, java_home)
    readiness.wait(cluster, await_roles, started, say)
    save(cluster)


def save(cluster: Cluster) -> None:
    """cluster.json with the present process ids."""
    pids = {r: processes.pid_of(cluster.layout, r) for r in cluster.roles}
    env = kerberos.clients_environment(cluster) if cluster.options.secure else {}
    cluster.save(pids, str(prerequisites.java_home()), env)


def down(layout: Layout, say: Say) -> None:
    """Ends every process of the cluster, containers included; no signal interrupts it."""
    begin = time.monotonic()
    with _handlers(signal.SIG_IGN):
        ended = processes.stop_all(layout)
    say(f"{ended} processes ended ({time.monotonic() - begin:.1f} s)" if ended else "nothing runs")
