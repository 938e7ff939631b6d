"""`isonomy budget`: limits of users, groups and queues, and how much of them is used."""

from __future__ import annotations

from typing import Any

import click

from pycontrol.cli.client import Misused, Rm, output_option, rm_address
from pycontrol.cli.tables import Data, clock, emit, lines, table

UNITS = {"gpus": "GPUs at once"}


@click.command("budget")
@click.argument("account", nargs=-1, metavar="[KIND NAME]")
@click.option("--gpus", metavar="N|none", help="The most GPUs at once.")
@click.option("--day", "gpu_hours_day", metavar="H|none", help="GPU-hours in a day.")
@click.option("--week", "gpu_hours_week", metavar="H|none", help="GPU-hours in a week.")
@click.option("--month", "gpu_hours_month", metavar="H|none", help="GPU-hours in a month.")
@click.option("--reset", is_flag=True, help="The limits of isonomy.yaml again.")
@output_option
def budget_command(account: tuple[str, ...], reset: bool, output: str, **limits: str | None) -> None:
    """Limits of users, groups and queues: GPUs at once and GPU-hours, what is used of them, and who set them.

    At a limit nothing new starts; gangs beyond it, and all gangs of a used-up budget, end with their leases. Days,
    weeks (from Monday) and months are those of UTC. With KIND (user, group or queue; groups are those of `accounts`)
    and NAME, limits of that account are set at once, whatever isonomy.yaml says, until --reset; others stay. For
    admins.

    \b
    isonomy budget
    isonomy budget user ann --gpus 8 --week 500
    isonomy budget group research/vision --month none
    isonomy budget user ann --reset
    """
    given = {k: x for k, x in limits.items() if x is not None}
    if not account and not given and not reset:
        emit(Rm(rm_address()).get("budget"), output, _drawn)
        return
    if len(account) != 2 or reset == bool(given):
        raise Misused("give KIND NAME, as user ann, with limits, as --gpus 8, or with --reset")
    path = "budget-reset" if reset else "budget-set"
    emit(Rm(rm_address()).post(path, account=" ".join(account), **given), output, lambda d: str(d["text"]))


def _drawn(d: Data) -> Any:
    if not d["limits"]:
        return "No limits are set: neither in isonomy.yaml (accounts) nor by `isonomy budget`."
    rows = [
        (x["account"], UNITS.get(x["kind"]) or f"GPU-hours of a {x['kind'].rpartition('_')[2]}", f"{x['limit']:g}",
         f"{x['used']:.2f}" if x["ends_s"] else f"{x['used']:g}", f"{x['share']:.0%}",
         clock(x["ends_s"]), x["set_by"] if x["set_s"] is None else f"{x['set_by']}, {clock(x['set_s'])}")
        for x in d["limits"]
    ]  # fmt: skip
    names = ("ACCOUNT", "LIMIT", ">AT", ">USED", ">SHARE", ">FREE AGAIN", "SET BY")
    told = "what a command set precedes isonomy.yaml; GPU-hours are those of a GPU of speed 1"
    return lines(table(names, rows), told)
