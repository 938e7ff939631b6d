"""The command `submarine`: the stock command line with friendly options for groups of jobs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from submarine_patch.cli import stock
from submarine_patch.cli.checks import check_group
from submarine_patch.cli.errors import Unreachable, UsageError
from submarine_patch.cli.help import USAGE, run_help
from submarine_patch.cli.options import parse_run
from submarine_patch.cli.profile import use_profile
from submarine_patch.cli.spec import check_spec

__all__ = ["UsageError", "main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: exits 0 on success, 1 if the job or its submission failed, 2 for a mistake in options."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(arguments)
    except UsageError as error:
        print(f"submarine: {error}", file=sys.stderr)
        status = 2
    except Unreachable as error:
        print(f"submarine: {error}", file=sys.stderr)
        status = 1
    sys.exit(status)


def _dispatch(arguments: list[str]) -> int:
    match arguments:
        case ["job", "run", *options]:
            return _run(options)
        case ["job", "show", "--help" | "-h"] | ["job", "--help" | "-h"] | ["--help" | "-h"] | []:
            print(USAGE, end="")
            return 0
        case ["job", "show", *options]:
            return stock.run(_installation().command(["job", "show", *options])).status
        case _:
            raise UsageError(f"{' '.join(arguments[:2])}: unknown command; try `job run` or `job show`")


def _run(options: list[str]) -> int:
    parsed = parse_run(options)
    if parsed.wants_help or not options:
        print(run_help())
        return 0
    if parsed.spec_file is None and not parsed.name:
        raise UsageError("--name is absent: the name of the job (or give a spec with -f)")
    if parsed.spec_file is not None:
        check_spec(Path(parsed.spec_file))
    use_profile(parsed)
    check_group(parsed.conf)
    command = _installation().command(["job", "run", *parsed.stock], verbose=parsed.verbose)
    ended = stock.run(command, quiet=parsed.json)
    if parsed.json:
        print(json.dumps({"application_id": ended.application_id, "exit_status": ended.status}))
    return ended.status


def _installation() -> stock.Installation:
    """Where the stock command line is, once it is known that it has somebody to talk to."""
    found = stock.find(os.environ)
    stock.reach_rm(found.conf)
    return found
