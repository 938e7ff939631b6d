"""`isonomy workload`: what there is to simulate, and what it looks like."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.console import Console, RenderableType

from pycontrol.cli.client import FILE, Misused, Rm, failing, file_option, moment_s, output_option, pairs, rm_address
from pycontrol.cli.records import facts_of
from pycontrol.cli.tables import Data, emit, lines, table
from pycontrol.lab import recorded
from pycontrol.lab.workloads import CATALOGUE, marginals
from pycontrol.lab.workloads.building import Import, Selection
from pycontrol.lab.workloads.front import option_names
from pycontrol.lab.workloads.own_format import write
from pycontrol.lab.workloads.trace_table import BadTrace


@click.group("workload")
def workload_group() -> None:
    """Workloads for `isonomy simulate`: drawn to the papers' marginals, or read from public traces."""


def _list(output: str) -> None:
    """The generators, the trace formats that can be read, and the options of each."""
    generators = [
        {"name": name, "about": g.about, "options": {**option_names(g.options), **g.fixed}}
        for name, g in CATALOGUE.generators.items()
    ]
    formats = [{"name": f"{name}:FILE", "about": f.about} for name, f in CATALOGUE.formats.items()]
    document = {"generators": generators, "formats": formats, "import": option_names(Import)}
    emit({**document, "every": option_names(Selection)}, output, _draw_list)


def _draw_list(data: Data) -> RenderableType:
    generators = [[g["name"], g["about"], _defaults(g["options"])] for g in data["generators"]]
    return lines(
        table(["GENERATOR", "WHAT IT IS", "OPTIONS"], generators),
        "",
        table(["TRACE", "WHAT IT IS"], [[f["name"], f["about"]] for f in data["formats"]]),
        f"\nA FILE alone is enough: its content tells its format. Options of traces: {_defaults(data['import'])}",
        f"Options of all: {_defaults(data['every'])}. After a name: w1,contention=2 or FILE,queues=a+b,faster=2",
    )


def _defaults(options: Data) -> str:
    return ", ".join(name if value in (None, "", ()) else f"{name}={value}" for name, value in options.items())


@workload_group.command("show")
@click.argument("name", required=False)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of what is drawn.")
@click.option("--set", "given", multiple=True, metavar="OPTION=VALUE", help="An option of the workload; repeat.")
@file_option("--out", help="Write the workload as CSV, which can be given as a workload.")
@output_option
def show_command(name: str | None, seed: int, given: tuple[str, ...], out: Path | None, output: str) -> None:
    """The marginals of the workload NAME, or of a trace FILE, beside the paper's; and what was skipped of a trace.

    Without NAME: the generators, the trace formats that can be read, and the options of each.

    \b
    isonomy workload show
    isonomy workload show w1 --seed 3
    isonomy workload show hived --set load=0.9 --out hived.csv
    isonomy workload show philly:cluster_job_log.json.gz,queues=a+b
    """
    if name is None:
        _list(output)
        return
    with failing(BadTrace, OSError), Console(stderr=True).status(f"reading {name}"):
        found = CATALOGUE.open(name, seed, dict(pairs(given)))
        if out is not None:
            write(found.workload, out)
    emit({**marginals.document(found), "written": str(out) if out else None}, output, marginals.draw)


@workload_group.command("record")
@click.argument("files", nargs=-1, metavar="[FILE|FOLDER]...", type=click.Path(path_type=Path, exists=True))
@file_option("--journal", help="Isonomy's journal.")
@click.option("--since", metavar="TIME", help="30d, 12h, or 2026-11-20T14:00  [default: 30d; of files all].")
@click.option("--anonymise", is_flag=True, help="Users, queues and apps by number.")
@click.option("--out", type=FILE, required=True, metavar="FILE.csv")
@output_option
def record_command(
    files: tuple[Path, ...], journal: Path | None, since: str | None, anonymise: bool, out: Path, output: str
) -> None:
    """Keep this cluster's own history as a workload, for `isonomy whatif` and `isonomy simulate`.

    FILES are what an administrator has of any YARN, with or without Isonomy: saved answers of /ws/v1/cluster/apps, the
    ResourceManager's logs (lines of ApplicationSummary), Spark event logs, .jhist files with their _conf.xml; plain or
    gzip. Without FILES the ResourceManager is asked, which remembers its last 1,000 applications by default.

    \b
    isonomy workload record /var/log/hadoop/yarn-resourcemanager.log* --out mine.csv
    isonomy workload record spark-events/ apps.json --since 2026-10-01 --out mine.csv
    isonomy workload record --rm http://rm:8088 --since 30d --out mine.csv
    isonomy workload record --journal state/journal.sqlite --out mine.csv
    """
    if files and journal is not None:
        raise Misused("give FILES or --journal: one of them")
    if journal is not None:
        since_s = moment_s(since or "30d", time.time(), "--since")
        found = recorded.of_journal(facts_of(journal), since_s, f"journal {journal.name}")
    elif files:
        found = recorded.of_files(files, moment_s(since, time.time(), "--since") if since else None)
    else:
        found = recorded.recorded_of_yarn(Rm(rm_address()), since or "30d")
    emit(recorded.record(found, out, anonymise), output, recorded.draw)
