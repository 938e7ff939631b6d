"""`isonomy cells`: check an assignment, try a change of it, and show it as a tree. Nothing is changed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import click

from pycontrol.cells.config import CellsFile, layout
from pycontrol.cells.core import Cells
from pycontrol.cells.inspect import AS_CONFIGURED, virtual_clusters
from pycontrol.cells.layout import Layout, LayoutError
from pycontrol.cli.client import Rm, output_option, rm_address
from pycontrol.cli.screens import deal
from pycontrol.cli.tables import Data, emit, lines, span, table
from pycontrol.config import ConfigError, load_topology, parse
from pycontrol.policies import registry
from pycontrol.policies.on_schedule import NoSchedule, OnSchedule

FILE = click.argument("file", type=click.Path(path_type=Path))
TOPOLOGY = click.option(
    "--topology",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The hosts, where FILE does not name them (a topology file).",
)
ADDITION = re.compile(r"^(?P<vc>[^:]+):(?P<type>[^:]+):(?P<count>[+-]?\d+)(?:@(?P<chain>.+))?$")


class CellsGroup(click.Group):
    """With the former commands `plan` and `show`, which `check` includes."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name or former name."""
        return super().get_command(ctx, {"plan": "check", "show": "check"}.get(cmd_name, cmd_name))


@click.group("cells", cls=CellsGroup)
def cells_group() -> None:
    """Virtual private clusters: what each queue owns, in cells."""


@cells_group.command("check")
@FILE
@TOPOLOGY
@click.option(
    "--add",
    "additions",
    multiple=True,
    metavar="VC:TYPE:COUNT[@CHAIN]",
    help="Cells that a virtual cluster would have more (a negative COUNT: fewer); may be repeated.",
)
@output_option
def check_command(file: Path, topology: Path | None, additions: tuple[str, ...], output: str) -> None:
    """Check FILE: is the assignment feasible, with what is added, and what is left? Exit 1 if it is not.

    It prints the chains with their cell types, and the virtual clusters with their cells. Nothing is changed.
    """
    found = _load(file, topology)
    try:
        wanted = found.with_more([_addition(found, text) for text in additions]) if additions else found
        short = wanted.shortfalls() if additions else []
    except LayoutError as error:
        _fail(f"--add: {line}" for line in error.lines)
    if short:
        _fail(f"--add: {line}" for line in short)
    emit({**_overview(wanted), "clusters": virtual_clusters(Cells(wanted))}, output, _draw)


@cells_group.command("status")
@output_option
def status_command(output: str) -> None:
    """What each virtual cluster owns, uses, borrows and waits for now, in GPUs; -o json has every group, cell and GPU.

    GOT and LENT: by exchange, for a time; what was got counts as owned.
    """
    emit(Rm(rm_address()).get("cells"), output, _status)


@cells_group.command("apply")
@FILE
@output_option
def apply_command(file: Path, output: str) -> None:
    """Put the changed FILE into force, on the machine of `isonomy serve` whose isonomy.yaml names it. For admins.

    All that runs continues; what its queue does not own any more is borrowed from then on.
    """
    if not file.exists():
        _fail([f"{file}: there is no such file"])
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


def _load(file: Path, topology: Path | None) -> Layout:
    try:
        text = file.read_text(encoding="utf-8")
        machines = load_topology(topology) if topology else None
        found = layout(parse(text, CellsFile, file.name), machines, file.name)
        _check_policies(found, file.name)
        return found
    except OSError as error:
        _fail([f"{file}: cannot be read: {error.strerror}"])
    except UnicodeDecodeError:
        _fail([f"{file}: is not UTF-8 text"])
    except ConfigError as error:
        _fail(error.lines)


def _check_policies(found: Layout, name: str) -> None:
    """Those that the file names; what it leaves to isonomy.yaml is checked where that is."""
    for vc in found.vcs:
        if vc.terms.policy:
            try:
                policy = registry.configured(vc.terms.policy, **vc.terms.options)
                _ = OnSchedule(policy) if vc.terms.private_schedule else policy
            except (registry.UnknownPolicy, NoSchedule) as error:
                raise ConfigError([f"{name}: virtual_clusters.{vc.name}.policy: {error}"]) from error


def _fail(problems: Iterable[str]) -> NoReturn:
    for line in problems:
        click.echo(f"error: {line}", err=True)
    sys.exit(1)


def _addition(found: Layout, text: str) -> tuple[str, int, int, int]:
    match = ADDITION.match(text)
    if match is None:
        raise click.BadParameter(f"{text} is not VC:TYPE:COUNT[@CHAIN]", param_hint="--add")
    places = [
        (at, level)
        for at, chain in enumerate(found.chains)
        if match["chain"] in (None, chain.name) and (level := chain.level_of(match["type"])) is not None
    ]
    if not places:
        known = ", ".join(sorted({name for chain in found.chains for name in chain.names if name}))
        raise LayoutError([f"{text}: there is no cell type {match['type']}; known are {known}"])
    if len(places) > 1:
        names = ", ".join(found.chains[at].name for at, _ in places)
        raise LayoutError([f"{text}: several chains have it ({names}); add @CHAIN"])
    return match["vc"], *places[0], int(match["count"])


def _overview(found: Layout) -> dict[str, Any]:
    return {
        "feasible": True,
        "chains": [
            {
                "chain": chain.name,
                "gpu_type": chain.gpu_type,
                "gpus": len(chain.indices),
                "hosts": len(chain.hosts),
                "levels": [{"type": n, "gpus": chain.sizes[k]} for k, n in enumerate(chain.names) if n],
                "spare": found.spare()[chain.name],
            }
            for chain in found.chains
        ],
        "virtual_clusters": [
            {
                "name": vc.name,
                "gpus": found.gpus(vc),
                "cells": [
                    {"chain": found.chains[c].name, "type": found.chains[c].names[k], "count": n}
                    for c, k, n in vc.cells
                ],
                "pinned": [p.name for p in vc.pinned],
                "policy": vc.policy or AS_CONFIGURED,
                "weight": vc.weight,
                "min_lend_s": vc.terms.min_lend_s,
            }
            for vc in found.vcs
        ],
    }


def _cells_of(vc: Data) -> str:
    parts = [f"{cell['count']} x {cell['type']}" for cell in vc["cells"]]
    return ", ".join([*parts, *(f"pinned {name}" for name in vc["pinned"])])


def _draw(data: Data) -> Any:
    types = table(
        ("CHAIN", "GPU TYPE", "CELL TYPES, FROM THE LARGEST, WITH THEIR GPUS"),
        ((c["chain"], c["gpu_type"], ", ".join(f"{x['type']} ({x['gpus']})" for x in reversed(c["levels"])))
         for c in data["chains"]),
    )  # fmt: skip
    owners = table(
        ("VIRTUAL CLUSTER", ">GPUS", "CELLS", "POLICY", ">BORROWERS KEEP ITS GPUS"),
        (
            (vc["name"], vc["gpus"], _cells_of(vc), vc["policy"], span(vc["min_lend_s"]))
            for vc in data["virtual_clusters"]
        ),
    )
    spare = table(
        ("CHAIN", ">GPUS", ">HOSTS", "COULD STILL BE ASSIGNED (EACH ALONE)"),
        ((c["chain"], c["gpus"], c["hosts"], c["spare"]) for c in data["chains"]),
    )
    return lines(types, "", owners, "", spare)
