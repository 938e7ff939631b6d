"""`isonomy preview`: who would lose which GPUs, and who would get some, if a configuration were put into force."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType

from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.cells.inspect import AS_CONFIGURED
from pycontrol.cells.layout import Layout
from pycontrol.cli.client import FILE, Misused, Rm, failing, file_option, output_option, rm_address
from pycontrol.cli.estimate import read_snapshot, scene_at
from pycontrol.cli.tables import Data, clock, emit, lines, table
from pycontrol.config import Config, ConfigError, load_config, load_topology_spec
from pycontrol.config.strict_yaml import read
from pycontrol.hadoopconf.queues import homes, read_queues
from pycontrol.model.cluster import Mode
from pycontrol.model.topology import Topology
from pycontrol.policies.registry import UnknownPolicy
from pycontrol.simulation.outlook import NoOutlook
from pycontrol.simulation.preview import preview
from pycontrol.simulation.scene import Scene, own_policies
from pycontrol.words import count, gang, span


@click.command("preview")
@click.argument("snapshot", required=False, type=FILE)
@file_option("--capacity-scheduler", help="A changed capacity-scheduler.xml.")
@file_option("--config", help="A changed isonomy.yaml, with its policy, settings, accounts and topology file.")
@file_option("--cells", help="A changed cells file.")
@output_option
def preview_command(snapshot: Path | None, output: str, **files: Path | None) -> None:
    """Who would lose which GPUs, when and by which rule, who would get some, what would start, with changed files.

    The Arbiter itself decides it on a copy of its state, on this machine, until all that runs now is decided; nobody is
    touched. The state is the present one, or that of SNAPSHOT. --cells FILE also says whether the assignment is
    feasible and what could still be assigned; where no ResourceManager is named, only that.

    \b
    isonomy preview --capacity-scheduler new/capacity-scheduler.xml
    isonomy preview --config new/isonomy.yaml --cells new/cells.yaml
    """
    if not any(files.values()):
        raise Misused("give a changed file: --capacity-scheduler, --config or --cells")
    with failing(ConfigError, NoOutlook, UnknownPolicy):
        data = _found(snapshot, **files)
    emit(data, output, _draw)


def _found(
    snapshot: Path | None, capacity_scheduler: Path | None, config: Path | None, cells: Path | None
) -> dict[str, Any]:
    parsed = None if cells is None else read(cells, CellsFile)
    scene = after = _scene(snapshot, alone=parsed is not None and not (capacity_scheduler or config))
    found = None
    if after is not None and config is not None:
        after = _configured(after, load_config(config), config, cells)
    if parsed is not None and cells is not None:
        found = layout(parsed, after.configured if after is not None else None, cells.name)
        own_policies(CellSupply(found), "", {}, file=cells.name)  # the others are checked with isonomy.yaml
    of_cells = {} if found is None else {"cells": _overview(found) | {"unknown": _unknown(found, scene)}}
    if scene is None or after is None:
        return of_cells
    if found is not None:
        after = dataclasses.replace(after, layout=found)
    if capacity_scheduler is not None:
        after = _queues(after, capacity_scheduler)
    restart = config is not None or (scene.layout is None) != (after.layout is None)
    with Console(stderr=True).status(f"{count(len(scene.started), 'app')} with and without the change"):
        return {**preview(scene, after, restart), **of_cells}


def _scene(snapshot: Path | None, alone: bool) -> Scene | None:
    """The state; None where no ResourceManager is named and a cells file is checked `alone`."""
    if snapshot is not None:
        return read_snapshot(snapshot)
    try:
        address = rm_address()
    except Misused:
        if alone:
            return None
        raise
    return scene_at(Rm(address))


def _configured(scene: Scene, config: Config, file: Path, cells: Path | None) -> Scene:
    from pycontrol.daemon.control_plane import settings_of  # with it comes all that serves

    if config.cells is None:
        if cells is not None:
            raise Misused(f"--cells {cells}: is for virtual clusters, and {file} names no cells file; add cells: FILE")
        scene = dataclasses.replace(scene, layout=None)
    elif scene.layout is None and cells is None:
        raise Misused(f"--config {file}: names a cells file; give it, too: --cells {config.cells}")
    machines, speeds = scene.configured, scene.settings.gpu_speeds
    if config.topology is None:
        machines, speeds = Topology(), {}
    elif config.topology.exists():  # else only the control plane's machine has it
        spec = load_topology_spec(config.topology)
        machines, speeds = spec.topology(), spec.speeds
    settings, options = dataclasses.replace(settings_of(config), gpu_speeds=speeds), dict(config.policy_options)
    return dataclasses.replace(scene, settings=settings, policy=config.policy, options=options, configured=machines)


def _queues(scene: Scene, file: Path) -> Scene:
    """With the queues of the file; as the plugin does, Isonomy serves those that the mode in force names, else all."""
    switch, found = scene.cluster.switch, read_queues(file, scene.topology.gpus_in)
    homes(found, ((app.queue, None) for app in scene.cluster.apps), str(file), found[0].partitions)
    named = () if switch.mode in (Mode.OFF, Mode.SHADOW) else switch.queues or ("root",)
    mine = {q.path for q in found if any(f"{q.path}.".startswith(f"{name}.") for name in named)}
    queues = tuple(dataclasses.replace(q, unmanaged=q.leaf and q.path not in mine) for q in found)
    return dataclasses.replace(scene, cluster=dataclasses.replace(scene.cluster, queues=queues))


# ---- for people


def _draw(d: Data) -> RenderableType:
    parts: list[RenderableType | None] = []
    rows: list[Sequence[Any]]
    if "cells" in d:
        parts += [_draw_cells(d["cells"]), ""]
    if "losses" not in d:
        return lines(*parts, "No ResourceManager is named (--rm URL): what running apps would lose is not known.")
    now_s, mine = d["now_s"], [x for x in d["losses"] if not x["anyway"]]
    gpus, apps = sum(len(x["gpu_ids"]) for x in mine), len({x["app_id"] for x in mine})
    after = ", after the restart that it needs" if d["restart"] else ""
    said = f"The change would take {count(gpus, 'GPU')} from {count(apps, 'running app')}{after}"
    parts.append(f"{said}; played until {clock(d['until_s'])}.")
    if d["losses"]:
        rows = [
            (*_app(x), gang(sorted(x["gpus"].items())), span(x["at_s"] - now_s), x["rule"], x["why"], x["anyway"])
            for x in d["losses"]
        ]
        parts += ["", table(("LOSES GPUS", "QUEUE", "USER", "GPUS", ">WITHIN", "RULE", "WHY", "ALSO WITHOUT"), rows)]
    for title, name in (("ONLY BORROWS FROM THEN ON", "borrows"), ("GPUS AT THE END, AGAINST WITHOUT", "changes")):
        if d[name]:
            rows = [(*_app(x), f"{x['gpus']:+d}" if name == "changes" else x["gpus"]) for x in d[name]]
            parts += ["", table((title, "QUEUE", "USER", ">GPUS"), rows)]
    if d["starts"] or d["delayed"]:
        rows = [
            (*_app(x), span(x["at_s"] - now_s), "later" if x["anyway_s"] is None else span(x["anyway_s"] - now_s))
            for x in d["starts"]
        ]
        rows += [(*_app(x), "later", "sooner") for x in d["delayed"]]
        parts += ["", table(("STARTS", "QUEUE", "USER", ">IN", ">WITHOUT THE CHANGE"), rows)]
    return lines(*parts, "", f"assumed: {d['assumed']}")


def _app(x: Data) -> tuple[str, str, str]:
    return f"{x['name']} ({x['app_id'].removeprefix('application_')})", x["queue"], x["user"]


def _overview(found: Layout) -> dict[str, Any]:
    """The chains, with the cells of each type that could still be assigned, each type alone; and who owns what."""
    spare = found.spare()
    return {
        "chains": [{"chain": x.name, "gpu_type": x.gpu_type, "gpus": len(x.indices), "hosts": len(x.hosts),
                    "spare": spare[x.name]} for x in found.chains],
        "virtual_clusters": [
            {"name": vc.name, "gpus": found.gpus(vc),
             "cells": [{"chain": found.chains[c].name, "type": found.chains[c].names[k], "count": n}
                       for c, k, n in vc.cells],
             "pinned": [p.name for p in vc.pinned], "policy": vc.policy or AS_CONFIGURED, "weight": vc.weight,
             "min_lend_s": vc.terms.min_lend_s}
            for vc in found.vcs
        ],
    }  # fmt: skip


def _unknown(found: Layout, scene: Scene | None) -> list[str]:
    """What the file names and the cluster does not have."""
    if scene is None:
        return []
    leaves = {q.path.removeprefix("root.") for q in scene.cluster.queues if q.leaf}
    hosts = {n.host for n in (*scene.cluster.nodes, *scene.away)}
    strange = [vc.name for vc in found.vcs if leaves and vc.name.removeprefix("root.") not in leaves]
    missing = sorted({host for chain in found.chains for host in chain.hosts} - hosts)
    return [
        *(f"{name} is no leaf queue of the cluster: no app can use its cells" for name in strange),
        *(f"the control plane knows no node {host}: nobody gets its GPUs until it registers" for host in missing),
    ]


def _draw_cells(d: Data) -> RenderableType:
    owners = []
    for vc in d["virtual_clusters"]:
        cells = [*(f"{x['count']} x {x['type']}" for x in vc["cells"]), *vc["pinned"]]
        owners.append((vc["name"], vc["gpus"], cells, vc["policy"], span(vc["min_lend_s"])))
    spare = [(c["chain"], c["gpu_type"], c["gpus"], c["hosts"], c["spare"]) for c in d["chains"]]
    return lines(
        table(("VIRTUAL CLUSTER", ">GPUS", "CELLS", "POLICY", ">BORROWERS KEEP ITS GPUS"), owners),
        "",
        table(("CHAIN", "GPU TYPE", ">GPUS", ">HOSTS", "COULD STILL BE ASSIGNED (EACH ALONE)"), spare),
        *(f"WARNING: {x}" for x in d["unknown"]),
    )
