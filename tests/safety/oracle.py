"""Runs the Arbiter twice: on the shared cluster with the cells file, and on a private cluster of a queue's cells.

What the private cluster runs must run here too, at most one revocation later (HiveD, sharing safety): an app may hold
fewer gangs than it does there only for `GRACE_S` at a stretch.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.lease import REVOKING, Lease, gpus_in
from pycontrol.arbiter.round.candidates import Candidates
from pycontrol.arbiter.round.eligibility import demand_of
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.arbiter.supply.gpu_supply import Supply
from pycontrol.auction.placing import place_gang
from pycontrol.cells.layout import Layout
from pycontrol.model import events as ev
from pycontrol.model.auction import Bid, Offer, Plan, Snapshot
from pycontrol.model.reasons import Pending
from pycontrol.model.tags import GANG as GANG_TAG
from pycontrol.model.topology import Scope
from pycontrol.policies import registry
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.policy_port import Policy
from pycontrol.queries.pending_reasons import reason
from tests.arbiter.fake_agent import FakeAgent
from tests.arbiter.world import SETTINGS, World
from tests.arbiter.world import node as node_of
from tests.cells.files import layout_of
from tests.safety.cases import REPEATED, STABLE, TENANTS, Ask, Case, Cell, Machine, as_machines, pin_of
from tests.safety.schedule import Noted

LEASE_S, LEAD_S = 60.0, 6.0
GRACE_S = LEAD_S + 2.0 + 7.0
"""One revocation: the lead, a container's end, the rounds' settling and retry, a container's start. The time that the
case grants borrowers is added."""
FAILOVER_S = 10.0
"""How long a restart of the control plane delays a guarantee."""
STRICT = bool(os.environ.get("STRICT"))
"""Whether an overloaded queue, too, is to be served within one revocation rather than one lease later: on a private
cluster leases end in an order that borrowing changes."""
WORK_GPU_S = 1e7
"""The work that every app declares: no app exceeds it."""


@dataclasses.dataclass
class Prioritised:
    """A policy on a private cluster, where YARN's priority counts as it does within a virtual cluster."""

    policy: Policy
    priorities: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def asks_agents(self) -> bool:
        return self.policy.asks_agents

    def _seen(self, s: Snapshot) -> Snapshot:
        ranked = (dataclasses.replace(v, priority=self.priorities.get(v.app_id, 0)) for v in s.apps)
        return dataclasses.replace(s, apps=tuple(ranked))

    def offer(self, s: Snapshot) -> Offer | None:
        return self.policy.offer(self._seen(s))

    def decide(self, s: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        return self.policy.decide(self._seen(s), bids, rng)


class Watched(World):
    """Records how many gangs each app runs, and when."""

    def __init__(self, case: Case, machines: Sequence[Machine], supply: Supply | None) -> None:
        self.case = case
        self.asked = {a.name: a for a in case.asks}
        self.broken: dict[str, str] = {}
        """App -> how its gangs' places differ from its options."""
        self.log: dict[str, list[tuple[float, int]]] = {}
        """App -> (seconds from the start, gangs that run from then on)."""
        options = {"loss": 0.0} if case.policy == "isonomy" and supply is None else {}
        policy: Policy = registry.make(case.policy, **options)  # inside a virtual cluster lost work does not count
        self.scheduled: dict[str, list[tuple[float, int]]] = {}
        """App -> (Unix seconds, gangs that it has in its private schedule from then on)."""
        mine = (
            ByVirtualCluster(Noted(policy, self.scheduled) if case.private_schedule else policy)
            if supply
            else Prioritised(policy, {a.name: a.priority for a in case.asks})
        )
        how = dataclasses.replace(SETTINGS, lease_s=LEASE_S, lead_s=LEAD_S, f=case.f, seed=case.seed)
        super().__init__(mine, case.seed, how, supply, machines)

    def ask(self, ask: Ask) -> None:
        """Submits an app, to be ended at its time."""
        self.log[ask.name] = [(ask.start_s, 0)]
        self.at(ask.start_s, lambda: self._submit(ask))
        end = self.end_app if ask.foreign else lambda name: self.finish(self.agents[name])
        self.at(ask.end_s, lambda: end(ask.name))

    def _submit(self, ask: Ask) -> None:
        if ask.foreign:
            tags = (GANG_TAG,) if ask.one_gang else ()
            self.add_foreign(ask.name, ask.gang_gpus, ask.gangs, ask.queue, ask.more, tags, ask.priority)
            return
        work = WORK_GPU_S if ask.work_gpu_s is None else ask.work_gpu_s
        wishes: dict[str, Any] = {"gpu_type": ask.gpu_type, "lazy": ask.lazy, "opportunistic": ask.opportunistic}
        if ask.together or ask.within:
            wishes["scope"] = Scope.MACHINE
        elif ask.one_rack:
            wishes["scope"] = Scope.RACK
        wishes |= {"within": ask.within, "pinned": ask.pinned}
        self.add_app(ask.name, ask.gang_gpus, ask.gangs, work / ask.gangs, ask.queue, priority=ask.priority, **wishes)

    def do_SendGrant(self, e: ev.SendGrant) -> None:
        """Containers placed while the control plane was away are also the Agent's."""
        if e.renewal and e.app_id in self.agents:
            self.agents[e.app_id].held |= set(e.grant.gpus)
        super().do_SendGrant(e)

    def container_runs(self, container) -> None:  # type: ignore[no-untyped-def]
        super().container_runs(container)
        self._note(container.app_id)

    def container_ends(self, container_id: str) -> None:
        container = self.containers.get(container_id)
        super().container_ends(container_id)
        if container is None:
            return
        self._note(container.app_id)
        ask = self.asked[container.app_id]
        if ask.foreign and container.app_id in self.apps:
            self.at(0.5, lambda: ask.name in self.apps and self.ask_more(ask.name, len(container.gpus), 1))

    def _note(self, app_id: str) -> None:
        if self.asked[app_id].foreign:
            n = sum(c.app_id == app_id for c in self.containers.values())
        else:
            agent = self.agents[app_id]
            live = {g for c in self.containers.values() if c.app_id == app_id for g in c.gpus}
            n = sum(set(gpus) <= live for gpus in agent.running.values())
        log = self.log[app_id]
        if log[-1][1] != n:
            log.append((self.now - 1000.0, n))

    def tick_job(self, agent: FakeAgent, job: str, launch: int) -> None:
        """Does nothing: no app ends by itself."""


class Shared(Watched):
    """The cluster with its cells."""

    def _note(self, app_id: str) -> None:
        super()._note(app_id)
        grants: dict[str, list[Lease]] = {}
        for lease in self.arbiter.durable.leases.of(app_id):
            if lease.state != REVOKING:
                grants.setdefault(lease.grant_id, []).append(lease)
        for gang in grants.values():
            wrong = _astray(self.case, self.asked[app_id], gang)
            if wrong:
                self.broken.setdefault(app_id, f"{wrong}: {[str(gpu) for gpu in gpus_in(gang)]}")

    def __init__(self, case: Case) -> None:
        self.file_s = 0.0
        self.struck: set[str] = set()
        """Queues that had guaranteed gangs, or were about to, on the machine of a GPU when it went bad."""
        super().__init__(case, case.machines(), self.cells(case))

    def cells(self, case: Case) -> CellSupply:
        """A new supply, as a starting control plane reads it."""
        return CellSupply(_layout(case, self.file_s))

    def reconfigure(self) -> None:
        """`cells apply`."""
        self.file_s = self.now - 1000.0
        self.arbiter.reconfigure(_layout(self.case, self.file_s), self.now)
        self.submit(ev.Tick())

    def restart(self, kind: str) -> None:
        """Another life of the control plane: with its journal, with what a standby keeps, or with nothing."""
        durable, kept = Durable(), self.arbiter.durable.kept()
        if kind == "crash":
            for fact in self.journal:
                durable.apply(fact)
        else:
            self.journal = []
        self.epoch += 1
        self.supply = self.cells(self.case)
        self.arbiter = Arbiter(self.settings, self.policy, durable, epoch=self.epoch, supply=self.supply)
        if kind == "takeover":
            self.submit(ev.StandbyRestored(kept, self.epoch))
        self.submit(self.snapshot())
        for agent in self.agents.values():
            if not agent.finished:
                self.submit(ev.AgentUp(agent.app_id, "", "hyperband", agent.demand()))

    def break_gpu(self, host: str, index: int) -> None:
        """A GPU goes bad permanently."""
        mine = [x.app_id for x in self.arbiter.durable.claims() if x.guaranteed and host in {g.host for g in x.gpus}]
        self.struck = {self.asked[app_id].queue for app_id in mine}
        self.mark(host, index)

    def lend(self, cell: Cell, chain: str, to: str, end_s: float) -> None:
        """Makes an exchange of one cell immediately."""
        lot = (chain, self.case.type_of(cell), 1)
        self.submit(ev.ExchangePosted("offer", "o1", cell.owner, lot, end_s=end_s))
        self.submit(ev.ExchangePosted("request", "q1", to, lot, end_s=end_s))
        assert isinstance(self.supply, CellSupply)
        assert self.supply.exchange.deals


def _astray(case: Case, ask: Ask, gang: Sequence[Lease]) -> str:
    """The options that a gang's place violates; empty if there are none."""
    hosts = {gpu.host for gpu in gpus_in(gang)}
    racks = {rack for host, rack, _, _ in case.machines() if host in hosts}
    if (ask.together or ask.within) and len(hosts) > 1:
        return "on several machines"
    if ask.one_rack and len(racks) > 1:
        return "in several racks"
    if ask.gpu_type and any(case.kind_of(host).gpu_type != ask.gpu_type for host in hosts):
        return f"not of the type {ask.gpu_type}"
    if ask.within:
        kind = case.kind_of(next(iter(hosts)))
        size = dict(zip(kind.names, kind.sizes, strict=True)).get(ask.within)
        if size is None or len({gpu.index // size for gpu in gpus_in(gang)}) > 1:
            return f"not within one {ask.within}"
    if ask.pinned:
        cell = next(c for c in case.cells if c.pinned and pin_of(c) == ask.pinned)
        inside = range(cell.first, cell.first + cell.gpus)
        if any(gpu.host not in cell.hosts or gpu.index not in inside for gpu in gpus_in(gang)):
            return f"not in {ask.pinned}"
    if ask.opportunistic and any(x.guaranteed for x in gang):
        return "guaranteed, though it wants no guarantee"
    return ""


def _layout(case: Case, at_s: float) -> Layout:
    return layout_of(case.file(at_s))


def play_shared(case: Case) -> Shared:
    """Plays the case on the shared cluster."""
    w = Shared(case)
    if case.lent:
        w.lend(case.lent[1], case.chain_of(case.lent[1]), case.lent[2], 1000.0 + case.lent[0])
    for ask in case.asks:
        w.ask(ask)
    for at_s, kind in case.failovers:
        w.at(at_s, lambda kind=kind: w.restart(kind))
    if case.lost:
        w.at(case.lost[0], lambda: w.lose_node(case.lost[1]))  # type: ignore[index]
    if case.bad:
        w.at(case.bad[0], lambda: w.break_gpu(case.bad[1], case.bad[2]))  # type: ignore[index]
    if case.gained:
        w.at(case.gained[0], w.reconfigure)
    if case.vanishes_s is not None:
        w.at(case.vanishes_s, w.reconfigure)
    if case.returns_s is not None:
        w.at(case.returns_s, w.reconfigure)
    w.run(case.length_s)
    return w


def loan_end_s(case: Case) -> float:
    """When the lent cell returns to its owner: at the deal's end, or when the journal with the deal is lost."""
    assert case.lent is not None
    return min([case.lent[0], *(at_s for at_s, kind in case.failovers if kind == "lost journal")])


def play_private(case: Case, queue: str) -> Watched:
    """Plays the case on the private cluster of a queue."""
    w = Watched(case, case.private(queue), None)
    for ask in case.asks:
        if ask.queue == queue and ask.private:
            w.ask(ask)
    for at_s, cell in _later(case, queue):
        for host, rack, gpus, kind in as_machines([cell], case):
            node = node_of(f"later-{host}", f"later-{rack}", gpus, kind)
            w.at(at_s, lambda node=node: (w.nodes.update({node.node_id: node}), w.submit(ev.NodeUp(node))))
    w.run(case.length_s)
    return w


def _later(case: Case, queue: str) -> list[tuple[float, Cell]]:
    """Cells that the queue owns from a time on."""
    found: list[tuple[float, Cell]] = []
    if case.gained and case.gained[1].owner == queue:
        found.append(case.gained)
    if case.lent and case.lent[1].owner == queue:
        found.append((loan_end_s(case), case.lent[1]))
    return found


def complaints(case: Case) -> list[str]:
    """Apps that wait here for longer than one revocation while their private cluster runs them."""
    shared = play_shared(case)
    found = []
    for queue in TENANTS:
        if (case.private(queue) or _later(case, queue)) and not case.specials(queue):
            found += _compare(case, shared, play_private(case, queue), queue)
    astray = [f"{app_id}: a gang lies {wrong}" for app_id, wrong in shared.broken.items()]
    return found + astray + _untold(shared) + _stuck(shared)


def _untold(w: Shared) -> list[str]:
    """Apps that wait at the end without a reason that names cells."""
    a, found = w.arbiter, []
    for app_id in a.agents.unmet:
        why = reason(a, app_id, w.now)
        if why.code == "NoFreeGpus":
            found.append(f"{app_id} waits: {why.sentence}")
    return found


_CELLS = {Pending.CELLS_TOO_SMALL, Pending.CELLS_BAD, Pending.NO_SUCH_CELLS}
_SIZE = {Pending.EXCEEDS_CLUSTER_SIZE, Pending.NO_MACHINE_LARGE_ENOUGH, Pending.EXCEEDS_GPU_TYPE}
FOR_GOOD = _CELLS | _SIZE | {Pending.GANG_INCOMPLETE, Pending.NOT_ALLOWED_THERE}
"""Reasons that no other app's end resolves."""


def _stuck(w: Shared) -> list[str]:
    """Whether an app still waits, in an empty cluster, for GPUs that are free: then no event would ever end its wait.

    One app of those that wait at the end is drawn, and all others end.
    """
    a = w.arbiter
    waiting = sorted(Candidates(a.holdings).wanting())
    if not waiting:
        return []
    app_id = random.Random(w.case.seed).choice(waiting)
    for other in sorted(w.apps):
        if other != app_id:
            if other in w.agents:
                w.finish(w.agents[other])
            else:
                w.end_app(other)
    w.wait(3 * LEASE_S)
    a = w.arbiter
    if app_id not in a.durable.live or app_id not in Candidates(a.holdings).wanting():
        return []
    demand, why = demand_of(a.holdings, app_id, w.now), reason(a, app_id, w.now)
    topology, free = a.holdings.topology, a.gpus.free.counts()
    one_type = a.rounds.typed(a.durable.live[app_id].vc) and demand.gang_gpus > 1 and not demand.mixes
    types = (demand.gpu_type,) if demand.gpu_type else topology.types if one_type else ("",)
    parts = [{h: n for h, n in free.items() if t in ("", topology.type_of(h))} for t in types]
    fits = any(place_gang(demand.gang_gpus, demand.scope, p, topology, demand.members) is not None for p in parts)
    elsewhere = fits and not (demand.pinned or demand.within)
    if not elsewhere and (why.code in FOR_GOOD or a.holdings.holding(app_id)):
        return []
    return [f"{app_id} waits alone in the cluster, with {free} free: {why.code}: {why.sentence}"]


def _compare(case: Case, shared: Shared, private: Watched, queue: str) -> list[str]:
    """Apps of a queue that run fewer gangs than on its private cluster for too long.

    The order in which a policy serves apps that wait may depend on what they borrowed; then the comparison ends when
    the first app waits on the private cluster, unless a private schedule keeps its order. For `isonomy` that holds
    - where an app has no Agent: its work is taken for twice what it attained;
    - where the journal is lost: running gangs are bound to virtual cells anew, and which gangs fit beside an app that
      waits depends on where others run;
    - where a gang wants one rack, or one machine: two cells of a queue may lie in one, so that an earlier app gets more
      than there.

    Where a GPU goes bad on a machine of the queue, its spared gangs may stay there until their leases end, before all
    get a spare machine: from then on an app may wait a lease longer, as in an overloaded queue. Such a lease may have
    been promised only: then it begins a lead later, and lasts to the common end at least half a lease away.

    With a private schedule an app may wait a lease from the start: its promise (docs/cells.md) is one lease, and cells
    are kept for an app that borrows where its private cluster would run it. It is compared with that schedule, too, to
    the end, whatever waits there.
    """
    asks = [a for a in case.asks if a.queue == queue and a.private]
    until_s = float(case.length_s)
    if case.lent and case.lent[2] == queue:
        until_s = loan_end_s(case)
    bound_anew = any(kind == "lost journal" for _, kind in case.failovers)
    more_here = any(a.one_rack or (a.together and _side_by_side(case, queue, a.gang_gpus)) for a in asks)
    stable = case.policy in STABLE and not bound_anew and not more_here and not any(a.foreign for a in asks)
    scheduled_until_s = until_s
    if not stable and not (case.private_schedule and case.policy in REPEATED):
        until_s = min([until_s, *(_first_wait_s(private.log[a.name], a) for a in asks)])
    overloaded_s = min(_first_wait_s(private.log[a.name], a) for a in asks) if asks and not STRICT else math.inf
    if case.private_schedule:
        overloaded_s = 0.0
    broken_s = case.bad[0] if case.bad and queue in shared.struck else math.inf
    found = [_late(case, shared, a, private.log[a.name], until_s, overloaded_s, broken_s) for a in asks]
    for ask in asks:
        if not ask.more:  # its gangs are of the size that the round is about
            there = [(at_s - 1000.0, n) for at_s, n in shared.scheduled.get(ask.name, ())]
            found.append(_late(case, shared, ask, there, scheduled_until_s, overloaded_s, broken_s, "of its schedule"))
    return [said for said in found if said]


def _late(
    case: Case,
    shared: Shared,
    ask: Ask,
    there: Sequence[tuple[float, int]],
    until_s: float,
    overloaded_s: float,
    broken_s: float,
    whose: str = "",
) -> str:
    """Says if and when an app runs fewer gangs than there for too long; empty if it never does."""
    late = _longest_gap(there, shared.log[ask.name], min(until_s, ask.end_s), case, overloaded_s, broken_s)
    if late is None:
        return ""
    since_s, gap_s, have, here = late
    known = shared.arbiter.durable.apps.get(ask.name)
    why = reason(shared.arbiter, ask.name, shared.now).sentence if known else ""
    shape = f"{ask.gangs} x {ask.gang_gpus} GPUs{' together' if ask.together else ''}{ask.more or ''}"
    return (
        f"{ask.name} ({shape}{' as one' if ask.one_gang else ''}, {ask.queue}) runs {here} of {have} gangs {whose}"
        f" from {since_s:.0f} s on for {gap_s:.0f} s; at the end: {why}"
    )


def _side_by_side(case: Case, queue: str, gpus: int) -> bool:
    """Whether cells of a queue that are smaller than a gang lie on one machine."""
    hosts = [c.hosts for c in case.cells if c.owner == queue and len(c.hosts) == 1 and c.gpus < gpus]
    return len(set(hosts)) < len(hosts)


def _first_wait_s(log: Sequence[tuple[float, int]], ask: Ask) -> float:
    """The first time at which the app waits on the private cluster."""
    full = next((at_s for at_s, n in log if n >= ask.parts), None)
    return ask.start_s if full is None or full > ask.start_s + 4 else math.inf


def _at(log: Sequence[tuple[float, int]], at_s: float) -> int:
    return next((n for since_s, n in reversed(log) if since_s <= at_s), 0)


def _longest_gap(
    private: Sequence[tuple[float, int]],
    shared: Sequence[tuple[float, int]],
    until_s: float,
    case: Case,
    overloaded_s: float,
    broken_s: float,
) -> tuple[float, float, int, int] | None:
    """The first time that an app runs fewer gangs than on its private cluster for too long (since, s, there, here)."""
    times = sorted({t for t, _ in (*private, *shared)} | {until_s})
    since_s: float | None = None
    worst = 0, 0
    for at_s in times:
        if at_s > until_s:
            break
        there, here = _at(private, at_s), _at(shared, at_s)
        if since_s is not None and at_s - since_s > _allowed_s(case, since_s, at_s, overloaded_s, broken_s):
            return since_s, at_s - since_s, *worst
        if here >= there or at_s == until_s:
            since_s = None
        elif since_s is None:
            since_s, worst = at_s, (there, here)
    return None


def _allowed_s(case: Case, since_s: float, until_s: float, overloaded_s: float, broken_s: float) -> float:
    """How long an app may run fewer gangs than on its private cluster, if it began then and lasts at least so long."""
    once_s = GRACE_S + case.min_lend_s + _standstill_s(case, since_s, until_s)
    promised_s = since_s + case.min_lend_s  # until borrowers may be called back, who comes may still be placed before
    allowed_s = once_s + (LEASE_S if promised_s >= min(overloaded_s, broken_s) else 0.0)
    if since_s < broken_s - once_s:
        return allowed_s
    return max(allowed_s, broken_s - since_s + LEAD_S + 1.5 * LEASE_S + once_s)


def _standstill_s(case: Case, since_s: float, until_s: float) -> float:
    return sum(FAILOVER_S for at_s, _ in case.failovers if since_s - FAILOVER_S <= at_s <= until_s)
