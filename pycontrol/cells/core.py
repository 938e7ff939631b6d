"""The cells of a cluster: ownership, placement of groups, preemption and health. Pure: no I/O, no clock."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from pycontrol.cells.gang_fit import Undecided
from pycontrol.cells.layout import Layout
from pycontrol.cells.search import Hosts, find, take_inside
from pycontrol.cells.space import ONE_A_NODE, AffinityGroup, Holding, Space
from pycontrol.cells.transaction import (
    Owners,
    Transaction,
    leave_cells,
    reflag_bad,
    return_cells,
    return_guarantees,
    transfer,
    unbind,
)
from pycontrol.cells.values import (
    HIGHEST,
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
from pycontrol.model.topology import Gpu

Round = tuple[list[Space], int | None]
"""(chains, level within which the gang must lie) for one attempt to place a gang."""


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
        """The holder of a pinned cell: a holder of its own, or the virtual cluster's common one (`pins_shared`)."""
        return vc, None if self.layout.pins_shared else pin

    # Requests

    def request(self, request: GroupRequest, *, preempt: bool = True) -> Decision:
        """Places a group, starts a preemption for it, or says why it waits.

        Requests may be repeated: an allocated group stays, a preempting one is placed once its victims are gone. With
        `preempt` False, nothing changes if running groups would have to be preempted, and the answer names them; what
        lower priorities have only reserved is taken. Raises CellsError, with nothing changed, for an invalid request.
        """
        known = self.groups.get(request.group)
        if known is not None:
            again = self._again(known, request, preempt)
            if again is not None:
                return again
        tx = self.begin(IDLE if request.priority == OPPORTUNISTIC else (request.vc, request.pinned))
        try:
            return self._place(request, tx, preempt)
        except Undecided:
            tx.roll_back()
            return Decision(
                PlacementOutcome.WAIT, reason="the workers' sizes are too diverse to decide whether they fit"
            )

    def _again(self, group: AffinityGroup, request: GroupRequest, preempt: bool) -> Decision | None:
        if group.request.vc != request.vc or sorted(group.request.members) != sorted(request.members):
            raise CellsError(f"group {request.group} exists already with other members or another virtual cluster")
        if group.state is not GroupState.PREEMPTING:
            return Decision(PlacementOutcome.PLACED, group.workers)
        allowed = request.hosts
        astray = allowed is not None and any(host not in allowed for host, _ in group.workers)
        if preempt and (astray or any(holding.bad for holding in group.held)):
            self.release(group.name)
            return None
        downgraded = tuple(victim.name for victim, _ in group.downgraded)
        if group.victims:
            return Decision(PlacementOutcome.PREEMPT, group.workers, tuple(group.victims), downgraded)
        group.state, group.downgraded = GroupState.ALLOCATED, []
        return Decision(PlacementOutcome.PLACED, group.workers, downgraded=downgraded)

    def _validate(self, request: GroupRequest) -> None:
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

    def _rounds(self, request: GroupRequest, key: Key, sizes: list[int]) -> list[Round]:
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

    def _place(self, request: GroupRequest, tx: Transaction, preempt: bool) -> Decision:
        if request.inside:
            self._validate(request)
            if take_inside(tx, self.spaces, request.inside, (), request.avoid, request.within):
                return self._commit(request, tx, preempt)
            return Decision(
                PlacementOutcome.WAIT, reason=f"the cells of {request.vc} do not have that many free GPUs there"
            )
        sizes, hosts = _workers_wanted(request)
        rounds = self._rounds(request, tx.key, sizes)
        for spaces, within in rounds:
            if find(tx, spaces, sizes, hosts, within):
                return self._commit(request, tx, preempt)
        waits = _waits(request, tx.key, rounds)
        for spaces, within in rounds:
            search = functools.partial(find, tx, spaces, sizes, hosts, within)
            if not tx.take_over(request, spaces, search):
                continue
            reservations = [g for g in tx.lent if g.state is GroupState.PREEMPTING]
            if not reservations or not preempt:
                return self._commit(request, tx, preempt)
            tx.roll_back()
            for group in reservations:  # their victims continue, and what they leave may be enough
                self.release(group.name)
            return self._place(request, tx, preempt)
        return waits

    def begin(self, key: Key) -> Transaction:
        """A transaction that takes cells of a holder."""
        return Transaction(self.owners, key)

    def _commit(self, request: GroupRequest, tx: Transaction, preempt: bool) -> Decision:
        victims = {g.name: g for h in tx.held for g in h.space.borrowers_in(h.physical)}
        victims |= {g.name: g for g in tx.lent if g.state is not GroupState.PREEMPTING}
        if victims and not preempt:
            tx.roll_back()
            return Decision(PlacementOutcome.PREEMPT, victims=tuple(victims))
        for victim in tx.lent:
            transfer(victim, request.group, tx.held)
        group = self.add(request, tx.held)
        for reservation in tx.lent:
            if reservation.name not in victims:
                self.release(reservation.name)
        group.seized = bool(tx.lent)
        names = tuple([victim.name for victim, _ in tx.downgraded])
        if not victims:
            return Decision(PlacementOutcome.PLACED, group.workers, downgraded=names)
        group.state, group.victims, group.downgraded = GroupState.PREEMPTING, victims, tx.downgraded
        for victim in victims.values():
            victim.state = GroupState.BEING_PREEMPTED
            victim.preemptors[group.name] = group
        return Decision(PlacementOutcome.PREEMPT, group.workers, tuple(victims), names)

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
            if group.victims:
                restored = return_cells(group)
            unbind(group.held, group.seized)
            if group.downgraded:
                return_guarantees(self.owners, self.groups, group)
        else:
            for holding in group.held:
                holding.space.remove_borrower(holding.physical)
            reflag_bad(group.held)
        group.state = GroupState.DELETED
        return Released(leave_cells(group) if group.preemptors else (), restored)

    # Health

    def set_health(self, host: str, healthy: bool, indices: Iterable[int] | None = None) -> tuple[str, ...]:
        """Sets the health of a host, or of some of its GPUs; returns the groups that use them.

        Raises CellsError if the cells have no such GPUs.
        """
        wanted = None if indices is None else set(indices)
        hit: dict[str, None] = {}
        found = False
        for gpu, places in self._gpus_on(host).items():
            if wanted is None or gpu.index in wanted:
                for space, leaf in places:
                    found = True
                    (space.set_healthy if healthy else space.set_bad)(leaf)
                    for group in (space.owner_of(leaf), space.borrower[leaf]):
                        if group is not None:
                            hit[group.name] = None
        if not found:
            raise CellsError(f"the cells know no such GPUs on host {host}")
        return tuple(hit)

    def _gpus_on(self, host: str) -> dict[Gpu, list[tuple[Space, int]]]:
        found: dict[Gpu, list[tuple[Space, int]]] = {}
        for space in self.spaces:
            per_node = space.chain.sizes[space.chain.node]
            for node in space.nodes_of.get(host, ()):
                for leaf in range(node * per_node, (node + 1) * per_node):
                    found.setdefault(space.chain.gpu(leaf), []).append((space, leaf))
        return found

    # States

    def leaf_state(self, space: Space, leaf: int) -> LeafState:
        """The state of a GPU."""
        owner, borrower = space.owner_of(leaf), space.borrower[leaf]
        if owner is not None and owner.state is GroupState.PREEMPTING:
            return LeafState.RESERVING if borrower is not None else LeafState.RESERVED
        return LeafState.FREE if owner is None and borrower is None else LeafState.USED


def _workers_wanted(request: GroupRequest) -> tuple[list[int], Hosts]:
    """The sizes of the workers, largest first, and the hosts allowed for each (None: any)."""
    if request.on:
        wanted = sorted(request.on, key=lambda w: (-w[1], w[0]))
        if sum(gpus for _, gpus in wanted) != request.gpus:
            raise CellsError(f"group {request.group}: `on` and `members` disagree about the number of GPUs")
        return [gpus for _, gpus in wanted], [frozenset([host]) for host, _ in wanted]
    sizes = sorted([gpus for count, gpus in request.members for _ in range(count)], reverse=True)
    return sizes, None if request.hosts is None else [request.hosts] * len(sizes)


def _waits(request: GroupRequest, key: Key, rounds: Sequence[Round]) -> Decision:
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
