"""Forecasts: runs the production Arbiter forward in virtual time from its present state, several times.

Each run continues from a scene, draws the errors of the declared work, and new arrivals like those of the last day; the
spread of the runs is the range. Assumed: apps without an Agent go on for ever, and nodes stay as they are.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Container, Iterable, Sequence

from pycontrol.arbiter.ledger.durable import LAUNCHES_MIN
from pycontrol.arbiter.ledger.lease import REVOKING, gpus_in
from pycontrol.arbiter.views.workers import AskKey
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Ask
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.result import Result
from pycontrol.simulation.scene import RECENT_S, Planned, Reported, Scene, arbiter_of, let_go
from pycontrol.simulation.simulated_jobs import IDLE, RUNNING, SimApp, SimJob, gang_rate
from pycontrol.simulation.simulation_settings import HONEST, Misreport, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

HORIZON_S = 7 * 86400.0
HORIZON_LEASES = 1008
"""A week of leases of the default length: with shorter ones a run does not go as far, as a week has too many."""
STEPS_MAX = 200_000
RUN_S = 9.0
"""CPU time of a run. If it takes longer, the apps with the most gangs are left out, as if they had no Agent."""
SHAPE = 1.0
"""Shape of the gamma distribution that splits an app's work among its jobs; 1 is exponential."""
HALVING = frozenset({"successive_halving", "hyperband", "asha"})
"""App schedulers whose apps have rungs: about as much work in each, on half as many jobs as in the one before."""
RUNG_SHAPE = 8.0
"""SHAPE within a rung, whose jobs have about the same work."""
LENGTH_MAX = 20.0
LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9

NEW = "new-"
"""Prefix of the ids of apps that have not been submitted."""
BID_RESTART_S = 10.0
"""What Agents assume that a change of GPUs costs, before one was measured."""
FOREVER_GPU_S = 1e15
"""The work of a container of an app without an Agent."""


class NoOutlook(Exception):
    """No forecast is possible for this cluster; the message says why."""


class TooSlow(Exception):
    """A run has used its CPU time."""


@value
class Outlook:
    """An app's start and end, Unix seconds: 10 %, 50 % and 90 % quantiles of the runs; None: not within the horizon."""

    start_s: tuple[float | None, float | None, float | None]
    end_s: tuple[float | None, float | None, float | None]


# ---- a run


