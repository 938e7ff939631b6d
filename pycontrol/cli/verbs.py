"""The commands that change something: kill, drain, pause, boost. They need YARN's admin rights."""

from __future__ import annotations

import click

from pycontrol.cli.client import Misused, Rm, duration_s, output_option, rm_address
from pycontrol.cli.tables import emit


def _do(verb: str, output: str, **target: str) -> None:
    emit(Rm(rm_address()).post(verb, **target), output, lambda d: str(d["text"]))


@click.command("kill")
@click.argument("app")
@output_option
def kill_command(app: str, output: str) -> None:
    """End APP: its Agent stops the jobs and finishes. For admins and the app's own user."""
    _do("kill", output, app=app)


@click.command("drain")
@click.argument("node")
@click.option("--end", is_flag=True, help="Put it back into use.")
@output_option
def drain_command(node: str, end: bool, output: str) -> None:
    """Take NODE (a host name) out of use: no new leases there, jobs checkpoint and move. For admins."""
    _do("undrain" if end else "drain", output, node=node)


@click.command("pause")
@click.option("--end", is_flag=True, help="Hold rounds again.")
@output_option
def pause_command(end: bool, output: str) -> None:
    """Stop holding rounds; running containers continue and no lease ends. For admins."""
    _do("resume" if end else "pause", output)


@click.command("boost")
@click.argument("target", metavar="APP|USER")
@click.option("--for", "length", metavar="TIME", help="How long: 4h, 90m, 2d; at most 30d.")
@click.option("--end", is_flag=True, help="End the boost now.")
@output_option
def boost_command(target: str, length: str | None, end: bool, output: str) -> None:
    """Put APP, or all apps of USER, first in its virtual cluster for a time. For admins.

    It works under every policy. Limits hold, GPUs of other virtual clusters stay theirs, and what runs keeps its GPUs
    until its leases end. `isonomy status` lists the boosts.

    \b
    isonomy boost my-sweep --for 4h
    isonomy boost ann --end
    """
    if (length is None) == (not end):
        raise Misused("give either --for TIME, as --for 4h, or --end")
    for_s = 0 if length is None else max(1, int(duration_s(length, "--for")))
    _do("boost", output, target=target, for_s=str(for_s))
