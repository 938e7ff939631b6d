"""The steps in which a request takes cells; each can be taken back."""

from __future__ import annotations

from collections.abc import Sequence

from pycontrol.cells.geometry import Cell
from pycontrol.cells.space import AffinityGroup, Holding, Space
from pycontrol.cells.values import IDLE, OPPORTUNISTIC, Key

Owners = dict[Key, dict[str, AffinityGroup]]
"""Holder of cells -> the guaranteed groups on them, by name."""


class Transaction:
    """The cells that a request takes."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.held: list[Holding] = []
        self.shown: list[tuple[Space, Cell]] = []

    def roll_back(self, to: int = 0) -> None:
        """Takes back all steps but the first ones."""
        undone = self.held[to:]
        del self.held[to:]
        for holding in reversed(undone):
            holding.pool.give(holding.cell)
        if self.key != IDLE:
            for holding in undone:
                holding.space.unbind(holding.cell)

    def take(self, space: Space, worker: int, cell: Cell, gpus: int) -> None:
        """Takes that many free GPUs of a cell, which `bind` may bind later."""
        pool = space.pools[self.key]
        self.held += [Holding(space, pool, worker, part, part) for part in pool.take_part(cell, gpus)]

    def take_bound(self, space: Space, worker: int, cell: Cell, gpus: int) -> None:
        """Takes and binds that many free GPUs of a cell in a bound tree."""
        since = len(self.held)
        self.take(space, worker, cell, gpus)
        for holding in self.held[since:]:
            holding.physical = holding.cell[0], space.bind(holding.cell)

    def take_exactly(self, space: Space, worker: int, cell: Cell, physical: int) -> bool:
        """Takes a free cell bound to exactly this physical one; False, with nothing changed, if a GPU there is bad."""
        space.bind_exactly(cell, physical)
        if not space.pools[self.key].is_free(cell):  # the tree just bound has a bad GPU there
            space.unbind(cell)
            return False
        self.take_bound(space, worker, cell, space.sizes[cell[0]])
        return True

    def show(self, space: Space, root: Cell) -> None:
        """Marks the bad GPUs of a tree just bound, which stays bound until `hide`."""
        space.mark_root(root)
        space.kept.add(root)
        self.shown.append((space, root))

    def hide(self) -> None:
        """Unbinds the trees shown of which nothing was taken."""
        for space, root in self.shown:
            space.kept.discard(root)
        for space, root in self.shown:
            space.unbind(root)
        self.shown.clear()


def downgrade(owners: Owners, group: AffinityGroup) -> list[Holding]:
    """Makes a group opportunistic in place; returns what it held before."""
    before, group.held = group.held, []
    for holding in before:
        space = holding.space
        for cell in space.split_to_nodes(holding.physical):
            space.disown(cell)
            space.add_borrower(group, cell)
            group.held.append(Holding(space, space.borrowable, holding.worker, cell, cell))
        holding.pool.give(holding.cell)
    unbind(before)
    del owners[group.key][group.name]
    group.priority = OPPORTUNISTIC
    return before


def unbind(given: Sequence[Holding]) -> None:
    """Unbinds cells that were given back, and marks bad GPUs that were in use there until now."""
    for holding in given:
        holding.space.unbind(holding.cell)
    reflag_bad(given)


def reflag_bad(given: Sequence[Holding]) -> None:
    """Marks bad GPUs of cells that were in use until now."""
    for holding in given:
        if holding.space.bad:
            holding.space.reflag_bad(holding.physical)