class Resumed(Simulator):
    """A simulation that continues from a scene, with its Arbiter."""

    def __init__(
        self, scene: Scene, seed: int, *, error: float, come: Sequence[TraceApp] = (), run_s: float = math.inf
    ) -> None:
        """`run_s`: the CPU time after which this and `run_out` raise TooSlow."""
        self._end_s = time.process_time() + run_s
        rng = random.Random(seed)
        said = {x.up.app_id: x for x in scene.agents}
        asks, planned = _one_by_one(scene, said)
        agents = tuple(dataclasses.replace(x, connected=True) for x in scene.agents)
        settings = dataclasses.replace(scene.settings, seed=seed)
        cluster = dataclasses.replace(scene.cluster, asks=asks)
        now = dataclasses.replace(scene, planned=planned, settings=settings, agents=agents, cluster=cluster)
        arbiter, effects = arbiter_of(now)
        costs = _costs(scene, SimulationSettings(arbiter=arbiter.settings), random.Random(seed) if error else None)
        load, queues = Workload("outlook", tuple(come)), scene.cluster.queues
        super().__init__(load, scene.topology, arbiter.rounds.policy, costs, seed, queues)
        self.arbiter, self.supply, self.now = arbiter, arbiter.supply, scene.now_s
        self.change_s = arbiter.durable.launch_s or BID_RESTART_S
        self.requests = itertools.count(len(asks) + 1)
        self.yarn.up = {n.node_id: n for n in scene.cluster.nodes}
        self.yarn.containers = {x.container_id: x for x in scene.cluster.containers}
        self.yarn.occupied = {gpu: x.container_id for x in scene.cluster.containers for gpu in x.gpus}
        self.yarn.asks = {x.allocation_request_id: x for x in asks}
        self.yarn.prefix = f"{NEW}c"
        self._wishes: dict[str, Demand] = {}
        """App with an Agent -> its demand, for all but its work."""
        self._terms: dict[SimJob, Ask] = {}
        """Job of an app without an Agent -> what its container is asked for."""
        for trace in come:
            self.at(trace.submitted_s, self.arrive, trace)
        apps = [
            self._resume(x, _error(x, scene.settings.lease_s, error, rng), rng if error else None)
            for app_id in arbiter.durable.live
            if (x := said.get(app_id)) is not None and x.up.demand.gpus > 0
        ]
        self.workload = Workload("outlook", (*(app.trace for app in apps), *come))
        for app_id in arbiter.agents.unmanaged_apps:
            self._go_on(app_id, [x for x in asks if x.app_id == app_id])
        for effect in effects:
            self.do[type(effect)](effect)
        for app in apps:
            self._tell(app)
            self.dirty[app.trace.app_id] = app
        self._drain()
        let_go(arbiter, scene.round_s)

    def result(self, starts_of: Iterable[str] = ()) -> Result:
        """Run all apps to their ends; the start of those in `starts_of` is unknown, because they had started before."""
        self.run_out([app.app_id for app in self.workload.apps])
        found, before = self._result(0.0), set(starts_of)
        apps = tuple(dataclasses.replace(x, started_s=None) if x.app_id in before else x for x in found.apps)
        return dataclasses.replace(found, apps=apps)

    # ---- apps that are there

    def _resume(self, x: Reported, factor: float, rng: random.Random | None) -> SimApp:
        """One app with its jobs; those that hold gangs train on. Its real work left is `factor` times what its scripts'
        steps say, else what it declares; policies know only what it declares.

        An app says how much work it has in all: it is split among its jobs, at random if there is an `rng`.
        """
        self._in_time()
        app_id, d, a = x.up.app_id, x.up.demand, self.arbiter
        record, gangs = a.durable.apps[app_id], a.holdings.gangs_of(app_id)
        held = [gang for gang in gangs if any(lease.container_id for lease in gang)]
        held += [[lease] for lease in a.durable.leases.of(app_id) if lease.state is REVOKING and lease.container_id]
        started, jobs = bool(record.attained_gpu_s or held), max(d.gangs, len(held), 1)
        declared, stepwise = max(1.0, d.work_left_gpu_s), x.stepwise_left_gpu_s
        left = (declared if stepwise is None else max(1.0, stepwise)) * factor
        said = declared / left
        parts = phases(x.up.app_scheduler, jobs, left, rng, started)
        trace = TraceApp(app_id, record.submitted_s, d.gang_gpus, parts, record.queue, record.user)
        trace = dataclasses.replace(trace, slowdown=d.slowdown, scope=d.scope, speedups=d.speedups, mixes=d.mixes)
        app = SimApp(trace, Misreport(work=said) if said != 1 else HONEST)
        app.next_phase()
        app.attempt_id = x.up.attempt_id
        app.total = max(app.total, d.work_total_gpu_s - d.work_left_gpu_s + left)
        app.started_s = self.now if started else None
        self.apps[app_id], self._wishes[app_id] = app, d
        app.held = dict.fromkeys(gpus_in(a.durable.leases.of(app_id)), self.now)
        app.held |= {gpu: y.granted_s for y in a.durable.reservations.of(app_id) for gpu in y.gpus}
        for job, gang in zip(app.jobs, held, strict=False):
            self._train_on(job, tuple(gpus_in(gang)))
        return app

    def _go_on(self, app_id: str, asks: Sequence[Ask]) -> None:
        """An app without an Agent: a job for each container and each ask; they never end."""
        a = self.arbiter
        mine = [x for x in self.yarn.containers.values() if x.app_id == app_id and x.gpus and not x.plain]
        record, partition_of = a.durable.apps[app_id], {n.node_id: n.partition for n in self.yarn.up.values()}
        terms = [Ask(x.attempt_id, app_id, 0, len(x.gpus), 1, partition=partition_of.get(x.node_id)) for x in mine]
        wanted = [*terms, *asks]
        work = tuple(FOREVER_GPU_S for _ in wanted)
        app = SimApp(
            TraceApp(app_id, record.submitted_s, 1, (work,), record.queue, record.user, agentless=True), HONEST
        )
        app.next_phase()
        app.attempt_id = a.cluster.apps[app_id].attempt_id
        self.apps[app_id] = app
        self._terms.update(zip(app.jobs, wanted, strict=True))
        for job, container in zip(app.jobs, mine, strict=False):
            self._train_on(job, container.gpus)
        for job, ask in zip(app.jobs[len(mine) :], asks, strict=True):
            job.requests = [ask.allocation_request_id]
            self.asked[ask.allocation_request_id] = job

    def _train_on(self, job: SimJob, gpus: tuple[Gpu, ...]) -> None:
        """The job has these GPUs; if they are being revoked, it saves what it has done, and ends."""
        app, gang = job.app, self.arbiter.durable.leases.parts(gpus)
        for gpu in gpus:
            app.job_at[gpu] = job
            container_id = self.yarn.occupied.get(gpu)
            if container_id is not None and container_id not in job.containers:
                job.containers.append(container_id)
                self.job_of[container_id] = job
            worker = self.arbiter.workers.at.get(gpu)
            if worker is not None and worker.container_id in job.containers:
                worker.plan = dataclasses.replace(worker.plan, job_id=job.job_id)
                job.worker_id = worker.plan.worker_id
        leases = self.arbiter.durable.leases
        for lease in () if app.trace.agentless else gang:
            leases.parted(lease.gpus)
            leases.put(dataclasses.replace(lease, job_id=job.job_id))
        job.state, job.gpus, job.launches, job.up_s, job.since_s = RUNNING, gpus, 1, self.now, self.now
        job.rate, job.slowdown = gang_rate(app.trace, gpus, self.topology)
        self.active += 1
        ending = any(self.yarn.containers[x].ending for x in job.containers)
        if ending or (gang and gang[0].state is REVOKING):
            app.held = {gpu: at_s for gpu, at_s in app.held.items() if gpu not in gpus}
            self._stop(job, -math.inf if ending else gang[0].end_s)
        else:
            self._train(job)

    def _demand(self, app: SimApp) -> Demand:
        found, wishes = super()._demand(app), self._wishes.get(app.trace.app_id)
        if wishes is None:
            return found
        return dataclasses.replace(
            wishes, gangs=found.gangs, job_demand_max=found.job_demand_max, work_left_gpu_s=found.work_left_gpu_s,
            work_total_gpu_s=found.work_total_gpu_s, work_done_gpu_s=found.work_done_gpu_s,
        )  # fmt: skip

    def _ask(self, app: SimApp) -> None:
        for job in app.jobs:
            if job.state == IDLE and not job.requests:
                job.requests = [next(self.requests)]
                self.asked[job.requests[0]] = job
                self.yarn.ask(dataclasses.replace(self._terms[job], allocation_request_id=job.requests[0]))

    def run_out(self, sought: Iterable[str], starts: bool = False) -> dict[str, tuple[float | None, float | None]]:
        """(start, end) of these apps: until all have ended (or with `starts` have started), or the horizon."""
        end_s, waiting = self.now + min(HORIZON_S, HORIZON_LEASES * self.arbiter.settings.lease_s), set(sought)
        open_ = set(waiting)
        began = {i: app.started_s for i, app in self.apps.items()}
        for _ in range(STEPS_MAX):
            if starts:
                open_ -= {x for x in open_ if x in self.apps and self.apps[x].started_s is not None}
            open_ -= self.records.keys()
            if not self.heap or self.heap[0][0] > end_s:  # nothing comes or ends: whoever waits now waits for good
                self.arbiter.holdings.timer.slow_down(self.arbiter.settings.lease_s)
            if not open_ or self.now >= end_s or not self._step():
                break
            self._in_time()
        found: dict[str, tuple[float | None, float | None]] = {}
        for app_id in waiting:
            record, app = self.records.get(app_id), self.apps.get(app_id)
            known = record if record is not None else app
            start_s = known.started_s if known is not None else began.get(app_id)
            found[app_id] = start_s, record.finished_s if record is not None else None
        return found

    def _in_time(self) -> None:
        if time.process_time() > self._end_s:
            raise TooSlow


