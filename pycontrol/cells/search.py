"""Places gangs: first on virtual cells, independent of the use of physical GPUs, then on physical cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pycontrol.cells.gang_fit import Taken, place, place_in, place_within, undo
from pycontrol.cells.geometry import Cell
from pycontrol.cells.pool import CellPool
from pycontrol.cells.space import FREE, Part, Space

Site = tuple[Space, CellPool]
"""(chain, its free cells that a request may use)."""


def guaranteed(sites: Sequence[Site], sizes: Sequence[int], within: int | None = None) -> list[Part] | None:
    """Takes and binds cells for workers of these sizes (descending); None, with nothing changed, if they do not fit.

    Virtual cells are chosen as in a private cluster, so that nothing outside the virtual cluster matters (sharing
    safety); then physical cells are bound. If a tree can only be bound to cells with bad GPUs, it is bound with these
    marked, and the search starts again.
    """
    of_pool = {id(pool): space for space, pool in sites}
    shown: list[tuple[Space, Cell]] = []
    try:
        while True:
            taken = _virtual(sites, sizes, within)
            if taken is None:
                return None
            bound_bad: list[tuple[Space, Cell, int]] = []
            for pool, _, cell in taken:
                space = of_pool[id(pool)]
                root = space.root_of(cell)
                if space.v2p[root[0]][root[1]] == FREE and not space.bind_root(root):
                    bound_bad.append((space, root, space.v2p[root[0]][root[1]]))
            if not bound_bad:
                return [
                    Part(space, worker, (cell[0], space.bind(cell)), cell)
                    for pool, worker, cell in taken
                    for space in (of_pool[id(pool)],)
                ]
            undo(taken)
            for pool, _, cell in taken:
                of_pool[id(pool)].unbind(cell)
            for space, root, physical in bound_bad:
                space.bind_root(root, physical)
                space.mark_root(root)
                space.held.add(root)
                shown.append((space, root))
    finally:
        for space, root in shown:
            space.held.discard(root)
            space.unbind_marked(root)


def _virtual(sites: Sequence[Site], sizes: Sequence[int], within: int | None) -> Taken | None:
    if within is not None:
        return place_within(sites[0][1], sizes, within)
    taken = place([pool for _, pool in sites], sizes)
    if taken is None:
        for space, pool in sites:
            taken = _gathered(space, pool, sizes)
            if taken is not None:
                break
    return taken


def _gathered(space: Space, pool: CellPool, sizes: Sequence[int]) -> Taken | None:
    """Takes cells where a worker fits only in several trees below node level that are bound to one host."""
    by_host: dict[int, list[Cell]] = {}
    for _, cell in pool.bins():
        bound = space.v2p[cell[0]][cell[1]]
        if cell[0] < pool.node and bound != FREE:
            by_host.setdefault(bound * pool.sizes[cell[0]] // pool.sizes[pool.node], []).append(cell)
    if not any(len(cells) > 1 for cells in by_host.values()):
        return None
    taken: Taken = []
    free = pool.forest.free
    for worker, gpus in enumerate(sizes):
        one = pool.bin_for(gpus)
        cells = [one] if one else None
        if cells is None:
            hosts = [c for c in by_host.values() if sum(free[k][n] for k, n in c) >= gpus]
            cells = min(hosts, key=lambda c: sum(free[k][n] for k, n in c)) if hosts else None
        if cells is None:
            undo(taken)
            return None
        for cell in cells:
            part = min(gpus, free[cell[0]][cell[1]])
            if part:
                for piece in pool.pick(cell, part):
                    pool.take(piece)
                    taken.append((pool, worker, piece))
                gpus -= part
    return taken


def give_up(parts: Sequence[Part], pool_key: tuple[str, str | None]) -> None:
    """Gives back and unbinds the cells of a search."""
    for part in reversed(parts):
        assert part.virtual is not None
        part.space.pools[pool_key].give(part.virtual)
    for part in parts:
        assert part.virtual is not None
        part.space.unbind(part.virtual)


def guaranteed_on(
    sites: Sequence[Site], key: tuple[str, str | None], sizes: Sequence[int], hosts: Sequence[frozenset[str] | None]
) -> list[Part] | None:
    """As `guaranteed`, with the hosts allowed for each worker (None: any); hosts with bound trees come first."""
    parts: list[Part] = []
    for worker, gpus in enumerate(sizes):
        allowed = hosts[worker]
        for space, pool, node in _nodes(sites, allowed):
            found = _on_node(space, pool, key, node, gpus)
            if found is None:
                continue
            cells = pool.pick(found, gpus)
            for cell in cells:
                pool.take(cell)
            parts += [Part(space, worker, (cell[0], space.bind(cell)), cell) for cell in cells]
            break
        else:
            give_up(parts, key)
            return None
    return parts


def _nodes(sites: Sequence[Site], allowed: frozenset[str] | None) -> Iterator[tuple[Space, CellPool, int]]:
    """Node cells on the allowed hosts: those with guaranteed GPUs first, then those with the fewest borrowed GPUs."""
    for space, pool in sites:
        chain = space.chain
        guests = space.buddy.guests[chain.node]
        free = space.borrowable.forest.free[chain.node]
        nodes = [n for n, host in enumerate(chain.hosts) if allowed is None or host in allowed]
        nodes.sort(key=lambda n: (not space.borrowable_sides[n], guests[n], free[n]))
        for node in nodes:
            yield space, pool, node


def _on_node(space: Space, pool: CellPool, key: tuple[str, str | None], node: int, gpus: int) -> Cell | None:
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
            virtual = virtual_for(space, key, (k, physical), tree=k < level)
            if virtual is None:
                continue
            space.bind_exactly(virtual, physical)
            if free[k][virtual[1]] >= gpus:
                return virtual
            space.unbind(virtual)
    return None


def virtual_for(space: Space, key: tuple[str, str | None], physical: Cell, tree: bool = False) -> Cell | None:
    """A free virtual cell of a holder that may be bound to exactly this physical cell; None if there is none.

    `tree`: only a whole unbound tree of that level. Trees of the smallest fitting level come first.
    """
    level, number = physical
    sizes = space.sizes
    free = space.forest.free
    if not tree:
        for k in range(level, len(sizes)):
            bound = space.p2v[k][number * sizes[level] // sizes[k]]
            if bound != FREE:
                if space.forest.covered((k, bound)):
                    return None
                if space.holder[space.root_of((k, bound))] != key:
                    return None
                if space.static:
                    count = sizes[k] // sizes[level]
                    same = bound * count + number % count
                    return (level, same) if free[level][same] == sizes[level] else None
                return _descend(space, (k, bound), level)
    for root, holder in reversed(space.holder.items()):  # smallest trees first
        k = root[0]
        if holder != key or k < level or (tree and k != level) or space.v2p[k][root[1]] != FREE:
            continue
        if free[k][root[1]] != sizes[k]:
            continue
        if space.buddy.may_bind((k, number * sizes[level] // sizes[k])):
            return level, root[1] * (sizes[k] // sizes[level])
    return None


def _descend(space: Space, cell: Cell, level: int) -> Cell | None:
    """A free unbound cell of a level inside a bound virtual cell; None if there is none."""
    k, number = cell
    if k == level:
        return cell if space.forest.free[k][number] == space.sizes[k] else None
    fan = space.fans[k]
    for child in range(number * fan, (number + 1) * fan):
        if space.v2p[k - 1][child] == FREE and space.forest.free[k - 1][child] == space.sizes[k - 1]:
            return level, child * (space.sizes[k - 1] // space.sizes[level])
    return None


def _pieces(pool: CellPool, free: int, cell: Cell, within: int | None) -> list[tuple[int, Cell]]:
    """(free GPUs, cell) for the cells of a level in a bin; the bin itself if it is not larger."""
    if within is None or within >= cell[0]:
        return [(free, cell)]
    count = pool.sizes[cell[0]] // pool.sizes[within]
    numbers = range(cell[1] * count, (cell[1] + 1) * count)
    return [(pool.forest.free[within][n], (within, n)) for n in numbers]


def opportunistic(
    sites: Sequence[Site], sizes: Sequence[int], hosts: Sequence[frozenset[str] | None] | None, within: int | None
) -> list[Part] | None:
    """Takes idle GPUs for a gang; None, with nothing changed, if it does not fit."""
    of_pool = {id(pool): space for space, pool in sites}
    if hosts is None:
        pools = [pool for _, pool in sites]
        taken = place_within(pools[0], sizes, within) if within is not None else place(pools, sizes)
    else:
        taken = []
        for worker, gpus in enumerate(sizes):
            allowed = hosts[worker]
            bins = [
                (pool, left, part)
                for space, pool in sites
                for free, cell in pool.bins()
                if free >= gpus and (allowed is None or space.chain.hosts_of(cell)[0] in allowed)
                for left, part in _pieces(pool, free, cell, within)
                if left >= gpus
            ]
            one = place_in([gpus], bins)
            if one is None:
                undo(taken)
                return None
            taken += [(pool, worker, cell) for pool, _, cell in one]
    if taken is None:
        return None
    parts: list[Part] = []
    for pool, worker, cell in taken:
        cells = [cell]
        if cell[0] > pool.node:  # borrowers hold cells of at most node level
            count = pool.sizes[cell[0]] // pool.sizes[pool.node]
            cells = [(pool.node, n) for n in range(cell[1] * count, (cell[1] + 1) * count)]
            pool.give(cell)
            for node in cells:
                pool.take(node)
        parts += [Part(of_pool[id(pool)], n if worker < 0 else worker, c) for n, c in enumerate(cells)]
    return parts
