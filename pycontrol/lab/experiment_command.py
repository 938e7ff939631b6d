"""`isonomy experiment`: what the papers claim, measured here."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.status import Status
from rich.text import Text

from pycontrol.cli.client import Misused, failing
from pycontrol.cli.tables import emit, lines, out, table
from pycontrol.lab import catalogue, claims, provenance
from pycontrol.lab.findings_report import Entry, as_json, plain, read, text, write, write_pages
from pycontrol.lab.fingerprint import fingerprint
from pycontrol.lab.kit import UNTRIED, Setup, Table

LINE_EVERY_S = 60.0
STYLE = {True: "green", False: "red", None: "dim"}


@click.command("experiment")
@click.argument("name", nargs=-1, required=True)
@click.option("--quick", is_flag=True, help="Fewer seeds and smaller workloads: all in about ten minutes.")
@click.option("--full", is_flag=True, help="HiveD's on all nodes, oef-fig9 with all tenants; one seed, hours.")
@click.option("--seeds", type=click.IntRange(1), help="Limit the number of seeds.")
@click.option("--processes", type=click.IntRange(1), help="At once; default: the number of cores.")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of public traces.")
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    help="Writes JSON and figures here, and one page of everything here.",
)
@click.option("--resume", is_flag=True, help="Skips what --report has already, run with the same options.")
@click.option("--keep", is_flag=True, help="Keeps the claims in --results, for the page of all claims.")
@click.option("--refresh", is_flag=True, help="With `claims`: looks at what is stale, and runs again what it has to.")
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/results"),
    show_default=True,
    help="Folder of the kept results; the page is beside it.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def experiment_command(
    name: tuple[str, ...],
    quick: bool,
    full: bool,
    seeds: int | None,
    processes: int | None,
    data: Path | None,
    report: Path | None,
    resume: bool,
    keep: bool,
    refresh: bool,
    results: Path,
    output: str,
) -> None:
    """Runs experiments by NAME: `list` names them, `all` runs all, a prefix such as `themis-` runs a paper's.

    `claims` runs nothing: it makes claims.md again from the results that were kept, and marks those that are older than
    their code. With --refresh it first runs each of these in small: where the code decides and finds the same as
    before, the result stands; the others are run again, the quickest first, those at full size only with --full. Each
    is kept at once, so that a second command goes on where the first was stopped.

    Exit status 0 also where a claim does not hold: that is a finding, not a failure.
    """
    log = Console(stderr=True)
    if name == ("list",):
        titles = {n: catalogue.title(n) for n in catalogue.names()}
        emit(titles, output, lambda data: table(("experiment", "what it is about"), data.items()))
        return
    if name == ("claims",):
        if refresh:
            _refresh(results, full, data, processes, log)
        _make_claims(results)
        return
    if refresh:
        raise click.UsageError("--refresh goes with `claims`")
    with failing(catalogue.UnknownExperiment, instead=Misused):
        chosen = [n for word in name for n in _chosen(word)]
    _check_options(quick, full, resume, report)
    entries, runs = list[Entry](), dict[Any, Any]()
    for k, one in enumerate(dict.fromkeys(chosen), 1):
        with log.status(f"{one} ({k} of {len(chosen)})") as status:
            note = partial(_note, one, status if log.is_terminal else Lines(log))
            more: dict[str, Any] = {"processes": processes} if processes else {}
            setup = Setup(quick, seeds, data=data, full=full, note=note, runs=runs, **more)
            earlier = _kept(one, setup, report) if resume and report is not None else None
            at, code = (provenance.commit_of(), provenance.code_hash(one)) if keep else ("", "")
            entries.append(earlier or _run(one, setup))
        if output == "table":
            out(_draw(entries[-1]))
        if earlier is not None:
            log.print(f"{one}: kept, of {earlier.day}")
            continue
        with failing(OSError):
            if report is not None:
                _put(entries[-1], report, log)
            if keep:
                found = claims.result_of(entries[-1], at, code, fingerprint(one, data))
                log.print(f"{claims.keep(found, results)}")
    if output == "json":
        click.echo(as_json(entries[0]) if len(entries) == 1 else json.dumps([plain(e) for e in entries], indent=1))
    elif report is not None:
        log.print(f"{report / 'index.html'}")


def _check_options(quick: bool, full: bool, resume: bool, report: Path | None) -> None:
    """Options that exclude, or need, one another, and a folder that cannot be made."""
    if report is not None and report.suffix in (".md", ".json"):
        raise click.BadParameter(
            f"{report}: is a folder for several files; name one without {report.suffix}", param_hint="--report"
        )
    if quick and full:
        raise click.UsageError("--quick and --full: give one of them")
    if resume and report is None:
        raise click.UsageError("--resume continues a report: give its folder with --report DIR")
    if report is not None:
        with failing(OSError, what="--report", instead=Misused):
            report.mkdir(parents=True, exist_ok=True)


def _read_results(results: Path) -> list[claims.ClaimResult]:
    with failing(claims.BadResults):
        return claims.read(results, catalogue.names())


def _refresh(results: Path, full: bool, data: Path | None, processes: int | None, log: Console) -> None:
    """Looks at each stale result in small, then runs again those that are decided otherwise now, the quickest first."""
    stale = [r for r in _read_results(results) if claims.is_stale(r)]
    again: list[tuple[claims.ClaimResult, str]] = []
    for k, r in enumerate(sorted(stale, key=lambda r: not r.fingerprint), 1):
        here = f"{r.name}{claims.FULL if r.size == 'full' else ''}"
        with log.status(f"{here} ({k} of {len(stale)}): in small"):
            now = fingerprint(r.name, data) if r.fingerprint else ""
        if now and now == r.fingerprint:
            claims.keep(replace(r, same=(*r.same, provenance.code_hash(r.name))), results)
            log.print(f"{here}: decides and finds the same in small")
        elif r.size == "full" and not full:
            log.print(f"{here}: left, as it is at full size (--full)")
        else:
            again.append((r, now))
    more: dict[str, Any] = {"data": data, "runs": {}, **({"processes": processes} if processes else {})}
    for k, (r, now) in enumerate(sorted(again, key=lambda x: x[0].wall_s or math.inf), 1):
        here, code = f"{r.name} ({k} of {len(again)})", provenance.code_hash(r.name)
        with log.status(f"{here}: at its size") as status:
            note = partial(_note, here, status if log.is_terminal else Lines(log))
            entry = _run(r.name, r.setup(note=note, **more))
            now = now or fingerprint(r.name, data)
        found = claims.result_of(entry, provenance.commit_of(), code, now)
        tried, before = (sum(c[3] != UNTRIED for c in x.claims) for x in (found, r))
        if tried < min(before, len(found.claims)):
            log.print(f"{here}: left, as fewer of its claims could be tried than before, perhaps for want of --data")
            continue
        claims.keep(found, results)
        log.print(f"{here}: run again in {entry.wall_s:.0f} s")


def _make_claims(results: Path) -> None:
    found = _read_results(results)
    path = results.parent / "claims.md"
    path.write_text(claims.page(found), encoding="utf-8")
    stale = [r.name for r in found if claims.is_stale(r)]
    out(f"{path}: {len(found)} results, {len(stale)} of them stale{': ' if stale else ''}{', '.join(stale)}")


@dataclass
class Lines:
    """Progress where there is no terminal: a line a minute at most."""

    log: Console
    said_s: float = field(default_factory=time.monotonic)

    def update(self, said: str) -> None:
        """Prints it if the last one is old enough."""
        if time.monotonic() - self.said_s >= LINE_EVERY_S:
            self.said_s = time.monotonic()
            self.log.print(said, highlight=False, soft_wrap=True)


def _note(name: str, status: Status | Lines, said: str) -> None:
    status.update(f"{name}: {said}")


def _run(name: str, setup: Setup) -> Entry:
    begin_s, day = time.monotonic(), datetime.now(UTC).date().isoformat()
    findings = catalogue.load(name)(setup)
    took_s, lacks = time.monotonic() - begin_s, bool(setup.lacking)
    return Entry(name, catalogue.title(name), findings, took_s, setup.quick, setup.seeds, day, setup.full, lacks)


def _kept(name: str, setup: Setup, folder: Path) -> Entry | None:
    """The experiment as it lies in the folder, if it was run with these options."""
    try:
        found = read(folder / f"{name}.json")
    except (OSError, KeyError, TypeError, ValueError):
        return None
    return found if found.as_asked(setup) else None


def _put(entry: Entry, folder: Path, log: Console) -> None:
    """Writes the experiment, and the page of all that lie in the folder."""
    missing = write(entry, folder)
    if missing:
        log.print(f"not drawn, because matplotlib is missing (pip install 'isonomy[lab]'): {', '.join(missing)}")
    there = [folder / f"{name}.json" for name in catalogue.names()]
    other = f"{folder} holds a report of another version: name an empty folder"
    with failing(KeyError, TypeError, ValueError, what=other):
        write_pages([read(path) for path in there if path.exists()], folder)


def _chosen(word: str) -> list[str]:
    if word == "all":
        return list(catalogue.names())
    if word.endswith("-") and any(n.startswith(word) for n in catalogue.names()):
        return [n for n in catalogue.names() if n.startswith(word)]
    catalogue.load(word)
    return [word]


def _draw(entry: Entry) -> RenderableType:
    found = entry.findings
    tables = [part for t in found.tables for part in (Text(t.title, "italic"), table(t.columns, _cells(t)), "")]
    claims = [
        Text.assemble((c.verdict, STYLE[c.holds]), f": {c.claim} Paper: {c.paper}; ours: {c.ours}. {c.why}")
        for c in found.claims
    ]
    assumed = [f"Assumed: {'; '.join(found.conventions)}."] if found.conventions else []
    seeds = f"{found.seeds} seeds, 95 % confidence intervals; " if found.seeds > 1 else ""
    part = f"{found.size}; " if found.size else ""
    end = f"{seeds}{part}{entry.wall_s:.0f} s{' (quick)' if entry.quick else ''}"
    small = [Text(said, "dim") for said in (*assumed, *found.notes, end)]
    return lines(Text(f"{entry.name}: {entry.title}", "bold"), "", *tables, *claims, *small, "")


def _cells(found: Table) -> list[list[str]]:
    return [[text(v) for v in row] for row in found.rows]
