"""The command `isonomy`."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from pycontrol.model.bounds import bound
from pycontrol.words import ENDS, suggest

COMMANDS: dict[str, tuple[str, str]] = {
    "status": ("queries:status_command", "The cluster at a glance: GPUs, nodes, policy, the last round."),
    "queue": ("queries:queue_command", "Apps in the order of service, and why each has no more."),
    "jobs": ("queries:jobs_command", "What ran: its use, its best result, and where it is kept."),
    "get": ("get:get_command", "Fetch the model and the results of an app."),
    "explain": ("queries:explain_command", "Why an app got what it got; what would help it now."),
    "rounds": ("queries:rounds_command", "Receipts of the last rounds: offers, bids, payments."),
    "estimate": ("estimate:estimate_command", "When an app would start and end if submitted now."),
    "snapshot": ("estimate:snapshot_command", "Keep the scheduler's state in a file."),
    "watch": ("watch:watch_command", "The cluster, live: nodes, queue and events."),
    "logs": ("logs:logs_command", "Logs of an app's workers, also of those that have ended."),
    "kill": ("verbs:kill_command", "End an app: its Agent stops the jobs and finishes."),
    "drain": ("verbs:drain_command", "Take a node out of use, or put it back."),
    "pause": ("verbs:pause_command", "Stop holding rounds; what runs continues."),
    "budget": ("verbs:budget_command", "Limits of users, groups and queues, and their use."),
    "boost": ("verbs:boost_command", "Put an app or a user first for a time."),
    "mode": ("verbs:mode_command", "Switch Isonomy on, let it only watch, or switch it off."),
    "audit": ("records:audit_command", "Check the journal against what YARN recorded."),
    "report": (".lab.runreport:report_command", "What a run came to: rho, leases, best models, times."),
    "usage": ("usage:usage_command", "GPU-hours by user and queue: used, lost, borrowed, waited."),
    "journal": ("journal_commands:journal_group", "Look into a journal, and mend one that is refused."),
    "config": ("config:config_group", "Render and check the configuration."),
    "install": ("install:install_command", "The run-book of Isonomy in a cluster, and the way back."),
    "preflight": ("config:preflight_command", "Check this machine before its daemon restarts."),
    "policies": ("config:policies_command", "List the policies and their options."),
    "simulate": (".lab.simulate:simulate_command", "Policies beside each other in virtual time."),
    "workload": (".lab.workload_command:workload_group", "Workloads: drawn, read from traces, or recorded."),
    "whatif": (".lab.whatif:whatif_command", "What other policies would have done, or would do."),
    "shadow": (".lab.shadow_command:shadow_command", "What Isonomy would have made of the apps here."),
    "preview": ("preview_command:preview_command", "Who would lose or get GPUs with changed files."),
    "experiment": (".lab.experiment_command:experiment_command", "Run experiments of the papers by name."),
    "cells": ("cells_commands:cells_group", "Virtual clusters: what each queue owns, in cells."),
    "exchange": ("cells_commands:exchange_group", "Virtual clusters lend each other cells for a time."),
    "solve": (".lab.solve.replay_command:replay_command", "Solve cases of rho, auctions, shares and cells."),
    "serve": ("serve:serve_command", "Run the control plane until SIGTERM."),
}
"""Command -> where it is from `pycontrol.cli` on, and its line of help, so that a list of commands loads none."""
FORMER = {
    "replay": "solve",
    "undrain": "drain --end",
    "resume": "pause --end",
    "budget set": "budget",
    "budget reset": "budget --reset",
    "journal repair": "journal check --repair",
    "workload list": "workload show",
    **dict.fromkeys(("cells check", "cells plan", "cells show"), "preview --cells"),
}
"""Former words -> those that say it now. They still work, and help does not list them."""
MEANT = {
    **dict.fromkeys(ENDS, "kill"),
    **dict.fromkeys(("list", "ls", "ps", "squeue"), "queue"),
    **dict.fromkeys(("history", "sacct"), "jobs"),
    **dict.fromkeys(("submit", "run", "sbatch"), "submarine job run"),
    "show": "explain",
    "top": "watch",
}
"""Other systems' names of these."""
OPTIONS = Path(__file__).with_name("options.json")
"""Command -> its options with the number of their values, or its commands; by `python -m tests.surface`."""


