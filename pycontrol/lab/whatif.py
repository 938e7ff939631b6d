"""`isonomy whatif`: what another policy would have done with the same apps, or would do from the present state on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType

from pycontrol.cli.client import Misused, Rm, file_option, output_option, queues_option, rm_address
from pycontrol.cli.estimate import read_snapshot, scene_at
from pycontrol.cli.tables import Data, clock, emit, lines, table
from pycontrol.configerror import ConfigError
from pycontrol.hadoopconf.queues import homes
from pycontrol.lab.compared import compared, draw
from pycontrol.lab.policies.as_yarn import AsYarn
from pycontrol.lab.recorded import Actual, Recorded, beside, median, recorded_of_yarn
from pycontrol.lab.runs import CellsOf, SimulationRun, run_many
from pycontrol.lab.simulate import ARBITERS, _cells, _homes, _settings, _topology, _workload
from pycontrol.lab.workloads import CATALOGUE, yarn_history
from pycontrol.lab.workloads.front import split
from pycontrol.lab.workloads.trace_table import head
from pycontrol.model.cluster import Queue
from pycontrol.model.topology import Topology
from pycontrol.policies.policy_port import Policy
from pycontrol.simulation.outlook import Resumed
from pycontrol.simulation.result import Result
from pycontrol.simulation.scene import Scene
from pycontrol.simulation.simulation_settings import SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload
from pycontrol.words import count, span

OTHERS = ("isonomy", "yarn_cs")
"""Which policy the one in force is held against, where none is named: the first that is another one."""


def chosen(scene: Scene, names: Sequence[str]) -> list[str]:
    """The policies that are compared: as asked, else the one in force and another."""
    return list(names) or [scene.policy, next(x for x in OTHERS if x != scene.policy)]


def went_on(
    scene: Scene, names: Sequence[str], given: Sequence[str], cells: Path | None
) -> tuple[dict[str, Result], str]:
    """What each policy would make of the apps that are there, and what that assumes."""
    if not scene.started:
        raise Misused("no app with an Agent is running: there is nothing to continue")
    options, settings = _settings(names, given, scene.settings.lease_s)
    own = [text.partition("=")[0] for text in given if text.partition("=")[0] in ARBITERS]
    control = {k: getattr(settings.arbiter, k) for k in ("lease_s", *own)}
    changed = dataclasses.replace(scene, round_s=scene.now_s, settings=dataclasses.replace(scene.settings, **control))
    if cells is not None:
        changed = dataclasses.replace(changed, layout=_cells(cells, scene.topology, options).layout)
    started = [app_id for app_id, has in scene.started.items() if has]
    found = {}
    for name in names:
        world = Resumed(dataclasses.replace(changed, policy=name, options=options[name]), 1, error=0.0)
        found[name] = dataclasses.replace(world.result(started), policy=name)
    assumed = (
        f"no app arrives after {clock(scene.now_s)}; declared work is right; waits are those of the"
        f" {count(len(scene.started) - len(started), 'app')} that had not started"
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
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    help="A topology file, N x G as 16x8, or a snapshot, which has queues and node labels; a state has its own.",
)
@file_option("--cells", help="Virtual clusters (a cells file): an app's queue is its virtual cluster.")
@queues_option
@click.option("--set", "given", multiple=True, metavar="OPTION=VALUE", help="As of `isonomy simulate`; repeat.")
@output_option
def whatif_command(
    workload: str | None,
    now: bool,
    policies: str | None,
    cluster: str | None,
    cells: Path | None,
    queues: Path | None,
    given: tuple[str, ...],
    output: str,
) -> None:
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
        state = scene_at(Rm(rm_address())) if now else read_snapshot(Path(str(workload)))
        names = chosen(state, names)
        with Console(stderr=True).status(f"{count(len(state.started), 'app')} under {', '.join(names)}"):
            results, assumed = went_on(state, names, given, cells)
        actual, source = Actual(), "the present state" if now else str(workload)
    else:
        assert workload is not None
        names = names or ["yarn_cs", "isonomy"]
        results, source = _replayed(workload, names, cluster, cells, queues, given)
        actual, assumed = actual_of(workload)
    data = compared(results, actual)
    emit({**data, "assumed": assumed, "workload": source}, output, draw)


def actual_of(workload: str) -> tuple[Actual, str]:
    """What really happened to the apps of a workload, and what was assumed; nothing if unknown or not comparable."""
    name, given = split(workload)
    if "faster" in given:
        return {}, ""
    kind, _, rest = name.partition(":")
    file = Path(rest if kind in CATALOGUE.formats else name)
    if file.is_file() and yarn_history.fits(head(file)):
        found = yarn_history.read_files([file])
        actual, assumed = found.actual(), "; ".join(found.assumed)
    else:
        try:
            data = json.loads(beside(file).read_text(encoding="utf-8"))
            actual, assumed = {k: (v[0], v[1]) for k, v in data["actual"].items()}, str(data["assumed"])
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return {}, ""
    if given:  # a part, whose first app comes at 0
        first, whole = CATALOGUE.load(workload).apps[0], CATALOGUE.load(name, bad_rows="skip")
        at_s = next(a.submitted_s for a in whole.apps if a.app_id == first.app_id)
        actual = {k: (b if b is None else b - at_s, e if e is None else e - at_s) for k, (b, e) in actual.items()}
    return actual, assumed


def _replayed(
    workload: str,
    names: Sequence[str],
    cluster: str | None,
    cells: Path | None,
    queues: Path | None,
    given: Sequence[str],
) -> tuple[dict[str, Result], str]:
    if cluster is None:
        raise Misused("--cluster is absent: a topology file, or N x G as 16x8")
    options, settings = _settings(names, given, 600.0)
    topology, known = _topology(cluster, 1.0)
    supply = _cells(cells, topology, options) if cells is not None else None
    (load,), limits = _homes([_workload(workload, 1, 1.0, "WORKLOAD")], topology, known, queues, cluster)
    jobs = [run_of(load, topology, name, options[name], settings, limits, supply) for name in names]
    with Console(stderr=True).status(f"{count(len(load.apps), 'app')} under {', '.join(names)}"):
        return dict(zip(names, run_many(jobs), strict=True)), load.source


def run_of(
    load: Workload,
    topology: Topology,
    name: str,
    options: Mapping[str, Any],
    settings: SimulationSettings,
    queues: tuple[Queue, ...],
    supply: CellsOf | None = None,
) -> SimulationRun:
    """One replay. CapacityScheduler is played as it works, if each app is one gang, as recorded ones are."""
    gangs = [len(jobs) for app in load.apps for jobs in app.phases]
    if name != AsYarn.name or supply is not None or len(gangs) > len(load.apps) or max(gangs, default=0) > 1:
        return SimulationRun(load, topology, name, options, settings, 1, queues, supply)
    alone = dataclasses.replace(settings, arbiter=dataclasses.replace(settings.arbiter, last_pass=False))
    return SimulationRun(load, topology, name, options, alone, 1, queues, make=partial(as_yarn, load))


def as_yarn(load: Workload, name: str, **options: Any) -> Policy:
    """CapacityScheduler, for the apps of this workload."""
    return AsYarn(**options, apps={a.app_id: a for a in load.apps})


def replay_of_yarn(
    server: Rm, names: Sequence[str], given: Sequence[str], since: str, lease_s: float
) -> dict[str, Any] | None:
    """The applications that ended since a time, replayed under both schedulers on the cluster's machines; None: none.

    The first of `names` is the scheduler in force, whose replay is held against what happened.
    """
    found = recorded_of_yarn(server, since)
    if not found.workload.apps:
        return None
    scene = scene_at(server)
    topology, queues, load = scene.topology, scene.cluster.queues, at_home(found, scene)
    options, settings = _settings(names, given, lease_s)
    with Console(stderr=True).status(f"{count(len(load.apps), 'app')} under {' and '.join(names)}"):
        results = run_many([run_of(load, topology, name, options[name], settings, queues) for name in names])
    by_name = dict(zip(names, results, strict=True))
    return compared(by_name, found.actual) | {
        "replayed": len(load.apps),
        "assumed": found.assumed,
        "skipped": sum(found.skipped.reasons.values()),
        "completion": completions(by_name),
        "revocations": revocations(by_name[names[1]]),
    }


def at_home(found: Recorded, scene: Scene) -> Workload:
    """The apps with the paths of their queues, without those whose queue or node label is gone: these are skipped."""
    gpus, apps = scene.topology.gpus_in, list[TraceApp]()
    for app in found.workload.apps:
        try:
            path = homes(scene.cluster.queues, [(app.queue, app.partition)], "", gpus)
        except ConfigError:
            found.skipped.drop("of a queue or node label that is gone", 1)
        else:
            apps.append(dataclasses.replace(app, queue=path[app.queue]))
    return dataclasses.replace(found.workload, apps=tuple(apps))


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
                {
                    "queue": app.queue,
                    "user": app.user,
                    "apps": 0,
                    "restarts": 0,
                    "lost_gpu_h": 0.0,
                    "reason": "its leases ended, and others were served first",
                },
            )
            row["apps"] += 1
            row["restarts"] += app.restarts
            row["lost_gpu_h"] += app.lost_gpu_s / 3600.0
    return [groups[key] for key in sorted(groups)]


def draw_replay(d: Data) -> RenderableType:
    """The replay of `replay_of_yarn`."""
    names: Sequence[str] = d["policies"]
    ends = [[r["queue"], *(span(r["median_s"].get(n)) for n in names)] for r in d["completion"]]
    lost = [
        [r["queue"], r["user"], r["apps"], r["restarts"], f"{r['lost_gpu_h']:.1f}", r["reason"]]
        for r in d["revocations"]
    ]
    return lines(
        f"REPLAY of {count(d['replayed'], 'app')} that ended",
        draw(d),
        "",
        table(["SUBMISSION TO END", *(f">{n}" for n in names)], ends),
        "",
        table(["REVOCATIONS", "USER", ">APPS", ">RESTARTS", ">LOST GPU-H", "WHY"], lost) if lost else "no revocations",
    )
