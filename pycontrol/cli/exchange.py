"""`isonomy exchange`: virtual clusters lend each other cells for a time."""

from __future__ import annotations

import re
from typing import Any

import click

from pycontrol.cli.client import Rm, output_option, rm_address
from pycontrol.cli.tables import Data, clock, emit, left, lines, show, table

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PIECE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A time span in seconds: 90s, 5m, 2h, 1d, 1h30m; a bare number is seconds."""
    if value is None:
        return None
    text = value.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        text += "s"
    if not re.fullmatch(f"({PIECE.pattern})+", text):
        raise click.BadParameter(f"{value} is not a duration such as 90s, 5m, 2h or 1h30m")
    seconds = sum(float(n) * UNITS_S[unit] for n, unit in PIECE.findall(text))
    if seconds <= 0:
        raise click.BadParameter(f"{value}: must be more than 0")
    return seconds


def _term(command: Any) -> Any:
    """The options that offers and requests share."""
    for option in (
        click.option("--id", "posting_id", metavar="NAME", help="Name it; the same name twice counts once."),
        click.option("--for", "for_s", callback=_seconds, required=True, metavar="TIME",
                     help="How long from now: 90s, 5m, 2h, 1d."),
    ):  # fmt: skip
        command = option(command)
    return output_option(command)


def _send(path: str, output: str, params: dict[str, Any]) -> None:
    given = {k: v for k, v in params.items() if v is not None}
    emit(Rm(rm_address()).post(path, **given), output, lambda d: str(d["text"]))


@click.group("exchange")
def exchange_group() -> None:
    """Virtual clusters lend each other cells for a time: offers and requests on a board are matched.

    CELLS are TYPE:COUNT, such as node:2, or TYPE:COUNT@CHAIN where several chains have the type. VC is a queue of the
    cells file. For admins, and for the users that isonomy.yaml names for the queue (exchange.traders).

    \b
    isonomy exchange offer root.prod node:2 --for 2h
    isonomy exchange request root.research node:1 --for 30m --in-return gpu:4
    isonomy exchange list
    isonomy exchange withdraw offer-1f02ab
    """


@exchange_group.command("offer")
@click.argument("vc")
@click.argument("cells")
@_term
def offer_command(vc: str, cells: str, for_s: float, posting_id: str | None, output: str) -> None:
    """Lend CELLS of VC until then, to who requests some. Cells in use are not lent: they wait until they are free."""
    _send("exchange-offer", output, {"vc": vc, "cells": cells, "for_s": str(for_s), "id": posting_id})


@exchange_group.command("request")
@click.argument("vc")
@click.argument("cells")
@click.option("--in-return", metavar="CELLS", help="Cells of VC that it lends for the same time.")
@_term
def request_command(
    vc: str, cells: str, in_return: str | None, for_s: float, posting_id: str | None, output: str
) -> None:
    """Ask for CELLS for VC until then. VC's apps run on them as on its own; then they run on, borrowing."""
    params = {"vc": vc, "cells": cells, "for_s": str(for_s), "id": posting_id, "in_return": in_return}
    _send("exchange-request", output, params)


@exchange_group.command("withdraw")
@click.argument("posting_id", metavar="ID")
@output_option
def withdraw_command(posting_id: str, output: str) -> None:
    """Take an offer or a request off the board. A deal that was made stays in force until its end."""
    _send("exchange-withdraw", output, {"id": posting_id})


@exchange_group.command("list")
@output_option
def list_command(output: str) -> None:
    """Offers, requests, the deals in force, and who gave and took how much."""
    emit(Rm(rm_address()).get("exchange"), output, _board)


def _board(d: Data) -> Any:
    if not d["books"]:
        return "There are no virtual clusters: isonomy.yaml names no cells file."
    deals = [
        (x["id"], x["owner"], x["tenant"], _lot(x["lot"]), _lot(x["in_return"]), left(x["end_s"], d["now_s"]))
        for x in d["deals"]
    ]
    posted = [(x["id"], "offers", x["tenant"], _lot(x["lot"]), "", clock(x["end_s"])) for x in d["offers"]]
    posted += [
        (x["id"], "requests", x["tenant"], _lot(x["lot"]), _lot(x["in_return"]), clock(x["end_s"]))
        for x in d["requests"]
    ]
    books = [(b["vc"], b["gpus"], b["surplus_gpu_hours"], b["contributed_gpu_hours"]) for b in d["books"]]
    deal_names = ("DEAL", "OWNER", "LENDS TO", "CELLS", "IN RETURN", ">ENDS IN")
    post_names = ("POSTING", "", "VIRTUAL CLUSTER", "CELLS", "IN RETURN", ">UNTIL")
    return lines(
        table(deal_names, deals) if deals else "no deal is in force",
        "",
        table(post_names, posted) if posted else "nothing is on the board",
        "",
        table(("VIRTUAL CLUSTER", ">OWNS NOW", ">SURPLUS GPU h", ">LENT EVER GPU h"), books),
    )


def _lot(lot: Data | None) -> str:
    return f"{lot['count']} x {lot['cell_type']}" if lot else show(None)
