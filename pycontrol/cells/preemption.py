"""Preemption of lower priorities inside a virtual cluster; every step can be undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pycontrol.cells.geometry import Cell, minus, overlaps
from pycontrol.cells.search import Site, give_up
from pycontrol.cells.space import AffinityGroup, Part, Space
from pycontrol.cells.values import OPPORTUNISTIC, GroupRequest, GroupState, Released

Key = tuple[str, str | None]
"""(virtual cluster, its pinned cell or None): the holder of cells."""


class CellTree(Protocol):
    """The part of `Cells` that preemption needs."""

    groups: dict[str, AffinityGroup]
    by_key: dict[Key, dict[str, AffinityGroup]]
    """Key of cells -> the guaranteed groups on them, by name."""

    def find(
        self, sites: Sequence[Site], key: Key, sizes: list[int],
        hosts: Sequence[frozenset[str] | None] | None, within: int | None,
    ) -> list[Part] | None:  # fmt: skip
        """Takes and binds guaranteed cells; None, with nothing changed, if the gang does not fit."""

    def release(self, name: str) -> Released:
        """Releases a group that ended or is given up."""


@dataclass(slots=True)
class Preemption:
    """A planned preemption. `parts` is None if the plan only names the groups to be preempted.

    `taken`: groups that gave their virtual cells (`parts` has some of these). `downgraded`: groups that became
    opportunistic, with their former parts.
    """

    parts: list[Part] | None
    taken: list[AffinityGroup] = field(default_factory=list)
    downgraded: list[tuple[AffinityGroup, list[Part]]] = field(default_factory=list)


def plan(
    cells: CellTree,
    request: GroupRequest,
    sites: Sequence[Site],
    sizes: list[int],
    hosts: Sequence[frozenset[str] | None] | None,
    within: int | None,
    preempt: bool,
) -> Preemption | None:
    """Takes cells of groups with lower priority in the same virtual cluster; None if even that is not enough.

    A reservation of lower priority is cancelled, so that its victims continue, and taken over. Lazy victims are
    downgraded.
    """
    key = (request.vc, request.pinned)
    # 1. Victims, among which no reservation: those are cancelled, and the search begins again.
    while True:
        lower = [g for g in cells.by_key.get(key, {}).values() if g.priority < request.priority]
        lower.sort(key=lambda g: (g.priority, -g.order))
        found = _victims(cells, sites, key, lower, sizes, hosts, within)
        if found is None:
            return None
        reservations = [g for g in found if g.state is GroupState.PREEMPTING]
        if not reservations:
            break
        if not preempt:
            return Preemption(None, [v for g in reservations for v in g.victims.values()] or found)
        for group in reservations:
            cells.release(group.name)

    def find() -> list[Part] | None:
        return cells.find(sites, key, sizes, hosts, within)

    # 2. The lazy ones keep running as borrowers, if that is enough.
    lazy = [g for g in found if g.request.lazy and g.state is GroupState.ALLOCATED]
    if lazy:
        taken = _taken_from(cells, found, lazy, find)
        if taken is not None:
            return taken
    # 3. Else all of them end.
    return _taken_from(cells, found, [], find)


def _taken_from(
    cells: CellTree, victims: list[AffinityGroup], soft: list[AffinityGroup], find: Callable[[], list[Part] | None]
) -> Preemption | None:
    """What `find` finds once the soft victims are downgraded and the others gone; None, and no change, if nothing."""
    downgraded = [(g, downgrade(cells, g)) for g in soft]
    hard = [g for g in victims if g not in soft]
    for group in hard:
        _give(group)
    parts = find()
    taken = [g for g in hard if _touches(g, parts)] if parts is not None else []
    for group in hard:
        if group not in taken:
            _take(group)
    if parts is not None:
        return Preemption(parts, taken, downgraded)
    for group, had in reversed(downgraded):
        upgrade(cells, group, had)
    return None


def _victims(
    cells: CellTree,
    sites: Sequence[Site],
    key: Key,
    lower: list[AffinityGroup],
    sizes: list[int],
    hosts: Sequence[frozenset[str] | None] | None,
    within: int | None,
) -> list[AffinityGroup] | None:
    """The groups to preempt, the lowest priority and youngest first, and only those with needed cells; None if all
    of `lower` are not enough."""
    spaces = {id(space) for space, _ in sites}
    lower = [g for g in lower if any(id(p.space) in spaces for p in g.parts)]
    given: list[AffinityGroup] = []
    step = 1
    parts = None
    while lower and parts is None:
        for group in lower[:step]:
            _give(group)
            given.append(group)
        lower = lower[step:]
        step *= 2
        parts = cells.find(sites, key, sizes, hosts, within)
    if parts is None:
        for group in given:
            _take(group)
        return None
    needed = [g for g in given if _touches(g, parts)]
    give_up(parts, key)
    for group in given:
        _take(group)
    return needed


def _give(group: AffinityGroup) -> None:
    """Frees a group's virtual cells tentatively, except those with bad GPUs; they stay bound."""
    for part in group.parts:
        if part.virtual is not None and not part.bad:
            part.space.held.add(part.virtual)
            part.space.pools[group.pool].give(part.virtual)


