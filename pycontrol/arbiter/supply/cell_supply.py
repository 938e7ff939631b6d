"""HiveD's cells as the Arbiter's supply: grants are affinity groups, and cells decide which GPUs they get.

In the cell exchange (HiveD, section 3.3) postings become deals, which end in time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pycontrol.arbiter.ledger.facts import ExchangeChanged, LeaseBorrowed, LeaseOwned
from pycontrol.arbiter.state import Clerk, Holdings
from pycontrol.arbiter.supply.gpu_supply import GroupGpus, Supply
from pycontrol.cells import idle
from pycontrol.cells.cluster_cells import Cells
from pycontrol.cells.exchange import Deal, Exchange, Lot, with_deals
from pycontrol.cells.inspect import idle_gpus, idle_within, summary
from pycontrol.cells.layout import Layout, Terms, Vc
from pycontrol.cells.machines import (
    Room,
    VirtualMachine,
    as_shown,
    cells_inside,
    groups_to_move,
    machine_of,
    machines,
    room_within,
)
from pycontrol.cells.recovery import adopt, adopt_all
from pycontrol.cells.values import OPPORTUNISTIC, CellsError, GroupRequest, Placed, Worker
from pycontrol.model.auction import Gang, gang_gpus
from pycontrol.model.events import ExchangePosted
from pycontrol.model.grouping import grouped
from pycontrol.model.topology import Gpu

RETRY_S = 5.0
"""How often postings are matched while there are offers and requests: no event tells when cells become free."""
NOBODY = Vc("")
"""The virtual cluster of apps in queues without one: it owns no cells, its apps may borrow."""
GUARANTEED = 0
"""The one priority of all guaranteed groups: inside a virtual cluster its policy decides, by leases."""


class CellSupply(Supply):
    """The `Supply` of a cluster with virtual clusters that own cells, which they can exchange (HiveD, section 3.3)."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self._file = layout, _with_nobody(layout)
        """The layout of the cells file; deals in force change what each virtual cluster owns now."""
        self._cells = Cells(self._file)
        self.exchange = Exchange(self._cells)
        """Bulletin board, deals and books."""
        self._bad: set[Gpu] = set()
        """GPUs of the layout that are not up and in use."""
        self._up: dict[str, Collection[int]] | None = None
        """Host in use -> indices of its good GPUs; None before the first is known."""
        self._know_gpus(layout)
        self._queues = {vc.name for vc in layout.vcs}

    def _know_gpus(self, layout: Layout) -> None:
        self._place_of = {
            chain.gpu(leaf): (at, leaf) for at, chain in enumerate(layout.chains) for leaf in range(len(chain.indices))
        }
        """GPU -> (chain, level-0 cell)."""
        self._gpus = self._place_of.keys()
        self._gpus_on = grouped((gpu.host, gpu) for gpu in sorted(self._gpus))

    # ---- ownership

    def vc_of(self, queue: str) -> str:
        """The virtual cluster of a leaf queue; the cells file may name queues with or without `root.`."""
        names = (queue, queue.removeprefix("root."), f"root.{queue}")
        return next((name for name in names if name in self._queues), "")

    def gpus_of(self, vc: str) -> int:
        """GPUs of the virtual cluster's cells; 0 if there is none of this name."""
        found = self._cells.layout.vc(vc)
        return self._cells.layout.gpus(found) if found is not None else 0

    def virtual_clusters(self) -> Iterable[str]:
        """The virtual clusters of the cells file, sorted."""
        return sorted(self._queues)

    def terms(self, vc: str) -> Terms:
        """The policy, f and lease length that the file gives for the virtual cluster."""
        found = self._cells.layout.vc(vc)
        return found.terms if found is not None else Terms()

    # ---- what may be used

    def machines(self, vc: str) -> Sequence[VirtualMachine]:
        """The virtual cluster's cells as machines, each bound tentatively to a host."""
        return machines(self._cells, vc)

    def machine_of(self, gpu: Gpu) -> str:
        """The virtual machine of a guaranteed group's GPU; its host where no virtual cell is bound to it."""
        found = self._place_of.get(gpu)
        return (machine_of(self._cells, *found) if found is not None else "") or gpu.host

    def groups_to_move(self, vc: str) -> Sequence[Sequence[str]]:
        """The groups in each cell of a virtual cluster that has bad GPUs, where it could have a cell with fewer."""
        return groups_to_move(self._cells, vc)

    def idle(self) -> Mapping[str, int]:
        """Idle GPUs by host."""
        return idle_gpus(self._cells)

    def room_within(self, kind: str, vc: str | None, coming: Iterable[Gpu] = ()) -> Mapping[str, Room]:
        """Free GPUs of each cell of a type, by machine of a virtual cluster or by host of idle GPUs."""
        places = {self._place_of[gpu] for gpu in coming if gpu in self._place_of}
        return room_within(self._cells, vc, kind, places) if vc is not None else idle_within(self._cells, kind, places)

    def cell_of(self, gpu: Gpu, kind: str) -> tuple[int, int] | None:
        """The physical cell of a type that holds the GPU, as (chain, number); None where there is none."""
        at, leaf = self._place_of.get(gpu, (-1, 0))
        chain = self._cells.layout.chains[at] if at >= 0 else None
        level = chain.level_of(kind) if chain is not None else None
        return None if chain is None or level is None else (at, leaf // self._cells.spaces[at].sizes[level])

    def weights(self) -> Mapping[str, float]:
        """The weights in the cells file."""
        return {vc.name: vc.weight for vc in self._cells.layout.vcs}

    def shares(self, wanted: Mapping[str, int], idle_gpus: int) -> Mapping[str, int]:
        """Weighted max-min (HiveD, section 3.2)."""
        return idle.max_min(idle_gpus, wanted, self.weights())

    # ---- groups

    def place(
        self, group: str, vc: str, guaranteed: bool, gang: Gang, avoid: Sequence[frozenset[str]] = (),
        within: str = "", spared: Collection[str] = (),
    ) -> Placed | None:  # fmt: skip
        """Takes cells for the gang; opportunistic groups in the way are released and named."""
        request = self._request(group, vc, guaranteed, gang)
        if avoid or within:
            request = dataclasses.replace(request, avoid=tuple(avoid), within=within or None)
        try:
            with as_shown(self._cells, vc if within and guaranteed else ""):  # the room there is that of these hosts
                placed = self._cells.request(request)
            if placed is None and avoid:
                placed = self._cells.request(request)
        except CellsError:
            return None
        if placed is not None and (kept := tuple(name for name in placed.evicted if name in spared)):
            self._cells.release(group)
            return Placed((), kept)
        for name in placed.evicted if placed is not None else ():
            self._cells.release(name)
        return placed

    def own(self, group: str, vc: str, gang: Gang) -> bool:
        """Makes a borrowing group guaranteed in place, if virtual cells of its own can be bound where it runs."""
        known = self._cells.groups.get(group)
        if known is None or known.guaranteed or sum(len(x) for _, x in known.workers) != gang_gpus(gang):
            return False
        workers = known.workers
        self._cells.release(group)
        request = self._request(group, vc, True, gang)
        return adopt(self._cells, dataclasses.replace(request, strictly=True), workers).guaranteed

    def downgrade(self, group: str) -> bool:
        """Makes a guaranteed group a borrowing one in place (lazy preemption)."""
        known = self._cells.groups.get(group)
        if known is None or not known.guaranteed:
            return False
        request, workers = known.request, known.workers
        self._cells.release(group)
        members = tuple((1, len(indices)) for _, indices in workers)
        adopt(self._cells, GroupRequest(group, request.vc, OPPORTUNISTIC, members), workers)
        return True

    def _request(self, group: str, vc: str, guaranteed: bool, gang: Gang) -> GroupRequest:
        members = tuple((1, n) for _, n in gang)
        if guaranteed:
            inside = cells_inside(self._cells, gang)
            return GroupRequest(group, vc, GUARANTEED, members, inside=inside)
        return GroupRequest(group, vc, OPPORTUNISTIC, members, on=gang)

    def release(self, group: str) -> None:
        """Frees the cells of a group."""
        if group in self._cells.groups:
            self._cells.release(group)

    def shrink(self, held: GroupGpus) -> bool:
        """Makes those in `held` the GPUs of a group; False if it was guaranteed and borrows from now on."""
        if held.group not in self._cells.groups:
            return True
        bad = self._bad.intersection(held.gpus)
        _tell_health(self._cells, bad, True)  # else they were taken as bad ones between the two
        self._cells.release(held.group)
        try:
            return adopt(self._cells, *_running(held)).guaranteed or not held.guaranteed
        except CellsError:  # on machines that the file does not know
            return not held.guaranteed
        finally:
            _tell_health(self._cells, bad, False)

    def recover(self, groups: Iterable[GroupGpus]) -> Mapping[str, bool]:
        """Restores running groups on their GPUs; returns (as False) those that cannot be guaranteed."""
        found = adopt_all(lambda: Cells(self._cells.layout), [_running(held) for held in groups])
        self._cells = self.exchange.cells = found.cells
        _tell_health(self._cells, self._bad, False)  # afterwards: a group keeps its own cells on bad GPUs
        return dict.fromkeys((*found.downgraded, *found.gone), False)  # `gone`: on machines that the file does not know

    def reconfigure(self, layout: Layout, now_s: float) -> None:
        """As in `Supply`."""
        self.layout, self._file, self._queues = layout, _with_nobody(layout), {vc.name for vc in layout.vcs}
        self._cells = self.exchange.cells = Cells(self.exchange.rebase(self._file, now_s))
        self._know_gpus(layout)
        self._bad &= self._gpus
        if self._up is not None:
            self.machines_changed(self._up)  # the file may name hosts that are not there

    # ---- exchange

    def restore(self, data: Mapping[str, Any], now_s: float) -> bool:
        """As in `Supply`."""
        self.exchange = Exchange.load(self._cells, data)
        self._cells = self.exchange.cells = Cells(self.exchange.rebase(self._file, now_s))
        return True

    def trade(self, now_s: float) -> tuple[list[Deal], list[str]]:
        """Ends the deals that are due and makes new ones; returns (new deals, groups that now borrow)."""
        made, downgraded = self.exchange.step(now_s)
        self._cells.layout = with_deals(self._file, self.exchange.deals.values())[0]
        return made, downgraded

    # ---- machines

    def machines_changed(self, up: Mapping[str, Collection[int]]) -> None:
        """Marks GPUs that are not in `up` bad: their host is away or drained, or has fewer GPUs than the file says."""
        self._up = dict(up)
        bad = {gpu for gpu in self._gpus if gpu.index not in up.get(gpu.host, ())}
        _tell_health(self._cells, self._bad - bad, True)
        _tell_health(self._cells, bad - self._bad, False)
        self._bad = bad

    def machine_changed(self, host: str, up: Collection[int]) -> None:
        """The same for one host."""
        if self._up is not None:
            self._up[host] = up
        changed = [gpu for gpu in self._gpus_on.get(host, ()) if (gpu.index in up) == (gpu in self._bad)]
        for healthy in (True, False):
            gpus = [gpu for gpu in changed if (gpu.index in up) is healthy]
            _tell_health(self._cells, gpus, healthy)
            (self._bad.difference_update if healthy else self._bad.update)(gpus)

    def guarantees(self) -> Mapping[str, bool]:
        """Group -> whether it is guaranteed."""
        return {name: group.guaranteed for name, group in self._cells.groups.items()}

    def inspect(self) -> Mapping[str, Any]:
        """Groups, physical cells and virtual clusters with their bindings, as JSON values."""
        return summary(self._cells)


def _running(held: GroupGpus) -> tuple[GroupRequest, list[Worker]]:
    """The request and the workers with which cells adopt a running group."""
    workers = _by_host(held.gpus)
    gang = tuple((host, len(indices)) for host, indices in workers)
    priority = GUARANTEED if held.guaranteed else OPPORTUNISTIC
    members = tuple((1, n) for _, n in gang)
    return GroupRequest(held.group, held.vc, priority, members, on=gang), workers


def _with_nobody(layout: Layout) -> Layout:
    return dataclasses.replace(layout, vcs=(*layout.vcs, NOBODY))


def _tell_health(cells: Cells, gpus: Iterable[Gpu], healthy: bool) -> None:
    for host, indices in _by_host(gpus):
        cells.set_health(host, healthy, indices)


def _by_host(gpus: Iterable[Gpu]) -> list[tuple[str, tuple[int, ...]]]:
    """Hosts in order, and the indices on each."""
    return [(host, tuple(sorted(indices))) for host, indices in sorted(grouped(gpus).items())]


class ExchangeService:
    """Runs the cell exchange in the Arbiter; records its whole state whenever it changes."""

    def __init__(self, s: Holdings, clerk: Clerk) -> None:
        self.s, self.clerk, self.supply = s, clerk, s.supply
        self._due_s = math.inf

    @property
    def exchange(self) -> Exchange:
        """The exchange: bulletin board, deals and books."""
        return self.supply.exchange

    def restore(self, now_s: float) -> None:
        """Loads the recorded exchange; deals without cells in the cells file end."""
        if self.supply.restore(self.s.durable.exchange, now_s):
            self.save()
            self._due_s = now_s

    def posted(self, e: ExchangePosted, now_s: float) -> None:
        """Adds a posting to the board or withdraws it; ignores one that is refused."""
        if self.refusal(e, now_s):
            return
        if e.verb == "withdraw":
            self.exchange.withdraw(e.posting_id)
        elif e.posting_id not in self.exchange.posted:
            self._post(e)
        self.save()
        self._due_s = now_s

    def _post(self, e: ExchangePosted) -> None:
        lot = Lot(*e.lot)
        if e.verb == "offer":
            self.exchange.offer(e.posting_id, e.vc, lot, e.end_s)
        else:
            back = Lot(*e.in_return) if e.in_return else None
            expires_s = min(e.end_s, e.end_s if e.expires_s is None else e.expires_s)
            self.exchange.request(e.posting_id, e.vc, lot, e.end_s, back, expires_s)

    def refusal(self, e: ExchangePosted, now_s: float) -> str:
        """Why a posting is refused; empty if it is accepted, or was before."""
        exchange = self.exchange
        owner = exchange.posted.get(e.posting_id)
        if e.verb == "withdraw":
            deals = [d.id for d in exchange.deals.values() if e.posting_id in (d.id, d.offer, d.request)]
            if deals and e.posting_id not in {**exchange.board.offers, **exchange.board.requests}:
                return f"{e.posting_id} was matched: {deals[0]} is in force until its end"
            return "" if owner else f"there is no offer or request {e.posting_id}"
        if owner is not None:
            return "" if owner == e.vc else f"the id {e.posting_id} is taken by {owner}"
        if exchange.cells.layout.static:
            return "cells that are bound for good (binding: static) cannot be exchanged"
        if e.end_s <= now_s:
            return "the end is in the past"
        if e.expires_s is not None and e.expires_s <= now_s:
            return "it would have lapsed already"
        try:
            exchange.check(e.vc, Lot(*e.lot), "offer" if e.verb == "offer" else "")
            if e.in_return:
                exchange.check(e.vc, Lot(*e.in_return), "lend in return")
        except CellsError as error:
            return str(error)
        return ""

    def tick(self, now_s: float) -> None:
        """Ends deals that are due and makes the deals that are possible."""
        s = self.s
        if not s.cluster.ready or now_s < self._due_s:
            return
        before = set(self.exchange.deals)
        _, downgraded = self.supply.trade(now_s)
        downgrade(s, self.clerk, downgraded)
        self.save()
        if set(self.exchange.deals) != before:
            self.clerk.request_round(now_s + s.settings.settle_s)
        self._due_s = self._next_s(now_s)

    def _next_s(self, now_s: float) -> float:
        board = self.exchange.board
        if board.offers and board.requests:
            return now_s + RETRY_S
        ends = [d.end_s for d in self.exchange.deals.values()] + [o.end_s for o in board.offers.values()]
        return min([*ends, *(r.expires_s for r in board.requests.values())], default=math.inf)

    def next_wake_s(self) -> float | None:
        """When `tick` has something to do; None: not before the next event."""
        return self._due_s if self.s.cluster.ready and self._due_s < math.inf else None

    def save(self) -> None:
        """Records the exchange if it changed."""
        blank = Exchange(self.exchange.cells).dump()
        now = self.exchange.dump()
        if now != (self.s.durable.exchange or blank):
            self.clerk.record(ExchangeChanged(now))


def downgrade(s: Holdings, clerk: Clerk, groups: Iterable[str]) -> None:
    """Records that the GPUs of these groups are borrowed from now on."""
    regrade(s, clerk, dict.fromkeys(groups, False))


def regrade(s: Holdings, clerk: Clerk, groups: Mapping[str, bool]) -> None:
    """Records whether the GPUs of these groups are guaranteed from now on."""
    for lease in s.durable.claims():
        gpus, grant_id = lease.gpus, lease.grant_id
        guaranteed = groups.get(grant_id, lease.guaranteed)
        if guaranteed != lease.guaranteed:
            clerk.record(LeaseOwned(gpus, grant_id) if guaranteed else LeaseBorrowed(gpus, grant_id))
