"""Restores running groups on their GPUs: after a crash, a change of the configuration, or from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pycontrol.cells.core import Cells, workers_of
from pycontrol.cells.geometry import Cell, cover
from pycontrol.cells.inside import take_inside
from pycontrol.cells.layout import Layout
from pycontrol.cells.search import give_up, virtual_for
from pycontrol.cells.space import AffinityGroup, Part, Space
from pycontrol.cells.trees import bind_trees
from pycontrol.cells.values import (
    OPPORTUNISTIC,
    CellsError,
    Decision,
    GroupRequest,
    GroupState,
    PlacementOutcome,
    Worker,
)
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value


@value
class Reconfigured:
    """The running groups after a change of the configuration; groups that are not listed continue unchanged."""

    cells: Cells
    downgraded: tuple[str, ...] = ()
    """Groups that continue as opportunistic ones."""
    pending: tuple[str, ...] = ()
    """Groups with unfinished preemptions, to be requested again."""
    gone: tuple[str, ...] = ()
    """Groups that could not be adopted: none of their GPUs is in the cluster, or another group uses one."""


def adopt(cells: Cells, request: GroupRequest, workers: Sequence[Worker]) -> Decision:
    """Adopts a group that already runs on these GPUs.

    It is guaranteed if cells of its virtual cluster can be bound there, else it continues as an opportunistic group.
    GPUs that the cells do not know are left out, and such a group is opportunistic. Raises CellsError if the group
    exists, none of its GPUs is known, or another group uses one.
    """
    if request.group in cells.groups:
        raise CellsError(f"group {request.group} exists already")
    found, complete = _locate(cells, workers)
    if not found:
        raise CellsError(f"group {request.group}: none of its GPUs is in the cluster")
    parts: list[Part] | None = None
    if complete and request.priority > OPPORTUNISTIC:
        if request.inside:
            gpus = [Gpu(host, index) for host, indices in workers for index in indices]
            parts = take_inside(cells.spaces, (request.vc, request.pinned), request.inside, gpus)
        if not request.strictly:
            parts = parts or _guaranteed(cells, request, found)
    group = AffinityGroup(request, OPPORTUNISTIC, cells.order, (request.vc, request.pinned))
    cells.order += 1
    cells.groups[request.group] = group
    group.state = GroupState.ALLOCATED
    if parts is None:
        group.lazily_preempted = request.priority > OPPORTUNISTIC
        group.parts = [Part(space, worker, cell) for space, worker, cell in found]
        for part in group.parts:
            part.space.add_borrower(group, part.physical)
    else:
        group.priority, group.parts = request.priority, parts
        for part in parts:
            part.space.own(group, part.physical)
        cells.by_key.setdefault(group.pool, {})[group.name] = group
    group.workers = workers_of(group.parts)
    return Decision(PlacementOutcome.PLACED, group.workers, downgraded=(group.name,) if group.lazily_preempted else ())


def _locate(cells: Cells, workers: Sequence[Worker]) -> tuple[list[tuple[Space, int, Cell]], bool]:
    """(chain, worker, physical cell) for the workers, and whether all GPUs were found; CellsError if one is in use."""
    found = _cells_of(cells, workers)
    leaves = [(space, leaf) for space, _, cell in found for leaf in space.chain.leaves(cell)]
    for space, leaf in leaves:
        other = space.owner_of(leaf) or space.borrower[leaf]
        if other is not None:
            raise CellsError(f"GPU {space.chain.gpu(leaf)} is in use by group {other.name}")
    return found, len(leaves) == sum(len(indices) for _, indices in workers)


def _cells_of(cells: Cells, workers: Sequence[Worker]) -> list[tuple[Space, int, Cell]]:
    """(chain, worker, physical cell) for the workers' GPUs that the cells know."""
    found: list[tuple[Space, int, Cell]] = []
    for number, (host, indices) in enumerate(workers):
        wanted = set(indices)
        for space in cells.spaces:
            per_node = space.chain.sizes[space.chain.node]
            leaves = [
                leaf
                for node in space.nodes_of.get(host, ())
                for leaf in range(node * per_node, (node + 1) * per_node)
                if space.chain.indices[leaf] in wanted
            ]
            found += [(space, number, cell) for cell in cover(space.chain, leaves)]
    return found


