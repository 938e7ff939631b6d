"""The commands: up, down, status, kill, start, logs, hadoop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
import requests

from devcluster import kerberos, lifecycle, prerequisites, processes, readiness
from devcluster.devcluster_error import DevClusterError
from devcluster.folder import BUILD, HADOOP, Layout, Options
from pycontrol.config import ConfigError

CLASSES = {
    "fs": "org.apache.hadoop.fs.FsShell",
    "dfsadmin": "org.apache.hadoop.hdfs.tools.DFSAdmin",
    "application": "org.apache.hadoop.yarn.client.cli.ApplicationCLI",
    "node": "org.apache.hadoop.yarn.client.cli.NodeCLI",
    "nodeattributes": "org.apache.hadoop.yarn.client.cli.NodeAttributesCLI",
    "rmadmin": "org.apache.hadoop.yarn.client.cli.RMAdminCLI",
    "distributedshell": "org.apache.hadoop.yarn.applications.distributedshell.Client",
}


def say(line: str) -> None:
    """Progress, on stderr."""
    click.echo(line, err=True)


def command(function: Callable[..., None]) -> click.Command:
    """A command with --dir whose expected errors are one line (and a log's tail)."""

    @wraps(function)
    def guarded(folder: Path, **options: Any) -> None:
        try:
            function(Layout(folder.resolve()), **options)
        except (DevClusterError, ConfigError) as error:
            click.echo(f"dev-cluster: {error}", err=True)
            sys.exit(1)
        except lifecycle.Interrupted as error:
            click.echo(f"dev-cluster: stopped by {error}", err=True)
            sys.exit(130)

    option = click.option(
        "--dir",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        default=BUILD / "dev-cluster",
        help="Folder of all its state.",
    )
    return click.command(help=function.__doc__)(option(guarded))


@click.option("--topology", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Machines, YAML.")
@click.option("--gpus", type=click.Choice(["virtual", "real"]), default="virtual", help="Kind of GPUs.")
@click.option("--plain", is_flag=True, help="Stock CapacityScheduler and executor, without our plugin.")
@click.option("--off", is_flag=True, help="Our plugin, behaving as plain CapacityScheduler.")
@click.option("--standby", is_flag=True, help="A second ResourceManager that takes over, and a ZooKeeper.")
@click.option("--secure", is_flag=True, help="Kerberos: a KDC, and tickets for you, alice and bob.")
@click.option("--hadoop", default=HADOOP, show_default=True, help="Version, from Maven: 3.3.6, 3.4.2.")
@click.option("--java", default="", help="JAVA_HOME of daemons and containers (11 suffices below 3.5); else yours.")
@click.option("--set", "settings", multiple=True, metavar="K=V", help="A value of confs/defaults.yaml.")
@click.option("--fresh", is_flag=True, help="Discard all earlier state, HDFS included.")
@click.option("--foreground", is_flag=True, help="Stay until Ctrl-C, then take it down.")
def up(
    layout: Layout,
    topology: Path | None,
    gpus: str,
    plain: bool,
    off: bool,
    standby: bool,
    secure: bool,
    hadoop: str,
    java: str,
    settings: tuple[str, ...],
    fresh: bool,
    foreground: bool,
) -> None:
    """Bring up what does not run yet: NameNode, DataNode, ResourceManager, one NodeManager a machine."""
    asked = Options(plain, off, gpus, standby, secure, hadoop, java, settings)
    if fresh:
        _purge(layout)
    lifecycle.up(layout, None if asked == Options() else asked, topology, say)
    if foreground:
        _stay(layout)


def _stay(layout: Layout) -> None:
    say("Ctrl-C takes it down")
    try:
        with lifecycle.interruptible():
            signal.pause()
    finally:
        lifecycle.down(layout, say)


@click.option("--purge", is_flag=True, help="Remove its directory too: HDFS, logs, configuration.")
def down(layout: Layout, purge: bool) -> None:
    """End every process of the cluster, containers included. HDFS and logs are kept, applications are not."""
    if purge:
        _purge(layout)
    elif layout.root.exists():
        with layout.lock():
            lifecycle.down(layout, say)
    else:  # its processes may run still
        lifecycle.down(layout, say)


def _purge(layout: Layout) -> None:
    if not layout.root.exists():
        return
    if any(layout.root.iterdir()) and not (layout.description.exists() or (layout.root / "lock").exists()):
        raise DevClusterError(f"{layout.root} is not a dev cluster's directory; not removed")
    with layout.lock():
        lifecycle.down(layout, say)
        shutil.rmtree(layout.root)


@click.option("-o", "output", type=click.Choice(["text", "json"]), default="text")
def status(layout: Layout, output: str) -> None:
    """Say which roles run and serve. Exit 0 if all do, else 1."""
    cluster = lifecycle.existing(layout)
    rows = [
        {
            "role": r,
            "host": cluster.hosts[r],
            "pid": processes.pid_of(layout, r),
            "ready": readiness.is_ready(cluster, r),
            "web": cluster.web(r),
        }
        for r in cluster.roles
    ]
    containers = len(processes.find_containers(layout))
    try:
        gpus = sum(m.gpus for m in cluster.spec.machines)
        registered = len([n for n in readiness.nodes(cluster) if n["state"] == "RUNNING"])
    except (requests.RequestException, ValueError):
        registered = 0
    if output == "json":
        click.echo(
            json.dumps(
                {
                    "dir": str(layout.root),
                    "roles": rows,
                    "gpus": gpus,
                    "nodes": registered,
                    "container_processes": containers,
                },
                indent=2,
            )
        )
    else:
        for row in rows:
            state = "ready" if row["ready"] else "starting" if row["pid"] else "down"
            click.echo(f"{row['role']:16} {state:9} {row['pid'] or '-':>8}  {row['web']}")
        click.echo(f"{registered} nodes registered, {gpus} GPUs, {containers} processes in containers")
    sys.exit(0 if all(row["ready"] for row in rows) else 1)


@click.argument("role")
def kill(layout: Layout, role: str) -> None:
    """kill -9 a role: namenode, datanode, resourcemanager (rm), nodemanager-0 (nm-0) ... Containers stay."""
    cluster = lifecycle.existing(layout)
    role = cluster.role(role)
    pid = processes.kill(layout, role)
    if pid is None:
        raise DevClusterError(f"{role} does not run")
    lifecycle.save(cluster)
    say(f"{role} ({pid}) killed; dev-cluster/start {role} starts it again")


@click.argument("role")
def start(layout: Layout, role: str) -> None:
    """Start one role that was killed, with the same ports and state."""
    lifecycle.start_role(layout, role, say)


@click.option("-f", "--follow", is_flag=True, help="Go on as it grows.")
@click.option("-n", "lines", default=50, show_default=True, help="How many of the last lines.")
@click.argument("role")
def logs(layout: Layout, role: str, lines: int, follow: bool) -> None:
    """Show the end of a role's log."""
    cluster = lifecycle.existing(layout)
    log = layout.log(cluster.role(role))
    if not log.exists():
        raise DevClusterError(f"{log}: there is none yet")
    click.echo(processes.tail(log, lines))
    if follow:
        with log.open(encoding="utf-8", errors="replace") as file, lifecycle.interruptible():
            file.seek(0, os.SEEK_END)
            while True:
                if line := file.readline():
                    click.echo(line, nl=False)
                else:
                    time.sleep(readiness.POLL_S)


@click.argument("tool")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def hadoop(layout: Layout, tool: str, arguments: tuple[str, ...]) -> None:
    """Run a Hadoop client: fs, dfsadmin, application, node, nodeattributes, rmadmin, distributedshell, or a class."""
    cluster = lifecycle.existing(layout)
    home = prerequisites.java_home()
    jars = cluster.jars
    class_path = f"{layout.conf}:{jars}/lib/*:{jars}/client-extra/*"
    if tool == "distributedshell":
        jar = next((jars / "client-extra").glob("hadoop-yarn-applications-distributedshell-*.jar"))
        arguments = ("-jar", str(jar), *arguments)
    java = str(home / "bin" / "java")
    environment = {**os.environ, "HADOOP_CONF_DIR": str(cluster.layout.conf), "JAVA_HOME": str(home)}
    if cluster.options.secure:
        environment |= {**kerberos.clients_environment(cluster), **os.environ}
    words = [java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path]
    os.execve(java, [*words, CLASSES.get(tool, tool), *arguments], environment)


COMMANDS = {f.__name__: command(f) for f in (up, down, status, kill, start, logs, hadoop)}
COMMANDS["hadoop"].context_settings.update(ignore_unknown_options=True, allow_interspersed_args=False)
