"""Chooses the trees of virtual cells to bind to GPUs on which groups already run, for all groups together."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from pycontrol.cells.geometry import Cell
from pycontrol.cells.space import FREE, Space
from pycontrol.cells.values import Key


def bind_trees(space: Space, wanted: Mapping[Key, Collection[int]]) -> list[Cell]:
    """Binds free trees so that as many of these level-0 cells as possible lie in a tree of their holder; returns them.

    Of all solutions it takes one that binds the fewest GPUs. No tree covers a cell that another holder wants. The
    solution ignores equation (2): a tree that may not be bound where it is wanted is left out.
    """
    sizes = space.sizes
    of = {leaf: key for key, leaves in wanted.items() for leaf in leaves if not _bound(space, leaf)}
    trees: dict[tuple[Key, int], list[Cell]] = {}
    for root, key in space.holder.items():
        if space.v2p[root[0]][root[1]] == FREE and space.forest.free[root[0]][root[1]] == sizes[root[0]]:
            trees.setdefault((key, root[0]), []).append(root)
    places = sorted(
        {(key, k, leaf // sizes[k]) for leaf, key in of.items() for k in range(len(sizes)) if (key, k) in trees},
        key=lambda place: (-place[1], place[2]),
    )
    places = [
        (key, k, n) for key, k, n in places if all(of.get(leaf, key) == key for leaf in space.chain.leaves((k, n)))
    ]
    bound: list[Cell] = []
    for key, k, n in _chosen(places, of, {kind: len(roots) for kind, roots in trees.items()}, sizes):
        if space.buddy.may_bind((k, n)):
            bound.append(trees[key, k].pop())
            space.bind_exactly(bound[-1], n)
    return bound


def _bound(space: Space, leaf: int) -> bool:
    return any(space.p2v[k][leaf // size] != FREE for k, size in enumerate(space.sizes))


def _chosen(
    places: list[tuple[Key, int, int]],
    of: Mapping[int, Key],
    trees: Mapping[tuple[Key, int], int],
    sizes: tuple[int, ...],
) -> list[tuple[Key, int, int]]:
    """Disjoint places of trees that leave out the fewest level-0 cells, then cover the fewest GPUs; solved by HiGHS."""
    if not places:
        return []
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    at = {place: column for column, place in enumerate(places)}
    kinds = sorted(trees, key=str)
    leaves = sorted(of)
    entries = [
        (row, at[of[leaf], k, leaf // size])
        for row, leaf in enumerate(leaves)
        for k, size in enumerate(sizes)
        if (of[leaf], k, leaf // size) in at
    ]
    entries += [(row, len(places) + row) for row in range(len(leaves))]  # left out
    entries += [(len(leaves) + kinds.index((key, k)), column) for (key, k, _), column in at.items()]
    shape = (len(leaves) + len(kinds), len(places) + len(leaves))
    rows, columns = zip(*entries, strict=True)
    matrix = coo_array((np.ones(len(entries)), (rows, columns)), shape=shape).tocsc()
    high = np.array([1.0] * len(leaves) + [float(trees[kind]) for kind in kinds])
    low = np.array([1.0] * len(leaves) + [0.0] * len(kinds))
    cost = [float(sizes[k]) for _, k, _ in places] + [float(sizes[-1] * len(sizes) * len(places))] * len(leaves)
    found = milp(cost, constraints=LinearConstraint(matrix, low, high), integrality=1, bounds=Bounds(0, 1))
    return [] if found.x is None else [place for place, x in zip(places, found.x, strict=False) if x > 0.5]
