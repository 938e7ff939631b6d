"""`isonomy simulate`: policies beside each other on a workload and a cluster, in virtual time."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import click
from pydantic import NonNegativeFloat, TypeAdapter, ValidationError
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.arbiter.views.settings import Settings as ArbiterSettings
from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.cli import client
from pycontrol.cli.client import FOLDER, Misused, failing, file_option, output_option, pairs, queues_option
from pycontrol.cli.estimate import read_snapshot
from pycontrol.cli.tables import emit, lines, table
from pycontrol.config import Config, ConfigError, load_config
from pycontrol.config.accounts_section import accounts_of
from pycontrol.config.strict_yaml import read
from pycontrol.hadoopconf.queues import homes, read_queues
from pycontrol.lab import clusters, workloads
from pycontrol.lab.comparison import Comparison, write
from pycontrol.lab.paper_metrics import METRICS
from pycontrol.lab.runs import CellsOf, SimulationRun, run_many
from pycontrol.model.accounts import NO_ACCOUNTS, Accounts
from pycontrol.model.cluster import Queue
from pycontrol.model.topology import Topology
from pycontrol.policies import registry
from pycontrol.simulation.scene import own_policies
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import Workload
from pycontrol.words import count

NUMBERS = ("checkpoint_s", "restart_s", "start_s", "checkpoint_every_s", "error")
"""SimulationSettings of the simulated world that --set takes."""
ABLATIONS = ("seed", "recovery_s", "accounts", "lease_timing", "open_leases", "last_pass")
"""Settings of the Arbiter that have an option of their own, or are experiments'."""
ARBITERS = tuple(f.name for f in dataclasses.fields(ArbiterSettings) if f.name not in ABLATIONS)


@click.command("simulate")
@click.option(
    "--policy",
    "policies",
    default="isonomy",
    show_default=True,
    metavar="A,B,...",
    help="Policies; the first is the reference for the others.",
)
@click.option("--workload", required=True, metavar="NAME|FILE", help="A generator or a trace.")
@click.option(
    "--cluster",
    default="testbed-64",
    show_default=True,
    metavar="NAME|FILE",
    help=f"{', '.join(clusters.NAMED)}, N x G as 16x8 (16x8/4: 4 machines a rack), or a file: topology or snapshot.",
)
@file_option(
    "--cells",
    help="Virtual clusters (a cells file): an app's queue is its virtual cluster. --policy then holds in "
    "those that name none.",
)
@queues_option
@file_option("--accounts", help="An isonomy.yaml: its tree of accounts, by the apps' users and queues.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=4, show_default=True, help="Runs of each policy.")
@click.option(
    "--contention", type=client.ABOVE_0, default=1.0, show_default=True, help="As a multiple of the workload's own."
)
@click.option(
    "--contended-by",
    type=click.Choice(["arrivals", "machines"]),
    default="arrivals",
    show_default=True,
    help="Faster arrivals, or fewer machines (which changes locality too).",
)
@click.option(
    "--lease",
    "lease_s",
    type=client.ABOVE_0,
    default=ARBITER.lease_s,
    show_default=True,
    metavar="SECONDS",
    help="Length of a lease.",
)
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="[POLICY.]OPTION=VALUE",
    help="An option of the policies, of one of them, or of the simulation; repeat.",
)
@click.option("--validate", is_flag=True, help="Check the control plane's state after every event; slow.")
@click.option("--processes", type=click.IntRange(min=1), help="Runs at once  [default: all cores].")
@click.option("--out", type=FOLDER, metavar="DIR", help="Write CSV, JSON and plots here.")
@output_option
def simulate_command(
    policies: str, workload: str, cluster: str, cells: Path | None, queues: Path | None, accounts: Path | None,
    seeds: int, contention: float, contended_by: str, lease_s: float,
    given: tuple[str, ...], validate: bool, processes: int | None, out: Path | None, output: str,
) -> None:  # fmt: skip
    """Policies beside each other on one workload and one cluster, in virtual time.

    The simulator drives the control plane that the cluster runs. Each seed gives all policies the same apps;
    a mean stands with the half-width of its 95 % interval, and the ratio to the first policy is paired by seed.

    \b
    isonomy simulate --policy isonomy,themis --workload w1 --cluster testbed-64 --seeds 8
    isonomy simulate --policy themis --workload w2 --contention 4 --set f=0.9 --out results/
    """
    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise Misused(f"--policy {policies}: must be names of different policies, separated by commas")
    options, settings = _settings(names, given, lease_s)
    control = dataclasses.replace(settings.arbiter, validate=validate, accounts=_accounts(accounts))
    settings = dataclasses.replace(settings, arbiter=control)
    topology, known = _topology(cluster, contention if contended_by == "machines" else 1.0)
    supply = _cells(cells, topology, options) if cells else None
    arrivals = contention if contended_by == "arrivals" else 1.0
    loads = [_workload(workload, seed, arrivals) for seed in range(1, seeds + 1)]
    loads, limits = _homes(loads, topology, known, queues, cluster)
    jobs = [
        SimulationRun(load, topology, name, options[name], settings, seed, limits, supply)
        for seed, load in enumerate(loads, 1)
        for name in names
    ]
    if out:
        with failing(OSError, what="--out", instead=Misused):
            out.mkdir(parents=True, exist_ok=True)
    comparison = _run(jobs, names, processes)
    emit(comparison.document(), output, lambda data: _draw(data, names))
    if out:
        files = _write(comparison, out)
        if output == "table":
            click.echo(f"\nwritten: {', '.join(map(str, files))}")


