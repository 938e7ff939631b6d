"""The cells of a cluster: ownership, placement of groups, preemption and health. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pycontrol.cells import preemption, search
from pycontrol.cells.gang_fit import Undecided
from pycontrol.cells.inside import take_inside
from pycontrol.cells.layout import Layout
from pycontrol.cells.preemption import Key
from pycontrol.cells.space import AffinityGroup, Part, Space
from pycontrol.cells.values import (
    HIGHEST,
    OPPORTUNISTIC,
    CellsError,
    Decision,
    GroupRequest,
    GroupState,
    LeafState,
    PlacementOutcome,
    Released,
    Worker,
)
from pycontrol.model.topology import Gpu


class Cells:
    """Virtual private clusters on physical cells; the package's docstring shows its use."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.groups: dict[str, AffinityGroup] = {}
        self.by_key: dict[Key, dict[str, AffinityGroup]] = {}
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
        `preempt` False, nothing changes if groups would have to be preempted, and the answer names them. Raises
        CellsError, with nothing changed, for an invalid request.
        """
        known = self.groups.get(request.group)
        if known is not None:
            again = self._again(known, request, preempt)
            if again is not None:
                return again
        sizes, hosts = self._workers_wanted(request)
        try:
            if request.priority == OPPORTUNISTIC:
                return self._opportunistic(request, sizes, hosts)
            return self._guaranteed(request, sizes, hosts, preempt)
        except Undecided:
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
        if preempt and (astray or any(part.bad for part in group.parts)):
            self.release(group.name)
            return None
        if group.victims:
            return Decision(PlacementOutcome.PREEMPT, group.workers, tuple(group.victims), self._downgraded_by(group))
        group.state = GroupState.ALLOCATED
        downgraded = self._downgraded_by(group)
        group.downgraded = []
        return Decision(PlacementOutcome.PLACED, group.workers, downgraded=downgraded)

    @staticmethod
    def _downgraded_by(group: AffinityGroup) -> tuple[str, ...]:
        return tuple(victim.name for victim, _ in group.downgraded)

    def _workers_wanted(self, request: GroupRequest) -> tuple[list[int], list[frozenset[str] | None] | None]:
        """The sizes of the workers, largest first, and the hosts allowed for each (None: any)."""
        if request.on:
            wanted = sorted(request.on, key=lambda w: (-w[1], w[0]))
            if sum(gpus for _, gpus in wanted) != request.gpus:
                raise CellsError(f"group {request.group}: `on` and `members` disagree about the number of GPUs")
            return [gpus for _, gpus in wanted], [frozenset([host]) for host, _ in wanted]
        if request.inside:
            self._validate(request)
            return [], None
        sizes = sorted((gpus for count, gpus in request.members for _ in range(count)), reverse=True)
        return sizes, None if request.hosts is None else [request.hosts] * len(sizes)

    def _sites(self, request: GroupRequest) -> dict[str, list[search.Site]]:
        """GPU type -> sites that the request may use; raises CellsError if there are none."""
        self._validate(request)
        key = (request.vc, request.pinned)
        sites: dict[str, list[search.Site]] = {}
        for space in self.spaces:
            if request.gpu_type in (None, space.chain.gpu_type):
                if request.priority == OPPORTUNISTIC:
                    sites.setdefault(space.chain.gpu_type, []).append((space, space.borrowable))
                elif key in space.pools:
                    sites.setdefault(space.chain.gpu_type, []).append((space, space.pools[key]))
        if not sites:
            what = f"GPUs of type {request.gpu_type}" if request.gpu_type else "cells"
            where = f"pinned cell {request.pinned} of {request.vc}" if request.pinned else request.vc
            raise CellsError(f"{where} owns no {what}")
        largest = max(gpus for _, gpus in request.members)
        most = max(space.chain.sizes[space.chain.node] for some in sites.values() for space, _ in some)
        if largest > most:
            raise CellsError(f"a worker of {largest} GPUs fits on no host; the largest has {most}")
        return sites

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
        if not request.members or any(count < 1 or gpus < 1 for count, gpus in request.members):
            raise CellsError(f"group {request.group} needs members with at least one worker and one GPU each")
        if request.gpu_type is not None and all(s.chain.gpu_type != request.gpu_type for s in self.spaces):
            raise CellsError(f"there are no GPUs of type {request.gpu_type}")

    def _rounds(self, request: GroupRequest) -> Iterable[tuple[list[search.Site], int | None]]:
        """(sites, level within which the gang must lie) for each attempt: each chain alone, then all chains of a GPU
        type, then, on given hosts, all chains."""
        found = self._sites(request)
        known = False
        for sites in found.values():
            for space, pool in sites:
                level = space.chain.level_of(request.within) if request.within else None
                if request.within is None or level is not None:
                    known = True
                    yield [(space, pool)], level
        if request.within is not None:
            if not known:
                raise CellsError(f"no chain of this request has the cell type {request.within}")
            return
        for sites in found.values():
            if len(sites) > 1:
                yield sites, None
        if request.on and len(found) > 1:  # the choice of hosts includes the choice of types
            yield [site for sites in found.values() for site in sites], None

    def _opportunistic(
        self, request: GroupRequest, sizes: list[int], hosts: Sequence[frozenset[str] | None] | None
    ) -> Decision:
        free = 0
        for sites, within in self._rounds(request):
            free = max(free, sum(pool.free_gpus for _, pool in sites))
            parts = search.opportunistic(sites, sizes, hosts, within)
            if parts is not None:
                group = self._new(request, OPPORTUNISTIC)
                for part in parts:
                    part.space.add_borrower(group, part.physical)
                return self._placed(group, parts)
        return Decision(PlacementOutcome.WAIT, reason=self._why(request, free, "idle GPUs of the cluster"))

    def _guaranteed(
        self, request: GroupRequest, sizes: list[int], hosts: Sequence[frozenset[str] | None] | None, preempt: bool
    ) -> Decision:
        key = (request.vc, request.pinned)
        if request.inside:
            parts = take_inside(self.spaces, key, request.inside, (), request.avoid, request.within)
            if parts is None:
                return Decision(
                    PlacementOutcome.WAIT, reason=f"the cells of {request.vc} do not have that many free GPUs there"
                )
            return self._commit(request, parts, [], [], preempt)
        free = 0
        for sites, within in self._rounds(request):
            free = max(free, sum(pool.free_gpus for _, pool in sites))
            parts = self.find(sites, key, sizes, hosts, within)
            if parts is not None:
                return self._commit(request, parts, [], [], preempt)
        for sites, within in self._rounds(request):
            plan = preemption.plan(self, request, sites, sizes, hosts, within, preempt)
            if plan is None:
                continue
            if plan.parts is None:
                return Decision(PlacementOutcome.PREEMPT, victims=tuple(v.name for v in plan.taken))
            return self._commit(request, plan.parts, plan.taken, plan.downgraded, preempt)
        return Decision(
            PlacementOutcome.WAIT, reason=self._why(request, free, f"free GPUs in the cells of {request.vc}")
        )

    def find(
        self,
        sites: Sequence[search.Site],
        key: Key,
        sizes: list[int],
        hosts: Sequence[frozenset[str] | None] | None,
        within: int | None,
    ) -> list[Part] | None:
        """Takes and binds guaranteed cells; None, with nothing changed, if the gang does not fit."""
        if hosts is None:
            return search.guaranteed(sites, sizes, within)
        return search.guaranteed_on(sites, key, sizes, hosts)

    def _commit(
        self,
        request: GroupRequest,
        parts: list[Part],
        taken: list[AffinityGroup],
        downgraded: list[tuple[AffinityGroup, list[Part]]],
        preempt: bool,
    ) -> Decision:
        key = (request.vc, request.pinned)
        victims = {g.name: g for part in parts for g in part.space.borrowers_in(part.physical)}
        victims |= {g.name: g for g in taken}
        if victims and not preempt:
            search.give_up(parts, key)
            preemption.undo(self, taken, downgraded)
            return Decision(PlacementOutcome.PREEMPT, victims=tuple(victims))
        group = self._new(request, request.priority)
        group.seized = bool(taken)
        for victim in taken:
            preemption.transfer(victim, group, parts)
        for part in parts:
            part.space.own(group, part.physical)
        self.by_key.setdefault(key, {})[group.name] = group
        decision = self._placed(group, parts)
        names = tuple(victim.name for victim, _ in downgraded)
        if not victims:
            return Decision(PlacementOutcome.PLACED, decision.workers, downgraded=names)
        group.state, group.victims, group.downgraded = GroupState.PREEMPTING, victims, downgraded
        for victim in victims.values():
            victim.state = GroupState.BEING_PREEMPTED
            victim.preemptors[group.name] = group
        return Decision(PlacementOutcome.PREEMPT, group.workers, tuple(victims), names)

    def _new(self, request: GroupRequest, priority: int) -> AffinityGroup:
        group = AffinityGroup(request, priority, self.order, (request.vc, request.pinned))
        self.order += 1
        self.groups[request.group] = group
        return group

    def _placed(self, group: AffinityGroup, parts: list[Part]) -> Decision:
        group.parts, group.state = parts, GroupState.ALLOCATED
        group.workers = workers_of(parts)
        return Decision(PlacementOutcome.PLACED, group.workers)

    def _why(self, request: GroupRequest, free: int, what: str) -> str:
        if free < request.gpus:
            return f"needs {request.gpus} GPUs, but only {free} are left of the {what}"
        where = "the hosts that it may use" if request.hosts is not None or request.on else "hosts"
        if request.within:
            where = f"one {request.within}"
        sizes = " + ".join(f"{count} x {gpus}" for count, gpus in request.members)
        return f"{free} GPUs are left of the {what}, but the gang's {sizes} do not fit into what is free on {where}"

    # The end of groups

    def release(self, name: str) -> Released:
        """Releases the cells of a group that ended or is given up; cancels the preemption of a preempting group.

        Raises CellsError if there is no such group.
        """
        group = self.groups.pop(name, None)
        if group is None:
            raise CellsError(f"there is no group {name}")
        if group.priority >= 0:
            self.by_key[group.pool].pop(name)
        restored = preemption.cancel(self, group) if group.state is GroupState.PREEMPTING else ()
        for part in group.parts:
            if part.virtual is None:
                part.space.remove_borrower(part.physical)
            else:
                part.space.disown(part.physical)
                part.space.pools[group.pool].give(part.virtual)
        for part in group.parts:
            if part.virtual is not None:
                if group.seized:
                    part.space.unbind_inside(part.virtual)
                part.space.unbind(part.virtual)
        preemption.reflag_bad(group.parts)
        ready = preemption.finish_victim(group)
        group.state, group.parts = GroupState.DELETED, []
        return Released(ready, restored)

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


def workers_of(parts: Sequence[Part]) -> tuple[Worker, ...]:
    """The host and GPU indices of each worker."""
    if len(parts) == 1 and parts[0].worker < 0:
        chain, (level, number) = parts[0].space.chain, parts[0].physical
        count = chain.sizes[level] // chain.sizes[chain.node]
        return parts[0].space.node_workers[number * count : (number + 1) * count]
    found: dict[int, tuple[str, list[int]]] = {}
    for part in parts:
        chain, (level, number) = part.space.chain, part.physical
        size = chain.sizes[level]
        at = found.get(part.worker)
        if at is None:
            host = chain.hosts[number * size // chain.sizes[chain.node]]
            at = found[part.worker] = (host, [])
        at[1].extend(chain.indices[number * size : (number + 1) * size])
    return tuple((host, tuple(indices)) for host, indices in found.values())
