"""The verbs that look at a running control plane, and those that change it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import requests
from rich.console import Group
from rich.live import Live

from pycontrol.arbiter.journal import read_facts
from pycontrol.cli import tables
from pycontrol.cli.client import Client, fail, rm_web
from pycontrol.web import audit as auditing
from pycontrol.web import report as reporting

WATCH_S = 1.0
OUTPUT = click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", help="Table or JSON.")
RM = click.option("--rm", metavar="URL", help="ResourceManager's web address (default: yarn-site.xml).")


def emit(data: dict[str, Any], output: str, lines: Callable[[dict[str, Any]], list[Any]]) -> None:
    """Prints JSON, or what people read."""
    if output == "json":
        click.echo(json.dumps(data, indent=2))
        return
    console = tables.console()
    for line in lines(data):
        console.print(line, markup=False) if isinstance(line, str) else console.print(line)


def _getter(name: str, text: str, lines: Callable[[dict[str, Any]], list[Any]]) -> click.Command:
    @click.command(name, help=text)
    @RM
    @OUTPUT
    def command(rm: str | None, output: str) -> None:
        emit(Client(rm_web(rm)).call("GET", name), output, lines)

    return command


status_command = _getter("status", "The cluster at a glance: GPUs, nodes, policy.", tables.status)
queue_command = _getter(
    "queue", "Apps that share the cluster, the worst rho first, and why each waits.", tables.queue
)


@click.command("explain")
@click.argument("app")
@RM
@OUTPUT
def explain_command(app: str, rm: str | None, output: str) -> None:
    """Why APP (id, name or end of the id) got what it got: rho, bids, payments, reasons."""
    emit(Client(rm_web(rm)).call("GET", "explain", app=app), output, tables.explain)


@click.command("rounds")
@click.argument("n", type=click.IntRange(1, 200), default=10)
@RM
@OUTPUT
def rounds_command(n: int, rm: str | None, output: str) -> None:
    """Receipts of the last N rounds: offer, bids, winners, payments, leftovers."""
    emit(Client(rm_web(rm)).call("GET", "rounds", n=str(n)), output, tables.rounds)


def _done(data: dict[str, Any]) -> list[Any]:
    return [f"{data['done']} {data['target']}".strip() + ": done"]


def _poster(name: str, text: str, parameter: str = "") -> click.Command:
    def call(rm: str | None, output: str, **given: str) -> None:
        emit(Client(rm_web(rm)).call("POST", name, **given), output, _done)

    command = click.command(name, help=text)(RM(OUTPUT(call)))
    if parameter:
        command.params.insert(0, click.Argument([parameter]))
    return command


kill_command = _poster("kill", "End APP; its jobs are stopped first. Admins, and the app's own user.", "app")
drain_command = _poster("drain", "Take NODE out of use; its jobs move away by their deadline. Admins.", "node")
undrain_command = _poster("undrain", "Put NODE back into use. Admins.", "node")
pause_command = _poster("pause", "Hold no more rounds; leases stand still. Admins.")
resume_command = _poster("resume", "Go on after a pause. Admins.")


@click.command("logs")
@click.argument("app")
@click.option("--worker", metavar="CONTAINER", help="Only this container.")
@click.option("--tail", type=click.IntRange(1), default=4000, help="Last bytes of each log.")
@RM
def logs_command(app: str, worker: str | None, tail: int, rm: str | None) -> None:
    """Logs of APP's running GPU containers and of its AM, from the NodeManagers."""
    client = Client(rm_web(rm))
    found = client.call("GET", "logs", app=app)
    wanted = [c["container_id"] for c in found["containers"]]
    base = f"{client.base}/ws/v1/cluster/apps/{found['app_id']}/appattempts"
    http = requests.Session()
    shown = 0
    for attempt in _json(http, base).get("appAttempts", {}).get("appAttempt", []):
        log_url = str(attempt.get("logsLink", "")).rstrip("/")
        own, _, user = log_url.rpartition("/")
        node, _, am = own.rpartition("/")
        for container in [am, *wanted]:
            if worker and worker != container:
                continue
            for stream in ("stdout", "stderr"):
                url = f"{node}/{container}/{user}/{stream}/?start=-{tail}"
                click.echo(f"== {container} {stream} ({url})")
                shown += 1
                click.echo(_page_text(http, url))
    if not shown:
        fail(f"no container of {app} is known to the ResourceManager any more")


