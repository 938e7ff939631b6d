"""Places gangs: first on virtual cells, independent of the use of physical GPUs, then on physical cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pycontrol.cells.gang_fit import pack
from pycontrol.cells.geometry import Cell
from pycontrol.cells.pool import CellPool
from pycontrol.cells.space import FREE, ONE_A_NODE, Space
from pycontrol.cells.transaction import Transaction
from pycontrol.cells.values import IDLE, Key
from pycontrol.model.topology import Gpu

Hosts = Sequence[frozenset[str] | None] | None
"""The hosts allowed for each worker (None: any)."""
Inside = tuple[tuple[int, int, int, int], ...]
"""(chain, level, number, GPUs) of virtual cells; one worker per entry."""
Bin = tuple[Space, int, Cell]
"""A cell that can hold one worker, with its free GPUs."""


def find(tx: Transaction, spaces: Sequence[Space], sizes: Sequence[int], hosts: Hosts, within: int | None) -> bool:
    """Takes and binds cells for workers of these sizes (descending); False, with nothing changed, if they do not fit.

    `within`: the level of a cell in which the whole gang must lie (with `hosts`, each worker).
    """
    if tx.key == IDLE:
        return _idle(tx, spaces, sizes, hosts, within)
    return _own(tx, spaces, sizes, within) if hosts is None else _own_on(tx, spaces, sizes, hosts)


def _own(tx: Transaction, spaces: Sequence[Space], sizes: Sequence[int], within: int | None) -> bool:
    """Virtual cells are chosen as in a private cluster, so that nothing outside the virtual cluster matters (sharing
    safety); then physical cells are bound. If a tree can only be bound to cells with bad GPUs, it is bound with these
    marked, and the search starts again."""
    start = tx.mark()
    try:
        while _virtual(tx, spaces, sizes, within):
            if tx.bind(start):
                return True
        return False
    finally:
        tx.hide()


def _virtual(tx: Transaction, spaces: Sequence[Space], sizes: Sequence[int], within: int | None) -> bool:
    if within is not None:
        return _place_within(tx, spaces[0], sizes, within)
    return _place(tx, spaces, sizes) or any(_gathered(tx, space, sizes) for space in spaces)


def _gathered(tx: Transaction, space: Space, sizes: Sequence[int]) -> bool:
    """Takes cells where a worker fits only in several trees below node level that are bound to one host."""
    pool, start = space.pools[tx.key], tx.mark()
    by_host: dict[int, list[Cell]] = {}
    for _, cell in pool.bins():
        bound = space.v2p[cell[0]][cell[1]]
        if cell[0] < pool.node and bound != FREE:
            by_host.setdefault(bound * pool.sizes[cell[0]] // pool.sizes[pool.node], []).append(cell)
    if not any(len(cells) > 1 for cells in by_host.values()):
        return False
    free = pool.forest.free
    for worker, gpus in enumerate(sizes):
        one = pool.bin_for(gpus)
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
    tx: Transaction, spaces: Sequence[Space], sizes: Sequence[int], hosts: Sequence[frozenset[str] | None]
) -> bool:
    """As `_own`, on given hosts; those with bound trees come first."""
    start = tx.mark()
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
            virtual = virtual_for(space, key, (k, physical), tree=k < level)
            if virtual is None:
                continue
            space.bind_exactly(virtual, physical)
            if free[k][virtual[1]] >= gpus:
                return virtual
            space.unbind(virtual)
    return None


def virtual_for(space: Space, key: Key, physical: Cell, tree: bool = False) -> Cell | None:
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


def _idle(tx: Transaction, spaces: Sequence[Space], sizes: Sequence[int], hosts: Hosts, within: int | None) -> bool:
    """Takes idle GPUs."""
    start = tx.mark()
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
            for left, part in _pieces(space.borrowable, free, cell, within)
            if left >= gpus
        ]
        if not _place_in(tx, [gpus], bins, worker):
            tx.roll_back(start)
            return False
    return True


def _pieces(pool: CellPool, free: int, cell: Cell, within: int | None) -> list[tuple[int, Cell]]:
    """(free GPUs, cell) for the cells of a level in a bin; the bin itself if it is not larger."""
    if within is None or within >= cell[0]:
        return [(free, cell)]
    count = pool.sizes[cell[0]] // pool.sizes[within]
    numbers = range(cell[1] * count, (cell[1] + 1) * count)
    return [(pool.forest.free[within][n], (within, n)) for n in numbers]


# Free cells for gangs


def _place(tx: Transaction, spaces: Sequence[Space], sizes: Sequence[int]) -> bool:
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


def _place_in(tx: Transaction, sizes: Sequence[int], bins: list[Bin], worker: int = 0) -> bool:
    """Takes cells from these bins only, for workers numbered from `worker`; False if they do not fit."""
    chosen = pack([free for _, free, _ in bins], sizes)
    if chosen is None:
        return False
    for number, (at, gpus) in enumerate(zip(chosen, sizes, strict=True), worker):
        space, _, cell = bins[at]
        tx.take(space, number, cell, gpus)
    return True


def _greedy(tx: Transaction, space: Space, pool: CellPool, sizes: Sequence[int]) -> bool:
    start = tx.mark()
    for worker, gpus in enumerate(sizes):
        found = pool.bin_for(gpus)
        if found is None:
            tx.roll_back(start)
            return False
        tx.take(space, worker, found, gpus)
    return True


def _place_within(tx: Transaction, space: Space, sizes: Sequence[int], level: int) -> bool:
    """Takes cells for a gang inside one cell of a level, the fullest that has room; False if none has."""
    total, chain, pool = sum(sizes), space.chain, space.pools[tx.key]
    per_node = chain.sizes[chain.node]
    if level > chain.node and total == chain.sizes[level] and sizes[-1] == per_node:
        whole = pool.cell_for(level)
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


# Given virtual cells


def take_inside(
    tx: Transaction,
    spaces: Sequence[Space],
    inside: Inside,
    exactly: Sequence[Gpu] = (),
    avoid: frozenset[str] = frozenset(),
    within: str | None = None,
) -> bool:
    """Takes GPUs of these virtual cells and binds them; False, with nothing changed, if they do not fit.

    `exactly`: the GPUs to which they must be bound; empty: any. `avoid`: hosts to which they must not be bound.
    `within`: a cell type; all GPUs taken of a virtual cell must lie in one cell of that type.
    """
    start = tx.mark()
    left = {(at, leaf) for at, space in enumerate(spaces) for leaf in _leaves(space, exactly)} if exactly else None
    fits = all(_take(tx, spaces, worker, cell, left, avoid, within) for worker, cell in enumerate(inside))
    if not fits or any(host in avoid for h in tx.held for host in h.space.chain.hosts_of(h.physical)):
        tx.roll_back(start)
    tx.hide()
    return tx.mark() != start


def _take(
    tx: Transaction,
    spaces: Sequence[Space],
    worker: int,
    wanted: tuple[int, int, int, int],
    left: set[tuple[int, int]] | None,
    avoid: frozenset[str],
    within: str | None,
) -> bool:
    """Takes one worker's GPUs of a virtual cell; returns whether there were enough."""
    at, level, number, gpus = wanted
    space = spaces[at]
    root = space.root_of((level, number))
    if space.holder[root] != tx.key:
        return False
    if left is None and space.v2p[root[0]][root[1]] == FREE:
        space.bind_root(root, _elsewhere(space, root, avoid) if avoid else None)
        tx.show(space, root)
    cell = (level, number) if within is None else roomiest(space, (level, number), gpus, within)
    if cell is None or space.forest.free[cell[0]][cell[1]] < gpus or space.forest.covered((level, number)):
        return False
    if left is None:
        tx.take_bound(space, worker, cell, gpus)
        return True
    for piece in space.pools[tx.key].pick(cell, gpus):
        physical = _exact(at, space, piece, left)
        if physical is None or not tx.take_exactly(space, worker, piece, physical):
            return False
    return True


