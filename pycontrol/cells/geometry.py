"""Chains of cells as integers: a level-k cell is a number, its parent is number // fan, its GPUs are a range."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from pycontrol.model.topology import Gpu

WIDEST_FAN = 32
"""Wider fans above nodes are divided by hidden levels, so that splitting a cell touches few buddies."""

Cell = tuple[int, int]
"""(level, number): level 0 is a GPU."""


def hidden_fans(fan: int) -> list[int]:
    """`fan` as factors of at most WIDEST_FAN, inner first, as far as it has such factors."""
    if fan <= WIDEST_FAN:
        return [fan]
    for factor in range(WIDEST_FAN, 1, -1):
        if fan % factor == 0:
            return [factor, *hidden_fans(fan // factor)]
    return [fan]


@dataclass(frozen=True)
class Chain:
    """A hierarchy of cells: a cell of level k consists of `fans[k]` cells of level k - 1 (HiveD, section 3).

    `names[k]` is the cell type of level k, empty for a hidden level. All cells of a level are equal.
    """

    name: str
    names: tuple[str, ...]
    fans: tuple[int, ...]
    """fans[0] is 1."""
    node: int
    """The level of hosts."""
    hosts: tuple[str, ...]
    """Host of each node cell."""
    indices: tuple[int, ...]
    """Index of each GPU on its host."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """GPUs per cell, by level."""
        return tuple(accumulate(self.fans, operator.mul))

    @property
    def top(self) -> int:
        """The highest level."""
        return len(self.fans) - 1

    @property
    def gpu_type(self) -> str:
        """The GPU type: the cell type of level 0."""
        return self.names[0]

    def count(self, level: int) -> int:
        """The number of cells of a level."""
        return len(self.indices) // self.sizes[level]

    def level_of(self, name: str) -> int | None:
        """The level of a cell type; None if the chain does not have it."""
        return self.names.index(name) if name in self.names else None

    def gpu(self, leaf: int) -> Gpu:
        """The GPU of a level-0 cell."""
        return Gpu(self.hosts[leaf // self.sizes[self.node]], self.indices[leaf])

    def leaves(self, cell: Cell) -> range:
        """The level-0 cells of a cell."""
        size = self.sizes[cell[0]]
        return range(cell[1] * size, (cell[1] + 1) * size)

    def by_node(self, cell: Cell) -> list[Cell]:
        """A cell as cells of at most node level."""
        if cell[0] <= self.node:
            return [cell]
        count = self.sizes[cell[0]] // self.sizes[self.node]
        return [(self.node, n) for n in range(cell[1] * count, (cell[1] + 1) * count)]

    def hosts_of(self, cell: Cell) -> Sequence[str]:
        """The hosts that a cell touches."""
        per_node = self.sizes[self.node]
        leaves = self.leaves(cell)
        return self.hosts[leaves.start // per_node : (leaves.stop - 1) // per_node + 1]

    def label(self, cell: Cell) -> str:
        """A readable name of a cell: its type and place."""
        hosts = self.hosts_of(cell)
        place = hosts[0] if len(hosts) == 1 else f"{hosts[0]}..{hosts[-1]}"
        if cell[0] < self.node:
            place += ":" + ",".join(str(self.indices[leaf]) for leaf in self.leaves(cell))
        return f"{self.names[cell[0]] or 'part'} {place}"


def cover(chain: Chain, leaves: Sequence[int]) -> list[Cell]:
    """The fewest cells of at most node level that consist of exactly these level-0 cells."""
    left, cells = set(leaves), []
    for level in range(chain.node, -1, -1):
        size = chain.sizes[level]
        for number in sorted({leaf // size for leaf in left}):
            span = range(number * size, (number + 1) * size)
            if left.issuperset(span):
                left.difference_update(span)
                cells.append((level, number))
    return cells


def overlaps(chain: Chain, a: Cell, b: Cell) -> bool:
    """Whether one of the two cells contains the other."""
    low, high = (a, b) if a[0] <= b[0] else (b, a)
    return low[1] * chain.sizes[low[0]] // chain.sizes[high[0]] == high[1]
