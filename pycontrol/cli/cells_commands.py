"""`isonomy cells`: what virtual clusters own; `isonomy exchange`: they lend each other cells for a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pycontrol.cli.client import Rm, duration_s, output_option, rm_address
from pycontrol.cli.screens import deal
from pycontrol.cli.tables import Data, clock, emit, lines, show, table
from pycontrol.cli.verbs import do
from pycontrol.words import left, span


@click.group("cells")
def cells_group() -> None:
    """Virtual private clusters: what each queue owns, in cells."""


@cells_group.command("status")
@output_option
def status_command(output: str) -> None:
    """What each virtual cluster owns, uses, borrows and waits for now, in GPUs; -o json has every group, cell and GPU.

    GOT and LENT: by exchange, for a time; what was got counts as owned.
    """
    emit(Rm(rm_address()).get("cells"), output, _status)


@cells_group.command("apply")
@click.argument("file", type=click.Path(path_type=Path, exists=True))
@output_option
def apply_command(file: Path, output: str) -> None:
    """Put the changed FILE into force, on the machine of `isonomy serve` whose isonomy.yaml names it. For admins.

    All that runs continues; what its queue does not own any more is borrowed from then on.
    """
    do("cells-apply", output, file=file.resolve())


def _status(data: Data) -> Any:
    if not data["tenants"]:
        return "There are no virtual clusters: isonomy.yaml names no cells file."
    columns = ("gpus", "got", "lent", "own", "borrowed", "apps", "wanted", "bad_cells")
    rows = [(t["name"] or "(no cells)", *(t[c] for c in columns), span(t["min_lend_s"])) for t in data["tenants"]]
    gpus = (">OWNS NOW", ">GOT", ">LENT", ">USES", ">BORROWS")
    names = ("VIRTUAL CLUSTER", *gpus, ">APPS", ">WAITS FOR", ">BAD CELLS", ">BORROWERS KEEP ITS GPUS")
    parts: list[Any] = [table(names, rows)]
    if data["deals"]:
        parts += ["", *(deal(x, data["now_s"]) for x in data["deals"])]
    known = ((host["host"], gpu) for host in data["physical_cluster"] for gpu in host["gpus"])
    bad = [f"{host}:{gpu['index']}" for host, gpu in known if not gpu["healthy"]]
    if bad:
        parts += ["", f"GPUs that are bad, drained or on lost nodes: {', '.join(bad)}"]
    return lines(*parts)


# ---- exchange


def _for_s(ctx: click.Context, param: click.Parameter, text: str) -> float:
    """A time span in seconds, which a number alone counts."""
    return duration_s(f"{text}s" if text.isdecimal() else text, "--for")


def _term(command: Any) -> Any:
    """The options that offers and requests share."""
    for option in (
        click.option("--id", metavar="NAME", help="Name it; the same name twice counts once."),
        click.option(
            "--for", "for_s", callback=_for_s, required=True, metavar="TIME", help="How long from now: 90s, 5m, 2h, 1d."
        ),
        output_option,
    ):
        command = option(command)
    return command


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
def offer_command(output: str, **posting: Any) -> None:
    """Lend CELLS of VC until then, to who requests some. Cells in use are not lent: they wait until they are free."""
    do("exchange-offer", output, **posting)


@exchange_group.command("request")
@click.argument("vc")
@click.argument("cells")
@click.option("--in-return", metavar="CELLS", help="Cells of VC that it lends for the same time.")
@_term
def request_command(output: str, **posting: Any) -> None:
    """Ask for CELLS for VC until then. VC's apps run on them as on its own; then they run on, borrowing."""
    do("exchange-request", output, **posting)


@exchange_group.command("withdraw")
@click.argument("id")
@output_option
def withdraw_command(output: str, **posting: Any) -> None:
    """Take an offer or a request off the board. A deal that was made stays in force until its end."""
    do("exchange-withdraw", output, **posting)


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
