"""`isonomy shadow`: what would have been different with Isonomy, while CapacityScheduler places GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.console import RenderableType

from pycontrol.cli.client import Failure, Rm, output_option, rm_address
from pycontrol.cli.tables import Data, clock, emit, lines, table
from pycontrol.lab.whatif import draw_replay, replay_of_yarn
from pycontrol.words import count

STOCK = "yarn_cs"
NEWEST = 10


@click.command("shadow")
@click.option("--since", default="7d", show_default=True, metavar="TIME", help="7d, 12h, or 2026-11-20T14:00.")
@click.option("--policy", metavar="NAME", help="Isonomy's policy  [default: the control plane's].")
@click.option("--set", "given", multiple=True, metavar="OPTION=VALUE", help="As of `isonomy simulate`; repeat.")
@output_option
def shadow_command(since: str, policy: str | None, given: tuple[str, ...], output: str) -> None:
    """What Isonomy would have made of the applications with GPUs here, in mode shadow.

    In that mode CapacityScheduler continues placing GPUs, and the control plane only watches. First come the rounds
    that it held as if: each time that CapacityScheduler gave out GPUs, who would have got them. Then both schedulers
    replay the applications that ended since --since on the same machines; the replay of CapacityScheduler is held
    against what really happened, and that figure says how far to believe the rest.
    """
    server = Rm(rm_address())
    status, live = server.get("status"), server.get("shadow")
    if not status["shadow"]:
        raise Failure("the mode is not shadow (isonomy mode): `isonomy whatif` compares policies that serve")
    names = [STOCK, policy or status["policy"]]
    if names[1] == STOCK:
        raise Failure(f"--policy {STOCK}: is what CapacityScheduler does already; name another")
    replay = replay_of_yarn(server, names, given, since, status["lease_s"])
    if replay is None and not live["decisions"]:
        raise Failure(f"no GPUs have been given out yet, and no application with GPUs has ended since {since}")
    emit({"live": live, **(replay or {"replayed": 0})}, output, _draw)


def _live(d: Data) -> RenderableType:
    """The rounds as if."""
    if not d["decisions"]:
        return "AS IF: no GPUs were given out since the control plane began to watch"
    users = [[r["queue"], r["user"], r["given"], r["would_give"], r["would_take"]] for r in d["by_user"]]
    newest = [
        [clock(x["at_s"]), _apps(x["given"]) or "nobody", _apps(x["would_give"]) or "nobody", _apps(x["why"])]
        for x in d["newest"][:NEWEST]
    ]
    return lines(
        f"AS IF, since {clock(d['since_s'])}: one of both had GPUs to give {count(d['decisions'], 'time')},"
        f" {d['gpus']} GPUs were given; on {d['same_gpus']} of them Isonomy would have done the same",
        table(["QUEUE", "USER", ">GIVEN", ">ISONOMY", ">TAKEN BACK"], users),
        "",
        table(["AT", "GIVEN", "ISONOMY WOULD", "WHY NOT THE SAME"], newest),
    )


def _apps(of: Mapping[str, Any]) -> str:
    return "; ".join(f"{app_id.removeprefix('application_')}: {x}" for app_id, x in sorted(of.items()))


def _draw(d: Data) -> RenderableType:
    if not d["replayed"]:
        return lines(_live(d["live"]), "", "no application with GPUs has ended yet: there is nothing to replay")
    return lines(_live(d["live"]), "", draw_replay(d))
