"""A scene: what a round needs of an Arbiter, as values for another process; and the round played on it.

The Arbiter of a scene is made as after a restart, from the durable state, YARN's snapshot and the Agents' reports, but
without a recovery time. Agents are played too: by the logic of all Agents, from the work that they last reported.

Not in a scene: what workers' steps taught about S, speeds and work, unless a report was corrected by it already.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pycontrol.agentlogic import offers
from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import (
    LeaseBorrowed,
    LeaseEnded,
    LeaseGranted,
    LeaseOwned,
    LeaseRevoking,
    NextDropped,
)
from pycontrol.arbiter.ledger.lease import Lease, gpus_in
from pycontrol.arbiter.supply.port import Supply
from pycontrol.arbiter.views.cluster import REFUSALS, REFUSED_S
from pycontrol.arbiter.views.settings import RoundTimer, Settings
from pycontrol.arbiter.views.workers import PlannedWorker
from pycontrol.fairness.bidding import mean_speed
from pycontrol.fairness.elastic import Elastic
from pycontrol.fairness.gangs import AppWork
from pycontrol.fairness.plausible import alike, app_left, slowdowns_of
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand, as_gang
from pycontrol.model.cluster import Node, YarnApp
from pycontrol.model.topology import Gpu, Scope, Topology
from pycontrol.model.value import value
from pycontrol.policies import registry
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.port import Policy
from pycontrol.queries.shadow import at_once
from pycontrol.simulation.runs import own_policies

CHANGES = (LeaseGranted, LeaseRevoking, LeaseEnded, LeaseBorrowed, LeaseOwned, NextDropped)
ASKED = "asked"
"""The id of an app that has not been submitted."""
Phases = tuple[tuple[float, ...], ...]
"""Serial GPU-seconds left by phase and job."""


@value
class Reported:
    """What an app's Agent last reported."""

    up: ev.AgentUp
    rho: float | None
    phases: Phases | None
    connected: bool = True


@value
class Scene:
    """What a round needs of an Arbiter."""

    now_s: float
    settings: Settings
    policy: str
    cluster: ev.ClusterSnapshot
    durable: Mapping[str, Any]
    """As of `Durable.dump`, without ended apps that no policy remembers."""
    agents: tuple[Reported, ...] = ()
    planned: tuple[tuple[str, str, ev.WorkerPlan, tuple[str, int, int, int] | None], ...] = ()
    """(app, use, plan, key of its ask) of the workers without a container."""
    avoided: tuple[tuple[str, str, str], ...] = ()
    """(host, app, why) of the machines that refused an app."""
    away: tuple[Node, ...] = ()
    """Nodes that are not up, as they were when they were."""
    configured: Topology = Topology()


def scene_of(a: Arbiter, now_s: float) -> Scene:
    """The scene of an Arbiter, or of a picture of one."""
    c, data = a.cluster, a.durable.dump()
    kept = {app_id for memory in a.durable.memory.values() for app_id in memory.get("apps", ())}
    data["apps"] = [x for x in data["apps"] if x["finished_s"] is None or x["app_id"] in kept]
    asks = tuple(ask for app_id in c.asks.apps() for ask in c.asks.of(app_id).values())
    nodes = tuple(dataclasses.replace(n, withheld=c.closed.get(n.host, "")) for n in c.nodes.values())
    return Scene(
        now_s, a.settings, a.policy_name,
        ev.ClusterSnapshot(c.ready, nodes, tuple(c.apps.values()), asks,
                           tuple(c.containers.values()), tuple(c.queues.values()), switch=c.switch),
        data,
        tuple(Reported(ev.AgentUp(app_id, x.attempt_id, x.app_scheduler, x.demand), x.rho, x.phases, x.connected)
              for app_id, x in a.agents.items()),
        tuple((w.app_id, w.use_id, w.plan, w.ask_key) for w in a.workers if not w.container_id),
        tuple((host, app_id, why) for app_id in a.durable.live for host, why in c.refusals.avoided(app_id).items()),
        tuple(_away(a)), Topology(dict(a.cluster.machines.configured)),
    )  # fmt: skip


def _away(a: Arbiter) -> Iterator[Node]:
    """The machines that are not up, with the GPUs that they had or are configured with; labels are not known."""
    node_ids = {node_id.rpartition(":")[0]: node_id for node_id in a.cluster.down}
    configured = a.cluster.machines.configured
    for host, m in a.holdings.known.machines.items():
        gpus = configured[host].gpus if host in configured else len(a.cluster.machines.on(host))
        if host not in a.cluster.node_at and gpus:
            yield Node(node_ids.get(host, f"{host}:0"), host, m.rack, gpus, attributes={"gpu_type": m.gpu_type})


def with_app(s: Scene, user: str, queue: str, demand: Demand) -> Scene:
    """The scene with one more app, submitted now."""
    app = YarnApp(ASKED, user, queue, ASKED, "SUBMARINE", s.now_s, frozenset({"isonomy"}), ASKED)
    cluster = dataclasses.replace(s.cluster, apps=(*s.cluster.apps, app))
    return dataclasses.replace(
        s, cluster=cluster, agents=(*s.agents, Reported(ev.AgentUp(ASKED, ASKED, "single", demand), None, None))
    )


@value
class Gets:
    """What an app gets in a round beyond what it held: GPUs by host, how many of them are borrowed, and from when."""

    gpus: Mapping[str, int]
    borrowed_gpus: int = 0
    from_s: float = 0.0