def roomiest(space: Space, cell: Cell, gpus: int, within: str) -> Cell | None:
    """The cell of type `within` in a virtual cell that `gpus` GPUs fill best; None if none has room.

    The virtual cell itself if it is no larger than such a cell.
    """
    level = space.chain.level_of(within)
    if level is None or level >= cell[0]:
        return cell if level is not None else None
    count, free = space.sizes[cell[0]] // space.sizes[level], space.forest.free[level]
    able = [n for n in range(cell[1] * count, (cell[1] + 1) * count) if free[n] >= gpus]
    return (level, min(able, key=free.__getitem__)) if able else None


def _elsewhere(space: Space, root: Cell, avoid: frozenset[str]) -> int | None:
    """The best physical cell for a tree that avoids these hosts; None if there is none."""
    level, guests, bad = root[0], space.buddy.guests[root[0]], space.buddy.bad[root[0]]
    numbers = sorted(range(space.chain.count(level)), key=lambda n: (bad.get(n, 0), guests[n]))
    able = (n for n in numbers if not avoid.intersection(space.chain.hosts_of((level, n))))
    return next((n for n in able if space.buddy.may_bind((level, n))), None)


def _leaves(space: Space, gpus: Sequence[Gpu]) -> list[int]:
    wanted, found = set(gpus), []
    for host in {gpu.host for gpu in gpus}:
        per_node = space.sizes[space.chain.node]
        for node in space.nodes_of.get(host, ()):
            found += [n for n in range(node * per_node, (node + 1) * per_node) if space.chain.gpu(n) in wanted]
    return found


def _exact(at: int, space: Space, piece: Cell, left: set[tuple[int, int]]) -> int | None:
    """A physical cell within the level-0 cells `left` to which a virtual one may be bound; removes it from them."""
    size = space.sizes[piece[0]]
    for number in sorted({leaf // size for where, leaf in left if where == at}):
        mine = {(at, leaf) for leaf in range(number * size, (number + 1) * size)}
        if mine <= left and space.fits(piece, number):
            left -= mine
            return number
    return None
