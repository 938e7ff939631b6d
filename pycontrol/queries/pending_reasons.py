"""Why an app has no more GPUs: reasons from a closed list that separates user errors from waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.lease import REVOKING, gpus_in
from pycontrol.arbiter.round import standin
from pycontrol.arbiter.round.eligibility import fits_one_type, shape_of, too_large, types_for
from pycontrol.arbiter.round.parts import own_part
from pycontrol.arbiter.state import Holdings
from pycontrol.arbiter.supply.gpu_supply import RoundPart, Supply, deals_of
from pycontrol.cells.machines import NO_CELL, VirtualMachine
from pycontrol.model import tags
from pycontrol.model.auction import Demand, gang_gpus
from pycontrol.model.cluster import Mode
from pycontrol.model.grouping import summed
from pycontrol.model.reasons import Pending, Reason
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Scope
from pycontrol.queries.demands import Demands
from pycontrol.queries.standing import Standing, standings
from pycontrol.queries.waiting import Waiting
from pycontrol.words import count, utc

MODES = {Mode.SHADOW: Pending.SHADOW, Mode.OFF: Pending.OFF, Mode.UNREADABLE: Pending.MODE_UNREADABLE}
BY_ORDER = frozenset({Pending.OUTRANKED, Pending.NOT_OFFERED, Pending.NO_ROOM_WITHIN, Pending.NO_SUCH_CELLS})
"""Reasons of a round that say less than CELLS_IN_USE, which names the users of the cells."""


def reason(a: Arbiter, app_id: str, now_s: float) -> Reason:
    """Why an app has no more GPUs now."""
    return Reasons(a, now_s).of(app_id)


class Reasons:
    """Why apps have no more GPUs at one moment; answers that are the same for several apps are computed once.

    For one view, or for all views of one picture.
    """

    def __init__(self, a: Arbiter, now_s: float) -> None:
        self.a, self.now_s, self.demands = a, now_s, Demands(a, now_s)
        self._errors: dict[tuple[object, ...], Reason | None] = {}
        self._in_cells: dict[tuple[object, ...], Reason | None] = {}
        self._ranks: dict[str, dict[str, int]] = {}

    def told(self, app_id: str) -> tuple[Pending, str]:
        """The code and the sentence that each view shows, without when the app starts (`waiting.with_start`)."""
        return self._waiting.told(app_id, self.demands.of(app_id), self.of(app_id))

    @cached_property
    def standings(self) -> Mapping[str, Standing]:
        """Each app's place in the order of its policy."""
        return standings(self.a, self.now_s, self.demands)

    @cached_property
    def _waiting(self) -> Waiting:
        return Waiting(self.a, self.now_s)

    def of(self, app_id: str) -> Reason:
        """Why this app has no more GPUs: the first reason that applies."""
        a, now_s = self.a, self.now_s
        record = a.durable.apps.get(app_id)
        if record is None:
            app = a.cluster.apps.get(app_id)
            starting = app is not None and not app.attempt_id
            return Reason(Pending.UNKNOWN, "its application master is starting" if starting else "")
        if record.finished_s is not None:
            return Reason(Pending.FINISHED, record.final_state)
        demand = self.demands.of(app_id) or standin.demand(a.holdings, app_id, now_s)
        for rung in (self._your_error, _cluster, _incomplete, _starting, self._cells, self._last_round):
            found = rung(a, app_id, demand, now_s)
            if found is not None:
                return found
        return Reason(Pending.WAITING_FOR_ROUND if a.gpus.free.count else Pending.NO_FREE_GPUS)

    def _your_error(self, a: Arbiter, app_id: str, demand: Demand, now_s: float) -> Reason | None:
        """What rounds say of a gang that fits on no GPUs."""
        if not a.cluster.ready:
            return None
        typed = a.rounds.typed(a.durable.apps[app_id].vc)
        alike = typed, shape_of(demand)
        if alike not in self._errors:
            self._errors[alike] = _too_large(a, demand, typed)
        return self._errors[alike]

    def _cells(self, a: Arbiter, app_id: str, demand: Demand, now_s: float) -> Reason | None:
        """Why the cells of its virtual cluster have no room; None if they have, so that rounds decide."""
        if a.supply.whole:
            return None
        d, vc = demand, a.durable.apps[app_id].vc
        alike = vc, d.gang_gpus, d.scope, d.gpu_type, d.mixes, d.members, d.pinned, d.within, d.opportunistic
        if alike not in self._in_cells:
            self._in_cells[alike] = cell_reason(a.holdings, a.supply, vc, demand, now_s, a.rounds.typed(vc))
        found = self._in_cells[alike]
        if found is None or found.code is not Pending.CELLS_IN_USE:
            return found
        decided = self._last_round(a, app_id, demand, now_s)
        return decided if decided is not None and decided.code not in BY_ORDER else found

    def _last_round(self, a: Arbiter, app_id: str, demand: Demand, now_s: float) -> Reason | None:
        """What the newest round of its virtual cluster says, if the app was active then."""
        app = a.durable.apps[app_id]
        r = next((r for r in reversed(a.receipts) if r.vc == app.vc), None)
        if r is None or r.at_s < app.arrived_s:
            return None
        if app_id in r.out:
            return r.out[app_id]
        held = _held(r, app_id)
        if held is not None:
            return held
        if app_id in r.participants:
            return _bidder(r, app_id, a.holdings.lease_s_of(app.vc))
        if not r.asked and any(x.app_id != app_id for x in r.done.awards):
            return self._outranked(app_id, r)
        if r.participants and app_id in r.rho:
            ranks = self._ranks_in(r)
            rank = f"rank {ranks.get(app_id, len(ranks))} of {len(ranks)} by rho"
            detail = f"{rank}, the worst {len(r.participants)} were offered {sum(r.offered.values())} GPUs"
            return Reason(Pending.NOT_OFFERED, f"{detail} in round {r.round_id}")
        return None

    def _outranked(self, app_id: str, r: Receipt) -> Reason | None:
        """That others came first in this round and still do; the first in the order waits for something else."""
        mine = self.standings.get(app_id)
        if mine is None or mine.rank in (None, 1):
            return None
        return Reason(Pending.OUTRANKED, f"{r.policy}, round {r.round_id}; its rank is {mine.rank} now")

    def _ranks_in(self, r: Receipt) -> dict[str, int]:
        """App -> its rank by rho, 1 is the worst."""
        if r.round_id not in self._ranks:
            worst = sorted(((v, k) for k, v in r.rho.items() if v is not None), reverse=True)
            self._ranks[r.round_id] = {k: i for i, (_, k) in enumerate(worst, 1)}
        return self._ranks[r.round_id]


