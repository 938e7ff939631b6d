"""What `isonomy COMMAND -o json` prints is what docs/cli.json says, in every test that runs a command in its process.

`python -m tests.contract` runs those tests, records their output, and writes docs/cli.json and docs/cli-json.md
from it. Commands that print a REST answer unchanged are documented there (docs/rest.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tests.schema import Schema, described, merged, misfits, schema_of

DOCS = Path(__file__).parents[1] / "docs"
FILE, PAGE = DOCS / "cli.json", DOCS / "cli-json.md"
RECORD = "ISONOMY_RECORD_JSON"
TESTS = (
    "tests/cli",
    "tests/audit/test_usage.py",
    "tests/audit/test_totals.py",
    "tests/hadoopconf",
    "tests/simulation/test_cli.py",
    "tests/cells/test_cases.py",
    "tests/simulation/workloads/test_cli.py",
    "tests/simulation/workloads/test_history.py",
    "tests/experiments/test_report.py",
    "tests/policies/test_entry_points.py",
)
AS_REST = {
    "status": "status",
    "queue": "queue",
    "jobs": "apps",
    "explain": "explain",
    "rounds": "rounds",
    "kill": "kill",
    "budget": "budget",
    "drain": "drain",
    "pause": "pause",
    "boost": "boost",
    "cells status": "cells",
    "cells apply": "cells-apply",
    "exchange list": "exchange",
    "exchange offer": "exchange-offer",
    "exchange request": "exchange-request",
    "exchange withdraw": "exchange-withdraw",
    "watch": "events",
}
"""Command -> REST path of the answer that it prints; `watch` prints each event on a line."""
INTRODUCTION = """# JSON of the commands

Generated from what the commands print (`python -m tests.contract`), as the JSON Schemas of [cli.json](cli.json) are;
every test that runs a command holds its output against them. `[]` is each element of a list, `.*` each value of an
object whose keys are data. Times are Unix seconds (`_s`) unless they are of a simulation, which begins at 0."""


def install() -> None:
    """Checks the commands' output from now on, or records it if $ISONOMY_RECORD_JSON names a folder."""
    from pycontrol.cli import tables

    emit, emit_json = tables.emit, tables.emit_json
    schemas = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    folder = os.environ.get(RECORD)

    def check(data: Any) -> None:
        name, plain = command(), json.loads(json.dumps(data))
        if folder:
            with (Path(folder) / f"{name}.jsonl").open("a", encoding="utf-8") as out:
                out.write(json.dumps(schema_of(plain)) + "\n")
        elif name not in AS_REST:
            wrong = misfits(plain, schemas[name], name) if name in schemas else [f"{name}: is not documented"]
            assert not wrong, f"{wrong}: document it: python -m tests.contract"

    def checked(data: Any, output: str, draw: Callable[[Any], Any]) -> None:
        check(data)
        emit(data, output, draw)

    def checked_json(data: Any) -> None:
        check(data)
        emit_json(data)

    tables.emit, tables.emit_json = checked, checked_json


def command() -> str:
    """The running command, without `isonomy`."""
    from pycontrol.cli import main

    context, words = click.get_current_context(), []
    while context is not None and context.command is not main:
        words.insert(0, str(context.command.name))
        context = context.parent  # type: ignore[assignment]
    return " ".join(words)


def page(schemas: dict[str, Schema]) -> str:
    """docs/cli-json.md."""
    from tests.web.rest import POSTS

    lines = [*INTRODUCTION.splitlines(), "", "These print an answer of the REST as it is ([rest.md](rest.md)):", ""]
    lines += ["| command | answer |", "| --- | --- |"]
    for name, path in AS_REST.items():
        lines.append(f"| `{name}` | [{path}](rest.md#{'post-' if path in POSTS else ''}{path}) |")
    for name, schema in sorted(schemas.items()):
        lines += ["", f"## {name}", "", "| field | type | |", "| --- | --- | --- |", *described(schema)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs the tests and writes both files."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                *TESTS,
                "--ignore",
                "tests/cli/test_contract.py",
                "--ignore",
                "tests/cli/test_serve.py",
            ],
            env={**os.environ, RECORD: folder},
            check=True,
        )
        found = {
            file.stem: merged(json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
            for file in sorted(Path(folder).glob("*.jsonl"))
            if file.stem not in AS_REST
        }
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
