"""Free cells of a private cluster or of the physical one, indexed by level and by free GPUs per host."""

from __future__ import annotations

from pycontrol.cells.geometry import Cell, Chain


class Forest:
    """Free GPUs of every cell, for level-0 cells divided into trees.

    `roots[leaf]` is the level of the tree that contains the leaf. Below a cell in `whole` (above node level, taken as a
    whole) counts are not updated: they stay at full.
    """

    __slots__ = ("chain", "free", "roots", "whole")

    def __init__(self, chain: Chain, roots: list[int]) -> None:
        self.chain = chain
        self.roots = roots
        self.free = [[size] * -(-len(roots) // size) for size in chain.sizes]
        self.whole: set[Cell] = set()

    def covered(self, cell: Cell) -> bool:
        """Whether a cell lies in one that was taken as a whole."""
        level, number = cell
        sizes = self.chain.sizes
        return bool(self.whole) and any(
            (k, number * sizes[level] // sizes[k]) in self.whole for k in range(level, len(sizes))
        )


class CellPool:
    """The trees of a forest that belong to one holder, with their free cells indexed.

    A *bin* can hold one worker: it is a node, or a whole tree below node level. `lists[k]`: the maximal free cells of
    level k, from bins upwards. `parts[f]`: partly used bins with f free GPUs, by first leaf; with `sides` given, bins
    with guaranteed GPUs come after all others. All choices are last in, first out, so they depend only on the order of
    takes and gives.
    """

    __slots__ = ("chain", "fans", "forest", "free_gpus", "lists", "node", "parts", "sides", "sizes", "slots")

    def __init__(self, forest: Forest, sides: list[int] | None = None) -> None:
        self.forest = forest
        self.chain = forest.chain
        self.sizes, self.fans, self.node = self.chain.sizes, self.chain.fans, self.chain.node
        self.lists: list[dict[int, None]] = [{} for _ in self.sizes]
        self.sides = sides
        self.parts: list[dict[int, int]] = [{} for _ in range((2 if sides else 1) * (self.sizes[self.node] + 1))]
        self.slots: dict[int, int] = {}
        self.free_gpus = 0

    def add_root(self, cell: Cell) -> None:
        """Adds a free tree."""
        self.lists[cell[0]][cell[1]] = None
        self.free_gpus += self.sizes[cell[0]]

    def remove_root(self, cell: Cell) -> None:
        """Removes a free tree."""
        del self.lists[cell[0]][cell[1]]
        self.free_gpus -= self.sizes[cell[0]]

    def is_free(self, cell: Cell) -> bool:
        """Whether no GPU of the cell is taken."""
        level, number = cell
        sizes, free = self.sizes, self.forest.free
        leaf = number * sizes[level]
        top = self.forest.roots[leaf]
        if level > top or free[level][number] != sizes[level]:
            return False
        return not self.forest.covered(cell)

    def take(self, cell: Cell) -> None:
        """Takes a free cell (HiveD, Algorithm 1, splitting)."""
        level, number = cell
        sizes, free = self.sizes, self.forest.free
        leaf = number * sizes[level]
        top = self.forest.roots[leaf]
        bin_level = self.node if top > self.node else top
        amount = sizes[level]
        if level > bin_level:
            self._isolate(level, number, top)
            self.forest.whole.add(cell)
        else:
            at = leaf // sizes[bin_level]
            was = free[bin_level][at]
            if was == sizes[bin_level]:
                self._isolate(bin_level, at, top)
            else:
                key = at * sizes[bin_level]
                del self.parts[self.slots.pop(key)][key]
            for k in range(level):
                first, count = leaf // sizes[k], amount // sizes[k]
                free[k][first : first + count] = [0] * count
            if was > amount:
                self._place(at * sizes[bin_level], bin_level, was - amount)
        for k in range(level, top + 1):
            free[k][leaf // sizes[k]] -= amount
        self.free_gpus -= amount

    def give(self, cell: Cell) -> None:
        """Gives back a cell with all GPUs taken (HiveD, Algorithm 1, merging)."""
        level, number = cell
        sizes, free = self.sizes, self.forest.free
        leaf = number * sizes[level]
        top = self.forest.roots[leaf]
        bin_level = self.node if top > self.node else top
        amount = sizes[level]
        if level > bin_level and cell in self.forest.whole:
            self.forest.whole.remove(cell)
        else:
            for k in range(level):
                first, count = leaf // sizes[k], amount // sizes[k]
                free[k][first : first + count] = [sizes[k]] * count
        for k in range(level, top + 1):
            free[k][leaf // sizes[k]] += amount
        self.free_gpus += amount
        if level > bin_level:
            self._merge(level, number, top)
            return
        at = leaf // sizes[bin_level]
        key = at * sizes[bin_level]
        if key in self.slots:
            del self.parts[self.slots.pop(key)][key]
        now = free[bin_level][at]
        if now < sizes[bin_level]:
            self._place(key, bin_level, now)
        else:
            self._merge(bin_level, at, top)

    def resort(self, leaf: int) -> None:
        """Indexes the bin of a leaf again after its side changed."""
        key = leaf - leaf % self.sizes[self.node]
        if key in self.slots:
            del self.parts[self.slots.pop(key)][key]
            self._place(key, self.node, self.forest.free[self.node][key // self.sizes[self.node]])

    def _place(self, key: int, bin_level: int, free: int) -> None:
        slot = free
        if self.sides and self.sides[key // self.sizes[self.node]]:
            slot += self.sizes[self.node] + 1
        self.slots[key] = slot
        self.parts[slot][key] = bin_level

    def _isolate(self, level: int, number: int, top: int) -> None:
        """Splits the maximal free cell that contains a free cell, and removes the latter from the lists."""
        sizes, fans, free, lists = self.sizes, self.fans, self.forest.free, self.lists
        k, at = level, number
        while k < top and free[k + 1][at // fans[k + 1]] == sizes[k + 1]:
            k += 1
            at //= fans[k]
        del lists[k][at]
        while k > level:
            first = at * fans[k]
            k -= 1
            at = number * sizes[level] // sizes[k]
            below = lists[k]
            for child in range(first + fans[k + 1] - 1, first - 1, -1):
                if child != at:
                    below[child] = None

    def _merge(self, level: int, number: int, top: int) -> None:
        """Adds a free cell to the lists, merged with its buddies if they are all free, level by level."""
        sizes, fans, free, lists = self.sizes, self.fans, self.forest.free, self.lists
        k, at = level, number
        while k < top and free[k + 1][at // fans[k + 1]] == sizes[k + 1]:
            first, below = at // fans[k + 1] * fans[k + 1], lists[k]
            for child in range(first, first + fans[k + 1]):
                if child != at:
                    del below[child]
            k += 1
            at //= fans[k]
        lists[k][at] = None

    def pick(self, cell: Cell, gpus: int) -> list[Cell]:
        """Free cells for `gpus` GPUs inside a cell with enough: in the smallest part that has them, fullest first."""
        level, number = cell
        sizes, fans, free = self.sizes, self.fans, self.forest.free
        while gpus < sizes[level]:
            fan = fans[level]
            first = number * fan
            children = free[level - 1][first : first + fan]
            best, least = -1, sizes[level] + 1
            for child, left in enumerate(children):
                if gpus <= left < least:
                    best, least = child, left
            if best < 0:
                break
            level, number = level - 1, first + best
        else:
            return [(level, number)]
        cells: list[Cell] = []
        for child in sorted(range(fan), key=lambda c: -children[c]):
            part = min(children[child], gpus)
            if part:
                cells += self.pick((level - 1, first + child), part)
                gpus -= part
        return cells

    def take_part(self, cell: Cell, gpus: int) -> list[Cell]:
        """Takes what `pick` chooses."""
        cells = self.pick(cell, gpus)
        for part in cells:
            self.take(part)
        return cells

    def bins(self) -> list[tuple[int, Cell]]:
        """(free GPUs, bin) for every bin with free GPUs; slow, as it visits all."""
        sizes, found = self.sizes, []
        for bins in self.parts:
            for key, level in bins.items():
                number = key // sizes[level]
                found.append((self.forest.free[level][number], (level, number)))
        for level, cells in enumerate(self.lists):
            bin_level = min(level, self.node)
            count = sizes[level] // sizes[bin_level]
            for cell in cells:
                found += [(sizes[bin_level], (bin_level, n)) for n in range(cell * count, (cell + 1) * count)]
        return found
