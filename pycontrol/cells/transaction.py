"""The steps in which a request takes cells, also of lower priorities; each can be taken back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pycontrol.cells.geometry import Cell, minus, overlaps
from pycontrol.cells.space import FREE, AffinityGroup, Holding, Space
from pycontrol.cells.values import IDLE, OPPORTUNISTIC, GroupRequest, GroupState, Key

Mark = tuple[int, int, int]
"""A moment of a transaction: how many cells it had taken, groups it had lent from, and groups it had downgraded."""
Owners = dict[Key, dict[str, AffinityGroup]]
"""Holder of cells -> the guaranteed groups on them, by name."""
Find = Callable[[], bool]
"""A search: takes and binds cells; False, with nothing changed, if the gang does not fit."""


class Transaction:
    """The cells that a request takes, and what it does to other groups for them."""

    __slots__ = ("downgraded", "held", "key", "lent", "owners", "shown")

    def __init__(self, owners: Owners, key: Key) -> None:
        self.owners, self.key = owners, key
        self.held: list[Holding] = []
        self.lent: list[AffinityGroup] = []
        """Groups whose cells are free for now; they stay bound."""
        self.downgraded: list[tuple[AffinityGroup, list[Holding]]] = []
        """Groups that became opportunistic, with what they held before."""
        self.shown: list[tuple[Space, Cell]] = []

    def mark(self) -> Mark:
        """This moment."""
        return len(self.held), len(self.lent), len(self.downgraded)

    def roll_back(self, to: Mark = (0, 0, 0)) -> None:
        """Takes back all steps since a mark: the newest cells first, then the loans, then the downgrades."""
        held, lent, downgraded = to
        undone = self.held[held:]
        del self.held[held:]
        for holding in reversed(undone):
            holding.pool.give(holding.cell)
        if self.key != IDLE:
            for holding in undone:
                holding.space.unbind(holding.cell)
        self.return_loans(self.lent[lent:])
        for group, before in reversed(self.downgraded[downgraded:]):
            upgrade(self.owners, group, before)
        del self.downgraded[downgraded:]

    # Cells

    def take(self, space: Space, worker: int, cell: Cell, gpus: int) -> None:
        """Takes that many free GPUs of a cell, which `bind` may bind later."""
        pool = space.pools[self.key]
        self.held += [Holding(space, pool, worker, part, part) for part in pool.take_part(cell, gpus)]

    def bind(self, since: Mark) -> bool:
        """Binds the cells taken since a mark. False: a tree could be bound only to bad GPUs.

        Its bad GPUs are shown, and the cells given back, as others may suit better.
        """
        bad: list[tuple[Space, Cell, int]] = []
        for holding in self.held[since[0] :]:
            space, cell = holding.space, holding.cell
            if space.bad:
                root = space.root_of(cell)
                if space.v2p[root[0]][root[1]] == FREE and not space.bind_root(root):
                    bad.append((space, root, space.v2p[root[0]][root[1]]))
            holding.physical = cell[0], space.bind(cell)
        if not bad:
            return True
        self.roll_back(since)
        for space, root, physical in bad:
            space.bind_root(root, physical)
            self.show(space, root)
        return False

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

    # Groups of lower priority

    def take_over(self, request: GroupRequest, spaces: Collection[Space], find: Find) -> bool:
        """Takes cells of groups with lower priority in the same virtual cluster; False if even that is not enough.

        Lazy victims are downgraded; `lent` has the others, which must end, and the reservations that are in the way.
        """
        lower = [g for g in self.owners.get(self.key, {}).values() if g.priority < request.priority]
        lower.sort(key=lambda g: (g.priority, -g.order))
        found = self._victims(lower, spaces, find)
        # the lazy ones keep running as borrowers, if that is enough; else all of them end
        lazy = [g for g in found if g.request.lazy and g.state is GroupState.ALLOCATED]
        return bool(found) and ((bool(lazy) and self._take_from(found, lazy, find)) or self._take_from(found, [], find))

    def _victims(self, lower: list[AffinityGroup], spaces: Collection[Space], find: Find) -> list[AffinityGroup]:
        """The groups to preempt, the lowest priority and youngest first, and only those with needed cells; none if
        all of `lower` are not enough."""
        start = self.mark()
        lower = [g for g in lower if any(h.space in spaces for h in g.held)]
        step, enough = 1, False
        while lower and not enough:
            for group in lower[:step]:
                self.borrow_from(group)
            lower = lower[step:]
            step *= 2
            enough = find()
        needed = [g for g in self.lent if self._needs(g)] if enough else []
        self.roll_back(start)
        return needed

    def _take_from(self, victims: list[AffinityGroup], soft: list[AffinityGroup], find: Find) -> bool:
        """What `find` finds once the soft victims are downgraded and the others gone; False, and no change, if
        nothing."""
        start = self.mark()
        for group in soft:
            self.downgraded.append((group, downgrade(self.owners, group)))
        for group in victims:
            if group not in soft:
                self.borrow_from(group)
        if not find():
            self.roll_back(start)
            return False
        self.return_loans([g for g in self.lent if not self._needs(g)])
        return True

    def _needs(self, group: AffinityGroup) -> bool:
        """Whether cells that were taken are a group's."""
        return any(
            mine.space is other.space and overlaps(other.space.chain, mine.cell, other.cell)
            for mine in group.held
            for other in self.held
        )

    def borrow_from(self, group: AffinityGroup) -> None:
        """Frees a group's virtual cells for now, except those with bad GPUs; they stay bound."""
        self.lent.append(group)
        for holding in group.held:
            if not holding.bad:
                holding.space.kept.add(holding.cell)
                holding.pool.give(holding.cell)

    def return_loans(self, groups: Sequence[AffinityGroup]) -> None:
        """Gives groups the cells again that they lent."""
        for group in groups:
            self.lent.remove(group)
            for holding in group.held:
                if not holding.bad:
                    holding.pool.take(holding.cell)
                    holding.space.kept.discard(holding.cell)


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
    group.priority, group.lazily_preempted = OPPORTUNISTIC, True
    return before


