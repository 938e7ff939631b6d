"""The command `submarine`: the stock command line with friendly options for groups of jobs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pycontrol.hadoopconf.sitefile import rm_web_url
from pycontrol.words import ENDS, suggest
from submarine_patch.cli import stock
from submarine_patch.cli.errors import ClusterUnreachable, UsageError
from submarine_patch.cli.help import USAGE, run_help
from submarine_patch.cli.options import RunArguments, parse_run

if TYPE_CHECKING:
    from submarine_patch.cli.declared import Foresight

WAIT = "--wait_job_finish"
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: exits 0 on success, 1 if the job or its submission failed, 2 for a mistake in options."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(arguments)
    except UsageError as error:
        print(f"submarine: {error}", file=sys.stderr)
        status = 2
    except ClusterUnreachable as error:
        print(f"submarine: {error}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception as error:
        from pycontrol.cli.client import Failure, Misused  # what asks the cluster is loaded by those who do

        if not isinstance(error, Failure):
            raise
        print(f"submarine: {error}", file=sys.stderr)
        status = 2 if isinstance(error, Misused) else 1
    sys.exit(status)


def _dispatch(arguments: list[str]) -> int:
    match arguments:
        case ["job", "run", *options]:
            return _run(options)
        case ["job", "--help" | "-h"] | ["--help" | "-h"] | []:
            print(USAGE, end="")
            return 0
        case ["job", "list", *options]:
            return _isonomy("queue", options)
        case ["job", "show" | "kill" | "logs" as verb, *options]:
            if options[:1] in (["--name"], ["-name"]):
                options = options[1:]
            if not options or options[0].startswith("-"):
                raise UsageError(f"job {verb}: the name of the job is absent: submarine job {verb} NAME")
            return _isonomy("explain" if verb == "show" else verb, options)
        case ["job"]:
            raise UsageError(f"job: what about it? known are {', '.join(VERBS)}")
        case ["job", verb, *_]:
            meant = f"did you mean {MEANT[verb]}?" if verb in MEANT else suggest(verb, VERBS, near=0.5)
            raise UsageError(f"job {verb}: unknown command; {meant}")
        case _:
            raise UsageError(
                f"{arguments[0]}: unknown command; `submarine job run OPTIONS` submits (--help lists them)"
            )


VERBS = ("run", "show", "list", "kill", "logs")
MEANT = {**dict.fromkeys(ENDS, "kill"), "submit": "run", "status": "show", "ls": "list"}
"""Other systems' names of these."""


def _isonomy(verb: str, options: Sequence[str]) -> int:
    """The operator's command of that name, with its exit status but for 3, which is 1 here."""
    from pycontrol.cli import main as isonomy

    try:
        isonomy([verb, *options], prog_name="isonomy")
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
        return 1 if status == 3 else status
    return 0


def _run(options: list[str]) -> int:
    parsed = parse_run(options)
    if parsed.wants_help or not options:
        print(run_help())
        return 0
    if "f" in parsed.values:
        from submarine_patch.cli.checks import check_spec

        check_spec(Path(parsed.value("f")))
    elif not parsed.value("name"):
        raise UsageError("--name is absent: the name of the job (or give a spec with -f)")
    for note in check(parsed):
        print(f"submarine: {note}", file=sys.stderr)
    if parsed.dry_run:
        from submarine_patch.cli.dryrun import dry_run

        return dry_run(parsed)
    conf, foresight, ended = submitted(parsed, verbose="verbose" in parsed.values, quiet=parsed.json)
    status, app_id = ended.status, ended.application_id
    if status == 0 and (line := foresight.line()):
        print(f"submarine: {line}", file=sys.stderr)
    if WAIT in parsed.stock and status == 0 and app_id is not None:
        from pycontrol.cli.client import Rm
        from submarine_patch.cli.follow import goal_of, wait

        try:
            status = wait(Rm(rm_web_url(conf_dir=conf)), app_id, goal_of(parsed.conf))
        except KeyboardInterrupt:
            print(f"submarine: {app_id} goes on; to end it: submarine job kill {app_id}", file=sys.stderr)
            raise
    if parsed.json:
        print(json.dumps({"application_id": app_id, "exit_status": status, **foresight.times}))
    return status


def check(parsed: RunArguments) -> list[str]:
    """Raises UsageError for the first mistake; notes for the user."""
    from submarine_patch.cli.checks import check_group
    from submarine_patch.cli.declared import declared
    from submarine_patch.cli.jobchecks import check_job

    notes = check_job(parsed)
    check_group(parsed.conf)
    return [*notes, *declared(parsed)]


def submitted(parsed: RunArguments, **how: bool) -> tuple[Path, Foresight, stock.Ended]:
    """Submit, without waiting for the end: the cluster's configuration, the forecast, and how that ended.

    `how`: as in `Installation.run`. The stock command line must be there, and have somebody to talk to.
    """
    from submarine_patch.cli.declared import Foresight

    installation = stock.find(os.environ)
    stock.reach_rm(installation.conf)
    foresight = Foresight(parsed, installation.conf)
    words = [word for word in parsed.stock if word != WAIT]
    return installation.conf, foresight, installation.run(words, **how)
