"""The cells of a cluster: ownership, placement of groups, preemption and health. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pycontrol.cells.layout import Layout
from pycontrol.cells.search import take_idle, take_inside
from pycontrol.cells.space import ONE_A_NODE, AffinityGroup, Holding, Space
from pycontrol.cells.transaction import Owners, Transaction, reflag_bad, unbind
from pycontrol.cells.values import (
    IDLE,
    OPPORTUNISTIC,
    CellsError,
    Decision,
    GroupRequest,
    GroupState,
    Key,
    LeafState,
    PlacementOutcome,
    Released,
    Worker,
)


class Cells:
    """Virtual private clusters on physical cells; the package's docstring shows its use."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.groups: dict[str, AffinityGroup] = {}
        self.owners: Owners = {}
        self.order = 0
        self.spaces: list[Space] = []
        for at, chain in enumerate(layout.chains):
            roots: list[tuple[Key, int]] = []
            for vc in layout.vcs:
                roots += [((vc.name, None), level) for c, level, count in vc.cells if c == at for _ in range(count)]
                roots += [(self._pin_key(vc.name, p.name), p.level) for p in vc.pinned if p.chain == at]
            space = Space(chain, roots, layout.static)
            self.spaces.append(space)
            for vc in layout.vcs:
                for pin in vc.pinned:
                    if pin.chain == at:
                        key = self._pin_key(vc.name, pin.name)
                        alike = (r for r, k in space.holder.items() if k == key and r[0] == pin.level)
                        root = next(r for r in alike if r not in space.fixed)
                        space.bind_root(root, pin.number)
                        space.fixed.add(root)
                        space.pins[root] = pin.name
        for space in self.spaces:
            if layout.static:
                space.fix_roots()
            space.buddy.check()

    def _pin_key(self, vc: str, pin: str) -> Key:
        """The holder of a pinned cell: that of all cells of its virtual cluster."""
        return vc, None

    # Requests

    def request(self, request: GroupRequest) -> Decision:
        """Places a group; if borrowers are in its way, reserves its cells and names them as victims; else it waits.

        Requests may be repeated: an allocated group stays, a preempting one is placed once its victims are gone. Raises
        CellsError, with nothing changed, for an invalid request.
        """
        if request.group in self.groups:
            return self._again(self.groups[request.group], request)
        if self.layout.vc(request.vc) is None:
            raise CellsError(f"there is no virtual cluster {request.vc}")
        tx = Transaction(IDLE if request.priority == OPPORTUNISTIC else (request.vc, request.pinned))
        if request.priority == OPPORTUNISTIC:
            fits = self._borrow(tx, request)
        else:
            fits = take_inside(tx, self.spaces, request.inside, (), request.avoid, request.within)
        return self._commit(request, tx.held, borrowers(tx.held)) if fits else Decision(PlacementOutcome.WAIT)

    def _again(self, group: AffinityGroup, request: GroupRequest) -> Decision:
        if group.request.vc != request.vc or sorted(group.request.members) != sorted(request.members):
            raise CellsError(f"group {request.group} exists already with other members or another virtual cluster")
        if group.victims:
            return Decision(PlacementOutcome.PREEMPT, group.workers, tuple(group.victims))
        if group.state is GroupState.PREEMPTING:
            group.state = GroupState.ALLOCATED
        return Decision(PlacementOutcome.PLACED, group.workers)

    def _borrow(self, tx: Transaction, request: GroupRequest) -> bool:
        """Takes idle GPUs of each chain alone, then of all chains of a GPU type, then of all chains."""
        if request.within is not None:
            levels = ((space, space.chain.level_of(request.within)) for space in self.spaces)
            return any(level is not None and take_idle(tx, [space], request.on, level) for space, level in levels)
        of_type: dict[str, list[Space]] = {}
        for space in self.spaces:
            of_type.setdefault(space.chain.gpu_type, []).append(space)
        each = [space for spaces in of_type.values() for space in spaces]
        tries = [[space] for space in each] + [spaces for spaces in of_type.values() if len(spaces) > 1]
        return any(take_idle(tx, spaces, request.on) for spaces in (*tries, *([each] if len(of_type) > 1 else [])))

    def _commit(self, request: GroupRequest, held: list[Holding], victims: dict[str, AffinityGroup]) -> Decision:
        """The answer for a new group with these cells, before whose start the victims must end."""
        group = self.add(request, held)
        if not victims:
            return Decision(PlacementOutcome.PLACED, group.workers)
        group.state, group.victims = GroupState.PREEMPTING, victims
        for victim in victims.values():
            victim.state = GroupState.BEING_PREEMPTED
            victim.preemptors[group.name] = group
        return Decision(PlacementOutcome.PREEMPT, group.workers, tuple(victims))

    def add(self, request: GroupRequest, held: list[Holding]) -> AffinityGroup:
        """A new group that holds these cells; it is guaranteed if they are its own."""
        name, key, borrows = request.group, (request.vc, request.pinned), held[0].borrowed
        priority = OPPORTUNISTIC if borrows else request.priority
        group = AffinityGroup(request, priority, self.order, key, held=held, workers=workers_of(held))
        self.order += 1
        self.groups[name] = group
        for holding in held:
            (holding.space.add_borrower if borrows else holding.space.own)(group, holding.physical)
        if not borrows:
            self.owners.setdefault(key, {})[name] = group
        return group

    # The end of groups

    def release(self, name: str) -> Released:
        """Releases the cells of a group that ended or is given up; cancels the preemption of a preempting group.

        Raises CellsError if there is no such group.
        """
        group = self.groups.pop(name, None)
        if group is None:
            raise CellsError(f"there is no group {name}")
        restored: tuple[str, ...] = ()
        if group.guaranteed:
            self.owners[group.key].pop(name)
            for holding in group.held:
                holding.space.disown(holding.physical)
                holding.pool.give(holding.cell)
            restored = self._spare(group)
            self._unbind(group)
        else:
            for holding in group.held:
                holding.space.remove_borrower(holding.physical)
            reflag_bad(group.held)
        group.state = GroupState.DELETED
        return Released(self._leave(group), restored)

    def _spare(self, group: AffinityGroup) -> tuple[str, ...]:
        """A preemptor is gone: returns those of its victims that no other group preempts."""
        restored = []
        for victim in group.victims.values():
            victim.preemptors.pop(group.name, None)
            if not victim.preemptors and victim.state is GroupState.BEING_PREEMPTED:
                victim.state = GroupState.ALLOCATED
                restored.append(victim.name)
        return tuple(restored)

    def _unbind(self, group: AffinityGroup) -> None:
        """Unbinds the cells that a guaranteed group gave back."""
        unbind(group.held)

    def _leave(self, group: AffinityGroup) -> tuple[str, ...]:
        """A victim is gone: returns its preemptors with no victims left."""
        for preemptor in group.preemptors.values():
            preemptor.victims.pop(group.name, None)
        return tuple(preemptor.name for preemptor in group.preemptors.values() if not preemptor.victims)

    # Health

    def set_health(self, host: str, healthy: bool, indices: Collection[int] | None = None) -> None:
        """Sets the health of a host, or of some of its GPUs; raises CellsError if the cells have no such GPUs."""
        found = [
            (space, leaf)
            for space in self.spaces
            for leaf in space.leaves_on(host)
            if indices is None or space.chain.indices[leaf] in indices
        ]
        if not found:
            raise CellsError(f"the cells know no such GPUs on host {host}")
        for space, leaf in found:
            (space.set_healthy if healthy else space.set_bad)(leaf)

    # States

    def leaf_state(self, space: Space, leaf: int) -> LeafState:
        """The state of a GPU."""
        owner, borrower = space.owner_of(leaf), space.borrower[leaf]
        if owner is not None and owner.state is GroupState.PREEMPTING:
            return LeafState.RESERVING if borrower is not None else LeafState.RESERVED
        return LeafState.FREE if owner is None and borrower is None else LeafState.USED


def borrowers(held: Sequence[Holding]) -> dict[str, AffinityGroup]:
    """The groups, by name, that borrow GPUs of these cells."""
    return {g.name: g for h in held for g in h.space.borrowers_in(h.physical)}


def workers_of(held: Sequence[Holding]) -> tuple[Worker, ...]:
    """The host and GPU indices of each worker."""
    if held[0].worker == ONE_A_NODE:
        space, leaves = held[0].space, held[0].space.chain.leaves(held[0].physical)
        per_node = space.sizes[space.chain.node]
        return space.node_workers[leaves.start // per_node : leaves.stop // per_node]
    found: dict[int, tuple[str, list[int]]] = {}
    for holding in held:
        chain, (level, number) = holding.space.chain, holding.physical
        size = chain.sizes[level]
        at = found.get(holding.worker)
        if at is None:
            at = found[holding.worker] = (chain.hosts[number * size // chain.sizes[chain.node]], [])
        at[1].extend(chain.indices[number * size : (number + 1) * size])
    return tuple((host, tuple(indices)) for host, indices in found.values())
