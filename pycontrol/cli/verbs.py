"""The commands that change something: kill, drain, undrain, pause, resume. They need YARN's admin rights."""

from __future__ import annotations

import click

from pycontrol.cli.client import Rm, remote, rm_address
from pycontrol.cli.tables import emit


def _do(verb: str, rm: str | None, output: str, **target: str) -> None:
    emit(Rm(rm_address(rm)).post(verb, **target), output, lambda d: str(d["text"]))


@click.command("kill")
@click.argument("app")
@remote
def kill_command(app: str, rm: str | None, output: str) -> None:
    """End APP: its Agent stops the jobs and finishes. For admins and the app's own user."""
    _do("kill", rm, output, app=app)


@click.command("drain")
@click.argument("node")
@remote
def drain_command(node: str, rm: str | None, output: str) -> None:
    """Take NODE (a host name) out of use: no new leases there, jobs checkpoint and move. For admins."""
    _do("drain", rm, output, node=node)


@click.command("undrain")
@click.argument("node")
@remote
def undrain_command(node: str, rm: str | None, output: str) -> None:
    """Put NODE back into use. For admins."""
    _do("undrain", rm, output, node=node)


@click.command("pause")
@remote
def pause_command(rm: str | None, output: str) -> None:
    """Stop holding rounds; running containers continue and no lease ends. For admins."""
    _do("pause", rm, output)


@click.command("resume")
@remote
def resume_command(rm: str | None, output: str) -> None:
    """Hold rounds again after a pause. For admins."""
    _do("resume", rm, output)
