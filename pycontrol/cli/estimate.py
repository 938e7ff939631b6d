"""`isonomy estimate`: when would an app start that is submitted now? `isonomy snapshot`: the state, as a file."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pycontrol.arbiter.ledger.lease import load_lease
from pycontrol.cli.client import Failure, Misused, Rm, output_option, rm_address
from pycontrol.cli.screens import estimate, why_not
from pycontrol.cli.simulate import _cells
from pycontrol.cli.tables import emit, lines
from pycontrol.simulation.forecaster import ASSUMED, ERROR
from pycontrol.simulation.outlook import NEW, NoOutlook, gang_of, machines_of, outlooks, queues_of, with_app

STATE_FILE = "state.json"
NAMES = ("user", "queue", "name", "app_id")
"""What --anonymise replaces, consistently."""


@click.command("estimate")
@click.option("--gpus", type=click.IntRange(1), required=True, help="GPUs at once.")
@click.option("--hours", type=click.FloatRange(0, min_open=True), required=True, help="Hours on all of them.")
@click.option("--queue", required=True, help="The leaf queue, as root.research.")
@click.option("--gang", type=click.IntRange(1), help="GPUs of a gang [default: a machine's, at most --gpus].")
@click.option(
    "--cells",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The cells file, where the cluster has virtual clusters.",
)
@click.option("--runs", type=click.IntRange(3, 200), default=12, show_default=True, help="Simulated futures.")
@click.option("--why", is_flag=True, help="Also which GPUs it would get now, on what terms; else what would help.")
@output_option
def estimate_command(
    gpus: int, hours: float, queue: str, gang: int | None, cells: Path | None, runs: int, why: bool, output: str
) -> None:
    """Predict when an app of this size would start and end if submitted now; nothing is submitted.

    The scheduler itself is run forward from its present state, on this machine, several times: with declared work
    that is wrong by up to 20 %, and with apps that come as in the last day.

    \b
    isonomy estimate --gpus 16 --hours 4 --queue root.research
    """
    server = Rm(rm_address())
    p = server.get("picture")
    queues = {q.path: q for q in queues_of(p) if q.leaf}
    if queues and queue not in queues:
        raise Misused(f"--queue {queue}: is not a leaf queue; the leaf queues are {', '.join(sorted(queues))}")
    if queue in queues and queues[queue].stopped:
        raise Misused(f"--queue {queue}: is stopped; YARN takes no app there")
    if queue in queues and queues[queue].unmanaged:
        raise Misused(f"--queue {queue}: CapacityScheduler serves it; an estimate needs a queue that Isonomy serves")
    total = sum(m[2] for m in p["machines"])
    if gpus > total:
        raise Misused(f"--gpus {gpus}: the cluster has {total}")
    if gang and gpus % gang:
        raise Misused(f"--gang {gang}: does not divide --gpus {gpus}")
    if cells is None and p["cells"]:
        raise Misused("this cluster has virtual clusters: give their file with --cells")
    topology = machines_of(p)
    supply = None if cells is None else _cells(cells, topology, {p["policy"]: {}})
    try:
        with Console(stderr=True).status(f"{runs} futures"):
            asked = with_app(p, gpus, hours, queue, server.user, gang or 0)
            found = outlooks(asked, runs=runs, error=ERROR, only=f"{NEW}asked", cells=supply)[f"{NEW}asked"]
    except NoOutlook as e:
        raise Failure(str(e)) from e
    data: dict[str, Any] = {"now_s": p["now_s"], "start_s": found.start_s, "end_s": found.end_s, "assumed": ASSUMED}
    if why:
        gang_gpus = gang_of(p, gpus, gang or 0)
        data["why_not"] = server.get("why-not", queue=queue, gpus=gpus, gang=gang_gpus)
    emit(
        data,
        output,
        lambda d: lines(
            f"{estimate(d['start_s'], None, 0, d['now_s'])}; {estimate(None, d['end_s'], 1, d['now_s'])}",
            f"if {ASSUMED}",
            why_not(d["why_not"]) if why else None,
        ),
    )


@click.command("snapshot")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE.zip")
@click.option("--anonymise", is_flag=True, help="Without names of users, queues, apps and hosts.")
@output_option
def snapshot_command(out: Path, anonymise: bool, output: str) -> None:
    """Keep the scheduler's state in a file, for a bug report or for `isonomy whatif FILE`.

    It has apps with their users and queues, demands, leases and machines; no configurations, no logs, no tokens.
    """
    server = Rm(rm_address())
    state = server.get("picture")
    files = {STATE_FILE: anonymous(state) if anonymise else state}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, json.dumps(content))
    except OSError as e:
        raise Failure(f"--out {out}: cannot be written: {e.strerror}") from e
    emit({"written": str(out), "apps": len(state["apps"])}, output, lambda d: f"written: {d['written']}")


def anonymous(state: Mapping[str, Any]) -> dict[str, Any]:
    """The same with names replaced, each by the same everywhere it stands, as key, value or part of a text."""
    names: dict[str, str] = {}

    def collect(of: Any, key: str = "") -> None:
        if isinstance(of, Mapping):
            for k, v in of.items():
                collect(v, str(k))
        elif isinstance(of, list | tuple):
            for v in of:
                collect(v, key)
        elif isinstance(of, str) and of and key in NAMES:
            names.setdefault(of, f"{key.removesuffix('_id')}{len(names) + 1}")

    collect(state)
    for i, (host, rack, *_) in enumerate(state["machines"]):
        names.setdefault(host, f"host{i + 1}")
        names.setdefault(rack, f"rack-of-{i + 1}")
    for queue in state["queues"]:
        names.setdefault(queue["path"], f"queue{len(names) + 1}")
        for label in filter(None, queue["partitions"]):
            names.setdefault(label, f"label{len(names) + 1}")
    for lease in state["durable"]["leases"]:
        for gpu in load_lease(lease).gpus:
            names.setdefault(gpu.host, f"host{len(names) + 1}")
    whole = re.compile("|".join(re.escape(n) for n in sorted(names, key=len, reverse=True)) or r"(?!)")

    def replaced(of: Any) -> Any:
        if isinstance(of, Mapping):
            return {whole.sub(lambda m: names[m[0]], str(k)) if k in names else k: replaced(v) for k, v in of.items()}
        if isinstance(of, list | tuple):
            return [replaced(v) for v in of]
        return names.get(of, whole.sub(lambda m: names[m[0]], of)) if isinstance(of, str) and of else of

    found: dict[str, Any] = replaced(state)
    for app in found["durable"]["apps"]:
        app.update(best=None, model_path="", message="")
    return found
