"""The command `isonomy`."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import click
from click.shell_completion import CompletionItem

from pycontrol.model.bounds import bound
from pycontrol.words import suggest

COMMANDS: dict[str, tuple[str, str]] = {
    "status": ("queries:status_command", "The cluster at a glance: GPUs, nodes, policy, the last round."),
    "queue": (
        "queries:queue_command",
        "Apps that share the cluster: what each holds, its place in the order of service, and why it has no more.",
    ),
    "jobs": (
        "queries:jobs_command",
        "Apps that run or have ended since a time, newest first: what each used, its best result, and where it is.",
    ),
    "get": (
        "get:get_command",
        "Fetch what is kept of APP into FOLDER [default: its name]: its model or kept folder, and its results.",
    ),
    "explain": ("queries:explain_command", "Why APP got what it got: rho and its terms, leases, jobs, bids, payments."),
    "rounds": (
        "queries:rounds_command",
        "Receipts of the last N rounds (10): offer, bids, winners, c, leftovers, solve time.",
    ),
    "estimate": (
        "estimate:estimate_command",
        "Predict when an app of this size would start and end if submitted now; nothing is submitted.",
    ),
    "snapshot": (
        "estimate:snapshot_command",
        "Keep the scheduler's state in a file, for a bug report or for `isonomy whatif FILE`.",
    ),
    "watch": ("watch:watch_command", "The cluster, live: nodes, queue and events."),
    "logs": (
        "logs:logs_command",
        "Logs of APP's workers: those that failed first, then the newest; also of those that have ended.",
    ),
    "kill": ("verbs:kill_command", "End APP: its Agent stops the jobs and finishes."),
    "drain": (
        "verbs:drain_command",
        "Take NODE (a host name) out of use: no new leases there, jobs checkpoint and move.",
    ),
    "pause": ("verbs:pause_command", "Stop holding rounds; running containers continue and no lease ends."),
    "budget": (
        "budget:budget_command",
        "Limits of users, groups and queues: GPUs at once and GPU-hours, what is used of them, and who set them.",
    ),
    "boost": (
        "verbs:boost_command",
        "Put APP, or all apps of USER, first in its virtual cluster for a time.",
    ),
    "mode": ("mode:mode_command", "Switch Isonomy on, let it only watch (shadow), or switch it off."),
    "audit": (
        "records:audit_command",
        "Check the journal against what the NodeManagers and the ResourceManager recorded.",
    ),
    "report": (
        ".lab.runreport:report_command",
        "What a run came to: rho, T_sh and T_id of each app, leases, best models, times, and the audit.",
    ),
    "usage": (
        "usage:usage_command",
        "GPU-hours by user and queue: used, leased and not used, lost to restarts, borrowed; and how long was waited.",
    ),
    "journal": (
        "journal:journal_group",
        "Look into a control plane's journal, STATE_DIR/journal.sqlite, and mend one that it refuses.",
    ),
    "config": ("config:config_group", "Render and check the configuration of Hadoop and Isonomy."),
    "install": (
        "install:install_command",
        "The run-book of Isonomy in a cluster: by stage and class of host what changes, what to do, how to undo it.",
    ),
    "preflight": (
        "preflight:preflight_command",
        "Check this machine, before its daemon restarts: jars, folders, ports, clock, GPUs and their isolation.",
    ),
    "policies": ("policies:policies_command", "List the policies: what each does, its options with their defaults."),
    "simulate": (
        "simulate:simulate_command",
        "Policies beside each other on one workload and one cluster, in virtual time.",
    ),
    "workload": (
        "workload:workload_group",
        "Workloads for `isonomy simulate`: drawn to the papers' marginals, or read from public traces.",
    ),
    "whatif": (
        ".lab.whatif:whatif_command",
        "What other policies would have done with the apps of WORKLOAD, or would do from here on.",
    ),
    "shadow": (
        "shadow:shadow_command",
        "What Isonomy would have made of the applications with GPUs here, in mode shadow.",
    ),
    "preview": (
        "preview:preview_command",
        "Who would lose which GPUs, when and by which rule, who would get some, what would start, with changed files.",
    ),
    "experiment": (
        ".lab.command:experiment_command",
        "Runs experiments by NAME: `list` names them, `all` runs all, a prefix such as `themis-` runs a paper's.",
    ),
    "cells": ("cells:cells_group", "Virtual private clusters: what each queue owns, in cells."),
    "exchange": (
        "exchange:exchange_group",
        "Virtual clusters lend each other cells for a time: offers and requests on a board are matched.",
    ),
    "solve": (
        ".lab.solve.command:replay_command",
        "Solve the cases in FILE (rho, auction, shares, cells) and print one JSON object for each, or for each step.",
    ),
    "serve": ("serve:serve_command", "Run the control plane until SIGTERM."),
}
"""Command -> where it is from `pycontrol.cli` on, and its line of help, so that a list of commands loads none."""
ALSO = {"replay": "solve"}
"""Another name of a command -> its name."""
FORMER = {
    "undrain": "drain --end",
    "resume": "pause --end",
    "budget set": "budget",
    "budget reset": "budget --reset",
    "journal repair": "journal check --repair",
    "workload list": "workload show",
}
"""Former words -> those that say it now. They still work, and help does not list them."""


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
        cmd_name = ALSO.get(cmd_name, cmd_name)
        if cmd_name not in self.list_commands(ctx):
            hint = suggest(cmd_name, self.list_commands(ctx), near=0.5, otherwise="")
            ctx.fail(f"no command {cmd_name}{hint and '; '}{hint} (isonomy --help lists all)")
        at = COMMANDS[cmd_name][0]
        command: click.Command = getattr(importlib.import_module(_module(at)), at.partition(":")[2])
        return bounded(command)


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
