"""The whole state of cells as JSON values, for the steps of a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pycontrol.cells.layout import Layout
from pycontrol.cells.space import AffinityGroup, Holding
from pycontrol.cells.values import IDLE
from pycontrol.lab.hived.groups import GroupCells
from pycontrol.lab.hived.preemption import PriorityRequest
from pycontrol.lab.hived.states import GroupState, PriorityGroup


def dump(cells: GroupCells) -> dict[str, Any]:
    """The whole state except the layout, as JSON values."""
    numbers = {id(space): at for at, space in enumerate(cells.spaces)}

    def listed(held: Sequence[Holding]) -> list[list[Any]]:
        return [[numbers[id(h.space)], h.worker, list(h.physical), [] if h.borrowed else list(h.cell)] for h in held]

    groups = []
    for group in sorted(cells.groups.values(), key=lambda g: g.order):
        assert isinstance(group.request, PriorityRequest)
        request = asdict(group.request)
        request["avoid"] = sorted(group.request.avoid)
        request["hosts"] = None if group.request.hosts is None else sorted(group.request.hosts)
        groups.append(
            {
                "request": request,
                "priority": group.priority,
                "state": group.state.value,
                "workers": [[host, list(indices)] for host, indices in group.workers],
                "parts": listed(group.held),
                "lost": {name: listed(held) for name, held in cells.lost.get(group.name, {}).items()},
                "victims": list(group.victims),
                "downgraded": [
                    [victim.name, listed(before)]
                    for victim, before in cells.downgraded.get(group.name, ())
                    if cells.groups.get(victim.name) is victim
                ],
            }
        )
    return {
        "version": 1,
        "groups": groups,
        "bad": [sorted(space.bad) for space in cells.spaces],
        "holders": [[[*root, *key] for root, key in space.holder.items()] for space in cells.spaces],
    }


def load(layout: Layout, data: Mapping[str, Any]) -> GroupCells:
    """The inverse of `dump`, on the same layout."""
    cells = GroupCells(layout)
    for space, holders in zip(cells.spaces, data["holders"], strict=True):
        for level, number, vc, pinned in holders:
            space.assign_root((level, number), (vc, pinned))

    def held_by(group: AffinityGroup, listed: Sequence[Any]) -> list[Holding]:
        return [
            Holding(space, space.pools[group.key if cell else IDLE], worker, tuple(cell or physical), tuple(physical))
            for at, worker, physical, cell in listed
            for space in (cells.spaces[at],)
        ]

    for saved in data["groups"]:
        request = _load_request(saved["request"])
        group = PriorityGroup(request, saved["priority"], (request.vc, request.pinned), order=cells.order)
        cells.order += 1
        group.state = GroupState(saved["state"])
        group.workers = tuple((host, tuple(indices)) for host, indices in saved["workers"])
        group.held = held_by(group, saved["parts"])
        cells.lost[group.name] = {name: held_by(group, listed) for name, listed in saved["lost"].items()}
        cells.groups[group.name] = group
        if group.guaranteed:
            cells.owners.setdefault(group.key, {})[group.name] = group
    for saved in data["groups"]:
        group = cells.groups[saved["request"]["group"]]
        group.victims = {name: cells.groups[name] for name in saved["victims"]}
        for victim in group.victims.values():
            victim.preemptors[group.name] = group
        downgraded = ((cells.groups[name], before) for name, before in saved["downgraded"])
        cells.downgraded[group.name] = [(victim, held_by(victim, before)) for victim, before in downgraded]
    _occupy(cells)
    for space, bad in zip(cells.spaces, data["bad"], strict=True):
        for leaf in bad:
            space.set_bad(leaf)
    return cells


def _load_request(asked: Mapping[str, Any]) -> PriorityRequest:
    return PriorityRequest(
        **{
            **asked,
            "members": tuple((count, gpus) for count, gpus in asked["members"]),
            "hosts": None if asked["hosts"] is None else frozenset(asked["hosts"]),
            "on": tuple((host, gpus) for host, gpus in asked["on"]),
            "inside": tuple(tuple(cell) for cell in asked["inside"]),
            "avoid": frozenset(asked["avoid"]),
        }
    )


def _occupy(cells: GroupCells) -> None:
    """Puts loaded groups on their GPUs: borrowers first, as owners take what these leave."""
    lost = {name: [h for held in cells.lost[name].values() for h in held] for name in cells.groups}
    for name, group in cells.groups.items():
        for guest in [*(h for h in group.held if h.borrowed), *lost[name]]:
            for node in guest.space.chain.by_node(guest.physical):
                guest.space.add_borrower(group, node)
    for group in cells.groups.values():
        for own in group.held:
            if not own.borrowed:
                own.space.bind_exactly(own.cell, own.physical[1])
                own.pool.take(own.cell)
                own.space.own(group, own.physical)
    for held in lost.values():
        for part in held:
            part.space.bind_exactly(part.cell, part.physical[1])