def _too_large(a: Arbiter, demand: Demand, typed: bool) -> Reason | None:
    """Why such a gang fits on no GPUs of all that are up, with the most that there are; None if it does."""
    topology = a.holdings.topology
    why = too_large(demand, topology.gpus_by_host, topology, typed)
    if why is None or why.code is Pending.EXCEEDS_GPU_TYPE:
        return why
    if why.code is Pending.EXCEEDS_CLUSTER_SIZE:
        bad = len(a.cluster.machines.bad_gpus)
        most = f"the cluster has {topology.gpus}" + (f" and {bad} bad ones" if bad else "")
    elif demand.scope is Scope.RACK or min(demand.members, default=0) < 0:
        racks = summed((m.rack, m.gpus) for m in topology.machines.values())
        most = f"at most {max(racks.values())} in a rack"
    else:
        most = f"at most {topology.largest_gpus} on a machine"
    return Reason(why.code, f"{why.detail}; {most}")


def _cluster(a: Arbiter, app_id: str, demand: Demand, now_s: float) -> Reason | None:
    if a.holdings.paused:
        return Reason(Pending.PAUSED)
    if a.cluster.switch.mode in MODES:
        return Reason(MODES[a.cluster.switch.mode], a.cluster.switch.problem)
    if a.holdings.held or not a.cluster.settled(now_s):
        return Reason(Pending.RECOVERY_IN_PROGRESS, a.holdings.held)
    agent = a.agents.get(app_id)
    record = a.durable.apps[app_id]
    if record.kind != "foreign" and (agent is None or not agent.connected):
        return Reason(Pending.AGENT_AWAY)
    if agent is None and standin.over_interactive_limit(a.holdings, app_id):
        return Reason(Pending.INTERACTIVE_LIMIT, f"{a.settings.interactive_gpus} GPUs for a user's interactive apps")
    least = max(1, demand.gang_gpus) if agent is not None else 1
    if demand.gpus - a.holdings.holding(app_id) < least and not _unplaced(a, app_id):
        return Reason(
            Pending.RUNNING if a.durable.leases.of(app_id) or a.durable.reservations.of(app_id) else Pending.IDLE
        )
    return a.holdings.full(app_id, demand.gang_gpus, now_s)