def _json(http: requests.Session, url: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = http.get(url, timeout=10).json()
    except (requests.RequestException, ValueError) as e:
        fail(f"{url}: {type(e).__name__}", 3)
    return data


def _page_text(http: requests.Session, url: str) -> str:
    """The log inside the NodeManager's page."""
    try:
        page = http.get(url, timeout=10).text
    except requests.RequestException as e:
        return f"({type(e).__name__})"
    start, end = page.find("<pre>"), page.rfind("</pre>")
    text = page[start + 5 : end] if 0 <= start < end else "(no log there)"
    for code, char in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&#39;", "'"), ("&amp;", "&")):
        text = text.replace(code, char)
    return text


@click.command("watch")
@click.option("--count", type=click.IntRange(1), help="Stop after so many pictures.")
@RM
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", help="Table, or JSON lines.")
def watch_command(count: int | None, rm: str | None, output: str) -> None:
    """The cluster, live; Ctrl-C ends it."""
    client, shown = Client(rm_web(rm)), 0

    def picture() -> dict[str, Any]:
        return {**client.call("GET", "status"), "queue": client.call("GET", "queue")["apps"]}

    def draw(d: dict[str, Any]) -> Group:
        return Group(*tables.status(d), *tables.queue({"apps": d["queue"]}))

    try:
        if output == "json" or not sys.stdout.isatty():
            while count is None or shown < count:
                d = picture()
                emit(d, "table", lambda d: [draw(d)]) if output == "table" else click.echo(json.dumps(d))
                shown += 1
                if count is None or shown < count:
                    time.sleep(WATCH_S)
            return
        with Live(draw(picture()), refresh_per_second=4) as live:
            while count is None or shown < count:
                time.sleep(WATCH_S)
                live.update(draw(picture()))
                shown += 1
    except KeyboardInterrupt:
        return


def _cluster(directory: Path) -> dict[str, Any]:
    file = directory / "cluster.json"
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as e:
        fail(f"{file}: {e}; give --journal and --evidence, or --cluster-dir", 2)
    return found


def sources(cluster_dir: Path, journal: Path | None, evidence: tuple[Path, ...]) -> tuple[Path, list[Path], int]:
    """The journal, the evidence files and R_C: as given, else those of a dev-cluster."""
    if journal is not None:
        return journal, list(evidence), 0
    cluster = _cluster(cluster_dir)
    files = [Path(r["data"]) / "isonomy-evidence.jsonl" for n, r in cluster["roles"].items() if "nodemanager" in n]
    return cluster_dir / "isonomy" / "journal.sqlite", [f for f in files if f.exists()], 0


@click.command("audit")
@click.option(
    "--cluster-dir", type=click.Path(path_type=Path), default=Path("build/dev-cluster"), show_default=True
)
@click.option("--journal", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Journal file.")
@click.option("--evidence", type=click.Path(path_type=Path, exists=True), multiple=True,
              help="A NodeManager's evidence file; repeatable.")  # fmt: skip
@OUTPUT
def audit_command(cluster_dir: Path, journal: Path | None, evidence: tuple[Path, ...], output: str) -> None:
    """Check the journal against what the NodeManagers recorded; exit 1 on any violation."""
    file, files, _ = sources(cluster_dir, journal, evidence)
    try:
        found = auditing.audit(read_facts(file), files)
    except (ValueError, OSError) as e:
        fail(str(e))
    emit(found, output, tables.audit)
    sys.exit(1 if found["violations"] or found["unchecked"] else 0)


@click.command("report")
@click.option(
    "--cluster-dir", type=click.Path(path_type=Path), default=Path("build/dev-cluster"), show_default=True
)
@click.option("--journal", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Journal file.")
@click.option("--evidence", type=click.Path(path_type=Path, exists=True), multiple=True, help="Evidence files.")
@click.option("--gpus", type=click.IntRange(1), required=True, help="GPUs of the cluster (R_C).")
@click.option("--out", type=click.Path(path_type=Path), help="Write the JSON here too.")
@OUTPUT
def report_command(
    cluster_dir: Path, journal: Path | None, evidence: tuple[Path, ...], gpus: int, out: Path | None, output: str
) -> None:
    """What a run came to: rho of every app, rounds, times, audit."""
    file, files, _ = sources(cluster_dir, journal, evidence)
    found = auditing.audit(read_facts(file), files)
    data = reporting.of_journal(file, gpus, found)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(data, indent=2) + "\n")
    emit(data, output, tables.report)


COMMANDS: tuple[click.Command, ...] = (
    status_command, queue_command, explain_command, rounds_command, logs_command, watch_command, kill_command,
    drain_command, undrain_command, pause_command, resume_command, audit_command, report_command,
)  # fmt: skip
