"""`isonomy shadow`: what would have been different with Isonomy, while CapacityScheduler places GPUs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console, RenderableType

from pycontrol.cli import whatif
from pycontrol.cli.client import Failure, Rm, output_option, rm_address
from pycontrol.cli.recorded import median, of_yarn
from pycontrol.cli.simulate import _settings
from pycontrol.cli.tables import Data, count, emit, lines, span, table
from pycontrol.cli.usage import moment_s
from pycontrol.model.topology import Machine, Topology
from pycontrol.simulation.result import Result
from pycontrol.simulation.runs import SimulationRun, run_many

STOCK = "yarn_cs"


@click.command("shadow")
@click.option("--rm", metavar="URL", help="The ResourceManager's web address.")
@click.option("--since", default="7d", show_default=True, metavar="TIME", help="7d, 12h, or 2026-11-20T14:00.")
@click.option("--policy", metavar="NAME", help="Isonomy's policy  [default: the control plane's].")
@click.option("--set", "given", multiple=True, metavar="OPTION=VALUE", help="As of `isonomy simulate`; repeat.")
@output_option
def shadow_command(rm: str | None, since: str, policy: str | None, given: tuple[str, ...], output: str) -> None:
    """What Isonomy would have made of the applications with GPUs that ended here, in mode shadow.

    In that mode CapacityScheduler continues placing GPUs, and the control plane only watches. Here both schedulers get
    the same applications on the machines that the control plane sees; the replay of CapacityScheduler is held against
    what really happened, and that figure says how far to believe the rest.
    """
    server = Rm(rm_address(rm))
    status, picture = server.get("status"), server.get("picture")
    if not status["shadow"]:
        raise Failure("the mode is not shadow (isonomy.scheduler.mode): `isonomy whatif` compares policies that serve")
    since_s = moment_s(since, time.time(), "--since")
    path = f"apps?states=FINISHED,KILLED,FAILED&startedTimeBegin={int(1000 * since_s)}"
    apps = (server.yarn(path).get("apps") or {}).get("app") or []
    found = of_yarn(apps, since_s, f"applications of {server.base}")
    if not found.workload.apps:
        raise Failure(f"no application with GPUs has ended since {since}: come back when some have")
    topology = Topology.of(Machine(host, rack, gpus, kind) for host, rack, gpus, kind in picture["machines"])
    names = [STOCK, policy or status["policy"]]
    if names[1] == STOCK:
        raise Failure(f"--policy {STOCK}: is what CapacityScheduler does already; name another")
    options, settings = _settings(names, given, status["lease_s"])
    with Console(stderr=True).status(f"{count(len(found.workload.apps), 'app')} under {' and '.join(names)}"):
        results = run_many(
            [SimulationRun(found.workload, topology, name, options[name], settings, 1) for name in names]
        )
    by_name = dict(zip(names, results, strict=True))
    data = whatif.compared(by_name, found.actual)
    data |= {"assumed": found.assumed, "skipped": found.skipped, "completion": completions(by_name),
             "revocations": revocations(by_name[names[1]])}  # fmt: skip
    emit(data, output, _draw)


def completions(results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """Median seconds from submission to end, by queue."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, result in results.items():
        for app in result.apps:
            if app.finished_s is not None:
                found.setdefault(app.queue, {}).setdefault(name, []).append(app.completion_s)
    return [{"queue": queue, "median_s": {n: median(v) for n, v in by_policy.items()}}
            for queue, by_policy in sorted(found.items())]  # fmt: skip


def revocations(result: Result) -> list[dict[str, Any]]:
    """How often apps would have lost GPUs and gone on elsewhere, by queue and user, and what that costs.

    Nothing breaks in a replay: each restart is a lease that its app did not win again.
    """
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for app in result.apps:
        if app.restarts:
            row = groups.setdefault(
                (app.queue, app.user),
                {"queue": app.queue, "user": app.user, "apps": 0, "restarts": 0, "lost_gpu_h": 0.0,
                 "reason": "its leases ended, and others were served first"},
            )  # fmt: skip
            row["apps"] += 1
            row["restarts"] += app.restarts
            row["lost_gpu_h"] += app.lost_gpu_s / 3600.0
    return [groups[key] for key in sorted(groups)]


def _draw(d: Data) -> RenderableType:
    names: Sequence[str] = d["policies"]
    ends = [[r["queue"], *(span(r["median_s"].get(n)) for n in names)] for r in d["completion"]]
    lost = [[r["queue"], r["user"], r["apps"], r["restarts"], f"{r['lost_gpu_h']:.1f}", r["reason"]]
            for r in d["revocations"]]  # fmt: skip
    return lines(
        whatif._draw(d), "", table(["SUBMISSION TO END", *(f">{n}" for n in names)], ends), "",
        table(["REVOCATIONS", "USER", ">APPS", ">RESTARTS", ">LOST GPU-H", "WHY"], lost) if lost else "no revocations",
    )  # fmt: skip
