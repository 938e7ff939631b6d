"""`isonomy usage`: who used how many GPU-hours, from the journal."""

from __future__ import annotations

import csv
import io
import time
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from pycontrol.audit.usage import KEYS, usage
from pycontrol.cli.client import Misused, cluster_dir_option, moment_s
from pycontrol.cli.records import facts_of, records_of
from pycontrol.cli.tables import Data, emit_json, lines, out, span, table
from pycontrol.words import count


@click.command("usage")
@click.option("--since", default="30d", show_default=True, metavar="TIME", help="30d, 12h, or 2026-11-20T14:00.")
@click.option("--until", metavar="TIME", help="The same [default: now].")
@click.option("--by", default="user,queue", show_default=True, metavar="KEYS", help=f"Of {', '.join(KEYS)}.")
@click.option(
    "--journal",
    "journals",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The control plane's journal, of a pair each.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="ISONOMY_CONFIG",
    metavar="FILE",
    help="isonomy.yaml, which names the journal.",
)
@cluster_dir_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    help="A table for people, CSV, or JSON.",
)
def usage_command(
    since: str,
    until: str | None,
    by: str,
    journals: tuple[Path, ...],
    config: Path | None,
    cluster_dir: Path,
    output: str,
) -> None:
    """GPU-hours by user and queue: used, leased and not used, lost to restarts, borrowed; and how long was waited.

    LOST is the time until revoked GPUs were given back, and from the next grant to the first step; a line below says
    by which causes. BORROWED counts GPUs from other virtual clusters' cells. WAIT is from a submission to its first
    container with GPUs.

    \b
    isonomy usage --since 30d --by user,queue --config /etc/isonomy/isonomy.yaml
    isonomy usage --since 2026-11-01 --by queue -o csv
    """
    keys = [key.strip() for key in by.split(",") if key.strip()]
    unknown = [key for key in keys if key not in KEYS]
    if unknown or not keys:
        raise Misused(f"--by {by}: must be some of {', '.join(KEYS)}")
    now_s = time.time()
    until_s = moment_s(until, now_s, "--until") if until else now_s
    since_s = moment_s(since, now_s, "--since")
    if since_s >= until_s:
        raise Misused(f"--since {since}: is not before {until or 'now'}")
    found = usage(map(facts_of, records_of(cluster_dir, journals, (), (), config).journals), keys, since_s, until_s)
    if output == "json":
        emit_json(found)
    elif output == "csv":
        click.echo(_csv(found), nl=False)
    else:
        out(_draw(found))


def _csv(found: Data) -> str:
    text = io.StringIO()
    names = [*found["by"], *(k for k in found["total"] or {} if k != "gpu_h_lost_by")]
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _harmless(v) for k, v in row.items()} for row in found["rows"])
    return text.getvalue()


def _harmless(value: Any) -> Any:
    """What a spreadsheet does not take for a formula: names are anybody's text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _draw(found: Data) -> RenderableType:
    if not found["rows"]:
        return lines("no app had GPUs in that time")

    def cells(row: Data) -> list[Any]:
        hours = [f"{row[k]:,.1f}" for k in ("gpu_h_used", "gpu_h_unused", "gpu_h_lost", "gpu_h_borrowed")]
        return [row["apps"], *hours, row["revocations"], span(row["wait_median_s"]), span(row["wait_p95_s"])]

    rows = [[*(row[key] for key in found["by"]), *cells(row)] for row in found["rows"]]
    rows.append(["in all", *[""] * (len(found["by"]) - 1), *cells(found["total"])])
    head = [*(key.upper() for key in found["by"]), ">APPS", ">GPU-H", ">UNUSED", ">LOST", ">BORROWED", ">REVOKED",
            ">WAIT", ">P95"]  # fmt: skip
    days = (found["until_s"] - found["since_s"]) / 86400.0
    older = found["unknown_facts"]
    by = [f"{cause.replace('_', ' ')} {hours:,.1f}" for cause, hours in found["total"]["gpu_h_lost_by"].items()]
    lost = f"\nlost by cause: {', '.join(by)}" if by else None
    note = f"\n{count(older, 'fact is', 'facts are')} about leases from before the journal's beginning: not counted"
    return lines(f"{days:.1f} days", "", table(head, rows), lost, note if older else None)
