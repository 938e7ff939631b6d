"""`isonomy usage`: who used how many GPU-hours, from the journal."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Iterator, Sequence
from datetime import UTC
from functools import partial
from typing import Any

import click
from rich.console import RenderableType

from pycontrol.audit.accounting import KEPT, KEYS, TIMES, accounted, of_facts, of_totals, with_older
from pycontrol.audit.accounting import Records as Found
from pycontrol.cli.client import Failure, Misused, failing, moment_s
from pycontrol.cli.records import Records, facts_of, journals_options, records_of
from pycontrol.cli.tables import Data, emit_json, lines, moment, out, table
from pycontrol.config import ConfigError, load_topology_spec
from pycontrol.runtime.journal import JournalError, read_totals
from pycontrol.words import count, span


@click.command("usage")
@click.option("--since", default="30d", show_default=True, metavar="TIME", help="30d, 12h, or 2026-11-20T14:00.")
@click.option("--until", metavar="TIME", help="The same [default: now].")
@click.option("--by", default="user,queue", show_default=True, metavar="KEYS", help=f"Of {', '.join(KEYS)}.")
@journals_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    help="A table for people, CSV, or JSON.",
)
def usage_command(since: str, until: str | None, by: str, output: str, **named: Any) -> None:
    """GPU-hours by user and queue: used, leased and not used, lost to restarts, borrowed; and how long was waited.

    KIND is the app scheduler of an app with an Agent, `foreign` for one without, `plain` for containers that
    CapacityScheduler placed while Isonomy served, `watched` for those in mode shadow. By account, a group has the use
    of all below it. LOST is the time until revoked GPUs were given back, and from the next grant to the first step;
    a line says by which causes. BORROWED counts GPUs from other virtual clusters' cells. WAIT is from a submission to
    its first container with GPUs. COST needs `prices` in the topology file. Days and months, also a TIME
    that is a date, are those of UTC. Once the oldest facts are gone, whole days are counted, which are kept for ever;
    apps are then those that began, and medians of waits are known only of a time whose facts are there.

    \b
    isonomy usage --since 30d --by user,queue --config /etc/isonomy/isonomy.yaml
    isonomy usage --since 2026-01-01 --by month,account -o csv
    """
    keys = [key.strip() for key in by.split(",") if key.strip()]
    unknown = [key for key in keys if key not in KEYS]
    if unknown or not keys:
        raise Misused(f"--by {by}: must be some of {', '.join(KEYS)}")
    now_s = time.time()
    until_s = moment_s(until, now_s, "--until", UTC) if until else now_s
    since_s = moment_s(since, now_s, "--since", UTC)
    if since_s >= until_s:
        raise Misused(f"--since {since}: is not before {until or 'now'}")
    records = records_of(**named, evidence=(), rm_log=())
    if named["config"] is not None and not named["journals"]:  # and those that were set aside at a failover
        records.journals = tuple(older for j in records.journals for older in with_older(j))
    with failing(ConfigError, instead=Misused):
        prices = {} if records.topology is None else load_topology_spec(records.topology).prices
    found = accounted(_read(records, keys, since_s, until_s), keys, records.accounts, prices)
    if found["covered"] is None:
        raise Failure(f"nothing is known of {_time(found['since_s'], found['until_s'])}: {_extent(found)}")
    if output == "json":
        emit_json(found)
    elif output == "csv":
        click.echo("\n".join([coverage(found), *_not_counted(found)]), err=True)
        click.echo(_csv(found), nl=False)
    else:
        out(_draw(found))


def _read(records: Records, keys: Sequence[str], since_s: float, until_s: float) -> Found:
    """From the journals' facts; from their totals once one has dropped facts, in which present apps may have begun."""
    begun = {j: first[1] for j in records.journals if (first := next(facts_of(j), None)) is not None}
    by_facts = partial(of_facts, map(facts_of, sorted(begun, key=lambda j: begun[j])), since_s, until_s)
    if set(keys) <= {*KEPT}:
        with failing(JournalError):
            totals = {j: x for j in records.journals if (x := read_totals(j)) is not None}
        if any(begun.get(j, math.inf) > x.first_s for j, x in totals.items()):
            found = of_totals(totals.values(), since_s, until_s)
            if all(begun.get(j, math.inf) <= max(x.first_s, since_s) for j, x in totals.items()):
                found.entries += (e for e in by_facts().entries if e.wait_s is not None)
            return found
    return by_facts()