def upgrade(owners: Owners, group: AffinityGroup, before: list[Holding]) -> None:
    """Makes a downgraded group guaranteed again, if all that it held is still free."""
    for holding in before:
        if holding.bad:
            for leaf in holding.space.chain.leaves(holding.physical):
                holding.space.unmark(leaf)
    for count, holding in enumerate(before):
        if not holding.pool.is_free(holding.cell) or not holding.space.fits(holding.cell, holding.physical[1]):
            for undone in before[:count]:
                undone.pool.give(undone.cell)
            for undone in before[:count]:
                undone.space.unbind(undone.cell)
            reflag_bad(before)
            return
        holding.space.bind_exactly(holding.cell, holding.physical[1], group)
        holding.pool.take(holding.cell)
    for holding in group.held:
        holding.space.remove_borrower(holding.physical)
    for holding in before:
        holding.space.own(group, holding.physical)
    group.held = before
    group.priority, group.lazily_preempted = group.request.priority, False
    owners.setdefault(group.key, {})[group.name] = group


def unbind(given: Sequence[Holding], seized: bool = False) -> None:
    """Unbinds cells that were given back, and marks bad GPUs that were in use there until now."""
    for holding in given:
        if seized:
            holding.space.unbind_inside(holding.cell)
        holding.space.unbind(holding.cell)
    reflag_bad(given)


def reflag_bad(given: Sequence[Holding]) -> None:
    """Marks bad GPUs of cells that were in use until now."""
    for holding in given:
        if holding.space.bad:
            holding.space.reflag_bad(holding.physical)


def transfer(victim: AffinityGroup, to: str, taken: Sequence[Holding]) -> None:
    """Moves the cells that a preemptor took of a victim to the preemptor; a running victim stays as a borrower."""
    kept: list[Holding] = []
    for mine in victim.held:
        if mine.bad:
            kept.append(mine)
            continue
        space = mine.space
        space.kept.discard(mine.cell)
        rest, lost = [mine.cell], list[Cell]()
        for other in taken:
            if other.space is space and overlaps(space.chain, mine.cell, other.cell):
                rest = [piece for cell in rest for piece in minus(space.chain, cell, other.cell)]
                lost.append(min(mine.cell, other.cell))
        for cell in rest:
            mine.pool.take(cell)
        kept += _split(mine, victim, to, rest, lost) if lost else [mine]
    victim.held = kept


def _split(mine: Holding, victim: AffinityGroup, to: str, rest: list[Cell], lost: list[Cell]) -> list[Holding]:
    """Splits an owned cell into the parts that stay owned (returned) and those that the victim now only borrows."""
    space, (level, number) = mine.space, mine.physical
    whole = mine.physical in space.borrowable.forest.whole
    del space.owner[level][number]
    if level <= space.chain.node:
        space.borrowable_sides[number * space.sizes[level] // space.sizes[space.chain.node]] -= 1
    elif whole:
        space.borrowable.give(mine.physical)
        for cell in [*rest, *lost]:
            space.borrowable.take((cell[0], space.bind(cell)))
    parts = [Holding(space, mine.pool, mine.worker, cell, (cell[0], space.bind(cell))) for cell in [*rest, *lost]]
    for part in parts[: len(rest)]:
        space.own(victim, part.physical)
    if victim.state is not GroupState.PREEMPTING:
        for part in parts[len(rest) :]:
            victim.lost.setdefault(to, []).append(part)
            for piece in space.take_by_node(part.physical):
                space.add_borrower(victim, piece)
    return parts[: len(rest)]


def return_cells(group: AffinityGroup) -> tuple[str, ...]:
    """A preemptor is gone: its victims own the cells again that it took; returns those that no other group preempts."""
    restored = []
    for victim in group.victims.values():
        for part in victim.lost.pop(group.name, []):
            for piece in part.space.take_by_node(part.physical):
                part.space.remove_borrower(piece)
            part.pool.take(part.cell)
            part.space.own(victim, part.physical)
            victim.held.append(part)
        victim.preemptors.pop(group.name, None)
        if not victim.preemptors and victim.state is GroupState.BEING_PREEMPTED:
            victim.state = GroupState.ALLOCATED
            restored.append(victim.name)
    return tuple(restored)


def return_guarantees(owners: Owners, groups: dict[str, AffinityGroup], group: AffinityGroup) -> None:
    """A preemptor is gone: the groups that it made opportunistic are guaranteed again, where that is possible."""
    for victim, before in reversed(group.downgraded):
        if groups.get(victim.name) is victim and victim.state is GroupState.ALLOCATED and victim.lazily_preempted:
            upgrade(owners, victim, before)


def leave_cells(group: AffinityGroup) -> tuple[str, ...]:
    """A victim is gone: clears its use of its preemptors' cells; returns the preemptors with no victims left."""
    for parts in group.lost.values():
        for part in parts:
            for piece in part.space.take_by_node(part.physical):
                part.space.remove_borrower(piece)
    ready = []
    for preemptor in group.preemptors.values():
        preemptor.victims.pop(group.name, None)
        if not preemptor.victims:
            ready.append(preemptor.name)
    return tuple(ready)
