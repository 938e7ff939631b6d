"""Takes GPUs of given virtual cells and binds them, freely or to the GPUs on which a group runs."""

from __future__ import annotations

from collections.abc import Sequence

from pycontrol.cells.geometry import Cell
from pycontrol.cells.space import FREE, Part, Space
from pycontrol.model.topology import Gpu

Inside = tuple[tuple[int, int, int, int], ...]
"""(chain, level, number, GPUs) of virtual cells; one worker per entry."""


def take_inside(
    spaces: Sequence[Space],
    key: tuple[str, str | None],
    inside: Inside,
    exactly: Sequence[Gpu] = (),
    avoid: frozenset[str] = frozenset(),
    within: str | None = None,
) -> list[Part] | None:
    """Takes GPUs of these virtual cells and binds them; None, with nothing changed, if they do not fit.

    `exactly`: the GPUs to which they must be bound; empty: any. `avoid`: hosts to which they must not be bound.
    `within`: a cell type; all GPUs taken of a virtual cell must lie in one cell of that type.
    """
    left = {(at, leaf) for at, space in enumerate(spaces) for leaf in _leaves(space, exactly)}
    parts: list[Part] = []
    shown: list[tuple[Space, Cell]] = []
    fits = all(
        _take(spaces, key, worker, cell, left if exactly else None, avoid, within, parts, shown)
        for worker, cell in enumerate(inside)
    )
    fits = fits and not any(host in avoid for p in parts for host in p.space.chain.hosts_of(p.physical))
    for space, root in shown:
        space.held.discard(root)
    if not fits:
        for part in reversed(parts):
            assert part.virtual is not None
            part.space.pools[key].give(part.virtual)
        for part in parts:
            assert part.virtual is not None
            part.space.unbind(part.virtual)
    for space, root in shown:
        space.unbind(root)
    return parts if fits else None


def _take(
    spaces: Sequence[Space],
    key: tuple[str, str | None],
    worker: int,
    wanted: tuple[int, int, int, int],
    left: set[tuple[int, int]] | None,
    avoid: frozenset[str],
    within: str | None,
    parts: list[Part],
    shown: list[tuple[Space, Cell]],
) -> bool:
    """Takes one worker's GPUs of a virtual cell; returns whether there were enough. `parts` gets what was taken."""
    at, level, number, gpus = wanted
    space = spaces[at]
    root = space.root_of((level, number))
    if space.holder[root] != key:
        return False
    if left is None and space.v2p[root[0]][root[1]] == FREE:
        if not space.bind_root(root, _elsewhere(space, root, avoid) if avoid else None):
            space.mark_root(root)
        space.held.add(root)
        shown.append((space, root))
    cell = (level, number) if within is None else roomiest(space, (level, number), gpus, within)
    if cell is None or space.forest.free[cell[0]][cell[1]] < gpus or space.forest.covered((level, number)):
        return False
    pool = space.pools[key]
    for piece in pool.pick(cell, gpus):
        if left is not None:
            physical = _exact(at, space, piece, left)
            if physical is None:
                return False
            space.bind_exactly(piece, physical)
            if not pool.is_free(piece):  # the tree just bound has a bad GPU there
                space.unbind(piece)
                return False
        pool.take(piece)
        parts.append(Part(space, worker, (piece[0], space.bind(piece)), piece))
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
