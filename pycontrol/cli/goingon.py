"""`isonomy whatif --now` and of a snapshot: other policies continue from the scheduler's own state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import click

from pycontrol.cli.client import Misused
from pycontrol.cli.simulate import ARBITERS, _cells, _settings
from pycontrol.cli.tables import clock
from pycontrol.policies import registry
from pycontrol.simulation.outlook import Resumed, machines_of
from pycontrol.simulation.result import Result
from pycontrol.words import count

OTHERS = ("isonomy", "yarn_cs")
"""Which policy the one in force is held against, where none is named: the first that is another one."""


def chosen(p: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The policies that are compared: as asked, else the one in force and another."""
    return list(names) or [p["policy"], next(x for x in OTHERS if x != p["policy"])]


def went_on(
    p: Mapping[str, Any], names: Sequence[str], given: Sequence[str], lease_s: float | None, cells: Any
) -> tuple[dict[str, Result], str]:
    """What each policy would make of the apps that are there, and what that assumes."""
    if not p["apps"]:
        raise Misused("no app with an Agent is running: there is nothing to continue")
    options, settings = _settings(names, given, p["settings"]["lease_s"] if lease_s is None else lease_s)
    control = dataclasses.asdict(settings.arbiter)
    own = [text.partition("=")[0] for text in given if text.partition("=")[0] in ARBITERS]
    changed = {**p, "settings": {**p["settings"], "lease_s": control["lease_s"], **{k: control[k] for k in own}}}
    if cells is None and p["cells"]:
        raise Misused("this cluster has virtual clusters: give their file with --cells")
    topology = machines_of(p)
    started = [x["app_id"] for x in p["apps"] if x["started"]]
    found = {}
    for name in names:
        try:
            supply = _cells(cells, topology, {name: options[name]})() if cells is not None else None
            world = Resumed(changed, 1, error=0.0, options=options[name], policy=name, supply=supply)
        except registry.UnknownPolicy as e:
            raise click.BadParameter(str(e), param_hint="--policy") from e
        found[name] = dataclasses.replace(world.result(started), policy=name)
    waiting = len(p["apps"]) - len(started)
    assumed = (
        f"no app arrives after {clock(p['now_s'])}; declared work is right; waits are those of the"
        f" {count(waiting, 'app')} that had not started"
    )
    return found, assumed
