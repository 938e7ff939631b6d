"""`isonomy logs`: the logs of an app's AM and workers, from a dev-cluster's files or from the NodeManagers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from pycontrol.cli.client import Failure, Rm, cluster_dir_option, dev_cluster, output_option, rm_address
from pycontrol.cli.tables import emit_json
from pycontrol.model.cluster import STANDIN

AM_CONTAINER = re.compile(r"container_(?:e\d+_)?\d+_\d+_\d+_000001")
STREAMS = ("stderr", "stdout")
HTTP_OK, HTTP_ERROR = 200, 500
LINE_CHARS = 200
FAILED, FOLLOWS = "isonomy worker: failed with", "isonomy worker: goes on as"
FIRST_LINES, POLL_S, IDLE_PER_READ = 10, 2.0, 10.0
"""Of --follow: lines of each file to begin with, and the least pause, also as a multiple of the time of reading."""
OVER = ("FINISHED", "FAILED", "KILLED")
"""YARN's states of applications that have ended."""
UNREADABLE = (
    "(the NodeManager cannot read it: a secure one needs Hadoop's native library, libhadoop.so; its own log has more)"
)
CONTENTS, END = "LogContents:\n", "End of LogType:"
"""What a NodeManager puts before and after a log."""


@dataclass
class Source:
    """A container whose logs are wanted."""

    container_id: str
    role: str
    worker_id: str = ""
    job_id: str = ""
    node_web: str = ""
    """host:port of its NodeManager's web app."""
    url: str = ""
    folder: Path | None = None
    files: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether its supervisor's last word is that it failed."""
        return any(text.rpartition("\n")[2].startswith(FAILED) for text in self.files.values())

    @property
    def title(self) -> str:
        """What it is, and its container."""
        what = "" if self.worker_id.startswith(STANDIN) else self.worker_id or self.job_id
        return f"{self.role} {what} {self.container_id}" if what else f"{self.role} {self.container_id}"


@click.command("logs")
@click.argument("app")
@click.option("--am", is_flag=True, help="The application master's instead.")
@click.option("--worker", metavar="ID", help="Only this worker's: a container id, or a worker or job of explain.")
@click.option(
    "--file", "names", multiple=True, metavar="NAME", help="Which files [default: all ...stderr and ...stdout]; repeat."
)
@click.option("--tail", type=click.IntRange(1), metavar="LINES", help="Only the last lines of each.")
@click.option("-f", "--follow", is_flag=True, help="Print what is logged from now on, until the app ends.")
@cluster_dir_option
@output_option
def logs_command(
    app: str, am: bool, worker: str | None, names: tuple[str, ...], tail: int | None, follow: bool,
    cluster_dir: Path, output: str,
) -> None:  # fmt: skip
    """Logs of APP's workers: those that failed first, then the newest; also of those that have ended.

    \b
    isonomy logs my-sweep --tail 50
    isonomy logs my-sweep -f
    isonomy logs my-sweep --am
    isonomy logs my-sweep --worker job003 --file stdout

    They come from the NodeManagers (on a dev-cluster from its files). Where a NodeManager has them no more, the
    address to try is printed; `yarn logs` reads aggregated ones.
    """
    if am and worker:
        raise click.UsageError("--am and --worker exclude each other")
    client = Rm(rm_address())
    found = client.get("logs", app=app)

    def sources_now() -> list[Source]:
        known = _sources(client, client.get("logs", app=found["app_id"]), cluster_dir)
        mine = [s for s in known if (s.role == "am") == am]
        if not worker or am:
            return mine
        went_on = re.compile(rf"^{FOLLOWS} {re.escape(worker)}(?:/|$)", re.MULTILINE)

        def ran(s: Source) -> bool:
            there = (text for _, text in _read(client, s, (), None)) if not worker.startswith("container_") else ()
            return worker in (s.container_id, s.worker_id, s.job_id) or any(map(went_on.search, there))

        return list(filter(ran, mine))

    if follow:
        _follow(client, found["app_id"], sources_now, names, tail or FIRST_LINES)
        return
    sources = sources_now()
    if not sources:
        more = "" if am or worker else f"; its application master's: isonomy logs {app} --am"
        raise Failure(
            f"{found['name']}: no such container is known{more}; or try: yarn logs -applicationId {found['app_id']}"
        )
    for source in sources:
        source.files = dict(_read(client, source, names, tail))
    sources.sort(key=lambda s: not s.failed)
    if output == "json":
        emit_json([_plain(s) for s in sources])
    else:
        for source in sources:
            _print(source, found["app_id"])
    if not any(s.files or s.folder for s in sources):
        raise Failure(f"{found['name']}: no log could be read; try: yarn logs -applicationId {found['app_id']}")


def newest_line(client: Rm, app_id: str) -> str:
    """The newest line that a worker of the app logged, a bar as it stands; empty where none can be read."""
    try:
        sources = _sources(client, client.get("logs", app=app_id), dev_cluster())
        texts = (text for s in sources if s.role == "worker" for _, text in _read(client, s, (), 1))
        return next((text.rstrip().rpartition("\r")[2][-LINE_CHARS:] for text in texts if text.strip()), "")
    except Failure:
        return ""


