"""`isonomy journal`: what a journal holds, whether a control plane would start with it, and mending it."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import click

from pycontrol.arbiter.ledger.facts import FACTS, to_json
from pycontrol.cli.client import FILE, Failure, failing, output_option
from pycontrol.cli.records import facts_of
from pycontrol.cli.tables import Data, clock, emit
from pycontrol.runtime.journal import JournalError
from pycontrol.runtime.journal_check import check_journal, repair_journal

JOURNAL = click.argument("file", type=FILE)


@click.group("journal")
def journal_group() -> None:
    """Look into a control plane's journal, STATE_DIR/journal.sqlite, and mend one that it refuses.

    \b
    isonomy journal check /var/lib/isonomy/journal.sqlite
    isonomy journal show /var/lib/isonomy/journal.sqlite -n 50
    isonomy journal check /var/lib/isonomy/journal.sqlite --repair     with the control plane stopped
    """


@journal_group.command("check")
@JOURNAL
@click.option("--repair", is_flag=True, help="Mend it first, with the control plane stopped.")
@output_option
def check_command(file: Path, repair: bool, output: str) -> None:
    """Say how large FILE is, what is wrong with it, and whether a control plane would start with it.

    Exit status 1 where it would not. Without --repair it changes nothing, and may run beside the control plane.

    Mending sets aside rows that do not say who has which GPU (receipts, measurements, a policy's memory) one by one. At
    any other bad row all after it is set aside, too, and leases are taken from the containers that run when the
    control plane starts. What is set aside stays in the file, in the table `quarantine`.
    """
    with failing(JournalError):
        done = repair_journal(file) or ["nothing to mend"] if repair else []
        report = {**check_journal(file), "mended": done}
    emit(report, output, _report)
    sys.exit(0 if report["readable"] else 1)


def _report(d: Data) -> str:
    lines = [*d["mended"], f"{d['file']}: version {d['version'] or 'unknown'}"]
    if "bytes" in d:
        since = f" since {clock(d['first_s'])}" if d["first_s"] is not None else ""
        lines.append(
            f"{d['bytes'] / 1e6:.1f} MB, {d['facts']} facts{since}, {d['facts_after_snapshot']} of them after the"
            f" newest of {d['snapshots']} snapshots, {d['set_aside']} rows set aside"
        )
    lines += [f"problem: {line}" for line in d["problems"]]
    if not d["readable"]:
        lines.append(f"a control plane refuses it; stop it and use: isonomy journal check --repair {d['file']}")
    elif not d["problems"]:
        lines.append("clean")
    return "\n".join(lines)


@journal_group.command("show")
@JOURNAL
@click.option(
    "-n", "--last", type=click.IntRange(1), default=20, show_default=True, help="How many of the newest facts."
)
@click.option("--since", type=click.IntRange(0), metavar="SEQ", help="The facts after this one instead, oldest first.")
@click.option("--kind", type=click.Choice(sorted(FACTS)), metavar="KIND", help="Only facts of this kind.")
def show_command(file: Path, last: int, since: int | None, kind: str | None) -> None:
    """Print facts of FILE, a line of JSON each: seq, time_s, kind, and the fact's own fields."""
    if not file.is_file():
        raise Failure(f"{file}: there is no such journal")
    rows = (
        {"seq": seq, "time_s": time_s, "kind": type(fact).__name__, **to_json(fact)}
        for seq, time_s, fact in facts_of(file, since or 0)
        if kind is None or type(fact).__name__ == kind
    )
    shown: Iterable[Data] = islice(rows, last) if since is not None else deque(rows, maxlen=last)
    for row in shown:
        click.echo(json.dumps(row, ensure_ascii=False))