class LazyGroup(click.Group):
    """A group whose commands are imported on demand: `isonomy status` does not load the solver."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """--rm and --ca may stand anywhere, as in `isonomy status --rm URL`."""
        first: list[str] = []
        for at in reversed(range(args.index("--") if "--" in args else len(args))):
            word, equals, _ = args[at].partition("=")
            if word in ("--rm", "--ca"):
                taken = slice(at, at + (1 if equals else 2))
                first += args[taken]
                del args[taken]
        former = " ".join(args[: 1 if args[:1] and args[0] in FORMER else 2])
        if former in FORMER:
            args[: len(former.split())] = FORMER[former].split()
            click.echo(f"{former} is now: isonomy {FORMER[former]}", err=True)
        return super().parse_args(ctx, [*first, *args])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Refuses an unknown word before the command is imported, which takes up to seconds."""
        if not ctx.resilient_parsing:
            _check_words(ctx, args)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands whose modules are installed, in the order of their use."""
        return [name for name, (at, _) in COMMANDS.items() if importlib.util.find_spec(_module(at))]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))
        with formatter.section("Commands"):
            formatter.write_dl([(name, _line(name, limit)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes names of commands without importing them."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=_line(name)) for name in names]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports one command."""
        if cmd_name not in self.list_commands(ctx):
            _fail_unknown(ctx, cmd_name, self.list_commands(ctx))
        at = COMMANDS[cmd_name][0]
        command: click.Command = getattr(importlib.import_module(_module(at)), at.partition(":")[2])
        command.short_help = COMMANDS[cmd_name][1]
        return bounded(command)


def _fail_unknown(ctx: click.Context, word: str, known: Iterable[str]) -> NoReturn:
    meant = MEANT.get(word) if ctx.parent is None else None
    hint = f"did you mean {meant}?" if meant else suggest(word, known, near=0.5, otherwise="")
    ctx.fail(f"no command {word}{hint and '; '}{hint} ({ctx.command_path} --help lists all)")


def _check_words(ctx: click.Context, args: list[str]) -> None:
    """Raises click's UsageError for a command or an option that the table lacks."""
    known, words, light = json.loads(OPTIONS.read_text(encoding="utf-8")), list(args), ctx.command
    while words and isinstance(inner := known.get(words[0]), dict):
        light = click.Command(words[0], add_help_option=False)
        known, ctx = inner, click.Context(light, parent=ctx, info_name=words.pop(0))
    if any(isinstance(of, dict) for of in known.values()):
        if ctx.parent is None or not words:
            return
        if not words[0].startswith("-"):
            _fail_unknown(ctx, words[0], known)
        known = {"-h --help": 0}
    light.params = [click.Argument(["words"], nargs=-1, metavar=known.pop("", ""))]
    light.params += [
        click.Option(o.split(), is_flag=not values or None, nargs=values or 1) for o, values in known.items()
    ]
    light.parse_args(ctx, words)


def _line(name: str, limit: int = 45) -> str:
    """A command's line of help, as click shortens it."""
    return click.Command(name, help=COMMANDS[name][1]).get_short_help_str(limit)


def _module(at: str) -> str:
    return importlib.util.resolve_name(f".{at.partition(':')[0]}", __name__)


def bounded(command: click.Command) -> click.Command:
    """The command with the bounds of the table for each number whose own range is open."""
    for inner in getattr(command, "commands", {}).values():
        bounded(inner)
    for param in command.params:
        own = param.type
        if isinstance(own, click.IntRange | click.FloatRange) and None in (own.min, own.max):
            row = bound(str(param.name), str(command.name))
            kind: Any = int if isinstance(own, click.IntRange) else float
            low, high = (
                kind(given if given is not None else own_row)
                for given, own_row in ((own.min, row.low), (own.max, row.high))
            )
            param.type = type(own)(low, high, own.min_open, own.max_open)
    return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="isonomy")
@click.option("--rm", metavar="URL", help="The ResourceManager's web address [default: from yarn-site.xml].")
@click.option("--ca", metavar="FILE", help="Its CA's certificate (PEM), if this machine does not trust it.")
def main(rm: str | None, ca: str | None) -> None:
    """Fair and safe sharing of a GPU cluster on Hadoop YARN.

    \b
    isonomy status                 what the cluster does now
    isonomy queue                  who waits, and why
    isonomy explain my-app         why it got what it got
    isonomy rounds 5               receipts of the last auctions
    isonomy watch                  all of it, live

    The ResourceManager: by --rm URL, the variable ISONOMY_RM, or yarn-site.xml in HADOOP_CONF_DIR. Over https it
    is known by --ca FILE, the variable ISONOMY_CA, or what Python trusts.
    An APP is an application id, a name, or the number that ends its id. Exit status: 0 done, 1 refused or failed,
    2 wrong usage, 3 the ResourceManager or the control plane cannot be reached.
    """
