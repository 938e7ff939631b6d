"""`isonomy workload`: what there is to simulate, and what it looks like."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from pycontrol.simulation.apps import Workload
from pycontrol.simulation.workloads import GENERATORS, load
from pycontrol.simulation.workloads.themis import marginals
from pycontrol.simulation.workloads.traces import FORMATS, write


@click.group("workload")
def workload_group() -> None:
    """Workloads for `isonomy simulate`: generators calibrated to the papers, and public traces."""


@workload_group.command("list")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def list_command(output: str) -> None:
    """The generators with their options, and the trace formats that can be read."""
    found = {
        name: {
            "about": (make.__doc__ or "").partition("\n")[0],
            "options": {p.name: p.default for p in inspect.signature(make).parameters.values() if p.name != "seed"},
        }
        for name, make in GENERATORS.items()
    }
    kinds = ["Philly JSON", *(kind for kind, _, _ in FORMATS if kind != "Pollux"), "Gavel"]
    if output == "json":
        click.echo(json.dumps({"generators": found, "formats": kinds}, indent=1))
        return
    table = Table("name", "what it is", "options and their defaults")
    for name, item in found.items():
        table.add_row(name, str(item["about"]), ", ".join(f"{k}={v}" for k, v in dict(item["options"]).items()))
    table.add_row("FILE", f"a trace, gzip or not: {', '.join(kinds)}", "limit, queues=a+b, faster=1, days")
    Console().print(table)


@workload_group.command("show")
@click.argument("name")
@click.option("--seed", default=0, show_default=True, help="Of a generator.")
@click.option("--set", "options", multiple=True, metavar="OPTION=VALUE", help="Of the generator or the trace.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Writes the workload as CSV.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def show_command(name: str, seed: int, options: tuple[str, ...], out: Path | None, output: str) -> None:
    """What the workload NAME (or a trace FILE) looks like: apps, jobs, durations, demand."""
    try:
        workload = load(name, seed=seed, **parse_options(options))
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    found: dict[str, Any] = {"source": workload.source, **marginals(workload), **_queues(workload)}
    if out is not None:
        write(workload, out)
    if output == "json":
        click.echo(json.dumps(found, indent=1))
        return
    table = Table("", workload.source)
    for key, value in found.items():
        if isinstance(value, dict):
            table.add_row(key, ", ".join(f"{k} {v}" for k, v in value.items()))
        elif key != "source":
            table.add_row(key.replace("_", " "), f"{value:,.4g}")
    Console().print(table)


def parse_options(options: tuple[str, ...]) -> dict[str, Any]:
    """OPTION=VALUE pairs, numbers as numbers."""
    found: dict[str, Any] = {}
    for pair in options:
        key, sign, text = pair.partition("=")
        if not sign:
            raise click.UsageError(f"--set {pair}: must be OPTION=VALUE")
        try:
            found[key] = json.loads(text)
        except json.JSONDecodeError:
            found[key] = text
    return found


def _queues(workload: Workload) -> dict[str, dict[str, int]]:
    counts: dict[str, int] = {}
    for app in workload.apps:
        counts[app.queue] = counts.get(app.queue, 0) + 1
    return {"apps_by_queue": dict(sorted(counts.items(), key=lambda item: -item[1])[:12])}
