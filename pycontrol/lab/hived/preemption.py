"""What a request of HiveD's own scheduler does to groups of lower priority in its virtual cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pycontrol.cells.geometry import Cell, Chain, overlaps
from pycontrol.cells.space import FREE, Holding, Space
from pycontrol.cells.transaction import Owners, Transaction, downgrade, reflag_bad
from pycontrol.cells.values import GroupRequest, Key
from pycontrol.lab.hived.states import GroupState, PriorityGroup
from pycontrol.model.value import value

Mark = tuple[int, int, int]
"""A moment of a transaction: how many cells it had taken, groups it had lent from, and groups it had downgraded."""
Find = Callable[[], bool]
"""A search: takes and binds cells; False, with nothing changed, if the gang does not fit."""


@value
class PriorityRequest(GroupRequest):
    """A request for any free cells of a virtual cluster, or of its pinned cell.

    `hosts`: the only hosts that it may use. `lazy`: whether it may become opportunistic instead of being killed.
    """

    gpu_type: str | None = None
    lazy: bool = True
    hosts: frozenset[str] | None = None


class Preemption(Transaction):
    """The cells that a request takes, and what it does to other groups for them."""

    def __init__(self, owners: Owners, key: Key) -> None:
        super().__init__(key)
        self.owners = owners
        self.lent: list[PriorityGroup] = []
        """Groups whose cells are free for now; they stay bound."""
        self.downgraded: list[tuple[PriorityGroup, list[Holding]]] = []
        """Groups that became opportunistic, with what they held before."""

    def mark(self) -> Mark:
        """This moment."""
        return len(self.held), len(self.lent), len(self.downgraded)

    def undo(self, to: Mark = (0, 0, 0)) -> None:
        """Takes back all steps since a mark: the newest cells first, then the loans, then the downgrades."""
        held, lent, downgraded = to
        self.roll_back(held)
        self.return_loans(self.lent[lent:])
        for group, before in reversed(self.downgraded[downgraded:]):
            upgrade(self.owners, group, before)
        del self.downgraded[downgraded:]

    def bind(self, since: int) -> bool:
        """Binds the cells taken since a mark. False: a tree could be bound only to bad GPUs.

        Its bad GPUs are shown, and the cells given back, as others may suit better.
        """
        bad: list[tuple[Space, Cell, int]] = []
        for holding in self.held[since:]:
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

    def take_over(self, request: GroupRequest, spaces: Collection[Space], find: Find) -> bool:
        """Takes cells of groups with lower priority in the same virtual cluster; False if even that is not enough.

        Lazy victims are downgraded; `lent` has the others, which must end, and the reservations that are in the way.
        """
        owners = [g for g in self.owners.get(self.key, {}).values() if isinstance(g, PriorityGroup)]
        lower = [g for g in owners if g.priority < request.priority]
        lower.sort(key=lambda g: (g.priority, -g.order))
        found = self._victims(lower, spaces, find)
        # the lazy ones keep running as borrowers, if that is enough; else all of them end
        lazy = [g for g in found if is_lazy(g.request) and g.state is GroupState.ALLOCATED]
        return bool(found) and ((bool(lazy) and self._take_from(found, lazy, find)) or self._take_from(found, [], find))

    def _victims(self, lower: list[PriorityGroup], spaces: Collection[Space], find: Find) -> list[PriorityGroup]:
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
        self.undo(start)
        return needed

    def _take_from(self, victims: list[PriorityGroup], soft: list[PriorityGroup], find: Find) -> bool:
        """What `find` finds once the soft victims are downgraded and the others gone; False, and no change, if
        nothing."""
        start = self.mark()
        for group in soft:
            self.downgraded.append((group, downgrade(self.owners, group)))
        for group in victims:
            if group not in soft:
                self.borrow_from(group)
        if not find():
            self.undo(start)
            return False
        self.return_loans([g for g in self.lent if not self._needs(g)])
        return True

    def _needs(self, group: PriorityGroup) -> bool:
        """Whether cells that were taken are a group's."""
        return any(
            mine.space is other.space and overlaps(other.space.chain, mine.cell, other.cell)
            for mine in group.held
            for other in self.held
        )

    def borrow_from(self, group: PriorityGroup) -> None:
        """Frees a group's virtual cells for now, except those with bad GPUs; they stay bound."""
        self.lent.append(group)
        for holding in group.held:
            if not holding.bad:
                holding.space.kept.add(holding.cell)
                holding.pool.give(holding.cell)

    def return_loans(self, groups: Sequence[PriorityGroup]) -> None:
        """Gives groups the cells again that they lent."""
        for group in groups:
            self.lent.remove(group)
            for holding in group.held:
                if not holding.bad:
                    holding.pool.take(holding.cell)
                    holding.space.kept.discard(holding.cell)


def is_lazy(request: GroupRequest) -> bool:
    """Whether its group may become opportunistic instead of being killed."""
    return isinstance(request, PriorityRequest) and request.lazy


def upgrade(owners: Owners, group: PriorityGroup, before: list[Holding]) -> None:
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
        _bind_own(holding, group)
        holding.pool.take(holding.cell)
    for holding in group.held:
        holding.space.remove_borrower(holding.physical)
    for holding in before:
        holding.space.own(group, holding.physical)
    group.held = before
    group.priority = group.request.priority
    owners.setdefault(group.key, {})[group.name] = group


def _bind_own(holding: Holding, group: PriorityGroup) -> None:
    """Binds a cell where its group runs; of the tree's bad GPUs those that the group borrows are not marked."""
    space = holding.space
    own = {leaf for leaf in space.bad if space.borrower[leaf] is group}
    space.bad -= own
    space.bind_exactly(holding.cell, holding.physical[1])
    space.bad |= own


def minus(chain: Chain, cell: Cell, other: Cell) -> list[Cell]:
    """The maximal cells of `cell` outside `other`."""
    (level, number), (other_level, other_number) = cell, other
    if other_level >= level:
        covered = number * chain.sizes[level] // chain.sizes[other_level] == other_number
        return [] if covered else [cell]
    if other_number * chain.sizes[other_level] // chain.sizes[level] != number:
        return [cell]
    fan = chain.fans[level]
    rest: list[Cell] = []
    for child in range(number * fan, (number + 1) * fan):
        rest += minus(chain, (level - 1, child), other)
    return rest


def unbind_inside(space: Space, cell: Cell) -> None:
    """Unbinds all cells below one that a group holds, which the groups that it preempted had bound."""
    level, number = cell
    for below in range(level):
        fan = space.sizes[level] // space.sizes[below]
        for child in range(number * fan, (number + 1) * fan):
            physical = space.v2p[below][child]
            if physical != FREE:
                space.v2p[below][child] = space.p2v[below][physical] = FREE
