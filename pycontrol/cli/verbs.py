"""The commands that change something: kill, drain, pause, boost, budget, mode. They need YARN's admin rights."""

from __future__ import annotations

from typing import Any

import click

from pycontrol.cli.client import Misused, Rm, duration_s, output_option, rm_address
from pycontrol.cli.tables import Data, clock, emit, lines, moment, table


def do(verb: str, output: str, **target: Any) -> None:
    """Has the control plane carry out a verb, with what is given of its parameters, and shows what it answers."""
    given = {k: str(v) for k, v in target.items() if v is not None}
    emit(Rm(rm_address()).post(verb, **given), output, lambda d: str(d["text"]))


@click.command("kill")
@click.argument("app")
@output_option
def kill_command(app: str, output: str) -> None:
    """End APP: its Agent stops the jobs and finishes. For admins and the app's own user."""
    do("kill", output, app=app)


@click.command("drain")
@click.argument("node")
@click.option("--end", is_flag=True, help="Put it back into use.")
@output_option
def drain_command(node: str, end: bool, output: str) -> None:
    """Take NODE (a host name) out of use: no new leases there, jobs checkpoint and move. For admins."""
    do("undrain" if end else "drain", output, node=node)


@click.command("pause")
@click.option("--end", is_flag=True, help="Hold rounds again.")
@output_option
def pause_command(end: bool, output: str) -> None:
    """Stop holding rounds; running containers continue and no lease ends. For admins."""
    do("resume" if end else "pause", output)


@click.command("boost")
@click.argument("target", nargs=-1, required=True, metavar="APP|USER")
@click.option("--for", "length", metavar="TIME", help="How long: 4h, 90m, 2d; at most 30d.")
@click.option("--end", is_flag=True, help="End the boost now.")
@output_option
def boost_command(target: tuple[str, ...], length: str | None, end: bool, output: str) -> None:
    """Put APP, or all apps of USER, first in its virtual cluster for a time. For admins.

    It works under every policy. Limits hold, GPUs of other virtual clusters stay theirs, and what runs keeps its GPUs
    until its leases end. `isonomy status` lists the boosts.

    \b
    isonomy boost my-sweep --for 4h
    isonomy boost ann --end
    isonomy boost user ann --for 4h  # where an app is called ann, too
    """
    if (length is None) == (not end):
        raise Misused("give either --for TIME, as --for 4h, or --end")
    for_s = 0 if length is None else max(1, int(duration_s(length, "--for")))
    do("boost", output, target=" ".join(target), for_s=for_s)


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
    given = any(x is not None for x in limits.values())
    if not account and not given and not reset:
        emit(Rm(rm_address()).get("budget"), output, _budget)
        return
    if len(account) != 2 or reset == given:
        raise Misused("give KIND NAME, as user ann, with limits, as --gpus 8, or with --reset")
    do("budget-reset" if reset else "budget-set", output, account=" ".join(account), **limits)


def _budget(d: Data) -> Any:
    if not d["limits"]:
        return "No limits are set: neither in isonomy.yaml (accounts) nor by `isonomy budget`."
    rows = []
    for x in d["limits"]:
        what = "GPUs at once" if x["kind"] == "gpus" else f"GPU-hours of a {x['kind'].rpartition('_')[2]}"
        used = f"{x['used']:.2f}" if x["ends_s"] else f"{x['used']:g}"
        by = x["set_by"] if x["set_s"] is None else f"{x['set_by']}, {clock(x['set_s'])}"
        rows.append((x["account"], what, f"{x['limit']:g}", used, f"{x['share']:.0%}", clock(x["ends_s"]), by))
    names = ("ACCOUNT", "LIMIT", ">AT", ">USED", ">SHARE", ">FREE AGAIN", "SET BY")
    told = "what a command set precedes isonomy.yaml; GPU-hours are those of a GPU of speed 1"
    return lines(table(names, rows), told)


@click.command("mode")
@click.argument("mode", required=False, type=click.Choice(["on", "shadow", "off"]))
@click.option("--queues", metavar="Q", help="Full paths as in root.research, by comma; root: all [default: as stored].")
@output_option
def mode_command(mode: str | None, queues: str | None, output: str) -> None:
    """Switch Isonomy on, let it only watch (shadow), or switch it off.

    Alone it shows the mode, its queues, and who switched when. Off, the plugin is plain CapacityScheduler; shadow, the
    control plane watches CapacityScheduler. Running containers continue. The mode lies beside the ResourceManager's own
    state and holds after a restart and a failover; the control plane may be stopped. --queues: for these queues Isonomy
    serves asks for GPUs. Switching needs YARN's admin rights.
    """
    if mode is None and queues is not None:
        raise Misused("--queues: say on, shadow or off, too")
    server = Rm(rm_address())
    if mode is None:
        found = server.get("mode")
    else:
        found = server.post("mode", mode=mode, **({"queues": queues} if queues is not None else {}))
    emit(found, output, _mode)


def _mode(d: Data) -> str:
    queues = ", ".join(d["queues"]) or "all queues"
    if d["problem"]:
        said = f"nothing new with GPUs is placed, running containers stay: {d['problem']}"
    else:
        said = f"switched by {d['by']}, {moment(d['at_s'])}" if d["at_s"] else "never switched"
    said_of = [d["mode"] + ("" if d["problem"] else f" for {queues}"), said, f"kept in {d['place']}"]
    if d["obsolete"]:
        said_of.append(f"obsolete in yarn-site.xml, remove: {', '.join(d['obsolete'])}")
    return "\n".join(said_of)