def _guaranteed(cells: Cells, request: GroupRequest, found: Sequence[tuple[Space, int, Cell]]) -> list[Part] | None:
    """Takes virtual cells and binds them to exactly these physical ones; None, with nothing changed, if impossible."""
    key = (request.vc, request.pinned)
    parts: list[Part] = []
    for space, worker, cell in found:
        if key not in space.pools or not _bind(space, key, worker, cell, parts):
            give_up(parts, key)
            return None
    return parts


def _bind(space: Space, key: tuple[str, str | None], worker: int, cell: Cell, parts: list[Part]) -> bool:
    virtual = virtual_for(space, key, cell)
    if virtual is not None:
        space.bind_exactly(virtual, cell[1])
        if space.pools[key].is_free(virtual):
            space.pools[key].take(virtual)
            parts.append(Part(space, worker, cell, virtual))
            return True
        space.unbind(virtual)
    if not cell[0]:
        return False
    fan = space.fans[cell[0]]
    return all(
        _bind(space, key, worker, (cell[0] - 1, child), parts) for child in range(cell[1] * fan, (cell[1] + 1) * fan)
    )


@value
class Adopted:
    """The result of adopting groups."""

    cells: Cells
    downgraded: tuple[str, ...]
    """Groups that continue as opportunistic ones."""
    gone: tuple[str, ...]
    """Groups that could not be adopted: none of their GPUs is in the cluster, or another group uses one."""


def adopt_all(make: Callable[[], Cells], groups: Sequence[tuple[GroupRequest, Sequence[Worker]]]) -> Adopted:
    """Adopts running groups on the cells that `make` returns, which have no groups.

    If groups are adopted one by one, one may get a tree that another needs. If a group loses its guarantee that way,
    all are adopted again with trees chosen for all of them together, and the result with more guaranteed GPUs counts.
    """
    found = _one_by_one(make(), groups)
    if not found.downgraded:
        return found
    cells = make()
    bound = [(space, root) for space in cells.spaces for root in bind_trees(space, _wanted(cells, space, groups))]
    again = _one_by_one(cells, groups)
    for space, root in bound:
        space.unbind(root)
    return max(found, again, key=_guaranteed_gpus)


def _guaranteed_gpus(a: Adopted) -> int:
    return sum(len(indices) for g in a.cells.groups.values() if g.guaranteed for _, indices in g.workers)


def _one_by_one(cells: Cells, groups: Sequence[tuple[GroupRequest, Sequence[Worker]]]) -> Adopted:
    downgraded, gone = list[str](), list[str]()
    for request, workers in groups:
        try:
            downgraded += adopt(cells, request, workers).downgraded
        except CellsError:
            gone.append(request.group)
    return Adopted(cells, tuple(downgraded), tuple(gone))


def _wanted(
    cells: Cells, space: Space, groups: Sequence[tuple[GroupRequest, Sequence[Worker]]]
) -> dict[tuple[str, str | None], set[int]]:
    """Holder -> level-0 cells of a chain on which its guaranteed groups run."""
    wanted: dict[tuple[str, str | None], set[int]] = {}
    for request, workers in groups:
        if request.priority > OPPORTUNISTIC:
            leaves = [leaf for s, _, cell in _cells_of(cells, workers) if s is space for leaf in s.chain.leaves(cell)]
            wanted.setdefault((request.vc, request.pinned), set()).update(leaves)
    return wanted


def reconfigured(cells: Cells, layout: Layout) -> Reconfigured:
    """Adopts the running groups on a new layout, oldest first, and keeps the health of GPUs."""
    old = sorted(cells.groups.values(), key=lambda g: g.order)
    pending = [g.name for g in old if g.state is GroupState.PREEMPTING]
    running = [  # virtual cells are numbered differently there
        (replace(g.request, inside=(), strictly=False), g.workers) for g in old if g.state is not GroupState.PREEMPTING
    ]
    found = adopt_all(lambda: Cells(layout), running)
    downgraded = [name for name in found.downgraded if not cells.groups[name].lazily_preempted]
    for space in cells.spaces:
        for leaf in sorted(space.bad):
            gpu = space.chain.gpu(leaf)
            for other in found.cells.spaces:
                at = _leaf(other, gpu.host, gpu.index)
                if at is not None:
                    other.set_bad(at)
    return Reconfigured(found.cells, tuple(downgraded), tuple(pending), found.gone)


def _leaf(space: Space, host: str, index: int) -> int | None:
    per_node = space.chain.sizes[space.chain.node]
    for node in space.nodes_of.get(host, ()):
        for leaf in range(node * per_node, (node + 1) * per_node):
            if space.chain.indices[leaf] == index:
                return leaf
    return None


