"""The commands that change something: kill, drain, undrain, pause, resume. They need YARN's admin rights."""

from __future__ import annotations

import click

from pycontrol.cli.client import Rm, output_option, rm_address
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
@output_option
def drain_command(node: str, output: str) -> None:
    """Take NODE (a host name) out of use: no new leases there, jobs checkpoint and move. For admins."""
    _do("drain", output, node=node)


@click.command("undrain")
@click.argument("node")
@output_option
def undrain_command(node: str, output: str) -> None:
    """Put NODE back into use. For admins."""
    _do("undrain", output, node=node)


@click.command("pause")
@output_option
def pause_command(output: str) -> None:
    """Stop holding rounds; running containers continue and no lease ends. For admins."""
    _do("pause", output)


@click.command("resume")
@output_option
def resume_command(output: str) -> None:
    """Hold rounds again after a pause. For admins."""
    _do("resume", output)