def _topology(name: str, smaller: float) -> tuple[Topology, tuple[Queue, ...]]:
    """The cluster, and the queues that a snapshot of one has."""
    if name.endswith(".zip"):
        scene = read_snapshot(Path(name))
        return clusters.shrunk(scene.topology, smaller), scene.cluster.queues
    with failing(clusters.UnknownCluster, ConfigError, ValueError, what="--cluster", instead=Misused):
        return clusters.shrunk(clusters.cluster(name), smaller), ()


def _cells(file: Path, topology: Topology, options: Mapping[str, Mapping[str, Any]]) -> CellsOf:
    """The cells of a file on this cluster, checked with the policies that its virtual clusters name."""
    with failing(ConfigError, what=f"--cells {file}", instead=Misused):
        found = layout(read(file, CellsFile), topology, file.name)
        hosts = {host for chain in found.chains for host in chain.hosts}
        strange = sorted(hosts - topology.machines.keys())
        if strange:
            raise ConfigError([f"the cluster has no machine {strange[0]}"])
        for name, given in options.items():
            own_policies(CellSupply(found), name, given)
    return CellsOf(found)


def _accounts(file: Path | None) -> Accounts:
    with failing(ConfigError, what="--accounts", instead=Misused):
        return NO_ACCOUNTS if file is None else accounts_of(load_config(file).accounts)


def _homes(
    loads: Sequence[Workload], topology: Topology, queues: tuple[Queue, ...], file: Path | None, where: str
) -> tuple[list[Workload], tuple[Queue, ...]]:
    """The workloads with the paths of their queues, and these: those of a capacity-scheduler.xml, if there is one."""
    with failing(ConfigError, what="--cluster" if file is None else "--queues", instead=Misused):
        queues = queues if file is None else read_queues(file, topology.gpus_in)
        used = ((app.queue, app.partition) for load in loads for app in load.apps)
        path = homes(queues, used, str(file or where), topology.gpus_in)
    apps = (tuple(dataclasses.replace(a, queue=path[a.queue]) for a in load.apps) for load in loads)
    return [dataclasses.replace(load, apps=x) for load, x in zip(loads, apps, strict=True)], queues


def _workload(name: str, seed: int, faster: float, hint: str = "--workload") -> Workload:
    with failing(ValueError, OSError, what=hint, instead=Misused):
        return clusters.denser(workloads.load(name, seed), faster)


def _settings(
    names: Sequence[str], given: Sequence[str], lease_s: float
) -> tuple[dict[str, dict[str, Any]], SimulationSettings]:
    """Each policy's options, and the settings of the simulation, from --set."""
    with failing(registry.UnknownPolicy, what="--policy", instead=Misused):
        known = {name: registry.options(name) for name in names}
    options: dict[str, dict[str, Any]] = {name: {} for name in names}
    own: dict[str, Any] = {}
    arbiter: dict[str, Any] = {"lease_s": lease_s}
    for key, value in pairs(given):
        name, dot, option = key.rpartition(".")
        if dot and name not in names:
            raise Misused(f"--set {key}: {name} is not among the policies of this run")
        takers = [n for n in ([name] if dot else names) if option in known[n]]
        if takers:
            for taker in takers:
                options[taker][option] = value
        elif not dot and option in NUMBERS:
            own[option] = value
        elif not dot and option in ARBITERS:
            arbiter[option] = value
        else:
            all_known = sorted({o for n in names for o in known[n]} | {*NUMBERS, *ARBITERS})
            raise Misused(f"--set {key}: is not an option; known are {', '.join(all_known)}")
    with failing(registry.UnknownPolicy, what="--set", instead=Misused):
        for name in names:
            registry.make(name, **options[name])
    try:
        numbers: dict[str, Any] = TypeAdapter(dict[str, NonNegativeFloat]).validate_python(own)
        control = _arbiter(arbiter)
    except ValidationError as e:
        problem = "; ".join(f"{'.'.join(map(str, x['loc']))}: {x['msg']} (got {x['input']})" for x in e.errors())
        raise Misused(f"--set {problem}") from e
    if numbers.get("checkpoint_every_s") == 0:
        raise Misused("--set checkpoint_every_s: must be greater than 0")
    return options, dataclasses.replace(SimulationSettings(arbiter=control), **numbers)