def _time(from_s: float, to_s: float) -> str:
    return f"{moment(from_s)} to {moment(to_s)}"


def _extent(found: Data) -> str:
    """What time the records are of."""
    if found["records_from_s"] is None:
        return "the journal is empty"
    if found["records_from_s"] >= found["until_s"]:
        return f"the records begin {moment(found['records_from_s'])}"
    return f"the records until then are of {_time(found['records_from_s'], found['records_to_s'])}"


def coverage(found: Data) -> str:
    """What time a table covers, and what not, in a sentence."""
    times = found["covered"]
    text = f"covered: {_time(times['from_s'], times['to_s'])}{', whole days of UTC' if found['whole_days'] else ''}"
    if times["from_s"] > found["since_s"] + 60:
        text += "; nothing is known from before"
    if gaps := times["gaps"]:
        shown = ", ".join(_time(*x) for x in gaps[:3])
        more = f" and {len(gaps) - 3} more" if len(gaps) > 3 else ""
        text += (
            f"; {span(sum(b - a for a, b in gaps))} in {count(len(gaps), 'gap')}"
            f" (no control plane, mode off, damaged journal): {shown}{more}, where only GPUs under leases are counted"
        )
    return text


def _csv(found: Data) -> str:
    text = io.StringIO()
    periods = ["covered_h"] if {*TIMES} & {*found["by"]} else []
    total = _flat(found["total"] or {"gpu_h_lost_by": {}})
    writer = csv.DictWriter(text, [*found["by"], *total, *periods], restval=0.0, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _harmless(v) for k, v in _flat(row).items()} for row in found["rows"])
    return text.getvalue()


def _flat(row: Data) -> Data:
    """With a column for each cause of lost time."""
    causes = {f"gpu_h_lost_{cause}": hours for cause, hours in row["gpu_h_lost_by"].items()}
    return {k: v for k, v in row.items() if k != "gpu_h_lost_by"} | causes


def _harmless(value: Any) -> Any:
    """What a spreadsheet does not take for a formula: names are anybody's text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _draw(found: Data) -> RenderableType:
    parts: list[RenderableType | None] = [coverage(found), ""]
    if not found["rows"]:
        return lines(*parts, *([*_not_counted(found)] or ["no app had GPUs in the time that is covered"]))
    times, costs = "covered_h" in found["rows"][0], found["total"]["cost"] is not None

    def cells(row: Data) -> list[Any]:
        hours = [f"{row[k]:,.1f}" for k in ("gpu_h_used", "gpu_h_unused", "gpu_h_lost", "gpu_h_borrowed")]
        waits = [span(row["wait_median_s"]), span(row["wait_p95_s"])]
        extra = [f"{row['covered_h']:g} h" if "covered_h" in row else ""] if times else []
        return [row["apps"], *hours, row["revocations"], *waits, *([f"{row['cost']:,.2f}"] if costs else []), *extra]

    rows = [[*(row[key] for key in found["by"]), *cells(row)] for row in found["rows"]]
    rows.append(["in all", *[""] * (len(found["by"]) - 1), *cells(found["total"])])
    counted = (">APPS", ">GPU-H", ">UNUSED", ">LOST", ">BORROWED", ">REVOKED", ">WAIT", ">P95")
    head = [*map(str.upper, found["by"]), *counted, *([">COST"] if costs else []), *([">COVERED"] if times else [])]
    parts.append(table(head, rows))
    if causes := found["total"]["gpu_h_lost_by"]:
        shown = ", ".join(f"{cause.replace('_', ' ')} {hours:,.1f}" for cause, hours in causes.items())
        parts.append(f"\nlost by cause: {shown}")
    return lines(*parts, *(f"\n{said}" for said in _not_counted(found)))


def _not_counted(found: Data) -> Iterator[str]:
    if older := found["unknown_facts"]:
        yield f"{count(older, 'fact is', 'facts are')} about leases or apps from before these: not counted"
    if types := found["without_price"]:
        yield f"without a price, so without a cost: GPUs of type {', '.join(t or 'unknown' for t in types)}"