class Stage:
    """The Arbiter of a scene, on which one round is played."""

    def __init__(self, scene: Scene, options: Mapping[str, Any], cells: Callable[[], Supply] | None = None) -> None:
        """`options`: the policy's. `cells`: makes the cells behind virtual clusters."""
        self.scene, self.now_s = scene, scene.now_s
        supply = cells() if cells is not None else None
        self.policy: Policy = registry.make(scene.policy, **options)
        if supply is not None:
            self.policy = ByVirtualCluster(self.policy, own_policies(supply, scene.policy, options))
        self._phases = {x.up.app_id: x.phases for x in scene.agents}
        no_recovery = dataclasses.replace(scene.settings, recovery_s=-scene.now_s, validate=False)
        a = self.a = Arbiter(no_recovery, self.policy, Durable.load(scene.durable), scene.configured, 2, supply)
        for app_id, use_id, plan, key in scene.planned:
            a.workers.add(PlannedWorker(app_id, use_id, plan, ask_key=key))
        a.timer.failed(math.inf)  # no round begins yet
        told: list[ev.Event] = [scene.cluster]
        for x in scene.agents:
            told += [x.up, ev.ProgressReported(x.up.app_id, x.up.demand, (), x.rho or 0.0)]
            told += [] if x.connected else [ev.AgentLost(x.up.app_id)]
        a.handle_all(told, self.now_s)
        for host, app_id, why in scene.avoided:
            for k in range(REFUSALS):
                a.cluster.refusals.refused(host, app_id, "", why, self.now_s - (REFUSED_S if k == 0 else 0.0))
        a.clerk.update_closed()
        self.exact = not any(isinstance(fact, CHANGES) for fact in a.take_facts())
        """Whether the restart changed no lease: cells may not find all gangs their places again."""

    def play(self, app_id: str, changes: Iterable[ev.Event] = ()) -> Gets | None:
        """What an app gets in a round that is held now, after these events; None: nothing. Call it once."""
        a = self.a
        a.holdings.timer = RoundTimer(a.settings.round_retry_s)
        before = set(gpus_in(a.durable.claims_of(app_id)))
        held = a.holdings.holding(app_id)
        a.clerk.request_round(self.now_s)
        for _ in at_once(a, self.policy, [*changes, ev.Tick()], self.now_s, self.answer):
            pass
        return self._gets(app_id, before, held)

    def _gets(self, app_id: str, before: set[Gpu], held: int) -> Gets | None:
        a, gpus, borrowed, from_s = self.a, dict[str, int](), 0, self.now_s
        if a.holdings.holding(app_id) <= held:
            return None
        for x in a.durable.claims_of(app_id):
            new = [gpu for gpu in x.gpus if gpu not in before]
            for gpu in new:
                gpus[gpu.host] = gpus.get(gpu.host, 0) + 1
            borrowed += len(new) * (not x.guaranteed)
            from_s = max(from_s, x.granted_s) if new and not isinstance(x, Lease) else from_s
        return Gets(gpus, borrowed, from_s)

    # ---- the Agents

    def answer(self, effect: ev.Effect) -> ev.Event | None:
        """What the app's Agent answers in a round."""
        if isinstance(effect, ev.SendAskRho):
            phases, work = self._work(effect.app_id, effect.contention)
            gangs, held = self._gangs(effect.app_id)
            rho = offers.rho(work, gangs, held, set(effect.ending), effect.contention.lease_s)
            return ev.RhoReported(effect.app_id, effect.round_id, rho, self.a.agents[effect.app_id].demand, phases)
        if not isinstance(effect, ev.SendOffer):
            return None
        d, launch_s = self.a.agents[effect.app_id].demand, self.a.durable.launch_s
        _, work = self._work(effect.app_id, effect.contention)
        gangs, held = self._gangs(effect.app_id)
        elastic = Elastic(d.gang_gpus, d.job_demand_max, d.slowdown, launch_s) if work.job_gpus_max else None
        bid = offers.bid_for(
            effect.app_id, work, gangs, held, set(effect.ending), d.gangs, effect.machines,
            {s: d.slowdown[s - 1] for s in Scope if s <= d.scope}, self.a.holdings.topology, launch_s,
            effect.contention.lease_s, d.speedups, d.mixes, elastic,
        )  # fmt: skip
        return ev.BidReceived(effect.app_id, effect.round_id, bid)

    def _work(self, app_id: str, c: ev.Contention) -> tuple[Phases, AppWork]:
        """The work left, as last reported and brought to what its demand says now, and what follows for rho."""
        a, d = self.a, self.a.agents[app_id].demand
        phases = self._phases.get(app_id) or alike(d)
        was = sum(map(sum, phases))
        phases = tuple(tuple(x * d.work_left_gpu_s / was for x in jobs) for jobs in phases) if was else phases
        most, speed = max(d.gpus, a.durable.apps[app_id].demand_gpus), mean_speed(d.speedups, a.holdings.topology)
        return phases, app_left(phases, d, c.cluster_gpus, c.n_avg, most, c.now_s - c.submitted_s, speed)

    def _gangs(self, app_id: str) -> tuple[list[offers.RunningGang], set[Gpu]]:
        a, d = self.a, self.a.agents[app_id].demand
        gangs = [tuple(gpus_in(gang)) for gang in a.holdings.gangs_of(app_id)]
        found = [offers.RunningGang(gpus, slowdowns_of(as_gang(gpus), d, a.holdings.topology)[1]) for gpus in gangs]
        return found, {gpu for gpus in gangs for gpu in gpus}