def _arbiter(given: Mapping[str, Any]) -> ArbiterSettings:
    """The Arbiter's settings of a simulation, with these checked as isonomy.yaml's are."""
    checked: dict[str, Any] = {}
    for name, value in given.items():
        field = Config.model_fields.get(name)
        # the empty note: a field may have no constraint
        kind: Any = Annotated[field.annotation, "", *field.metadata] if field else get_type_hints(ArbiterSettings)[name]
        checked |= TypeAdapter(dict[str, kind]).validate_python({name: value})
    return dataclasses.replace(ARBITER, **checked)


def _run(jobs: Sequence[SimulationRun], names: Sequence[str], processes: int | None) -> Comparison:
    found: dict[str, list[Any]] = {name: [] for name in names}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("simulating", total=len(jobs))
        step: Callable[[SimulationRun], None] = lambda job: progress.advance(task)  # noqa: E731
        for job, result in zip(jobs, run_many(jobs, processes, step), strict=True):
            found[job.policy].append(result)
    return Comparison(found)


def _write(comparison: Comparison, out: Path) -> list[Path]:
    with failing(OSError, what=f"--out {out}: cannot be written", instead=Misused):
        files = write(comparison, out)
        try:
            files += importlib.import_module("pycontrol.lab.plots").plot(comparison, out)
        except ModuleNotFoundError as e:  # only the figures are lacking
            lacking = f"this needs the laboratory, and {e.name} is missing: pip install 'isonomy[lab]'"
            click.echo(f"no plots: {lacking}", err=True)
    return files


def _draw(data: Mapping[str, Any], names: Sequence[str]) -> RenderableType:
    found, first = data["metrics"], names[0]
    columns = ["METRIC", *(f">{name}" for name in names), *(f">{name} / {first}" for name in names[1:])]
    rows = [
        [m.label, *(_mean(found[n][m.name]) for n in names), *(_ratio(found[n][m.name]) for n in names[1:])]
        for m in METRICS
    ]
    head = (
        f"{data['workload']}: {count(data['apps'], 'app')} on {count(data['cluster_gpus'], 'GPU')}; "
        f"{count(len(data['seeds']), 'seed')}; "
        + ("mean +- half of the 95 % interval" if len(data["seeds"]) > 1 else "one seed has no interval")
    )
    excess = {n: x for n, x in data["largest_excess_s"].items() if x is not None}
    ends = [
        f"{name}: no app ended later than {max(0.0, x):.0f} s after its end on its private cluster"
        for name, x in excess.items()
    ]
    head = "\n".join([*_unfinished(found, names), *ends, head])
    return lines(head, "", table(columns, rows))


def _unfinished(found: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """What is said first: apps that did not end, of which the other figures know nothing."""
    left = {name: found[name]["unfinished"]["mean"] or 0.0 for name in names}
    return [
        f"{name}: {n:g} of the apps of a run did not finish, and the means leave them out: their gangs are larger than"
        " the cluster or their queue's limit, or the simulation ended first"
        for name, n in left.items()
        if n
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def _mean(cell: Mapping[str, Any]) -> str:
    if cell["high"] is None or cell["mean"] is None or cell["high"] == cell["low"]:
        return _number(cell["mean"])
    return f"{_number(cell['mean'])} +-{_number((cell['high'] - cell['low']) / 2)}"


def _ratio(cell: Mapping[str, Any]) -> str:
    ratio = cell["ratio"]
    if ratio["mean"] is None:
        return "-"
    if ratio["low"] is None or ratio["high"] is None:
        return f"{ratio['mean']:.3g}"
    return f"{ratio['mean']:.3g} [{ratio['low']:.3g}, {ratio['high']:.3g}]"
