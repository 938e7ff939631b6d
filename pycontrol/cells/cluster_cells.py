"""The cells of a cluster: ownership, placement of groups, eviction and health. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from pycontrol.cells.geometry import Cell, overlaps
from pycontrol.cells.layout import Layout
from pycontrol.cells.search import take_idle, take_inside
from pycontrol.cells.space import ONE_A_NODE, AffinityGroup, Holding, Space
from pycontrol.cells.transaction import Owners, Transaction, downgrade, reflag_bad, unbind
from pycontrol.cells.values import IDLE, OPPORTUNISTIC, CellsError, GroupRequest, Key, Placed, Worker
from pycontrol.model.topology import Gpu


class Cells:
    """Virtual private clusters on physical cells; the package's docstring shows its use."""

    _group: ClassVar[type[AffinityGroup]] = AffinityGroup
    """Another class has groups that know more, as in the laboratory."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.groups: dict[str, AffinityGroup] = {}
        self.owners: Owners = {}
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

    def request(self, request: GroupRequest) -> Placed | None:
        """Takes cells for a new group, and GPUs from borrowers where there is no other way; None if it does not fit.

        The caller releases the evicted groups. Raises CellsError, with nothing changed, for an invalid request.
        """
        if request.group in self.groups:
            raise CellsError(f"group {request.group} exists already")
        if self.layout.vc(request.vc) is None:
            raise CellsError(f"there is no virtual cluster {request.vc}")
        tx = Transaction(IDLE if request.priority == OPPORTUNISTIC else (request.vc, request.pinned))
        if request.priority == OPPORTUNISTIC:
            fits = self._borrow(tx, request)
        else:
            fits = take_inside(tx, self.spaces, request.inside, (), request.avoid, request.within)
        if not fits:
            return None
        evicted, workers = tuple(borrowers(tx.held)), self.add(request, tx.held).workers
        return Placed(tuple(Gpu(host, index) for host, indices in workers for index in indices), evicted)

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

    def add(self, request: GroupRequest, held: list[Holding]) -> AffinityGroup:
        """A new group that holds these cells; it is guaranteed if they are its own."""
        name, key, borrows = request.group, (request.vc, request.pinned), held[0].borrowed
        priority = OPPORTUNISTIC if borrows else request.priority
        group = self.groups[name] = self._group(request, priority, key, held, workers_of(held))
        for holding in held:
            (holding.space.add_borrower if borrows else holding.space.own)(group, holding.physical)
        if not borrows:
            self.owners.setdefault(key, {})[name] = group
        return group

    # The end of groups

    def release(self, name: str) -> None:
        """Releases the cells of a group that ended; raises CellsError if there is no such group."""
        group = self.groups.pop(name, None)
        if group is None:
            raise CellsError(f"there is no group {name}")
        if group.guaranteed:
            self.owners[group.key].pop(name)
            for holding in group.held:
                holding.space.disown(holding.physical)
                holding.pool.give(holding.cell)
            self._unbind(group)
        else:
            for holding in group.held:
                holding.space.remove_borrower(holding.physical)
            reflag_bad(group.held)

    def _unbind(self, group: AffinityGroup) -> None:
        """Unbinds the cells that a guaranteed group gave back."""
        unbind(group.held)

    def vacate(self, space: Space, root: Cell) -> list[str]:
        """Frees a tree: its groups continue in place as opportunistic ones; returns their names."""
        names = []
        for group in self.groups_in(space, root):
            downgrade(self.owners, group)
            names.append(group.name)
        for leaf in list(space.root_marks.get(root, ())):
            space.unmark(leaf)
        return names

    def groups_in(self, space: Space, root: Cell) -> list[AffinityGroup]:
        """The guaranteed groups that hold cells of a tree."""
        mine = self.owners.get(space.holder[root], {}).values()
        return [g for g in mine if any(h.space is space and overlaps(space.chain, h.cell, root) for h in g.held)]

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