def _unplaced(a: Arbiter, app_id: str) -> list[str]:
    return [w.problem for w in a.workers.of(app_id) if not w.container_id]


def _incomplete(a: Arbiter, app_id: str, demand: Demand, now_s: float) -> Reason | None:
    more = standin.missing(a.holdings, app_id) if a.holdings.is_unmanaged(app_id) else 0
    return Reason(Pending.GANG_INCOMPLETE, f"{more} more, as its tag {tags.GANG} says") if more else None


def _starting(a: Arbiter, app_id: str, demand: Demand, now_s: float) -> Reason | None:
    coming = a.durable.reservations.of(app_id)
    if coming:
        last_s = max(x.granted_s for x in coming)
        return Reason(
            Pending.WAITING_FOR_REVOCATION, f"{len(gpus_in(coming))} GPUs, free in {max(0.0, last_s - now_s):.0f} s"
        )
    waiting = _unplaced(a, app_id)
    if waiting:
        return Reason(Pending.STARTING, next(filter(None, waiting), ""))
    return None


def _held(r: Receipt, app_id: str) -> Reason | None:
    """Whether the round holds GPUs for the app's gang, or keeps GPUs free for another app's."""
    for hold in r.done.holds:
        until = f"{gang_gpus(hold.gang)} GPUs until {hold.until_s - r.at_s:.0f} s after round {r.round_id}"
        if hold.app_id == app_id:
            return Reason(Pending.GATHERING, until)
        if any(r.done.unused_gpus.values()):
            return Reason(Pending.HELD_FOR_GANG, f"{hold.app_id}, {until}")
    return None


def _bidder(r: Receipt, app_id: str, lease_s: float) -> Reason | None:
    mine = next((b for b in r.done.bids if b.app_id == app_id), None)
    if mine is None:
        return None
    if mine.paid_gangs:
        paid = count(mine.paid_gangs, "gang")
        return Reason(Pending.HIDDEN_PAYMENT, f"{paid} (c = {mine.c:.3f}) in round {r.round_id}")
    if not mine.rows:
        costs = f"a start would cost it {r.restart_s.get(app_id, 0.0):.0f} s, the lease is {lease_s:g} s"
        return Reason(Pending.BID_NOTHING, f"{costs} (round {r.round_id})")
    winners = [b.app_id for b in r.done.bids if b.won and b.app_id != app_id]
    if not winners:
        return None
    detail = f"round {r.round_id}, rho {mine.rho_nothing:.2f}, GPUs went to {', '.join(winners)}"
    return Reason(Pending.LOST_AUCTION, detail)


def cell_reason(
    s: Holdings, supply: Supply, vc: str, demand: Demand, now_s: float, typed: bool = False
) -> Reason | None:
    """Why the virtual cluster's cells have no room for the demand; None where they do, so that rounds decide.

    `typed`: as in `exceeds_types`.
    """
    if demand.pinned and not vc:
        return Reason(Pending.NO_SUCH_CELLS, "its queue owns no cells")
    if not vc or demand.opportunistic:
        return None if s.gpus.free.count else Reason(Pending.OPPORTUNISTIC if vc else Pending.NO_CELLS)
    part = own_part(s, vc, {})
    machines = [m for m in supply.machines(vc) if demand.pinned in ("", m.pinned)]
    if not machines and demand.pinned:
        own = sorted(set(part.pinned.values()))
        return Reason(
            Pending.NO_SUCH_CELLS, f"{vc} owns no pinned cell {demand.pinned}, but {', '.join(own) or 'none'}"
        )
    free, healthy, whole = _rooms(supply, vc, demand, part, machines)
    if fits_one_type(demand, free, part.topology, typed):
        return None
    one_type = " of one type" if len(types_for(demand, part.topology, typed)) > 1 else ""
    need = f"a gang of {demand.gang_gpus} GPUs{one_type}{_where(demand)}"
    if fits_one_type(demand, healthy, part.topology, typed):
        left = f"{sum(free.values())} of {sum(healthy.values())} are free"
        return Reason(Pending.CELLS_IN_USE, f"{need}, {left}; {_users(s, vc)}")
    if fits_one_type(demand, whole, part.topology, typed):
        bad = sorted({part.host_of[name] for name, n in whole.items() if n > healthy.get(name, 0)})
        well = f"{sum(healthy.values())} of {sum(whole.values())} are healthy"
        return Reason(Pending.CELLS_BAD, f"{need}, {well}; bad on {', '.join(bad)}")
    if given := _given(s, vc, now_s):
        return Reason(Pending.CELLS_LENT, f"{need}; {'; '.join(_lent(*deal) for deal in given)}")
    largest = max(whole.values(), default=0)
    most = f"it owns {sum(whole.values())}, at most {largest} of them on one machine"
    return Reason(Pending.CELLS_TOO_SMALL, f"{need}; {most}")


