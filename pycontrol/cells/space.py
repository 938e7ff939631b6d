"""The whole state of one chain: virtual clusters' trees, their binding to physical cells, and the groups on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pycontrol.cells.buddy import Buddy
from pycontrol.cells.geometry import Cell, Chain
from pycontrol.cells.pool import CellPool, Forest
from pycontrol.cells.values import IDLE, GroupRequest, Key, Worker
from pycontrol.model.grouping import grouped
from pycontrol.model.topology import Gpu

FREE = -1
ONE_A_NODE = -1
"""The worker of a cell above node level: each of its nodes is one worker."""


@dataclass(slots=True)
class Holding:
    """GPUs that a worker holds: a cell of a pool, and the physical cell to which it is bound.

    What is borrowed has no virtual cell: both are the same physical cell.
    """

    space: Space
    pool: CellPool
    worker: int
    cell: Cell
    physical: Cell

    @property
    def borrowed(self) -> bool:
        """Whether the group has no guarantee for it."""
        return self.pool is self.space.borrowable

    @property
    def bad(self) -> bool:
        """Whether one of its GPUs is bad."""
        return self.physical[1] in self.space.buddy.bad[self.physical[0]]


@dataclass(slots=True, eq=False)
class AffinityGroup:
    """The state of an affinity group."""

    request: GroupRequest
    priority: int
    key: Key
    """The holder of the cells that it is guaranteed."""
    held: list[Holding] = field(default_factory=list)
    workers: tuple[Worker, ...] = ()

    @property
    def name(self) -> str:
        return self.request.group

    @property
    def guaranteed(self) -> bool:
        return self.priority >= 0

    @property
    def lazily_preempted(self) -> bool:
        """Whether it lost its guarantee, and continues as an opportunistic group."""
        return self.priority < self.request.priority


class Space:
    """The state of a chain. `pools`: the free cells of each holder.

    `v2p`, `p2v`: the binding by level, both ways. `owner[k]`: physical cell -> group that owns it. `borrower[leaf]`:
    group that uses a GPU without owning it. `marks`: bad GPU in a bound tree -> the virtual GPU that is bound to it.
    """

    def __init__(self, chain: Chain, roots: Iterable[tuple[Key, int]], static: bool) -> None:
        self.chain, self.static = chain, static
        self.sizes, self.fans = chain.sizes, chain.fans
        self.roots = sorted(((level, key) for key, level in roots), key=lambda r: (-r[0], r[1][0], r[1][1] or ""))
        leaf_roots: list[int] = []
        self.holder: dict[Cell, Key] = {}
        for level, key in self.roots:
            self.holder[(level, len(leaf_roots) // self.sizes[level])] = key
            leaf_roots += [level] * self.sizes[level]
        self._roots_of: dict[str, list[Cell]] | None = None
        """Virtual cluster -> its roots; None: `holder` has changed."""
        self.forest = Forest(chain, leaf_roots)
        self.pools: dict[Key, CellPool] = {}
        for cell, key in reversed(self.holder.items()):
            self.pools.setdefault(key, CellPool(self.forest)).add_root(cell)
        self.buddy = Buddy(chain)
        for level, _ in self.holder:
            self.buddy.need[level] += 1
        self.v2p = [[FREE] * -(-len(leaf_roots) // size) for size in self.sizes]
        self.p2v = [[FREE] * chain.count(k) for k in range(len(self.sizes))]
        self.fixed: set[Cell] = set()
        """Roots that stay bound: pinned ones, or all with static binding."""
        self.pins: dict[Cell, str] = {}
        """Pinned root -> name."""
        self.kept: set[Cell] = set()
        """Virtual cells that are free for now; their binding stays."""
        per_node, indices = chain.sizes[chain.node], chain.indices
        self.node_workers: tuple[Worker, ...] = tuple(
            (host, indices[n * per_node : (n + 1) * per_node]) for n, host in enumerate(chain.hosts)
        )
        self.nodes_of: dict[str, list[int]] = {}
        for number, host in enumerate(chain.hosts):
            self.nodes_of.setdefault(host, []).append(number)
        self.borrowable_sides = [0] * chain.count(chain.node)
        self.borrowable = CellPool(Forest(chain, [chain.top] * len(chain.indices)), self.borrowable_sides)
        self.pools[IDLE] = self.borrowable
        for number in range(chain.count(chain.top) - 1, -1, -1):
            self.borrowable.add_root((chain.top, number))
        self.owner: list[dict[int, AffinityGroup]] = [{} for _ in self.sizes]
        self.borrower: list[AffinityGroup | None] = [None] * len(chain.indices)
        self.bad: set[int] = set()
        self.marks: dict[int, int] = {}
        self.root_marks: dict[Cell, set[int]] = {}

    def leaves_on(self, host: str) -> list[int]:
        """The level-0 cells of a host."""
        leaves = (self.chain.leaves((self.chain.node, node)) for node in self.nodes_of.get(host, ()))
        return [leaf for of_node in leaves for leaf in of_node]

    def leaves_of(self, gpu: Gpu) -> list[int]:
        """The level-0 cell of a GPU; none if it is not of this chain."""
        return [leaf for leaf in self.leaves_on(gpu.host) if self.chain.indices[leaf] == gpu.index]

    def roots_of(self, vc: str) -> Sequence[Cell]:
        """The roots of a virtual cluster's trees, pinned ones too, the largest first."""
        if self._roots_of is None:
            self._roots_of = grouped((owner, root) for root, (owner, _) in self.holder.items())
        return self._roots_of.get(vc, ())

    # Binding

    def root_of(self, cell: Cell) -> Cell:
        """The root of the tree that contains a virtual cell."""
        leaf = cell[1] * self.sizes[cell[0]]
        level = self.forest.roots[leaf]
        return level, leaf // self.sizes[level]

    def fix_roots(self) -> None:
        """Binds every root permanently (static binding)."""
        for root in self.holder:
            if self.v2p[root[0]][root[1]] == FREE:
                self.bind_root(root)
            self.fixed.add(root)

    def bind_root(self, root: Cell, physical: int | None = None) -> bool:
        """Binds an unbound tree, to `physical` if given; returns whether all its GPUs are healthy."""
        level, number = root
        if physical is None:
            physical = self.buddy.acquire(level)
        else:
            self.buddy.bind((level, physical))
        self.v2p[level][number] = physical
        self.p2v[level][physical] = number
        return physical not in self.buddy.bad[level]

    def bind(self, cell: Cell) -> int:
        """The physical cell of a virtual one; unbound cells are bound, below the root to the parts with the fewest
        borrowed GPUs."""
        level, number = cell
        v2p = self.v2p[level]
        if v2p[number] != FREE:
            return v2p[number]
        if self.forest.roots[number * self.sizes[level]] == level:
            self.bind_root(cell)
            return v2p[number]
        fan = self.fans[level + 1]
        parent = self.bind((level + 1, number // fan))
        first, p2v = parent * fan, self.p2v[level]
        if self.static:
            chosen = first + number % fan
        else:
            chosen, fewest = FREE, 1 << 60
            guests = self.buddy.guests[level]
            for child in range(first, first + fan):
                if p2v[child] == FREE and guests[child] < fewest:
                    chosen, fewest = child, guests[child]
                    if not fewest:
                        break
        v2p[number] = chosen
        p2v[chosen] = number
        return chosen

    def bind_exactly(self, cell: Cell, physical: int) -> None:
        """Binds a virtual cell to this physical one, which `fits` must allow."""
        level, root = cell[0], self.root_of(cell)
        fresh = self.v2p[root[0]][root[1]] == FREE
        while self.v2p[cell[0]][cell[1]] == FREE:
            at = physical * self.sizes[level] // self.sizes[cell[0]]
            if cell == root:
                self.bind_root(cell, at)
                break
            self.v2p[cell[0]][cell[1]] = at
            self.p2v[cell[0]][at] = cell[1]
            cell = (cell[0] + 1, cell[1] // self.fans[cell[0] + 1])
        if fresh:
            self.mark_root(root)

    def fits(self, cell: Cell, physical: int) -> bool:
        """Whether a free virtual cell is, or may be, bound to exactly this physical cell."""
        level, root = cell[0], self.root_of(cell)
        while True:
            at = physical * self.sizes[level] // self.sizes[cell[0]]
            bound, back = self.v2p[cell[0]][cell[1]], self.p2v[cell[0]][at]
            if bound != FREE or back != FREE:
                return bound == at and back == cell[1]
            if cell == root:
                return self.buddy.may_bind((cell[0], at))
            fan = self.fans[cell[0] + 1]
            if self.static and at % fan != cell[1] % fan:
                return False
            cell = (cell[0] + 1, cell[1] // fan)

    def unbind(self, cell: Cell) -> None:
        """After a virtual cell was given back: unbinds it and its ancestors that are completely free."""
        level, number = cell
        root = self.root_of(cell)
        free = self.forest.free
        while True:
            if free[level][number] != self.sizes[level]:
                break
            if (level, number) in self.fixed or (self.kept and self._keeps(level, number)):
                return
            physical = self.v2p[level][number]
            if physical != FREE:
                self.v2p[level][number] = FREE
                self.p2v[level][physical] = FREE
            if level == root[0]:
                if physical != FREE:
                    self.buddy.release((level, physical))
                return
            number //= self.fans[level + 1]
            level += 1
        self.unbind_marked(root)

    def _keeps(self, level: int, number: int) -> bool:
        """Whether a cell is, or contains, one whose binding stays."""
        sizes = self.sizes
        return any(k <= level and n * sizes[k] // sizes[level] == number for k, n in self.kept)

    def unbind_marked(self, root: Cell) -> None:
        """Unmarks and unbinds a tree in which only bad GPUs are taken."""
        marked = self.root_marks.get(root)
        if not marked or root in self.fixed or (self.kept and self._keeps(*root)):
            return
        if self.forest.free[root[0]][root[1]] + len(marked) != self.sizes[root[0]]:
            return
        del self.root_marks[root]
        pool = self.pool_of(root)
        cells = [(0, self.marks.pop(leaf)) for leaf in marked]
        for cell in cells:
            pool.give(cell)
        for cell in cells:
            self.unbind(cell)

    def pool_of(self, root: Cell) -> CellPool:
        """The pool of a tree's holder."""
        return self.pools[self.holder[root]]

    def assign_root(self, root: Cell, key: Key) -> None:
        """Moves a free tree to another holder (exchange)."""
        if self.holder[root] == key:
            return
        self.pool_of(root).remove_root(root)
        self.holder[root], self._roots_of = key, None
        self.pools.setdefault(key, CellPool(self.forest)).add_root(root)

    # Bad hardware

    def mark_root(self, root: Cell) -> None:
        """Marks a bound tree's bad GPUs: virtual GPUs are bound to them and taken, so that no group gets them."""
        physical = self.v2p[root[0]][root[1]]
        if physical in self.buddy.bad[root[0]]:
            self.reflag_bad((root[0], physical))

    def reflag_bad(self, physical: Cell) -> None:
        """After a cell was given up: marks its bad GPUs in the tree that is bound there, if there is one."""
        for leaf in self.chain.leaves(physical):
            if leaf in self.bad and leaf not in self.marks:
                self._mark(leaf)

    def _mark(self, leaf: int) -> None:
        """Binds a virtual GPU to a bad one and takes it, unless a group owns the GPU."""
        k = 0
        while k < len(self.sizes) and self.p2v[k][leaf // self.sizes[k]] == FREE:
            if leaf // self.sizes[k] in self.owner[k]:
                return
            k += 1
        if k == len(self.sizes) or self.owner_of(leaf) is not None:
            return
        number = self.p2v[k][leaf // self.sizes[k]]
        root = self.root_of((k, number))
        while k:
            fan = self.fans[k]
            first = number * fan
            k -= 1
            at = leaf // self.sizes[k]
            full, free = self.sizes[k], self.forest.free[k]
            if self.static:
                number = first + at % fan
            else:
                number = next(
                    c for c in range(first + fan - 1, first - 1, -1) if self.v2p[k][c] == FREE and free[c] == full
                )
            self.v2p[k][number], self.p2v[k][at] = at, number
        self.pool_of(root).take((0, number))
        self.marks[leaf] = number
        self.root_marks.setdefault(root, set()).add(leaf)

    def set_bad(self, leaf: int) -> None:
        """Marks a GPU bad: no further group gets it."""
        if leaf in self.bad:
            return
        self.bad.add(leaf)
        self.buddy.count_bad(leaf, 1)
        if self.owner_of(leaf) is None and self.borrower[leaf] is None:
            self.borrowable.take((0, leaf))
        self._mark(leaf)

    def set_healthy(self, leaf: int) -> None:
        """Marks a GPU healthy again."""
        if leaf not in self.bad:
            return
        self.bad.remove(leaf)
        self.buddy.count_bad(leaf, -1)
        if self.owner_of(leaf) is None and self.borrower[leaf] is None:
            self.borrowable.give((0, leaf))
        self.unmark(leaf)

    def unmark(self, leaf: int) -> None:
        """Frees the virtual GPU that is bound to a bad one."""
        if leaf not in self.marks:
            return
        virtual = self.marks.pop(leaf)
        root = self.root_of((0, virtual))
        self.root_marks[root].discard(leaf)
        if not self.root_marks[root]:
            del self.root_marks[root]
        self.pool_of(root).give((0, virtual))
        self.unbind((0, virtual))

    # Owners and borrowers

    def owner_of(self, leaf: int) -> AffinityGroup | None:
        """The group that owns a GPU; None if none does."""
        for k, size in enumerate(self.sizes):
            group = self.owner[k].get(leaf // size)
            if group is not None:
                return group
        return None

    def own(self, group: AffinityGroup, cell: Cell) -> None:
        """Makes a group the owner of a physical cell; borrowers may still use it."""
        level, number = cell
        self.owner[level][number] = group
        borrowable = self.borrowable
        if level <= self.chain.node:
            node = number * self.sizes[level] // self.sizes[self.chain.node]
            self.borrowable_sides[node] += 1
        if borrowable.forest.free[level][number] == self.sizes[level]:
            borrowable.take(cell)
        else:
            self._take_rest(cell)
            if level < self.chain.node:
                borrowable.resort(number * self.sizes[level])

    def _take_rest(self, cell: Cell) -> None:
        """Takes the free parts of a cell in the borrowable view."""
        level, number = cell
        borrowable, node = self.borrowable, self.chain.node
        if cell in borrowable.forest.whole:
            return
        if level > node:
            fan = self.fans[level]
            for child in range(number * fan, (number + 1) * fan):
                self._take_rest((level - 1, child))
        elif borrowable.forest.free[level][number] == self.sizes[level]:
            borrowable.take(cell)
        elif borrowable.forest.free[level][number]:
            for leaf in self.chain.leaves(cell):
                if borrowable.forest.free[0][leaf]:
                    borrowable.take((0, leaf))

    def disown(self, cell: Cell) -> None:
        """Removes the owner of a physical cell; borrowers stay."""
        level, number = cell
        del self.owner[level][number]
        if level <= self.chain.node:
            self.borrowable_sides[number * self.sizes[level] // self.sizes[self.chain.node]] -= 1
        if self.buddy.guests[level][number]:
            for leaf in self.chain.leaves(cell):
                if self.borrower[leaf] is None and leaf not in self.bad:
                    self.borrowable.give((0, leaf))
            if level < self.chain.node:
                self.borrowable.resort(number * self.sizes[level])
            return
        self.borrowable.give(cell)
        if number in self.buddy.bad[level]:
            for leaf in self.chain.leaves(cell):
                if leaf in self.bad:
                    self.borrowable.take((0, leaf))

    def add_borrower(self, group: AffinityGroup, cell: Cell) -> None:
        """Makes a group the borrower of a physical cell of at most node level, which must have none."""
        leaves = self.chain.leaves(cell)
        self.borrower[leaves.start : leaves.stop] = [group] * len(leaves)
        self._take_rest(cell)
        self.buddy.count_guests(cell, 1)

    def remove_borrower(self, cell: Cell) -> None:
        """Removes the borrower of a physical cell."""
        leaves = self.chain.leaves(cell)
        self.borrower[leaves.start : leaves.stop] = [None] * len(leaves)
        self.buddy.count_guests(cell, -1)
        owners = {leaf for leaf in leaves if self.owner_of(leaf) is not None}
        if owners:
            for leaf in leaves:
                if leaf not in owners and leaf not in self.bad:
                    self.borrowable.give((0, leaf))
            return
        self.borrowable.give(cell)
        if cell[1] in self.buddy.bad[cell[0]]:
            for leaf in leaves:
                if leaf in self.bad:
                    self.borrowable.take((0, leaf))

    def take_by_node(self, cell: Cell) -> list[Cell]:
        """A cell as cells of at most node level; one that was taken as a whole is taken node by node instead."""
        nodes = self.chain.by_node(cell)
        if cell[0] > self.chain.node and cell in self.borrowable.forest.whole:
            self.borrowable.give(cell)
            for node in nodes:
                self.borrowable.take(node)
        return nodes

    def split_to_nodes(self, cell: Cell) -> list[Cell]:
        """Splits an owned cell into owned cells of at most node level, so that they can change owners one by one."""
        nodes = self.take_by_node(cell)
        if nodes != [cell]:
            group = self.owner[cell[0]].pop(cell[1])
            for level, number in nodes:
                self.owner[level][number] = group
                self.borrowable_sides[number] += 1
        return nodes

    def borrowers_in(self, cell: Cell) -> list[AffinityGroup]:
        """The groups that borrow GPUs of a cell."""
        if not self.buddy.guests[cell[0]][cell[1]]:
            return []
        leaves = self.chain.leaves(cell)
        found = {g.name: g for g in self.borrower[leaves.start : leaves.stop] if g is not None}
        return list(found.values())
