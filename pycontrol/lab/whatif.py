"""`isonomy whatif`: what another policy would have done with the same apps, or would do from the present state on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pycontrol.cli.client import Misused, Rm, output_option, rm_address
from pycontrol.cli.compared import compared, draw
from pycontrol.cli.estimate import read_snapshot
from pycontrol.cli.recorded import Actual, beside
from pycontrol.cli.simulate import ARBITERS, _cells, _queues, _settings, _topology, _workload, queues_option
from pycontrol.cli.tables import clock, emit
from pycontrol.lab.workloads import history
from pycontrol.policies import registry
from pycontrol.simulation.outlook import Resumed, machines_of
from pycontrol.simulation.result import Result
from pycontrol.simulation.runs import SimulationRun, run_many
from pycontrol.simulation.workloads.reading import head
from pycontrol.words import count

OTHERS = ("isonomy", "yarn_cs")
"""Which policy the one in force is held against, where none is named: the first that is another one."""


def chosen(p: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The policies that are compared: as asked, else the one in force and another."""
    return list(names) or [p["policy"], next(x for x in OTHERS if x != p["policy"])]


def went_on(
    p: Mapping[str, Any], names: Sequence[str], given: Sequence[str], lease_s: float | None, cells: Any
) -> tuple[dict[str, Result], str]:
    """What each policy would make of the apps that are there, and what that assumes."""
    if not p["apps"]:
        raise Misused("no app with an Agent is running: there is nothing to continue")
    options, settings = _settings(names, given, p["settings"]["lease_s"] if lease_s is None else lease_s)
    control = dataclasses.asdict(settings.arbiter)
    own = [text.partition("=")[0] for text in given if text.partition("=")[0] in ARBITERS]
    changed = {**p, "settings": {**p["settings"], "lease_s": control["lease_s"], **{k: control[k] for k in own}}}
    if cells is None and p["cells"]:
        raise Misused("this cluster has virtual clusters: give their file with --cells")
    topology = machines_of(p)
    started = [x["app_id"] for x in p["apps"] if x["started"]]
    found = {}
    for name in names:
        try:
            supply = _cells(cells, topology, {name: options[name]})() if cells is not None else None
            world = Resumed(changed, 1, error=0.0, options=options[name], policy=name, supply=supply)
        except registry.UnknownPolicy as e:
            raise click.BadParameter(str(e), param_hint="--policy") from e
        found[name] = dataclasses.replace(world.result(started), policy=name)
    waiting = len(p["apps"]) - len(started)
    assumed = (
        f"no app arrives after {clock(p['now_s'])}; declared work is right; waits are those of the"
        f" {count(waiting, 'app')} that had not started"
    )
    return found, assumed


@click.command("whatif")
@click.argument("workload", required=False)
@click.option("--now", is_flag=True, help="Continue from the scheduler's present state instead of a WORKLOAD.")
@click.option(
    "--policy",
    "policies",
    metavar="A,B,...",
    help="Policies; the others are compared with the first, ideally the policy that was in force"
    "  [default: yarn_cs,isonomy; of a state the one in force and another].",
)
@click.option("--cluster", metavar="NAME|FILE", help="A topology file, or N x G as 16x8; a state has its own machines.")
@click.option(
    "--cells",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Virtual clusters (a cells file): an app's queue is its virtual cluster.",
)
@queues_option
@click.option("--set", "given", multiple=True, metavar="OPTION=VALUE", help="As of `isonomy simulate`; repeat.")
@click.option(
    "--lease-s", type=click.FloatRange(min=1), help="Length of a lease  [default: 600; for a state, its own]."
)
@output_option
def whatif_command(
    workload: str | None, now: bool, policies: str | None, cluster: str | None, cells: Path | None,
    queues: Path | None, given: tuple[str, ...], lease_s: float | None, output: str,
) -> None:  # fmt: skip
    """What other policies would have done with the apps of WORKLOAD, or would do from here on.

    WORKLOAD is a history of `isonomy workload record`, another workload, or a snapshot of `isonomy snapshot` (.zip).
    The first line says it in a sentence; then waits by queue, user and size, who gains and who loses, and how far the
    replay under the first policy gives what really happened: that figure decides whether to believe the rest.

    \b
    isonomy whatif mine.csv --policy yarn_cs,isonomy,themis --cluster conf/topology.yaml
    isonomy whatif --now --policy isonomy,themis
    isonomy whatif s.zip --set lease_s=300
    """
    names = [name.strip() for name in (policies or "").split(",") if name.strip()]
    if policies is not None and (len(names) < 2 or len(set(names)) < len(names)):
        raise Misused(f"--policy {policies}: give two policies or more; the others are compared with the first")
    if now == (workload is not None):
        raise Misused("give a WORKLOAD or a snapshot, or --now: one of them")
    if now or str(workload).endswith(".zip"):
        for option, text in (("--cluster", cluster), ("--queues", queues)):
            if text is not None:
                raise Misused(f"{option} {text}: a state has its own machines and queues; leave it out")
        state = Rm(rm_address()).get("picture") if now else read_snapshot(Path(str(workload)))
        names = chosen(state, names)
        with Console(stderr=True).status(f"{count(len(state['apps']), 'app')} under {', '.join(names)}"):
            results, assumed = went_on(state, names, given, lease_s, cells)
        actual, source = Actual(), "the present state" if now else str(workload)
    else:
        assert workload is not None
        names = names or ["yarn_cs", "isonomy"]
        results, source = _replayed(workload, names, cluster, cells, queues, given, lease_s)
        actual, assumed = actual_of(Path(workload))
    data = compared(results, actual)
    emit({**data, "assumed": assumed, "workload": source}, output, draw)


def actual_of(file: Path) -> tuple[Actual, str]:
    """What really happened to the apps of a workload, and what was assumed; nothing where that is not known."""
    if file.is_file() and history.fits(head(file)):
        found = history.read_files([file])
        return found.actual(), "; ".join(found.assumed)
    try:
        data = json.loads(beside(file).read_text(encoding="utf-8"))
        return {k: (v[0], v[1]) for k, v in data["actual"].items()}, str(data["assumed"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return {}, ""


def _replayed(
    workload: str, names: Sequence[str], cluster: str | None, cells: Path | None, queues: Path | None,
    given: Sequence[str], lease_s: float | None,
) -> tuple[dict[str, Result], str]:  # fmt: skip
    if cluster is None:
        raise Misused("--cluster is absent: a topology file, or N x G as 16x8")
    options, settings = _settings(names, given, 600.0 if lease_s is None else lease_s)
    load, topology = _workload(workload, 1, 1.0, "WORKLOAD"), _topology(cluster, 1.0)
    supply = _cells(cells, topology, options) if cells is not None else None
    limits = _queues(queues, topology, load)
    jobs = [SimulationRun(load, topology, name, options[name], settings, 1, limits, supply) for name in names]
    with Console(stderr=True).status(f"{count(len(load.apps), 'app')} under {', '.join(names)}"):
        return dict(zip(names, run_many(jobs), strict=True)), load.source
