"""HiveD's own scheduler inside virtual clusters (section 3): affinity groups with priorities, on any cells.

The control plane does without it: there a policy chooses machines, and no group of a virtual cluster preempts another.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from pycontrol.cells import recovery
from pycontrol.cells.cluster_cells import Cells, borrowers
from pycontrol.cells.geometry import Cell, overlaps
from pycontrol.cells.layout import Layout
from pycontrol.cells.search import take_inside
from pycontrol.cells.space import AffinityGroup, Holding, Space
from pycontrol.cells.values import IDLE, OPPORTUNISTIC, CellsError, GroupRequest, Key
from pycontrol.lab.hived.gang_fit import Undecided
from pycontrol.lab.hived.group_search import Hosts, find
from pycontrol.lab.hived.preemption import Preemption, PriorityRequest, minus, unbind_inside, upgrade
from pycontrol.lab.hived.states import Decision, GroupState, LeafState, PlacementOutcome, PriorityGroup, Released

HIGHEST = 1000
"""The highest priority."""
Round = tuple[list[Space], int | None]
"""(chains, level within which the gang must lie) for one attempt to place a gang."""


class GroupCells(Cells):
    """Cells whose groups have priorities."""

    _group = PriorityGroup
    groups: dict[str, PriorityGroup]  # type: ignore[assignment]  # `_group` makes them

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.lost: dict[str, dict[str, list[Holding]]] = {}
        """Group -> preemptor -> guaranteed cells that it took from this group, which still runs on their GPUs."""
        self.downgraded: dict[str, list[tuple[PriorityGroup, list[Holding]]]] = {}
        """Group -> groups that it made opportunistic, with what they held before."""
        self.order = 0

    def _pin_key(self, vc: str, pin: str) -> Key:
        """A pinned cell has a holder of its own: only groups that name it use it."""
        return vc, pin

    # Requests

    def request(self, request: GroupRequest, *, preempt: bool = True) -> Decision:  # type: ignore[override]
        """Places a group, starts a preemption for it, or says why it waits.

        Requests may be repeated: an allocated group stays, a preempting one is placed once its victims are gone. With
        `preempt` False, nothing changes if running groups would have to be preempted, and the answer names them; what
        lower priorities have only reserved is taken. Raises CellsError, with nothing changed, for an invalid request.
        """
        assert isinstance(request, PriorityRequest)
        known = self.groups.get(request.group)
        if known is not None:
            again = self._settled(known, request, preempt)
            if again is not None:
                return again
        key = IDLE if request.priority == OPPORTUNISTIC else (request.vc, request.pinned)
        tx = Preemption(self.owners, key)
        try:
            return self._place(request, tx, preempt)
        except Undecided:
            tx.undo()
            return Decision(
                PlacementOutcome.WAIT, reason="the workers' sizes are too diverse to decide whether they fit"
            )

    def _again(self, group: PriorityGroup, request: GroupRequest) -> Decision:
        if group.request.vc != request.vc or sorted(group.request.members) != sorted(request.members):
            raise CellsError(f"group {request.group} exists already with other members or another virtual cluster")
        if group.victims:
            return Decision(PlacementOutcome.PREEMPT, group.workers, tuple(group.victims))
        if group.state is GroupState.PREEMPTING:
            group.state = GroupState.ALLOCATED
        return Decision(PlacementOutcome.PLACED, group.workers)

    def _commit(self, request: GroupRequest, held: list[Holding], victims: dict[str, PriorityGroup]) -> Decision:
        """The answer for a new group with these cells, before whose start the victims must end."""
        group = self.add(request, held)
        if not victims:
            return Decision(PlacementOutcome.PLACED, group.workers)
        group.state, group.victims = GroupState.PREEMPTING, victims
        for victim in victims.values():
            victim.state = GroupState.BEING_PREEMPTED
            victim.preemptors[group.name] = group
        return Decision(PlacementOutcome.PREEMPT, group.workers, tuple(victims))

    def add(self, request: GroupRequest, held: list[Holding]) -> PriorityGroup:
        """A new group that holds these cells; it is guaranteed if they are its own."""
        super().add(request, held)
        group = self.groups[request.group]
        group.order, self.order = self.order, self.order + 1
        return group

    def _settled(self, group: PriorityGroup, request: PriorityRequest, preempt: bool) -> Decision | None:
        """The answer to a repeated request; None if it must be placed anew, because its cells do not suit any more."""
        reserved = group.state is GroupState.PREEMPTING
        answer = self._again(group, request)
        if not reserved:
            return answer
        astray = request.hosts is not None and any(host not in request.hosts for host, _ in group.workers)
        if preempt and (astray or any(holding.bad for holding in group.held)):
            self.release(group.name)
            return None
        names = tuple(victim.name for victim, _ in self.downgraded.get(group.name, ()))
        if answer.outcome is PlacementOutcome.PLACED:
            self.downgraded.pop(group.name, None)
        return replace(answer, downgraded=names)

    def _validate(self, request: PriorityRequest) -> None:
        vc = self.layout.vc(request.vc)
        if vc is None:
            raise CellsError(f"there is no virtual cluster {request.vc}")
        if request.pinned is not None and request.pinned not in {p.name for p in vc.pinned}:
            raise CellsError(f"{request.vc} has no pinned cell {request.pinned}")
        if not OPPORTUNISTIC <= request.priority <= HIGHEST:
            raise CellsError(f"priority {request.priority} is not between {OPPORTUNISTIC} and {HIGHEST}")
        if request.pinned is not None and request.priority == OPPORTUNISTIC:
            raise CellsError("an opportunistic group cannot ask for a pinned cell")
        if min(map(min, request.members), default=0) < 1:
            raise CellsError(f"group {request.group} needs members with at least one worker and one GPU each")
        if request.gpu_type is not None and all(s.chain.gpu_type != request.gpu_type for s in self.spaces):
            raise CellsError(f"there are no GPUs of type {request.gpu_type}")

    def _rounds(self, request: PriorityRequest, key: Key, sizes: list[int]) -> list[Round]:
        """Each chain alone, then all chains of a GPU type, then, on given hosts, all chains."""
        self._validate(request)
        of_type: dict[str, list[Space]] = {}
        for space in self.spaces:
            if key in space.pools and request.gpu_type in (None, space.chain.gpu_type):
                of_type.setdefault(space.chain.gpu_type, []).append(space)
        each = [space for spaces in of_type.values() for space in spaces]
        if not each:
            what = f"GPUs of type {request.gpu_type}" if request.gpu_type else "cells"
            where = f"pinned cell {request.pinned} of {request.vc}" if request.pinned else request.vc
            raise CellsError(f"{where} owns no {what}")
        most = max([space.sizes[space.chain.node] for space in each])
        if sizes[0] > most:
            raise CellsError(f"a worker of {sizes[0]} GPUs fits on no host; the largest has {most}")
        if request.within is not None:
            levels = [(space, space.chain.level_of(request.within)) for space in each]
            known: list[Round] = [([space], level) for space, level in levels if level is not None]
            if not known:
                raise CellsError(f"no chain of this request has the cell type {request.within}")
            return known
        rounds: list[Round] = [([space], None) for space in each]
        if len(each) > 1:
            rounds += [(spaces, None) for spaces in of_type.values() if len(spaces) > 1]
            if request.on and len(of_type) > 1:  # the choice of hosts includes the choice of types
                rounds.append((each, None))
        return rounds

    def _place(self, request: PriorityRequest, tx: Preemption, preempt: bool) -> Decision:
        if request.inside:
            self._validate(request)
            if take_inside(tx, self.spaces, request.inside, (), request.avoid, request.within):
                return self._take(request, tx, preempt)
            return Decision(
                PlacementOutcome.WAIT, reason=f"the cells of {request.vc} do not have that many free GPUs there"
            )
        sizes, hosts = _workers_wanted(request)
        rounds = self._rounds(request, tx.key, sizes)
        for spaces, within in rounds:
            if find(tx, spaces, sizes, hosts, within):
                return self._take(request, tx, preempt)
        waits = _waits(request, tx.key, rounds)
        for spaces, within in rounds:
            search = functools.partial(find, tx, spaces, sizes, hosts, within)
            if not tx.take_over(request, spaces, search):
                continue
            reservations = [g for g in tx.lent if g.state is GroupState.PREEMPTING]
            if not reservations or not preempt:
                return self._take(request, tx, preempt)
            tx.undo()
            for group in reservations:  # their victims continue, and what they leave may be enough
                self.release(group.name)
            return self._place(request, tx, preempt)
        return waits

    def _take(self, request: PriorityRequest, tx: Preemption, preempt: bool) -> Decision:
        victims = {name: self.groups[name] for name in borrowers(tx.held)}
        victims |= {g.name: g for g in tx.lent if g.state is not GroupState.PREEMPTING}
        if victims and not preempt:
            tx.undo()
            return Decision(PlacementOutcome.PREEMPT, victims=tuple(victims))
        for victim in tx.lent:
            self._transfer(victim, request.group, tx.held)
        answer = self._commit(request, tx.held, victims)
        for reservation in tx.lent:
            if reservation.name not in victims:
                self.release(reservation.name)
        for holding in tx.held if tx.lent else ():
            unbind_inside(holding.space, holding.cell)
        if victims:
            self.downgraded[request.group] = tx.downgraded
        return replace(answer, downgraded=tuple(victim.name for victim, _ in tx.downgraded))

    def _transfer(self, victim: PriorityGroup, to: str, taken: Sequence[Holding]) -> None:
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
            kept += self._split(mine, victim, to, rest, lost) if lost else [mine]
        victim.held = kept

    def _split(
        self, mine: Holding, victim: PriorityGroup, to: str, rest: list[Cell], lost: list[Cell]
    ) -> list[Holding]:
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
                self.lost.setdefault(victim.name, {}).setdefault(to, []).append(part)
                for piece in space.take_by_node(part.physical):
                    space.add_borrower(victim, piece)
        return parts[: len(rest)]

    # The end of groups

    def release(self, name: str) -> Released:  # type: ignore[override]
        """Releases the cells of a group that ended or is given up; cancels the preemption of a preempting group.

        Raises CellsError if there is no such group.
        """
        group = self.groups.get(name)
        super().release(name)
        assert group is not None
        group.state = GroupState.DELETED
        restored = tuple(v.name for v in group.victims.values() if v.state is GroupState.ALLOCATED)
        return Released(self._leave(group), restored)

    def _spare(self, group: PriorityGroup) -> None:
        """A preemptor is gone: its victims own the cells again that it took."""
        for victim in group.victims.values():
            for part in self.lost.get(victim.name, {}).pop(group.name, []):
                for piece in part.space.take_by_node(part.physical):
                    part.space.remove_borrower(piece)
                part.space.bind_exactly(part.cell, part.physical[1])
                part.pool.take(part.cell)
                part.space.own(victim, part.physical)
                victim.held.append(part)
        for victim in group.victims.values():
            victim.preemptors.pop(group.name, None)
            if not victim.preemptors and victim.state is GroupState.BEING_PREEMPTED:
                victim.state = GroupState.ALLOCATED

    def _unbind(self, group: AffinityGroup) -> None:
        """The groups that it made opportunistic are guaranteed again, where that is possible."""
        assert isinstance(group, PriorityGroup)
        self._spare(group)
        super()._unbind(group)
        for victim, before in reversed(self.downgraded.get(group.name, ())):
            same = self.groups.get(victim.name) is victim
            if same and victim.state is GroupState.ALLOCATED and victim.lazily_preempted:
                upgrade(self.owners, victim, before)

    def _leave(self, group: PriorityGroup) -> tuple[str, ...]:
        """A group is gone, and with it its use of its preemptors' cells: returns those with no victims left."""
        for parts in self.lost.pop(group.name, {}).values():
            for part in parts:
                for piece in part.space.take_by_node(part.physical):
                    part.space.remove_borrower(piece)
        self.downgraded.pop(group.name, None)
        for preemptor in group.preemptors.values():
            preemptor.victims.pop(group.name, None)
        return tuple(preemptor.name for preemptor in group.preemptors.values() if not preemptor.victims)

    def vacate(self, space: Space, root: Cell) -> list[str]:
        """As `Cells.vacate`; reservations there, and of groups there, are cancelled and can be requested again."""
        here = [self.groups[g.name] for g in self.groups_in(space, root)]
        claims = {g.name for g in here} | {name for g in here for name in g.preemptors}
        for name in sorted(claims & self.groups.keys()):
            if self.groups[name].state is GroupState.PREEMPTING:
                self.release(name)
        return super().vacate(space, root)

    def leaf_state(self, space: Space, leaf: int) -> LeafState:
        """The state of a GPU."""
        owner, borrower = space.owner_of(leaf), space.borrower[leaf]
        if owner is not None and self.groups[owner.name].state is GroupState.PREEMPTING:
            return LeafState.RESERVING if borrower is not None else LeafState.RESERVED
        return LeafState.FREE if owner is None and borrower is None else LeafState.USED