def _follow(client: Rm, app_id: str, sources: Callable[[], list[Source]], names: tuple[str, ...], tail: int) -> None:
    """Print whole lines as they are logged, of every container, until the app has ended."""
    printed: dict[tuple[str, str], int] = {}
    shown, over = ("", ""), False
    while not over:
        over = client.yarn(f"apps/{app_id}")["app"]["state"] in OVER
        began_s = time.monotonic()
        for source in reversed(sources()):
            for name, text in _read(client, source, names, None):
                lines, key = text.split("\n"), (source.container_id, name)
                whole = len(lines) if over else len(lines) - 1
                begin = printed.setdefault(key, max(0, whole - tail))
                if whole > begin:
                    if shown != key:
                        click.echo(f"==> {source.title} {name}")
                    click.echo("\n".join(lines[begin:whole]))
                    printed[key], shown = whole, key
        if not over:
            time.sleep(max(POLL_S, IDLE_PER_READ * (time.monotonic() - began_s)))


# ---- which containers


def _sources(client: Rm, found: dict[str, Any], cluster_dir: Path) -> list[Source]:
    """The AM's containers, then the workers', the newest first: all that are remembered, and on a dev-cluster all that
    left logs."""
    sources = {s.container_id: s for s in _masters(client, found)}
    nodes = (client.yarn("nodes").get("nodes") or {}).get("node") or ()
    webs = {n["id"]: n.get("nodeHTTPAddress", "") for n in nodes}
    for c in found["containers"]:
        web = webs.get(c["node_id"], "")
        url = f"http://{web}/node/containerlogs/{c['container_id']}/{found['user']}" if web else ""
        sources[c["container_id"]] = Source(c["container_id"], "worker", c["worker_id"], c["job_id"], web, url)
    for folder in _local_folders(client, found["app_id"], cluster_dir):
        role = "am" if AM_CONTAINER.fullmatch(folder.name) else "worker"
        sources.setdefault(folder.name, Source(folder.name, role)).folder = folder
    newest = sorted(sources.values(), key=lambda s: _age(s.container_id), reverse=True)
    return sorted(newest, key=lambda s: s.role != "am")


def _age(container_id: str) -> tuple[int, ...]:
    """A key that grows with the attempt and the number of a container."""
    return tuple(int(part) for part in container_id.split("_")[-2:] if part.isdecimal())


def _masters(client: Rm, found: dict[str, Any]) -> Iterator[Source]:
    """The AM's container of each attempt, as the ResourceManager tells."""
    answer = client.yarn(f"apps/{found['app_id']}/appattempts").get("appAttempts") or {}
    for attempt in answer.get("appAttempt") or ():
        container_id = attempt.get("containerId", "")
        if container_id:
            yield Source(
                container_id, "am", node_web=attempt.get("nodeHttpAddress", ""), url=attempt.get("logsLink", "")
            )


def _local_folders(client: Rm, app_id: str, cluster_dir: Path) -> list[Path]:
    """The containers' log folders of a dev-cluster, if it is this ResourceManager's."""
    try:
        cluster = json.loads((cluster_dir / "cluster.json").read_text(encoding="utf-8"))
        if client.base not in str(cluster["rm_web"]).split(","):
            return []
        logs = [Path(role["data"]) / "log" / app_id for role in cluster["roles"].values() if "data" in role]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return sorted(f for log in logs for f in log.glob("container_*") if f.is_dir())


# ---- their logs


def _read(client: Rm, source: Source, names: tuple[str, ...], tail: int | None) -> Iterator[tuple[str, str]]:
    """The files asked for, or those of the standard streams that are not empty."""
    for name in names or sorted(n for n in _names(client, source) if n.endswith(STREAMS) and "prelaunch" not in n):
        text = None
        if source.folder is not None and (source.folder / name).is_file():
            text = (source.folder / name).read_text(encoding="utf-8", errors="replace")
        elif source.node_web:
            status, page = client.page(f"{_logs_url(source)}/{name}")
            text = UNREADABLE if status == HTTP_ERROR else _contents(page if status == HTTP_OK else None)
        if text is not None and (text.strip() or names):
            lines = text.rstrip("\n").split("\n")
            yield name, "\n".join(lines[-tail:] if tail else lines)


def _logs_url(source: Source) -> str:
    return f"http://{source.node_web}/ws/v1/node/containers/{source.container_id}/logs"


def _names(client: Rm, source: Source) -> Iterable[str]:
    """The names of a container's log files."""
    if source.folder is not None:
        return [f.name for f in source.folder.iterdir() if f.is_file()]
    status, listing = client.page(_logs_url(source), "application/json") if source.node_web else (0, "")
    return set(re.findall(r'"fileName"\s*:\s*"([^"/]+)"', listing)) if status == HTTP_OK else ()


def _contents(page: str | None) -> str | None:
    """A log without the NodeManager's head and tail."""
    if page is None or CONTENTS not in page:
        return page
    text = page.partition(CONTENTS)[2]
    return text.rpartition(END)[0].removesuffix("\n") if END in text else text


def _plain(s: Source) -> dict[str, Any]:
    names = {name: getattr(s, name) for name in ("container_id", "role", "worker_id", "job_id", "url")}
    return {**names, "folder": str(s.folder) if s.folder else None, "files": s.files}


def _print(source: Source, app_id: str) -> None:
    title = source.title
    if not source.files:
        where = source.url or f"yarn logs -applicationId {app_id} -containerId {source.container_id}"
        click.echo(f"==> {title}: nothing logged" if source.folder else f"==> {title}: nothing here; see {where}")
    for name, text in source.files.items():
        click.echo(f"==> {title} {name}")
        click.echo(text)
