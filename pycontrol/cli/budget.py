"""`isonomy budget`: limits of users, groups and queues, and how much of them is used."""

from __future__ import annotations

from typing import Any

import click

from pycontrol.cli.client import Rm, output_option, rm_address
from pycontrol.cli.tables import Data, clock, emit, lines, table

UNITS = {"gpus": "GPUs at once"}
account = click.argument("account", nargs=2, metavar="KIND NAME")


@click.group("budget", invoke_without_command=True)
@click.pass_context
@output_option
def budget_group(ctx: click.Context, output: str) -> None:
    """Limits of users, groups and queues: GPUs at once and GPU-hours, what is used of them, and who set them.

    At a limit nothing new starts; gangs beyond it, and all gangs of a used-up budget, end with their leases. Days,
    weeks (from Monday) and months are those of UTC. KIND is user, group or queue; groups are those of `accounts`.

    \b
    isonomy budget
    isonomy budget set user ann --gpus 8 --week 500
    isonomy budget set group research/vision --month none
    isonomy budget reset user ann
    """
    if ctx.invoked_subcommand is None:
        emit(Rm(rm_address()).get("budget"), output, _drawn)


@budget_group.command("set")
@account
@click.option("--gpus", metavar="N|none", help="The most GPUs at once.")
@click.option("--day", "gpu_hours_day", metavar="H|none", help="GPU-hours in a day.")
@click.option("--week", "gpu_hours_week", metavar="H|none", help="GPU-hours in a week.")
@click.option("--month", "gpu_hours_month", metavar="H|none", help="GPU-hours in a month.")
@output_option
def set_command(account: tuple[str, str], output: str, **limits: str | None) -> None:
    """Set limits of an account at once, whatever isonomy.yaml says, until `reset`; others stay. For admins."""
    _send("budget-set", output, account, **{k: x for k, x in limits.items() if x is not None})


@budget_group.command("reset")
@account
@output_option
def reset_command(account: tuple[str, str], output: str) -> None:
    """Give an account the limits of isonomy.yaml again. For admins."""
    _send("budget-reset", output, account)


def _send(path: str, output: str, account: tuple[str, str], **limits: str) -> None:
    emit(Rm(rm_address()).post(path, account=" ".join(account), **limits), output, lambda d: str(d["text"]))


def _drawn(d: Data) -> Any:
    if not d["limits"]:
        return "No limits are set: neither in isonomy.yaml (accounts) nor by `isonomy budget set`."
    rows = [
        (x["account"], UNITS.get(x["kind"]) or f"GPU-hours of a {x['kind'].rpartition('_')[2]}", f"{x['limit']:g}",
         f"{x['used']:.2f}" if x["ends_s"] else f"{x['used']:g}", f"{x['share']:.0%}",
         clock(x["ends_s"]), x["set_by"] if x["set_s"] is None else f"{x['set_by']}, {clock(x['set_s'])}")
        for x in d["limits"]
    ]  # fmt: skip
    names = ("ACCOUNT", "LIMIT", ">AT", ">USED", ">SHARE", ">FREE AGAIN", "SET BY")
    told = "what a command set precedes isonomy.yaml; GPU-hours are those of a GPU of speed 1"
    return lines(table(names, rows), told)
