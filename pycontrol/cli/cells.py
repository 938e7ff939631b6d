"""`isonomy cells`: what virtual clusters own, and a changed file put into force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pycontrol.cli.client import Failure, Rm, output_option, rm_address
from pycontrol.cli.screens import deal
from pycontrol.cli.tables import Data, emit, lines, span, table


class CellsGroup(click.Group):
    """It says what to write for the former commands."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name."""
        if cmd_name in ("check", "plan", "show"):
            ctx.fail(f"`isonomy cells {cmd_name} FILE` is now `isonomy preview --cells FILE`; add cells in the file")
        return super().get_command(ctx, cmd_name)


@click.group("cells", cls=CellsGroup)
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
@click.argument("file", type=click.Path(path_type=Path))
@output_option
def apply_command(file: Path, output: str) -> None:
    """Put the changed FILE into force, on the machine of `isonomy serve` whose isonomy.yaml names it. For admins.

    All that runs continues; what its queue does not own any more is borrowed from then on.
    """
    if not file.exists():
        raise Failure(f"{file}: there is no such file")
    emit(Rm(rm_address()).post("cells-apply", file=str(file.resolve())), output, lambda d: str(d["text"]))


def _status(data: Data) -> Any:
    if not data["tenants"]:
        return "There are no virtual clusters: isonomy.yaml names no cells file."
    columns = ("gpus", "got", "lent", "own", "borrowed", "apps", "wanted", "bad_cells")
    rows = [(t["name"] or "(no cells)", *(t[c] for c in columns), span(t["min_lend_s"])) for t in data["tenants"]]
    names = ("VIRTUAL CLUSTER", ">OWNS NOW", ">GOT", ">LENT", ">USES", ">BORROWS", ">APPS", ">WAITS FOR", ">BAD CELLS",
             ">BORROWERS KEEP ITS GPUS")  # fmt: skip
    parts: list[Any] = [table(names, rows)]
    if data["deals"]:
        parts += ["", *(deal(x, data["now_s"]) for x in data["deals"])]
    gpus = ((host["host"], gpu) for host in data["physical_cluster"] for gpu in host["gpus"])
    bad = [f"{host}:{gpu['index']}" for host, gpu in gpus if not gpu["healthy"]]
    if bad:
        parts += ["", f"GPUs that are bad, drained or on lost nodes: {', '.join(bad)}"]
    return lines(*parts)
