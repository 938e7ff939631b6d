"""The command `isonomy`."""

from __future__ import annotations

import click

from pycontrol.cli.config import config_group
from pycontrol.cli.replay import replay_command
from pycontrol.cli.serve import serve_command
from pycontrol.cli.verbs import COMMANDS


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="isonomy")
def main() -> None:
    """Fair and safe sharing of a GPU cluster on Hadoop YARN.

    \b
    isonomy status                 what the cluster does now
    isonomy queue                  who waits, and why
    isonomy explain my-app         why it got what it got
    isonomy rounds 5               receipts of the last auctions
    """


for _command in (*COMMANDS, serve_command, config_group, replay_command):
    main.add_command(_command)