def phases(kind: str, jobs: int, left: float, rng: random.Random | None, begun: bool) -> tuple[tuple[float, ...], ...]:
    """The work of each job of an app with so many jobs now and `left` GPU-seconds of work, by phase.

    An app without rungs has one phase. `begun`: a part of the present rung is done, a half without an `rng`.
    """
    if kind not in HALVING:
        return (_split(jobs, left, rng, SHAPE),)
    widths = [jobs]
    while widths[-1] > 1:
        widths.append(widths[-1] // 2)
    first = 1.0 if not begun else rng.random() if rng is not None else 0.5
    rung = left / (first + len(widths) - 1)
    return tuple(_split(n, rung * (first if k == 0 else 1.0), rng, RUNG_SHAPE) for k, n in enumerate(widths))


def _split(jobs: int, work: float, rng: random.Random | None, shape: float) -> tuple[float, ...]:
    """Work split among jobs: equally, or at random (`shape`: how evenly)."""
    parts = [rng.gammavariate(shape, 1.0) if rng is not None else 1.0 for _ in range(jobs)]
    whole = sum(parts) or 1.0
    return tuple(max(1.0, work * part / whole) for part in parts)


def _one_by_one(scene: Scene, with_agent: Container[str]) -> tuple[tuple[Ask, ...], tuple[Planned, ...]]:
    """The asks of apps without an Agent as asks of one container, with ids that are unique here, and their plans.

    Simulated Agents plan and ask anew; what their workers told of checkpoints stays.
    """
    asks, left, planned = list[Ask](), dict[AskKey, list[Ask]](), list[Planned]()
    for ask in scene.cluster.asks:
        for _ in range(0 if ask.app_id in with_agent else ask.count):
            asks.append(dataclasses.replace(ask, allocation_request_id=len(asks) + 1, count=1))
            left.setdefault(ask.key, []).append(asks[-1])
    for app_id, use_id, plan, key, container_id, saved_s in scene.planned:
        if container_id:
            plan = dataclasses.replace(plan, worker_id=f"{NEW}{plan.worker_id}")  # a simulated one may have its id
            planned.append((app_id, use_id, plan, key, container_id, saved_s))
        elif key is not None and left.get(key):
            mine = left[key].pop()
            plan = dataclasses.replace(plan, allocation_request_id=mine.allocation_request_id)
            planned.append((app_id, use_id, plan, mine.key, container_id, saved_s))
    return tuple(asks), tuple(planned)


def _error(x: Reported, lease_s: float, error: float, rng: random.Random) -> float:
    """Of an app's real work left, as a multiple of what it declares.

    One that declared nothing says as much as it has done, or one lease (`agent.bids.unknown_left_gpu_s`): as likely as
    not it has more left (Gott, Nature 363, 1993), by a factor of at most LENGTH_MAX.
    """
    d, drawn = x.up.demand, rng.uniform(-1.0, 1.0)
    said = max(d.work_total_gpu_s - d.work_left_gpu_s, lease_s * d.gang_gpus)
    if error and x.stepwise_left_gpu_s is None and math.isclose(d.work_left_gpu_s, said, rel_tol=1e-6):
        return min(LENGTH_MAX, max(1 / LENGTH_MAX, (1 + drawn) / (1 - drawn)))
    return 1 + error * drawn


def _costs(scene: Scene, found: SimulationSettings, rng: random.Random | None) -> SimulationSettings:
    """With what launches cost on this cluster, where LAUNCHES_MIN were measured; restarts as first ones before that.

    With an `rng` one of those measured, and a stop that takes up to twice what is assumed: both vary, and starts at
    leases' ends with them. A stop fits into the lead, as its length is not measured.
    """
    first_s, again_s = (scene.durable.get(x, ()) for x in ("first_launches_s", "restarts_s"))
    if len(again_s) < LAUNCHES_MIN:
        again_s = first_s
    drawn = statistics.median if rng is None else rng.choice
    return dataclasses.replace(
        found,
        checkpoint_s=min(
            0.9 * scene.settings.lead, found.checkpoint_s * (1.0 if rng is None else rng.uniform(0.0, 2.0))
        ),
        start_s=drawn(first_s) if len(first_s) >= LAUNCHES_MIN else found.start_s,
        restart_s=drawn(again_s) if len(again_s) >= LAUNCHES_MIN else found.restart_s,
    )


def arrivals(scene: Scene, rng: random.Random, until_s: float, most: int = 300) -> list[TraceApp]:
    """New apps until then: gaps and apps drawn with replacement from those of the last day.

    How much longer apps come is drawn, too: as likely as not, longer than they have come so far (Gott, Nature 363,
    1993). Otherwise a few submissions in a row at a cluster's beginning would be taken to go on for ever.
    """
    recent, now_s = scene.recent, scene.now_s
    if len(recent) < 3:
        return []
    until_s = min(until_s, now_s + (now_s - scene.since_s) * (1 / (1 - rng.random()) - 1))
    at = [x.submitted_s for x in recent]
    gaps = [b - a for a, b in itertools.pairwise(at)] + [now_s - at[-1]]
    gangs = [x.gang_gpus for x in recent if x.gang_gpus] or [1]
    found: list[TraceApp] = []
    while len(found) < most:
        now_s += max(1.0, rng.choice(gaps))
        if now_s > until_s:
            break
        like = rng.choice(recent)
        gang = min(like.gang_gpus or rng.choice(gangs), like.demand_gpus)
        jobs = max(1, like.demand_gpus // max(1, gang))
        parts = phases(like.kind, jobs, max(60.0, like.total_gpu_s), rng, False)
        found.append(TraceApp(f"{NEW}{len(found)}", now_s, max(1, gang), parts, like.queue, like.user))
    return found


def outlooks(
    scene: Scene, *, runs: int = 12, error: float = 0.2, seed: int = 0, only: str = "", starts: bool = False,
    sought: Sequence[str] = (), pause: Callable[[], None] = lambda: None, run_s: float = RUN_S,
) -> dict[str, Outlook]:  # fmt: skip
    """When each app of a scene (or `only` one, or those `sought`) starts and ends; raises NoOutlook.

    `starts`: their ends are not sought. `pause` is called after each run. Apps that would make a run take more than
    `run_s` have no outlook.
    """
    if not scene.ready:
        raise NoOutlook("no round is held at present")
    wanted = [only] if only else list(sought) or list(scene.started)
    ends: dict[str, list[tuple[float | None, float | None]]] = {x: [] for x in wanted}
    for k in range(runs):
        while ends:
            come = arrivals(scene, random.Random(f"{seed} {k}"), scene.now_s + RECENT_S)
            try:
                ran = Resumed(scene, 1000 * seed + k, error=error, come=come, run_s=run_s).run_out(ends, starts)
            except (TooSlow, MemoryError):
                scene = _lighter(scene)
                ends = {x.up.app_id: ends[x.up.app_id] for x in scene.agents if x.up.app_id in ends}
                continue
            finally:
                pause()
            for app_id, found in ran.items():
                ends[app_id].append(found)
            break
    if only and only not in ends:
        raise NoOutlook("its gangs are too many to be simulated in time")
    return {
        x: Outlook(_quantiles([s for s, _ in found]), _quantiles([e for _, e in found])) for x, found in ends.items()
    }


def _lighter(scene: Scene) -> Scene:
    """The scene without those apps, present and recent, that have the most gangs: at least a third of all gangs."""
    weights = sorted(
        [(x.up.demand.gangs, "agents", i) for i, x in enumerate(scene.agents)]
        + [(x.demand_gpus // max(1, x.gang_gpus), "recent", i) for i, x in enumerate(scene.recent)]
    )
    most, so_far = 2 * sum(gangs for gangs, _, _ in weights) / 3, itertools.accumulate(gangs for gangs, _, _ in weights)
    kept = {(name, i) for (_, name, i), gangs in zip(weights[:-1], so_far, strict=False) if gangs <= most}
    return dataclasses.replace(
        scene,
        agents=tuple(x for i, x in enumerate(scene.agents) if ("agents", i) in kept),
        recent=tuple(x for i, x in enumerate(scene.recent) if ("recent", i) in kept),
    )


def _quantiles(found: Sequence[float | None]) -> tuple[float | None, float | None, float | None]:
    """The 10 %, 50 % and 90 % quantiles; times beyond the horizon sort last."""
    ordered = sorted(x for x in found if x is not None)

    def at(q: float) -> float | None:
        where = q * (len(found) - 1)
        low, part = int(where), where - int(where)
        if low >= len(ordered):
            return None
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + part * (ordered[high] - ordered[low])

    return at(LOW), at(MIDDLE), at(HIGH)
