"""Takes GPUs for gangs: of given virtual cells, which are then bound to physical ones, or idle ones of given hosts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pycontrol.cells.geometry import Cell
from pycontrol.cells.pool import CellPool
from pycontrol.cells.space import FREE, Space
from pycontrol.cells.transaction import Transaction
from pycontrol.cells.values import Key
from pycontrol.model.topology import Gpu

Inside = tuple[tuple[int, int, int, int], ...]
"""(chain, level, number, GPUs) of virtual cells; one worker per entry."""


def virtual_for(space: Space, key: Key, physical: Cell) -> Cell | None:
    """A free virtual cell of a holder that may be bound to exactly this physical cell; None if there is none.

    Of unbound trees, the smallest that fits comes first.
    """
    level, number = physical
    sizes = space.sizes
    free = space.forest.free
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
        if holder != key or k < level or space.v2p[k][root[1]] != FREE:
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


def take_idle(
    tx: Transaction, spaces: Sequence[Space], on: Sequence[tuple[str, int]], within: int | None = None
) -> bool:
    """Takes so many idle GPUs of each of these hosts, a worker each; False, with nothing changed, if they do not fit.

    `within`: the level of a cell in which each worker must lie.
    """
    start = len(tx.held)
    for worker, (host, gpus) in enumerate(sorted(on, key=lambda w: (-w[1], w[0]))):
        parts = [
            (left, space, part)
            for space in spaces
            for free, cell in space.borrowable.bins()
            if free >= gpus and space.chain.hosts_of(cell)[0] == host
            for left, part in pieces(space.borrowable, free, cell, within)
            if left >= gpus
        ]
        if not parts:
            tx.roll_back(start)
            return False
        _, space, part = min(parts, key=lambda found: found[0])
        tx.take(space, worker, part, gpus)
    return len(tx.held) > start


def pieces(pool: CellPool, free: int, cell: Cell, within: int | None) -> list[tuple[int, Cell]]:
    """(free GPUs, cell) for the cells of a level in a bin; the bin itself if it is not larger."""
    if within is None or within >= cell[0]:
        return [(free, cell)]
    count = pool.sizes[cell[0]] // pool.sizes[within]
    numbers = range(cell[1] * count, (cell[1] + 1) * count)
    return [(pool.forest.free[within][n], (within, n)) for n in numbers]


# Given virtual cells


def take_inside(
    tx: Transaction,
    spaces: Sequence[Space],
    inside: Inside,
    exactly: Collection[Gpu] = (),
    avoid: Sequence[frozenset[str]] = (),
    within: str | None = None,
) -> bool:
    """Takes GPUs of these virtual cells and binds them; False, with nothing changed, if they do not fit.

    `exactly`: the GPUs to which they must be bound; empty: any. `avoid`: for each, the hosts
    to which it must not be bound; or none. `within`: a cell type; all GPUs taken of each must lie in one such cell.
    """
    start = len(tx.held)
    leaves = {(at, leaf) for at, space in enumerate(spaces) for gpu in exactly for leaf in space.leaves_of(gpu)}
    left = leaves if exactly else None
    kept_off = avoid or (frozenset[str](),) * len(inside)
    fits = all(_take(tx, spaces, k, cell, left, kept_off[k], within) for k, cell in enumerate(inside))
    if not fits or any(kept_off[h.worker].intersection(h.space.chain.hosts_of(h.physical)) for h in tx.held):
        tx.roll_back(start)
    tx.hide()
    return len(tx.held) != start


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


def _exact(at: int, space: Space, piece: Cell, left: set[tuple[int, int]]) -> int | None:
    """A physical cell within the level-0 cells `left` to which a virtual one may be bound; removes it from them."""
    size = space.sizes[piece[0]]
    for number in sorted({leaf // size for where, leaf in left if where == at}):
        mine = {(at, leaf) for leaf in range(number * size, (number + 1) * size)}
        if mine <= left and space.fits(piece, number):
            left -= mine
            return number
    return None