def reconfigured(cells: GroupCells, layout: Layout) -> recovery.Adopted:
    """Adopts the running groups on a new layout, of each priority the oldest first, and keeps the health of GPUs.

    Preempting groups are released, and must be requested again. `downgraded` has those that were not borrowing before.
    """
    for name in [g.name for g in cells.groups.values() if g.state is GroupState.PREEMPTING]:
        cells.release(name)
    running = [  # virtual cells are numbered differently there
        (replace(g.request, inside=(), strictly=False), g.workers) for g in cells.groups.values()
    ]
    found = recovery.adopt_all(lambda: type(cells)(layout), running)
    bad = {space.chain.gpu(leaf) for space in cells.spaces for leaf in space.bad}
    for gpu in sorted(bad):
        for space in found.cells.spaces:
            for leaf in space.leaves_of(gpu):
                space.set_bad(leaf)
    downgraded = tuple(name for name in found.downgraded if not cells.groups[name].lazily_preempted)
    return replace(found, downgraded=downgraded)


def _workers_wanted(request: PriorityRequest) -> tuple[list[int], Hosts]:
    """The sizes of the workers, largest first, and the hosts allowed for each (None: any)."""
    if request.on:
        wanted = sorted(request.on, key=lambda w: (-w[1], w[0]))
        if sum(gpus for _, gpus in wanted) != request.gpus:
            raise CellsError(f"group {request.group}: `on` and `members` disagree about the number of GPUs")
        return [gpus for _, gpus in wanted], [frozenset([host]) for host, _ in wanted]
    sizes = sorted([gpus for count, gpus in request.members for _ in range(count)], reverse=True)
    return sizes, None if request.hosts is None else [request.hosts] * len(sizes)


def _waits(request: PriorityRequest, key: Key, rounds: Sequence[Round]) -> Decision:
    """The answer to a request that does not fit, with what is missing."""
    what = "idle GPUs of the cluster" if key == IDLE else f"free GPUs in the cells of {request.vc}"
    free = max(sum(space.pools[key].free_gpus for space in spaces) for spaces, _ in rounds)
    reason = f"needs {request.gpus} GPUs, but only {free} are left of the {what}"
    if free >= request.gpus:
        where = "the hosts that it may use" if request.hosts is not None or request.on else "hosts"
        where = f"one {request.within}" if request.within else where
        sizes = " + ".join(f"{count} x {gpus}" for count, gpus in request.members)
        reason = f"{free} GPUs are left of the {what}, but the gang's {sizes} do not fit into what is free on {where}"
    return Decision(PlacementOutcome.WAIT, reason=reason)