def _take(group: AffinityGroup) -> None:
    for part in group.parts:
        if part.virtual is not None and not part.bad:
            part.space.pools[group.pool].take(part.virtual)
            part.space.held.discard(part.virtual)


def _touches(group: AffinityGroup, parts: Sequence[Part]) -> bool:
    return any(
        mine.space is part.space and overlaps(part.space.chain, mine.virtual, part.virtual)
        for mine in group.parts
        for part in parts
        if mine.virtual is not None and part.virtual is not None
    )


def downgrade(cells: CellTree, group: AffinityGroup) -> list[Part]:
    """Makes a group opportunistic in place (lazy preemption); returns its former parts."""
    had = group.parts
    group.parts = []
    for part in had:
        assert part.virtual is not None
        for cell in part.space.split_to_nodes(part.physical):
            part.space.disown(cell)
            part.space.add_borrower(group, cell)
            group.parts.append(Part(part.space, part.worker, cell))
        part.space.pools[group.pool].give(part.virtual)
    for part in had:
        assert part.virtual is not None
        part.space.unbind(part.virtual)
    reflag_bad(had)
    del cells.by_key[group.pool][group.name]
    group.priority, group.lazily_preempted = OPPORTUNISTIC, True
    return had


def upgrade(cells: CellTree, group: AffinityGroup, had: list[Part]) -> bool:
    """Undoes a downgrade, given the group's former parts; False, with nothing changed, if they are no longer free."""
    done: list[Part] = []
    for part in had:
        if part.bad:
            for leaf in part.space.chain.leaves(part.physical):
                part.space.unmark(leaf)
    for part in had:
        assert part.virtual is not None
        pool = part.space.pools.get(group.pool)
        if pool is None or not pool.is_free(part.virtual) or not part.space.fits(part.virtual, part.physical[1]):
            for undone in done:
                assert undone.virtual is not None
                undone.space.pools[group.pool].give(undone.virtual)
            for undone in done:
                assert undone.virtual is not None
                undone.space.unbind(undone.virtual)
            reflag_bad(had)
            return False
        part.space.bind_exactly(part.virtual, part.physical[1], group)
        pool.take(part.virtual)
        done.append(part)
    for part in group.parts:
        part.space.remove_borrower(part.physical)
    for part in had:
        part.space.own(group, part.physical)
    group.parts = had
    group.priority, group.lazily_preempted = group.request.priority, False
    cells.by_key.setdefault(group.pool, {})[group.name] = group
    return True


def undo(
    cells: CellTree, taken: Sequence[AffinityGroup], downgraded: Sequence[tuple[AffinityGroup, list[Part]]]
) -> None:
    """Undoes `plan`, after its parts were given up."""
    for group in taken:
        _take(group)
    for group, had in reversed(downgraded):
        upgrade(cells, group, had)


def transfer(victim: AffinityGroup, group: AffinityGroup, parts: Sequence[Part]) -> None:
    """Moves the cells that a preemptor took of a victim to the preemptor; the victim stays on them as a borrower."""
    kept: list[Part] = []
    for mine in victim.parts:
        if mine.virtual is None or mine.bad:
            kept.append(mine)
            continue
        pool, chain = mine.space.pools[victim.pool], mine.space.chain
        mine.space.held.discard(mine.virtual)
        rest, lost = [mine.virtual], list[Cell]()
        for part in parts:
            if part.space is mine.space and part.virtual and overlaps(chain, mine.virtual, part.virtual):
                rest = [piece for cell in rest for piece in minus(chain, cell, part.virtual)]
                lost.append(min(mine.virtual, part.virtual))
        for cell in rest:
            pool.take(cell)
        if not lost:
            kept.append(mine)
            continue
        kept += _split(mine, victim, group, rest, lost)
    victim.parts = kept


