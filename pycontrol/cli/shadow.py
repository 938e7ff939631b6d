"""`isonomy shadow`: what would have been different with Isonomy, while CapacityScheduler places GPUs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console, RenderableType

from pycontrol.cli.client import Failure, Rm, moment_s, output_option, rm_address
from pycontrol.cli.compared import compared, draw
from pycontrol.cli.estimate import scene_at
from pycontrol.cli.recorded import median, of_yarn
from pycontrol.cli.simulate import _settings
from pycontrol.cli.tables import Data, clock, emit, lines, span, table
from pycontrol.simulation.result import Result
from pycontrol.simulation.runs import SimulationRun, run_many
from pycontrol.words import count

STOCK = "yarn_cs"
NEWEST = 10


@click.command("shadow")
@click.option("--since", default="7d", show_default=True, metavar="TIME", help="7d, 12h, or 2026-11-20T14:00.")
@click.option("--policy", metavar="NAME", help="Isonomy's policy  [default: the control plane's].")
@click.option("--set", "given", multiple=True, metavar="OPTION=VALUE", help="As of `isonomy simulate`; repeat.")
@output_option
def shadow_command(since: str, policy: str | None, given: tuple[str, ...], output: str) -> None:
    """What Isonomy would have made of the applications with GPUs here, in mode shadow.

    In that mode CapacityScheduler continues placing GPUs, and the control plane only watches. First come the rounds
    that it held as if: each time that CapacityScheduler gave out GPUs, who would have got them. Then both schedulers
    replay the applications that ended since --since on the same machines; the replay of CapacityScheduler is held
    against what really happened, and that figure says how far to believe the rest.
    """
    server = Rm(rm_address())
    status, live = server.get("status"), server.get("shadow")
    if not status["shadow"]:
        raise Failure("the mode is not shadow (isonomy mode): `isonomy whatif` compares policies that serve")
    names = [STOCK, policy or status["policy"]]
    if names[1] == STOCK:
        raise Failure(f"--policy {STOCK}: is what CapacityScheduler does already; name another")
    since_s = moment_s(since, time.time(), "--since")
    path = f"apps?states=FINISHED,KILLED,FAILED&startedTimeBegin={int(1000 * since_s)}"
    apps = (server.yarn(path).get("apps") or {}).get("app") or []
    found = of_yarn(apps, since_s, f"applications of {server.base}")
    if not found.workload.apps:
        if not live["decisions"]:
            raise Failure(f"no GPUs have been given out yet, and no application with GPUs has ended since {since}")
        emit({"live": live, "replayed": 0}, output, _draw)
        return
    topology = scene_at(server).topology
    options, settings = _settings(names, given, status["lease_s"])
    with Console(stderr=True).status(f"{count(len(found.workload.apps), 'app')} under {' and '.join(names)}"):
        results = run_many(
            [SimulationRun(found.workload, topology, name, options[name], settings, 1) for name in names]
        )
    by_name = dict(zip(names, results, strict=True))
    data = compared(by_name, found.actual)
    data |= {"live": live, "replayed": len(found.workload.apps), "assumed": found.assumed, "skipped": found.skipped,
             "completion": completions(by_name), "revocations": revocations(by_name[names[1]])}  # fmt: skip
    emit(data, output, _draw)


def completions(results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """Median seconds from submission to end, by queue."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, result in results.items():
        for app in result.apps:
            if app.finished_s is not None:
                found.setdefault(app.queue, {}).setdefault(name, []).append(app.completion_s)
    return [
        {"queue": queue, "median_s": {n: median(v) for n, v in by_policy.items()}}
        for queue, by_policy in sorted(found.items())
    ]


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


def _live(d: Data) -> RenderableType:
    """The rounds as if."""
    if not d["decisions"]:
        return "AS IF: no GPUs were given out since the control plane began to watch"
    users = [[r["queue"], r["user"], r["given"], r["would_give"], r["would_take"]] for r in d["by_user"]]
    newest = [[clock(x["at_s"]), _gpus(x["given"]), _gpus(x["would_give"]), _why(x)] for x in d["newest"][:NEWEST]]
    return lines(
        f"AS IF, since {clock(d['since_s'])}: one of both had GPUs to give {count(d['decisions'], 'time')},"
        f" {d['gpus']} GPUs were given; on {d['same_gpus']} of them Isonomy would have done the same",
        table(["QUEUE", "USER", ">GIVEN", ">ISONOMY", ">TAKEN BACK"], users),
        "",
        table(["AT", "GIVEN", "ISONOMY WOULD", "WHY NOT THE SAME"], newest),
    )


def _gpus(of: Mapping[str, int]) -> str:
    return ", ".join(f"{app_id.removeprefix('application_')}: {n}" for app_id, n in sorted(of.items())) or "nobody"


def _why(found: Data) -> str:
    """What Isonomy would have told those who would have got fewer."""
    return "; ".join(f"{app_id.removeprefix('application_')}: {why}" for app_id, why in sorted(found["why"].items()))


def _draw(d: Data) -> RenderableType:
    if not d["replayed"]:
        return lines(_live(d["live"]), "", "no application with GPUs has ended yet: there is nothing to replay")
    names: Sequence[str] = d["policies"]
    ends = [[r["queue"], *(span(r["median_s"].get(n)) for n in names)] for r in d["completion"]]
    lost = [
        [r["queue"], r["user"], r["apps"], r["restarts"], f"{r['lost_gpu_h']:.1f}", r["reason"]]
        for r in d["revocations"]
    ]
    return lines(
        _live(d["live"]),
        "",
        f"REPLAY of {count(d['replayed'], 'app')} that ended",
        draw(d),
        "",
        table(["SUBMISSION TO END", *(f">{n}" for n in names)], ends),
        "",
        table(["REVOCATIONS", "USER", ">APPS", ">RESTARTS", ">LOST GPU-H", "WHY"], lost) if lost else "no revocations",
    )
