"""The command `isonomy`."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import click

from pycontrol.model.bounds import bound
from pycontrol.words import suggest

COMMANDS = {
    "status": "pycontrol.cli.queries:status_command",
    "queue": "pycontrol.cli.queries:queue_command",
    "explain": "pycontrol.cli.queries:explain_command",
    "rounds": "pycontrol.cli.queries:rounds_command",
    "estimate": "pycontrol.cli.estimate:estimate_command",
    "snapshot": "pycontrol.cli.estimate:snapshot_command",
    "watch": "pycontrol.cli.watch:watch_command",
    "logs": "pycontrol.cli.logs:logs_command",
    "kill": "pycontrol.cli.verbs:kill_command",
    "drain": "pycontrol.cli.verbs:drain_command",
    "undrain": "pycontrol.cli.verbs:undrain_command",
    "pause": "pycontrol.cli.verbs:pause_command",
    "resume": "pycontrol.cli.verbs:resume_command",
    "audit": "pycontrol.cli.records:audit_command",
    "report": "pycontrol.cli.records:report_command",
    "usage": "pycontrol.cli.usage:usage_command",
    "journal": "pycontrol.cli.journal:journal_group",
    "config": "pycontrol.cli.config:config_group",
    "install": "pycontrol.cli.install:install_command",
    "policies": "pycontrol.cli.policies:policies_command",
    "simulate": "pycontrol.cli.simulate:simulate_command",
    "workload": "pycontrol.cli.workload:workload_group",
    "whatif": "pycontrol.cli.whatif:whatif_command",
    "shadow": "pycontrol.cli.shadow:shadow_command",
    "experiment": "pycontrol.cli.experiment:experiment_command",
    "cells": "pycontrol.cli.cells:cells_group",
    "exchange": "pycontrol.cli.exchange:exchange_group",
    "solve": "pycontrol.cli.replay:replay_command",
    "serve": "pycontrol.cli.serve:serve_command",
}
"""Where each command is; a module is loaded when its command is used."""
FORMER = {"replay": "solve"}
"""Former name of a command -> its name. They still work, and help does not list them."""


class LazyGroup(click.Group):
    """A group whose commands are imported on demand: `isonomy status` does not load the solver."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands whose modules are installed, in the order of their use."""
        return [name for name, at in COMMANDS.items() if importlib.util.find_spec(at.partition(":")[0])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports one command."""
        cmd_name = FORMER.get(cmd_name, cmd_name)
        if cmd_name not in self.list_commands(ctx):
            hint = suggest(cmd_name, self.list_commands(ctx), near=0.5, otherwise="")
            ctx.fail(f"no command {cmd_name}{hint and '; '}{hint} (isonomy --help lists all)")
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return bounded(command)


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
@click.option("--rm", metavar="URL", help="The ResourceManager's web address, of all commands that talk to one.")
def main(rm: str | None) -> None:
    """Fair and safe sharing of a GPU cluster on Hadoop YARN.

    \b
    isonomy status                 what the cluster does now
    isonomy queue                  who waits, and why
    isonomy explain my-app         why it got what it got
    isonomy rounds 5               receipts of the last auctions
    isonomy watch                  all of it, live

    The ResourceManager is found by --rm URL, the variable ISONOMY_RM, or yarn-site.xml in HADOOP_CONF_DIR.
    An APP is an application id, a name, or the number that ends its id. Exit status: 0 done, 1 refused or failed,
    2 wrong usage, 3 the ResourceManager or the control plane cannot be reached.
    """
