"""Packs gangs into bins: greedily if that suffices, else by an exact search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pycontrol.cells.geometry import Cell
from pycontrol.cells.pool import CellPool

STEPS = 200_000
"""States that the exact search visits before it raises `Undecided`."""

Taken = list[tuple[CellPool, int, Cell]]
"""(pool, worker, cell) for each cell that was taken."""


class Undecided(Exception):
    """The exact search needed too many steps."""


def undo(taken: Taken) -> None:
    """Gives the cells back, in reverse order."""
    for pool, _, cell in reversed(taken):
        pool.give(cell)


def place(pools: Sequence[CellPool], sizes: Sequence[int]) -> Taken | None:
    """Takes cells for workers of these sizes (GPUs, descending) from one or several pools; None if they do not fit.

    It finds a placement if there is one, or raises Undecided; the best fit of each worker is tried first.
    """
    if sum(sizes) > sum(pool.free_gpus for pool in pools):
        return None
    if len(pools) == 1:
        taken = _greedy(pools[0], sizes)
        if taken is not None or sizes[0] == sizes[-1]:
            return taken  # workers of one size: a bin holds free // size of them in any order
    return place_in(sizes, [(pool, free, cell) for pool in pools for free, cell in pool.bins()])


def place_in(sizes: Sequence[int], bins: list[tuple[CellPool, int, Cell]]) -> Taken | None:
    """Takes cells from these bins only, given as (pool, free GPUs, bin); None if the workers do not fit."""
    chosen = pack([free for _, free, _ in bins], sizes)
    if chosen is None:
        return None
    taken: Taken = []
    for worker, at in enumerate(chosen):
        pool, _, cell = bins[at]
        for part in pool.pick(cell, sizes[worker]):
            pool.take(part)
            taken.append((pool, worker, part))
    return taken


def _greedy(pool: CellPool, sizes: Sequence[int]) -> Taken | None:
    taken: Taken = []
    for worker, gpus in enumerate(sizes):
        found = pool.bin_for(gpus)
        if found is None:
            undo(taken)
            return None
        for cell in pool.pick(found, gpus):
            pool.take(cell)
            taken.append((pool, worker, cell))
    return taken


def pack(frees: Sequence[int], sizes: Sequence[int]) -> list[int] | None:
    """The bin of each worker (sizes descending), fullest bins first; None if they do not fit.

    The search is exact; it raises Undecided after STEPS states.
    """
    by_free: dict[int, list[int]] = {}
    for at, free in enumerate(frees):
        same = by_free.setdefault(free, [])
        if len(same) < len(sizes):  # more equal bins than workers cannot help
            same.append(at)
    bins = [at for free in sorted(by_free) for at in by_free[free]]
    left = [frees[at] for at in bins]
    if sum(left) < sum(sizes):
        return None
    greedy = _best_fit(list(left), sizes)
    if greedy is not None:
        return [bins[b] for b in greedy]
    if sizes[0] == sizes[-1]:
        return None
    failed: set[tuple[int, tuple[int, ...]]] = set()
    chosen: list[int] = []
    tried: list[list[int]] = []
    steps = 0
    while len(chosen) < len(sizes):
        worker = len(chosen)
        if len(tried) == worker:  # a new state
            state = (worker, tuple(sorted(left)))
            steps += 1
            if steps > STEPS:
                raise Undecided
            tried.append([] if state in failed else _options(left, sizes[worker]))
        if tried[worker]:
            at = tried[worker].pop(0)
            left[at] -= sizes[worker]
            chosen.append(at)
            continue
        failed.add((worker, tuple(sorted(left))))
        tried.pop()
        if not chosen:
            return None
        at = chosen.pop()
        left[at] += sizes[worker - 1]
    return [bins[at] for at in chosen]


def _options(left: list[int], gpus: int) -> list[int]:
    """One bin for each number of free GPUs with room, fullest first."""
    by_free = {free: at for at, free in enumerate(left) if free >= gpus}
    return [by_free[free] for free in sorted(by_free)]


def _best_fit(left: list[int], sizes: Sequence[int]) -> list[int] | None:
    chosen = []
    for gpus in sizes:
        fitting = [at for at, free in enumerate(left) if free >= gpus]
        if not fitting:
            return None
        best = min(fitting, key=left.__getitem__)
        left[best] -= gpus
        chosen.append(best)
    return chosen


def place_within(pool: CellPool, sizes: Sequence[int], level: int) -> Taken | None:
    """Takes cells for a gang inside one cell of a level, the fullest that has room; None if none has."""
    total, chain = sum(sizes), pool.chain
    per_node = chain.sizes[chain.node]
    if level > chain.node and total == chain.sizes[level] and sizes[-1] == per_node:
        whole = pool.cell_for(level)
        if whole is None:
            return None
        pool.take(whole)
        return [(pool, -1, whole)]
    if level <= chain.node and len(sizes) == 1 and total == chain.sizes[level]:
        # a whole cell below node level: the fullest bin that has one
        inside = _inside(pool, level, lambda free: free == total)
    else:
        inside = _inside(pool, level, lambda free: free >= total)
    for _, group in sorted(inside.items(), key=lambda item: sum(free for _, free, _ in item[1])):
        taken = place_in(sizes, group)
        if taken is not None:
            return taken
    return None


def _inside(pool: CellPool, level: int, enough: Callable[[int], bool]) -> dict[int, list[tuple[CellPool, int, Cell]]]:
    """Cell of a level -> the bins in it; for levels below bins, the cell itself if it has `enough` free GPUs."""
    sizes = pool.sizes
    found: dict[int, list[tuple[CellPool, int, Cell]]] = {}
    for free, (k, number) in pool.bins():
        if pool.forest.roots[number * sizes[k]] < level:
            continue
        if level >= k:
            found.setdefault(number * sizes[k] // sizes[level], []).append((pool, free, (k, number)))
            continue
        count = sizes[k] // sizes[level]
        for cell in range(number * count, (number + 1) * count):
            part = pool.forest.free[level][cell]
            if enough(part):
                found[cell] = [(pool, part, (level, cell))]
    return found