def dump(cells: Cells) -> dict[str, Any]:
    """The whole state except the layout, as JSON values."""
    numbers = {id(space): at for at, space in enumerate(cells.spaces)}

    def listed(parts: Sequence[Part]) -> list[list[Any]]:
        return [[numbers[id(p.space)], p.worker, list(p.physical), list(p.virtual or ())] for p in parts]

    groups = []
    for group in sorted(cells.groups.values(), key=lambda g: g.order):
        request = asdict(group.request)
        request["avoid"] = sorted(group.request.avoid)
        request["hosts"] = None if group.request.hosts is None else sorted(group.request.hosts)
        groups.append(
            {
                "request": request,
                "priority": group.priority,
                "state": group.state.value,
                "lazily_preempted": group.lazily_preempted,
                "seized": group.seized,
                "workers": [[host, list(indices)] for host, indices in group.workers],
                "parts": listed(group.parts),
                "lost": {name: listed(parts) for name, parts in group.lost.items()},
                "victims": list(group.victims),
                "downgraded": [
                    [victim.name, listed(had)]
                    for victim, had in group.downgraded
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


def load(layout: Layout, data: Mapping[str, Any]) -> Cells:
    """The inverse of `dump`, on the same layout."""
    cells = Cells(layout)
    for space, holders in zip(cells.spaces, data["holders"], strict=True):
        for level, number, vc, pinned in holders:
            space.assign_root((level, number), (vc, pinned))

    def parts_of(listed: Sequence[Any]) -> list[Part]:
        return [
            Part(cells.spaces[at], worker, (physical[0], physical[1]), (virtual[0], virtual[1]) if virtual else None)
            for at, worker, physical, virtual in listed
        ]

    for saved in data["groups"]:
        request = _load_request(saved["request"])
        group = AffinityGroup(request, saved["priority"], cells.order, (request.vc, request.pinned))
        cells.order += 1
        group.state = GroupState(saved["state"])
        group.lazily_preempted, group.seized = saved["lazily_preempted"], saved["seized"]
        group.workers = tuple((host, tuple(indices)) for host, indices in saved["workers"])
        group.parts = parts_of(saved["parts"])
        group.lost = {name: parts_of(listed) for name, listed in saved["lost"].items()}
        cells.groups[group.name] = group
        if group.guaranteed:
            cells.by_key.setdefault(group.pool, {})[group.name] = group
    for saved in data["groups"]:
        group = cells.groups[saved["request"]["group"]]
        group.victims = {name: cells.groups[name] for name in saved["victims"]}
        for victim in group.victims.values():
            victim.preemptors[group.name] = group
        group.downgraded = [(cells.groups[name], parts_of(had)) for name, had in saved["downgraded"]]
    _occupy(cells)
    for space, bad in zip(cells.spaces, data["bad"], strict=True):
        for leaf in bad:
            space.set_bad(leaf)
    return cells


def _load_request(asked: Mapping[str, Any]) -> GroupRequest:
    return GroupRequest(
        **{
            **asked,
            "members": tuple((count, gpus) for count, gpus in asked["members"]),
            "hosts": None if asked["hosts"] is None else frozenset(asked["hosts"]),
            "on": tuple((host, gpus) for host, gpus in asked["on"]),
            "inside": tuple(tuple(cell) for cell in asked["inside"]),
            "avoid": frozenset(asked["avoid"]),
        }
    )


def _occupy(cells: Cells) -> None:
    """Puts loaded groups on their GPUs: borrowers first, as owners take what these leave."""
    for group in cells.groups.values():
        guests = [p for p in group.parts if p.virtual is None] + [p for some in group.lost.values() for p in some]
        for part in guests:
            node = part.space.chain.node
            level, number = part.physical
            count = part.space.sizes[level] // part.space.sizes[node] if level > node else 1
            cells_of = [(min(level, node), number * count + n) for n in range(count)]
            for cell in cells_of:
                part.space.add_borrower(group, cell)
    for group in cells.groups.values():
        for part in group.parts:
            if part.virtual is not None:
                part.space.bind_exactly(part.virtual, part.physical[1])
                part.space.pools[group.pool].take(part.virtual)
                part.space.own(group, part.physical)
    for group in cells.groups.values():
        for some in group.lost.values():
            for part in some:
                assert part.virtual is not None
                part.space.bind_exactly(part.virtual, part.physical[1])
