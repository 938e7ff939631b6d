"""A scene: the state of an Arbiter as values for another process, a file or another machine; and a round played on it.

`why not`, forecasts, what-if runs and previews continue from it. Its Arbiter is made as after a restart, from the
durable state, YARN's snapshot and the Agents' reports, but without a recovery time. Agents are played too: by the logic
of all Agents, from the work that they last reported.

Not in a scene: what workers' steps taught about S, speeds and work, unless a report was corrected by it already.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pycontrol.agentlogic import offers
from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger import facts as f
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.lease import Lease, Reservation, gpus_in, is_revoking
from pycontrol.arbiter.state import PAUSED
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.arbiter.supply.gpu_supply import Supply
from pycontrol.arbiter.views.cluster_view import Machines
from pycontrol.arbiter.views.settings import RoundTimer, Settings
from pycontrol.arbiter.views.workers import REFUSALS, REFUSED_S, AskKey, PlannedWorker
from pycontrol.cells.geometry import Chain
from pycontrol.cells.layout import Layout, Pin, Terms, Vc
from pycontrol.configerror import ConfigError
from pycontrol.fairness.bidding import mean_speed
from pycontrol.fairness.elastic import Elastic
from pycontrol.fairness.gang_rho import AppWork
from pycontrol.fairness.plausible import alike, app_left, slowdowns_of
from pycontrol.model import events as ev
from pycontrol.model.accounts import Account, Accounts, Limits
from pycontrol.model.auction import Contention, Demand, as_gang
from pycontrol.model.cluster import Ask, Container, Mode, ModeSwitch, Node, PartitionCapacity, Queue, YarnApp
from pycontrol.model.topology import Gpu, Machine, Scope, Topology, count_by_host
from pycontrol.model.value import value
from pycontrol.policies import registry
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.on_schedule import NoSchedule, OnSchedule
from pycontrol.policies.policy_port import Policy
from pycontrol.queries.shadow import at_once

CHANGES = f.LeaseGranted, f.LeaseRevoking, f.LeaseEnded, f.LeaseBorrowed, f.LeaseOwned, f.NextDropped
ASKED = "asked"
"""The id of an app that has not been submitted."""
Phases = tuple[tuple[float, ...], ...]
"""Serial GPU-seconds left by phase and job."""


Planned = tuple[str, str, ev.WorkerPlan, AskKey | None, str, float]
"""(app, use, plan, key of its ask, container, when it told its newest checkpoint)."""
VERSION = 6
RECENT_S = 86400.0
RECENT_MAX = 500


@value
class Reported:
    """What an app's Agent last reported."""

    up: ev.AgentUp
    rho: float | None
    phases: Phases | None
    connected: bool = True
    stepwise_left_gpu_s: float | None = None
    """As of `AgentState`."""


@value
class Recent:
    """An app of the last day, for arrivals like it. What is not known is 0 or empty."""

    submitted_s: float
    user: str
    queue: str
    total_gpu_s: float
    demand_gpus: int
    gang_gpus: int = 0
    kind: str = ""