def _split(mine: Part, victim: AffinityGroup, group: AffinityGroup, rest: list[Cell], lost: list[Cell]) -> list[Part]:
    """Splits an owned cell into the parts that stay owned (returned) and those that the victim now only borrows."""
    space, (level, number) = mine.space, mine.physical
    whole = mine.physical in space.borrowable.forest.whole
    del space.owner[level][number]
    if level <= space.chain.node:
        space.borrowable_sides[number * space.sizes[level] // space.sizes[space.chain.node]] -= 1
    elif whole:
        space.borrowable.give(mine.physical)
        for cell in [*rest, *lost]:
            space.borrowable.take((cell[0], space.bind(cell)))
    kept = []
    for cell in rest:
        physical = (cell[0], space.bind(cell))
        space.own(victim, physical)
        kept.append(Part(space, mine.worker, physical, cell))
    for cell in lost:
        physical = (cell[0], space.bind(cell))
        victim.lost.setdefault(group.name, []).append(Part(space, mine.worker, physical, cell))
        for piece in _nodes(space, physical):
            space.add_borrower(victim, piece)
    return kept


def _nodes(space: Space, cell: Cell) -> list[Cell]:
    """A cell as cells of at most node level; one that was taken as a whole is taken node by node instead."""
    level, number = cell
    node = space.chain.node
    if level <= node:
        return [cell]
    count = space.sizes[level] // space.sizes[node]
    nodes = [(node, n) for n in range(number * count, (number + 1) * count)]
    if cell in space.borrowable.forest.whole:
        space.borrowable.give(cell)
        for piece in nodes:
            space.borrowable.take(piece)
    return nodes


def cancel(cells: CellTree, group: AffinityGroup) -> tuple[str, ...]:
    """Cancels a preemption; returns the victims that no other group preempts, which continue with all their cells."""
    for part in group.parts:
        assert part.virtual is not None
        part.space.disown(part.physical)
        part.space.pools[group.pool].give(part.virtual)
    restored = []
    for victim in group.victims.values():
        for part in victim.lost.pop(group.name, []):
            assert part.virtual is not None
            for piece in _nodes(part.space, part.physical):
                part.space.remove_borrower(piece)
            part.space.pools[victim.pool].take(part.virtual)
            part.space.own(victim, part.physical)
            victim.parts.append(part)
        victim.preemptors.pop(group.name, None)
        if not victim.preemptors and victim.state is GroupState.BEING_PREEMPTED:
            victim.state = GroupState.ALLOCATED
            restored.append(victim.name)
    for part in group.parts:
        assert part.virtual is not None
        part.space.unbind_inside(part.virtual)
        part.space.unbind(part.virtual)
    reflag_bad(group.parts)
    for victim, had in reversed(group.downgraded):
        if cells.groups.get(victim.name) is victim and victim.state is GroupState.ALLOCATED and victim.lazily_preempted:
            upgrade(cells, victim, had)
    group.parts, group.downgraded, group.victims = [], [], {}
    return tuple(restored)


def reflag_bad(parts: Sequence[Part]) -> None:
    """Marks bad GPUs of cells that were in use until now."""
    for part in parts:
        if part.space.bad:
            part.space.reflag_bad(part.physical)


def finish_victim(group: AffinityGroup) -> tuple[str, ...]:
    """A victim is gone: clears its use of its preemptors' cells; returns the preemptors with no victims left."""
    for parts in group.lost.values():
        for part in parts:
            for piece in _nodes(part.space, part.physical):
                part.space.remove_borrower(piece)
    ready = []
    for preemptor in group.preemptors.values():
        preemptor.victims.pop(group.name, None)
        if not preemptor.victims:
            ready.append(preemptor.name)
    group.preemptors, group.lost = {}, {}
    return tuple(ready)
