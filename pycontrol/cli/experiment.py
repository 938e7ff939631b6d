"""`isonomy experiment`: what the papers claim, measured here."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table as Grid

from pycontrol.experiments import catalogue
from pycontrol.experiments.kit import Setup
from pycontrol.experiments.report import Entry, as_json, plain, text, write, write_pages

STYLE = {True: "green", False: "red", None: "dim"}


@click.command("experiment")
@click.argument("name", nargs=-1, required=True)
@click.option("--quick", is_flag=True, help="Fewer seeds and smaller workloads: all in about ten minutes.")
@click.option("--seeds", type=click.IntRange(1), help="At most so many seeds.")
@click.option("--processes", type=click.IntRange(1), help="At once; default: the cores there are.")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of public traces.")
@click.option("--report", type=click.Path(file_okay=False, path_type=Path), help="Writes JSON, figures, one page here.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def experiment_command(
    name: tuple[str, ...],
    quick: bool,
    seeds: int | None,
    processes: int | None,
    data: Path | None,
    report: Path | None,
    output: str,
) -> None:
    """Runs experiments by NAME: `list` names them, `all` runs all, a prefix such as `themis-` runs a paper's.

    Exit status 0 also where a claim does not hold: that is a finding, not a failure.
    """
    console, log = Console(), Console(stderr=True)
    if name == ("list",):
        _list(console, output)
        return
    try:
        chosen = [n for word in name for n in _chosen(word)]
    except catalogue.UnknownExperiment as e:
        raise click.UsageError(str(e)) from e
    entries: list[Entry] = []
    for k, one in enumerate(dict.fromkeys(chosen), 1):
        with log.status(f"{one} ({k} of {len(chosen)})") as status:
            setup = Setup(
                quick, seeds, **({"processes": processes} if processes else {}), data=data,
                note=lambda said, one=one: status.update(f"{one}: {said}"),  # type: ignore[misc]
            )  # fmt: skip
            begin_s = time.monotonic()
            findings = catalogue.load(one)(setup)
        entries.append(Entry(one, catalogue.title(one), findings, time.monotonic() - begin_s, quick))
        if output == "table":
            _show(console, entries[-1])
        if report is not None:
            missing = write(entries[-1], report)
            write_pages(entries, report)
            if missing:
                log.print(f"not drawn, for want of matplotlib (pip install 'isonomy[plots]'): {', '.join(missing)}")
    if output == "json":
        click.echo(as_json(entries[0]) if len(entries) == 1 else json.dumps([plain(e) for e in entries], indent=1))
    elif report is not None:
        log.print(f"{report / 'index.html'}")
    sys.exit(0)


def _chosen(word: str) -> list[str]:
    if word == "all":
        return list(catalogue.names())
    if word.endswith("-") and any(n.startswith(word) for n in catalogue.names()):
        return [n for n in catalogue.names() if n.startswith(word)]
    catalogue.load(word)
    return [word]


def _list(console: Console, output: str) -> None:
    found = {n: catalogue.title(n) for n in catalogue.names()}
    if output == "json":
        click.echo(json.dumps(found, indent=1))
        return
    grid = Grid("experiment", "what it is about")
    for name, about in found.items():
        grid.add_row(name, about)
    console.print(grid)


def _show(console: Console, entry: Entry) -> None:
    console.rule(f"[bold]{entry.name}[/]: {entry.title}")
    for table in entry.findings.tables:
        grid = Grid(*table.columns, title=table.title, title_justify="left")
        for row in table.rows:
            grid.add_row(*(text(v) for v in row))
        console.print(grid)
    for c in entry.findings.claims:
        said = f"[{STYLE[c.holds]}]{c.verdict}[/]: {c.claim} Paper: {c.paper}; ours: {c.ours}. {c.why}"
        console.print(said, highlight=False)
    if entry.findings.conventions:
        console.print(f"[dim]Assumed: {'; '.join(entry.findings.conventions)}.[/]", highlight=False)
    for note in entry.findings.notes:
        console.print(f"[dim]{note}[/]", highlight=False)
    seeds = f"{entry.findings.seeds} seeds, 95 % confidence intervals; " if entry.findings.seeds else ""
    console.print(f"[dim]{seeds}{entry.wall_s:.0f} s{' (quick)' if entry.quick else ''}[/]\n", highlight=False)