@value
class Scene:
    """The state of an Arbiter."""

    now_s: float
    settings: Settings
    policy: str
    cluster: ev.ClusterSnapshot
    durable: Mapping[str, Any]
    """As of `Durable.dump`, without ended apps that no policy remembers."""
    agents: tuple[Reported, ...] = ()
    planned: tuple[Planned, ...] = ()
    """The workers that have no container, or told of a checkpoint."""
    avoided: tuple[tuple[str, str, str], ...] = ()
    """(host, app, why) of the machines that refused an app."""
    away: tuple[Node, ...] = ()
    """Nodes that are not up, as they were when they were."""
    configured: Topology = Topology()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The policy's."""
    layout: Layout | None = None
    """The virtual clusters in force; None: there are none."""
    recent: tuple[Recent, ...] = ()
    """The apps of the last day, oldest first."""
    since_s: float = 0.0
    """When the first app that is known was submitted."""
    round_s: float | None = None
    """When a round is requested for; None: none is before leases end."""

    @property
    def ready(self) -> bool:
        """Whether rounds are held."""
        return self.cluster.ready and PAUSED not in self.durable["switches"]

    @property
    def started(self) -> dict[str, bool]:
        """{live app with an Agent: whether it has run}, in the order of their arrival."""
        known = {x.up.app_id for x in self.agents}
        running = {x["app_id"] for x in self.durable["leases"] if x["container_id"]}
        apps = (x for x in self.durable["apps"] if x["finished_s"] is None and x["app_id"] in known)
        return {x["app_id"]: x["attained_gpu_s"] > 0 or x["app_id"] in running for x in apps}

    @property
    def topology(self) -> Topology:
        """The machines that are up, with their bad GPUs."""
        machines = Machines(self.configured)
        machines.reset(dataclasses.replace(n, bad_gpus=frozenset()) for n in self.cluster.nodes)
        return machines.topology


def scene_of(a: Arbiter, now_s: float, options: Mapping[str, Any] | None = None) -> Scene:
    """The scene of an Arbiter, or of a picture of one. `options`: the policy's."""
    c, data, supply, timer = a.cluster, a.durable.dump(), a.supply, a.holdings.timer
    kept = {app_id for memory in a.durable.memory.values() for app_id in memory.get("apps", ())}
    data["apps"] = [x for x in data["apps"] if x["finished_s"] is None or x["app_id"] in kept]
    asks = tuple(ask for app_id in c.asks.apps() for ask in c.asks.of(app_id).values())
    nodes = tuple(dataclasses.replace(n, withheld=c.closed.get(n.host, "")) for n in c.nodes.values())
    return Scene(
        now_s, a.settings, a.policy_name,
        ev.ClusterSnapshot(c.ready, nodes, tuple(c.apps.values()), asks,
                           tuple(c.containers.values()), tuple(c.queues.values()), switch=c.switch),
        data,
        tuple(Reported(ev.AgentUp(app_id, x.attempt_id, x.app_scheduler, x.demand), x.rho, x.phases, x.connected,
                       x.stepwise_left_gpu_s) for app_id, x in a.agents.items()),
        tuple((w.app_id, w.use_id, w.plan, w.ask_key, w.container_id, w.saved_s) for w in a.workers
              if w.saved_s or not w.container_id),
        tuple((host, app_id, why) for app_id in a.durable.live for host, why in c.refusals.avoided(app_id).items()),
        tuple(_away(a)), Topology(dict(a.cluster.machines.configured)), dict(options or {}),
        supply.layout,
        tuple(_recent(a, now_s))[::-1],
        min((x.submitted_s for x in itertools.islice(a.durable.apps.values(), RECENT_MAX)), default=now_s),
        None if timer.wanted_s is None else max(timer.wanted_s, timer.not_before_s),
    )  # fmt: skip


def _recent(a: Arbiter, now_s: float) -> Iterator[Recent]:
    """The newest first."""
    for x in itertools.islice(reversed(a.durable.apps.values()), RECENT_MAX):
        if x.submitted_s >= now_s - RECENT_S and x.demand_gpus > 0:
            agent, total, gang, kind = a.agents.get(x.app_id), x.work_done_gpu_s or x.attained_gpu_s, 0, x.kind
            if agent is not None:
                total, gang, kind = agent.demand.work_total_gpu_s, agent.demand.gang_gpus, agent.app_scheduler
            yield Recent(x.submitted_s, x.user, x.queue, total, x.demand_gpus, gang, kind)


# ---- as JSON

