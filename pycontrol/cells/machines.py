"""A virtual cluster's cells as the machines of its private cluster (HiveD, section 3).

A policy sees its queue's own GPUs as these machines, not as hosts that cells of other queues share, so it decides as on
the private cluster. A cell of at most node level is one machine; a larger one is several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from pycontrol.cells.cluster_cells import Cells
from pycontrol.cells.geometry import Cell
from pycontrol.cells.pool import Forest
from pycontrol.cells.search import Inside
from pycontrol.cells.space import FREE, Space
from pycontrol.model.value import value

Place = tuple[int, int]
"""(chain, level-0 cell) of a GPU."""
Room = tuple[tuple[int, ...], int]
"""(free GPUs of each cell of a type in a machine, GPUs of such a cell)."""
NO_CELL: Room = ((), 0)


@value
class VirtualMachine:
    """One machine of a private cluster. `host`: the host to which it is bound, or would be if it were bound now."""

    name: str
    host: str
    gpus: int
    """GPUs that are in order."""
    free: int
    cell_gpus: int
    """GPUs of the cell, including bad ones."""
    bound: bool = True
    pinned: str = ""


def name_of(chain: int, root_level: int, number: int) -> str:
    """The name of a machine; names sort by cell size, the largest first."""
    return f"{chain}.{99 - root_level:02d}.{number:06d}"


def machines(cells: Cells, vc: str) -> list[VirtualMachine]:
    """All machines of a virtual cluster; unbound cells are bound tentatively to find hosts for them."""
    found: list[VirtualMachine] = []
    for at, space in enumerate(cells.spaces):
        roots = space.roots_of(vc)
        with bound_for_now(space, roots) as fresh:
            for root in roots:
                found += _of_root(at, space, root, root not in fresh)
    return found


def _of_root(at: int, space: Space, root: Cell, is_bound: bool) -> Iterator[VirtualMachine]:
    level = min(root[0], space.chain.node)
    size, count = space.sizes[level], space.sizes[root[0]] // space.sizes[level]
    physical = space.v2p[root[0]][root[1]]
    hosts = space.chain.hosts_of((root[0], physical))
    bad = [0] * count
    for leaf in space.root_marks.get(root, ()):
        bad[space.marks[leaf] // size - root[1] * count] += 1
    pinned = space.pins.get(root, "")
    for k in range(count):
        number = root[1] * count + k
        free = 0 if space.forest.covered((level, number)) else space.forest.free[level][number]
        here = space.v2p[level][number]
        host = hosts[k] if here == FREE else space.chain.hosts_of((level, here))[0]
        bound = is_bound and here != FREE
        yield VirtualMachine(name_of(at, root[0], number), host, size - bad[k], free, size, bound, pinned)


def groups_to_move(cells: Cells, vc: str) -> list[list[str]]:
    """The groups in each bound cell of a virtual cluster that has bad GPUs, where a cell with fewer could be bound."""
    found = []
    for space in cells.spaces:
        for root in space.roots_of(vc) if space.bad else ():
            level, physical = root[0], space.v2p[root[0]][root[1]]
            if root in space.fixed or physical not in space.buddy.bad[level]:
                continue
            groups = {group.name for leaf in space.chain.leaves((level, physical)) if (group := space.owner_of(leaf))}
            if groups and space.buddy.has_better((level, physical)):
                found.append(sorted(groups))
    return found


def room_within(cells: Cells, vc: str, kind: str, coming: Collection[Place] = ()) -> dict[str, Room]:
    """Machine of a virtual cluster -> the room in its cells of type `kind`.

    `coming`: own GPUs that count as free. Machines of chains without such cells are missing; a machine smaller than
    such a cell counts as one.
    """
    found = {}
    for at, space in enumerate(cells.spaces):
        kind_level = space.chain.level_of(kind)
        if kind_level is None:
            continue
        leaves = [inside for chain, leaf in coming if chain == at and (inside := virtual_leaf(space, leaf)) is not None]
        roots = space.roots_of(vc)
        with bound_for_now(space, roots):
            for root in roots:
                top = min(root[0], space.chain.node)
                level = min(kind_level, top)
                more = Counter(leaf // space.sizes[level] for leaf in leaves)
                count = space.sizes[root[0]] // space.sizes[top]
                for number in range(root[1] * count, (root[1] + 1) * count):
                    free = free_in(space, space.forest, (top, number), level, more)
                    found[name_of(at, root[0], number)] = free, space.sizes[level]
    return found


def free_in(space: Space, forest: Forest, cell: Cell, level: int, more: Mapping[int, int]) -> tuple[int, ...]:
    """The free GPUs of each cell of a level inside a cell; `more`: number of a cell -> GPUs to add."""
    count = space.sizes[cell[0]] // space.sizes[level]
    covered = forest.covered(cell)
    numbers = range(cell[1] * count, (cell[1] + 1) * count)
    return tuple((0 if covered else forest.free[level][n]) + more.get(n, 0) for n in numbers)


@contextmanager
def bound_for_now(space: Space, roots: Sequence[Cell]) -> Iterator[Collection[Cell]]:
    """Binds the unbound trees among these, with bad GPUs marked, and unbinds them at the end; yields them."""
    fresh = dict.fromkeys(root for root in roots if space.v2p[root[0]][root[1]] == FREE)
    for root in fresh:
        if not space.bind_root(root):
            space.mark_root(root)
    try:
        yield fresh
    finally:
        for root in reversed(fresh):
            space.unbind(root)


@contextmanager
def as_shown(cells: Cells, vc: str) -> Iterator[None]:
    """Binds a virtual cluster's cells as `machines` shows them; those that nobody took are unbound at the end."""
    with ExitStack() as bound:
        for space in cells.spaces:
            bound.enter_context(bound_for_now(space, space.roots_of(vc)))
        yield


def virtual_leaf(space: Space, leaf: int) -> int | None:
    """The virtual level-0 cell of a bound GPU; None if it is not bound."""
    for k, size in enumerate(space.sizes):
        virtual = space.p2v[k][leaf // size]
        if virtual != FREE:
            return virtual * size + leaf % size
    return None


def machine_of(cells: Cells, at: int, leaf: int) -> str:
    """The machine of a bound GPU; empty if it is not bound."""
    space = cells.spaces[at]
    inside = virtual_leaf(space, leaf)
    if inside is None:
        return ""
    root = space.root_of((0, inside))
    return name_of(at, root[0], inside // space.sizes[min(root[0], space.chain.node)])


def cells_inside(cells: Cells, gang: Sequence[tuple[str, int]]) -> Inside:
    """The virtual cells of the machines in a gang, with the gang's GPUs on each."""
    found = []
    for name, gpus in gang:
        at, level, number = (int(part) for part in name.split("."))
        node = cells.spaces[at].chain.node
        found.append((at, min(99 - level, node), number, gpus))
    return tuple(found)
