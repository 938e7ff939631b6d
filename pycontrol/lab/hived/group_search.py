"""HiveD's own search: places gangs first on virtual cells, whatever runs elsewhere, then on physical cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pycontrol.cells.geometry import Cell
from pycontrol.cells.pool import CellPool
from pycontrol.cells.search import pieces, virtual_for
from pycontrol.cells.space import FREE, ONE_A_NODE, Space
from pycontrol.cells.values import IDLE, Key
from pycontrol.lab.hived.gang_fit import pack
from pycontrol.lab.hived.preemption import Preemption

Hosts = Sequence[frozenset[str] | None] | None
"""The hosts allowed for each worker (None: any)."""
Bin = tuple[Space, int, Cell]
"""A cell that can hold one worker, with its free GPUs."""


def find(tx: Preemption, spaces: Sequence[Space], sizes: Sequence[int], hosts: Hosts, within: int | None) -> bool:
    """Takes and binds cells for workers of these sizes (descending); False, with nothing changed, if they do not fit.

    `within`: the level of a cell in which the whole gang must lie (with `hosts`, each worker).
    """
    if tx.key == IDLE:
        return _idle(tx, spaces, sizes, hosts, within)
    return _own(tx, spaces, sizes, within) if hosts is None else _own_on(tx, spaces, sizes, hosts)


def _own(tx: Preemption, spaces: Sequence[Space], sizes: Sequence[int], within: int | None) -> bool:
    """Virtual cells are chosen as in a private cluster, so that nothing outside the virtual cluster matters (sharing
    safety); then physical cells are bound. If a tree can only be bound to cells with bad GPUs, it is bound with these
    marked, and the search starts again."""
    start = len(tx.held)
    try:
        while _virtual(tx, spaces, sizes, within):
            if tx.bind(start):
                return True
        return False
    finally:
        tx.hide()


def _virtual(tx: Preemption, spaces: Sequence[Space], sizes: Sequence[int], within: int | None) -> bool:
    if within is not None:
        return _place_within(tx, spaces[0], sizes, within)
    return _place(tx, spaces, sizes) or any(_gathered(tx, space, sizes) for space in spaces)


def _gathered(tx: Preemption, space: Space, sizes: Sequence[int]) -> bool:
    """Takes cells where a worker fits only in several trees below node level that are bound to one host."""
    pool, start = space.pools[tx.key], len(tx.held)
    by_host: dict[int, list[Cell]] = {}
    for _, cell in pool.bins():
        bound = space.v2p[cell[0]][cell[1]]
        if cell[0] < pool.node and bound != FREE:
            by_host.setdefault(bound * pool.sizes[cell[0]] // pool.sizes[pool.node], []).append(cell)
    if not any(len(cells) > 1 for cells in by_host.values()):
        return False
    free = pool.forest.free
    for worker, gpus in enumerate(sizes):
        one = bin_for(pool, gpus)
        cells = [one] if one else None
        if cells is None:
            hosts = [c for c in by_host.values() if sum(free[k][n] for k, n in c) >= gpus]
            cells = min(hosts, key=lambda c: sum(free[k][n] for k, n in c)) if hosts else None
        if cells is None:
            tx.roll_back(start)
            return False
        for cell in cells:
            part = min(gpus, free[cell[0]][cell[1]])
            if part:
                tx.take(space, worker, cell, part)
                gpus -= part
    return True


def _own_on(
    tx: Preemption, spaces: Sequence[Space], sizes: Sequence[int], hosts: Sequence[frozenset[str] | None]
) -> bool:
    """As `_own`, on given hosts; those with bound trees come first."""
    start = len(tx.held)
    for worker, gpus in enumerate(sizes):
        for space, node in _nodes(spaces, hosts[worker]):
            pool = space.pools[tx.key]
            found = _on_node(space, pool, tx.key, node, gpus)
            if found is None:
                continue
            tx.take_bound(space, worker, found, gpus)
            break
        else:
            tx.roll_back(start)
            return False
    return True


def _nodes(spaces: Sequence[Space], allowed: frozenset[str] | None) -> Iterator[tuple[Space, int]]:
    """Node cells on the allowed hosts: those with guaranteed GPUs first, then those with the fewest borrowed GPUs."""
    for space in spaces:
        chain = space.chain
        guests = space.buddy.guests[chain.node]
        free = space.borrowable.forest.free[chain.node]
        nodes = [n for n, host in enumerate(chain.hosts) if allowed is None or host in allowed]
        nodes.sort(key=lambda n: (not space.borrowable_sides[n], guests[n], free[n]))
        for node in nodes:
            yield space, node


def _on_node(space: Space, pool: CellPool, key: Key, node: int, gpus: int) -> Cell | None:
    """A bin with room that is bound to this node, or is bound now from an unbound cell; None if there is none."""
    level, free = pool.node, pool.forest.free
    spans = [
        (k, range(node * count, (node + 1) * count))
        for k in range(level, -1, -1)
        if pool.sizes[k] >= gpus
        for count in (pool.sizes[level] // pool.sizes[k],)
    ]
    for k, cells in spans:
        for physical in cells:
            number = space.p2v[k][physical]
            if number == FREE or free[k][number] < gpus or space.forest.covered((k, number)):
                continue
            if k < level and space.root_of((k, number))[0] != k:
                continue
            if space.holder[space.root_of((k, number))] == key:
                return k, number
    for k, cells in reversed(spans):
        guests, bad = space.buddy.guests[k], space.buddy.bad[k]
        for physical in sorted(cells, key=lambda c: (bad.get(c, 0), guests[c])):
            virtual = (_tree_for if k < level else virtual_for)(space, key, (k, physical))
            if virtual is None:
                continue
            space.bind_exactly(virtual, physical)
            if free[k][virtual[1]] >= gpus:
                return virtual
            space.unbind(virtual)
    return None


def _tree_for(space: Space, key: Key, physical: Cell) -> Cell | None:
    """A whole unbound tree of a holder that may be bound to exactly this physical cell; None if there is none."""
    for root, holder in reversed(space.holder.items()):
        free = space.v2p[root[0]][root[1]] == FREE and space.forest.free[root[0]][root[1]] == space.sizes[root[0]]
        if holder == key and root[0] == physical[0] and free and space.buddy.may_bind(physical):
            return root
    return None


def _idle(tx: Preemption, spaces: Sequence[Space], sizes: Sequence[int], hosts: Hosts, within: int | None) -> bool:
    """Takes idle GPUs."""
    start = len(tx.held)
    if hosts is None:
        if not (_place(tx, spaces, sizes) if within is None else _place_within(tx, spaces[0], sizes, within)):
            return False
        newest = tx.held[-1]
        if newest.worker == ONE_A_NODE:  # borrowers hold cells of at most node level
            tx.roll_back(start)
            for worker, node in enumerate(newest.space.chain.by_node(newest.cell)):
                tx.take(newest.space, worker, node, newest.space.sizes[node[0]])
        return True
    for worker, gpus in enumerate(sizes):
        allowed = hosts[worker]
        bins = [
            (space, left, part)
            for space in spaces
            for free, cell in space.borrowable.bins()
            if free >= gpus and (allowed is None or space.chain.hosts_of(cell)[0] in allowed)
            for left, part in pieces(space.borrowable, free, cell, within)
            if left >= gpus
        ]
        if not _place_in(tx, [gpus], bins, worker):
            tx.roll_back(start)
            return False
    return True


# Free cells for gangs


def _place(tx: Preemption, spaces: Sequence[Space], sizes: Sequence[int]) -> bool:
    """Takes cells for workers of these sizes (GPUs, descending) from one or several chains; False if they do not fit.

    It finds a placement if there is one, or raises Undecided; the best fit of each worker is tried first.
    """
    pools = [space.pools[tx.key] for space in spaces]
    if sum(sizes) > sum(pool.free_gpus for pool in pools):
        return False
    if len(spaces) == 1:
        if _greedy(tx, spaces[0], pools[0], sizes):
            return True
        if sizes[0] == sizes[-1]:
            return False  # workers of one size: a bin holds free // size of them in any order
    bins = [(space, *found) for space, pool in zip(spaces, pools, strict=True) for found in pool.bins()]
    return _place_in(tx, sizes, bins)


def _place_in(tx: Preemption, sizes: Sequence[int], bins: list[Bin], worker: int = 0) -> bool:
    """Takes cells from these bins only, for workers numbered from `worker`; False if they do not fit."""
    chosen = pack([free for _, free, _ in bins], sizes)
    if chosen is None:
        return False
    for number, (at, gpus) in enumerate(zip(chosen, sizes, strict=True), worker):
        space, _, cell = bins[at]
        tx.take(space, number, cell, gpus)
    return True


def _greedy(tx: Preemption, space: Space, pool: CellPool, sizes: Sequence[int]) -> bool:
    start = len(tx.held)
    for worker, gpus in enumerate(sizes):
        found = bin_for(pool, gpus)
        if found is None:
            tx.roll_back(start)
            return False
        tx.take(space, worker, found, gpus)
    return True


def _place_within(tx: Preemption, space: Space, sizes: Sequence[int], level: int) -> bool:
    """Takes cells for a gang inside one cell of a level, the fullest that has room; False if none has."""
    total, chain, pool = sum(sizes), space.chain, space.pools[tx.key]
    per_node = chain.sizes[chain.node]
    if level > chain.node and total == chain.sizes[level] and sizes[-1] == per_node:
        whole = cell_for(pool, level)
        if whole is not None:
            tx.take(space, ONE_A_NODE, whole, total)
        return whole is not None
    inside = _inside(space, pool, level, total)
    groups = sorted(inside.values(), key=lambda bins: sum(free for _, free, _ in bins))
    return any(_place_in(tx, sizes, bins) for bins in groups)


def _inside(space: Space, pool: CellPool, level: int, gpus: int) -> dict[int, list[Bin]]:
    """Cell of a level -> the bins in it; for levels below bins, the cell itself if it has that many free GPUs."""
    sizes = pool.sizes
    found: dict[int, list[Bin]] = {}
    for free, (k, number) in pool.bins():
        if pool.forest.roots[number * sizes[k]] < level:
            continue
        if level >= k:
            found.setdefault(number * sizes[k] // sizes[level], []).append((space, free, (k, number)))
            continue
        count = sizes[k] // sizes[level]
        for cell in range(number * count, (number + 1) * count):
            part = pool.forest.free[level][cell]
            if part >= gpus:
                found[cell] = [(space, part, (level, cell))]
    return found


def bin_for(pool: CellPool, gpus: int) -> Cell | None:
    """A bin for a worker: the fullest with room, else one from the smallest free cell; None if there is none."""
    per_node, parts = pool.sizes[pool.node], pool.parts
    for free in range(gpus, per_node + 1):
        if parts[free]:
            key, level = parts[free].popitem()
            parts[free][key] = level
            return level, key // pool.sizes[level]
        if free < per_node and free in pool.sizes:
            for level in range(pool.node):
                if pool.sizes[level] == free and pool.lists[level]:
                    return level, _peek(pool.lists[level])
    for level in range(pool.node, len(pool.sizes)):
        if pool.lists[level]:
            return pool.node, _peek(pool.lists[level]) * (pool.sizes[level] // per_node)
    for free in range(per_node + 1 + gpus, len(parts)):
        if parts[free]:
            key, level = parts[free].popitem()
            parts[free][key] = level
            return level, key // pool.sizes[level]
    return None


def cell_for(pool: CellPool, level: int) -> Cell | None:
    """A free cell of a level above nodes, from the smallest free cell that contains one; None if none does."""
    for k in range(level, len(pool.sizes)):
        if pool.lists[k]:
            return level, _peek(pool.lists[k]) * (pool.sizes[k] // pool.sizes[level])
    return None


def _peek(cells: dict[int, None]) -> int:
    """The newest entry; popitem, unlike iteration, stays fast after deletions."""
    key, _ = cells.popitem()
    cells[key] = None
    return key