KINDS: Mapping[str, Any] = {x.__name__: x for x in (
    Account, Accounts, Ask, Chain, Container, Demand, Gpu, Layout, Limits, Machine, Mode, ModeSwitch, Node,
    PartitionCapacity, Pin, Queue, Recent, Reported, Scene, Scope, Settings, Terms, Topology, Vc, YarnApp, dict,
    frozenset, ev.AgentUp, ev.ClusterSnapshot, ev.WorkerPlan,
)}  # fmt: skip
"""Name -> what a JSON object with this name as its "is" stands for."""
RAW = ("durable", "options")
"""Of a scene: JSON already."""


def picture(a: Arbiter, now_s: float, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The scene as JSON values."""
    return {"version": VERSION, **_dump(scene_of(a, now_s, options))}


def scene_from(data: Mapping[str, Any]) -> Scene:
    """The inverse of `picture`; ValueError if the data are of another version."""
    if data.get("version") != VERSION:
        raise ValueError("it is of another version")
    found: Scene = _load({k: v for k, v in data.items() if k != "version"})
    return found


def _dump(x: Any) -> Any:
    kind = type(x).__name__
    if dataclasses.is_dataclass(x):
        values = {y.name: getattr(x, y.name) for y in dataclasses.fields(x)}
        return {"is": kind, **{k: v if k in RAW else _dump(v) for k, v in values.items()}}
    if isinstance(x, Gpu):
        return {"is": kind, **x._asdict()}
    if isinstance(x, enum.Enum):
        return {"is": kind, "of": x.value}
    if isinstance(x, Mapping):
        return {"is": "dict", "of": [[k, _dump(v)] for k, v in x.items()]}
    if isinstance(x, frozenset):
        return {"is": kind, "of": sorted(x)}
    return [_dump(v) for v in x] if isinstance(x, tuple | list) else x


def _load(x: Any) -> Any:
    if isinstance(x, list):
        return tuple(map(_load, x))
    if not isinstance(x, Mapping):
        return x
    kind = KINDS[x["is"]]
    if "of" in x:
        return kind(_load(x["of"]))
    return kind(**{k: v if k in RAW else _load(v) for k, v in x.items() if k != "is"})


def _away(a: Arbiter) -> Iterator[Node]:
    """The machines that are not up, with the GPUs that they had or are configured with; labels are not known."""
    configured = a.cluster.machines.configured
    for host, m in a.cluster.machines.known.machines.items():
        gpus = configured[host].gpus if host in configured else len(a.cluster.machines.on(host))
        if host not in a.cluster.node_at and gpus:
            node_id, _ = a.cluster.down.get(host, (f"{host}:0", ""))
            yield Node(node_id, host, m.rack, gpus, attributes={"gpu_type": m.gpu_type})


def with_app(s: Scene, user: str, queue: str, demand: Demand, priority: int = 0) -> Scene:
    """The scene with one more app, submitted now."""
    app = YarnApp(ASKED, user, queue, ASKED, "SUBMARINE", s.now_s, frozenset({"isonomy"}), ASKED, priority)
    agents = *s.agents, Reported(ev.AgentUp(ASKED, ASKED, "single", demand), None, None)
    cluster = dataclasses.replace(s.cluster, apps=(*s.cluster.apps, app))
    return dataclasses.replace(s, round_s=s.now_s, cluster=cluster, agents=agents)


def arbiter_of(scene: Scene) -> tuple[Arbiter, list[ev.Effect]]:
    """The Arbiter of a scene, which holds no round yet, and its effects; its facts tell what the restart changed."""
    supply = None if scene.layout is None else CellSupply(scene.layout)
    policy: Policy = registry.make(scene.policy, **scene.options)
    if supply is not None:
        policy = ByVirtualCluster(policy, own_policies(supply, scene.policy, scene.options))
    no_recovery = dataclasses.replace(scene.settings, recovery_s=-scene.now_s, validate=False)
    a = Arbiter(no_recovery, policy, Durable.load(scene.durable), scene.configured, 2, supply)
    for app_id, use_id, plan, key, container_id, saved_s in scene.planned:
        a.workers.add(worker := PlannedWorker(app_id, use_id, plan, ask_key=key, saved_s=saved_s))
        if container_id:
            a.workers.carried(worker, container_id)
    a.timer.failed(math.inf)
    told: list[ev.Event] = [scene.cluster]
    for x in scene.agents:
        told += [x.up, ev.ProgressReported(x.up.app_id, x.up.demand, (), x.rho or 0.0)]
        told += [] if x.connected else [ev.AgentLost(x.up.app_id)]
    effects = a.handle_all(told, scene.now_s)
    for host, app_id, why in scene.avoided:
        for k in range(REFUSALS):
            a.cluster.refusals.refused(host, app_id, "", why, scene.now_s - (REFUSED_S if k == 0 else 0.0))
    a.clerk.update_closed()
    return a, effects


def own_policies(
    supply: Supply,
    default: str,
    options: Mapping[str, Any],
    made: Callable[..., Policy] = registry.make,
    file: str = "",
) -> dict[str, Policy]:
    """The policies of virtual clusters that name one, or options; ConfigError says which cannot be, in `file`."""
    found = {}
    for vc in supply.virtual_clusters():
        terms = supply.terms(vc)
        name = terms.policy or (default if terms.options or terms.private_schedule else "")
        try:
            if name:
                chosen = made(name, **{**(options if name == default else {}), **terms.options})
                found[vc] = OnSchedule(chosen) if terms.private_schedule else chosen
        except (registry.UnknownPolicy, NoSchedule) as error:
            raise ConfigError([f"{file}{': ' * bool(file)}virtual_clusters.{vc}.policy: {error}"]) from error
    return found


def let_go(a: Arbiter, round_s: float | None) -> None:
    """Let the Arbiter of a scene hold rounds, the first one then; None: when leases end."""
    a.holdings.timer = RoundTimer(a.settings.round_retry_s)
    if round_s is not None:
        a.clerk.request_round(round_s)


@value
class Gets:
    """What an app gets in a round beyond what it held: GPUs by host, how many of them are borrowed, and from when."""

    gpus: Mapping[str, int]
    borrowed_gpus: int = 0
    from_s: float = 0.0


class Stage:
    """The Arbiter of a scene, on which one round is played."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.now_s = scene, scene.now_s
        self._phases = {x.up.app_id: x.phases for x in scene.agents}
        a, _ = arbiter_of(scene)
        self.a = a
        self.exact = not any(isinstance(fact, CHANGES) for fact in a.take_facts())
        """Whether the restart changed no lease: cells may not find all gangs their places again."""

    def play(self, app_id: str, changes: Iterable[ev.Event] = ()) -> Gets | None:
        """What an app gets in a round that is held now, after these events; None: nothing. Call it once."""
        a = self.a
        before = set(gpus_in(self._keeps(app_id)))
        held = a.holdings.holding(app_id)
        let_go(a, self.now_s)
        for _ in at_once(a, a.rounds.policy, [*changes, ev.Tick()], self.now_s, self.answer):
            pass
        return self._gets(app_id, before, held)

    def _keeps(self, app_id: str) -> list[Lease | Reservation]:
        """What it has and does not lose; of a GPU that it loses, it may get the next lease."""
        return [x for x in self.a.durable.claims_of(app_id) if not is_revoking(x)]

    def _gets(self, app_id: str, before: set[Gpu], held: int) -> Gets | None:
        a, gpus, borrowed, from_s = self.a, list[Gpu](), 0, self.now_s
        if a.holdings.holding(app_id) <= held:
            return None
        for x in self._keeps(app_id):
            new = [gpu for gpu in x.gpus if gpu not in before]
            gpus += new
            borrowed += len(new) * (not x.guaranteed)
            from_s = max(from_s, x.granted_s) if new and not isinstance(x, Lease) else from_s
        return Gets(count_by_host(gpus), borrowed, from_s)

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

    def _work(self, app_id: str, c: Contention) -> tuple[Phases, AppWork]:
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