def _rooms(
    supply: Supply, vc: str, demand: Demand, part: RoundPart, machines: Sequence[VirtualMachine]
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """GPUs by machine that the demand may use: those that are free, those that are healthy, and all."""
    names = {m.name for m in machines if demand.gpu_type in ("", part.topology.machines[m.name].gpu_type)}
    free = {name: n for name, n in part.free.items() if name in names}
    healthy = {name: n for name, n in part.topology.gpus_by_host.items() if name in names}
    whole = {m.name: m.cell_gpus for m in machines if m.name in names}
    if demand.within:
        room = supply.room_within(demand.within, vc)
        free = {name: min(n, demand.room(room.get(name, NO_CELL)[0])) for name, n in free.items()}
        healthy, whole = (
            {name: _in_cells(demand, n, *room.get(name, NO_CELL)) for name, n in x.items()} for x in (healthy, whole)
        )
    return free, healthy, whole


def _in_cells(demand: Demand, gpus: int, free: Sequence[int], cell_gpus: int) -> int:
    """GPUs of a machine that the demand may use once all of them are free."""
    return min(gpus, demand.room((cell_gpus,) * len(free)))


def _given(s: Holdings, vc: str, now_s: float) -> list[tuple[str, Any, float]]:
    """The deals in force by which the virtual cluster lacks cells: (to whom, which cells, until when)."""
    deals = [d for d in deals_of(s.durable.exchange) if vc in (d["owner"], d["tenant"]) and d["end_s"] > now_s]
    given = [(d["tenant"], d["lot"], d["end_s"]) for d in deals if d["owner"] == vc]
    return given + [(d["owner"], d["in_return"], d["end_s"]) for d in deals if d["tenant"] == vc and d["in_return"]]


def _where(demand: Demand) -> str:
    kinds = {Scope.MACHINE: " on one machine", Scope.RACK: " in one rack", Scope.CLUSTER: ""}
    place = f" within one {demand.within}" if demand.within and not demand.members else kinds[demand.scope]
    place += f" ({demand.parts})" if demand.members else ""
    return f"{place}, in the pinned cell {demand.pinned}" if demand.pinned else place


def _users(s: Holdings, vc: str) -> str:
    """Which apps hold how many of the virtual cluster's own GPUs, the largest five."""
    counts: dict[str, int] = {}
    for app_id in s.durable.leases.by_app:
        app = s.durable.apps[app_id]
        mine = s.durable.leases.of(app_id) if app.vc == vc else ()
        own = sum(len(x.gpus) for x in mine if x.guaranteed and x.state != REVOKING)
        if own:
            counts[app.name or app_id] = counts.get(app.name or app_id, 0) + own
    most = sorted(counts.items(), key=lambda c: (-c[1], c[0]))[:5]
    return ", ".join(f"{name} uses {n}" for name, n in most) or "the rest is reserved for gangs that borrow"


def _lent(to: str, lot: Any, end_s: float) -> str:
    kind, count = (lot["cell_type"], lot["count"]) if isinstance(lot, Mapping) else (lot[1], lot[2])
    return f"{count} x {kind} lent to {to} until {utc(end_s)}"
