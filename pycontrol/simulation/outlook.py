"""Forecasts: runs the production Arbiter forward in virtual time from its present state, several times.

A picture of the Arbiter is plain JSON, for another process or a file. Each run draws the errors of the declared work,
and new arrivals like those of the last day; the spread of the runs is the range.

Assumed: apps without an Agent keep what they hold, nodes stay as they are, and virtual clusters have what the cells
file gives them, without deals.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import LAUNCHES_MIN, Durable
from pycontrol.arbiter.ledger.lease import (
    ACTIVE,
    REVOKING,
    dump_lease,
    dump_reservation,
    load_lease,
    load_reservation,
    part,
)
from pycontrol.arbiter.state import Settings as ArbiterSettings
from pycontrol.arbiter.supply.port import Supply
from pycontrol.model import events as ev
from pycontrol.model.accounts import Accounts
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Container, PartitionCapacity, Queue, YarnApp
from pycontrol.model.topology import Gpu, Machine, Scope, Topology
from pycontrol.model.value import value
from pycontrol.policies import registry
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.port import Policy
from pycontrol.simulation.apps import TraceApp, Workload
from pycontrol.simulation.engine import TAGS, Simulator
from pycontrol.simulation.jobs import RUNNING, SimApp, SimJob, gang_rate
from pycontrol.simulation.result import Result
from pycontrol.simulation.runs import own_policies
from pycontrol.simulation.settings import HONEST, Misreport, SimulationSettings

VERSION = 3
RECENT_S = 86400.0
RECENT_MAX = 500
HORIZON_S = 7 * 86400.0
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


class NoOutlook(Exception):
    """No forecast is possible for this cluster; the message says why."""


class TooSlow(Exception):
    """A run has used its CPU time."""


@value
class Outlook:
    """An app's start and end, Unix seconds: 10 %, 50 % and 90 % quantiles of the runs; None: not within the horizon."""

    start_s: tuple[float | None, float | None, float | None]
    end_s: tuple[float | None, float | None, float | None]


# ---- a picture


def picture(a: Arbiter, now_s: float) -> dict[str, Any]:
    """The Arbiter's state, as plain JSON values."""
    data = a.durable.dump()
    data["apps"] = [x for x in data["apps"] if x["finished_s"] is None]
    recent = sorted(a.durable.apps.values(), key=lambda x: x.submitted_s)[-RECENT_MAX:]
    return {
        "version": VERSION,
        "now_s": now_s,
        "policy": a.policy_name,
        "cells": not a.supply.whole,
        "ready": a.cluster.ready and not a.holdings.paused,
        "settings": dataclasses.asdict(a.settings),
        "machines": [[m.host, m.rack, a.cluster.node_at[h].gpus if h in a.cluster.node_at else m.gpus, m.gpu_type]
                     for h, m in a.holdings.topology.machines.items()],
        "unusable": [[g.host, g.index] for n in a.cluster.nodes.values() for i in range(n.gpus)
                     if not a.holdings.usable(g := Gpu(n.host, i)) or a.cluster.plain(g)],
        "partitions": {n.host: n.partition for n in a.cluster.nodes.values() if n.partition},
        "queues": [dataclasses.asdict(q) for q in a.cluster.queues.values()],
        "apps": [_app(a, app_id, now_s) for app_id in a.durable.live if app_id in a.agents],
        "since_s": min((x.submitted_s for x in a.durable.apps.values()), default=now_s),
        "recent": [_recent(a, x) for x in recent if x.submitted_s >= now_s - RECENT_S and x.demand_gpus > 0],
        "durable": data,
    }  # fmt: skip


def machines_of(p: Mapping[str, Any]) -> Topology:
    """The machines of a picture."""
    return Topology.of(Machine(host, rack, gpus, kind) for host, rack, gpus, kind in p["machines"])


def queues_of(p: Mapping[str, Any]) -> tuple[Queue, ...]:
    """The queues of a picture, with their limits."""
    return tuple(
        Queue(**{**q, "partitions": {label: PartitionCapacity(**x) for label, x in q["partitions"].items()}})
        for q in p["queues"]
    )


def _app(a: Arbiter, app_id: str, now_s: float) -> dict[str, Any]:
    agent, record = a.agents[app_id], a.durable.apps[app_id]
    d = agent.demand
    ending = [[x] for x in a.durable.leases.of(app_id) if x.state is REVOKING]
    held = [*a.holdings.gangs_of(app_id), *ending]
    gangs = [[list(gpu) for x in gang if x.container_id for gpu in x.gpus] for gang in held]
    return {
        "app_id": app_id, "user": record.user, "queue": record.queue, "submitted_s": record.submitted_s,
        "kind": agent.app_scheduler,
        "gang_gpus": d.gang_gpus, "gangs": d.gangs, "left_gpu_s": d.work_left_gpu_s, "total_gpu_s": d.work_total_gpu_s,
        "stepwise_left_gpu_s": agent.stepwise_left_gpu_s,
        "scope": int(d.scope), "slowdown": list(d.slowdown), "speedups": dict(d.speedups),
        "held": [gang for gang in gangs if gang], "started": record.attained_gpu_s > 0 or any(gangs),
    }  # fmt: skip


def _recent(a: Arbiter, record: Any) -> dict[str, Any]:
    agent = a.agents.get(record.app_id)
    total = agent.demand.work_total_gpu_s if agent is not None else record.work_done_gpu_s or record.attained_gpu_s
    gang = agent.demand.gang_gpus if agent is not None else 0
    kind = agent.app_scheduler if agent is not None else record.kind
    return {"submitted_s": record.submitted_s, "user": record.user, "queue": record.queue, "total_gpu_s": total,
            "demand_gpus": record.demand_gpus, "gang_gpus": gang, "kind": kind}  # fmt: skip


def gang_of(p: Mapping[str, Any], gpus: int, gang_gpus: int = 0) -> int:
    """The gang of an app of so many GPUs that does not say it (0): a machine's GPUs where they divide them."""
    gang = gang_gpus or min(gpus, max((m[2] for m in p["machines"]), default=gpus))
    return gpus if gpus % gang else gang


def with_app(
    p: Mapping[str, Any], gpus: int, hours: float, queue: str, user: str, gang_gpus: int = 0,
    scope: Scope = Scope.CLUSTER,
) -> dict[str, Any]:  # fmt: skip
    """The picture with one more app, submitted now, that uses `gpus` GPUs for `hours` hours."""
    gang = gang_of(p, gpus, gang_gpus)
    app = {
        "app_id": f"{NEW}asked", "user": user, "queue": queue, "submitted_s": p["now_s"], "gang_gpus": gang,
        "gangs": gpus // gang, "left_gpu_s": gpus * hours * 3600.0, "total_gpu_s": gpus * hours * 3600.0,
        "scope": int(scope), "slowdown": list(Demand(1, 1).slowdown), "speedups": {}, "held": [],
        "started": False,
    }  # fmt: skip
    return {**p, "apps": [*p["apps"], app]}


# ---- a run


class Resumed(Simulator):
    """A simulation that continues from a picture."""

    def __init__(
        self, p: Mapping[str, Any], seed: int, *, error: float, come: Sequence[TraceApp] = (),
        options: Mapping[str, Any] | None = None, policy: str = "", supply: Supply | None = None,
        run_s: float = math.inf,
    ) -> None:  # fmt: skip
        """`run_s`: the CPU time after which this and `run_out` raise TooSlow."""
        self._end_s = time.process_time() + run_s
        rng = random.Random(seed)
        topology = machines_of(p)
        accounts = Accounts.load(p["settings"]["accounts"])
        control = ArbiterSettings(**{**p["settings"], "recovery_s": -p["now_s"], "seed": seed, "accounts": accounts})
        name = policy or p["policy"]
        chosen: Policy = registry.make(name, **(options or {}))
        if supply is not None:
            chosen = ByVirtualCluster(chosen, own_policies(supply, name, options or {}))
        settings = _costs(p, SimulationSettings(arbiter=control), random.Random(seed) if error else None)
        super().__init__(Workload("outlook", tuple(come)), topology, chosen, settings, seed, queues_of(p), supply)
        self.arbiter = Arbiter(control, chosen, _durable(p), topology, epoch=2, supply=supply)
        self.now = float(p["now_s"])
        for trace in come:
            self.at(trace.submitted_s, self._arrive, trace)
        bad: dict[str, set[int]] = {}
        for host, index in p["unusable"]:
            bad.setdefault(host, set()).add(index)
        for host, index in _unmanaged(p):
            bad.setdefault(host, set()).add(index)
        for node_id, node in list(self.yarn.up.items()):
            label = p["partitions"].get(node.host, "")
            self.yarn.up[node_id] = dataclasses.replace(
                node, bad_gpus=frozenset(bad.get(node.host, ())), partition=label
            )
        apps = [
            self._resume(x, _error(x, control.lease_s, error, rng), rng if error else None)
            for x in p["apps"] if x["gang_gpus"] * x["gangs"] > 0
        ]  # fmt: skip
        yarn_apps = tuple(
            YarnApp(x.trace.app_id, x.trace.user, x.trace.queue, x.trace.app_id, "SUBMARINE", x.trace.submitted_s, TAGS,
                    x.attempt_id)
            for x in apps
        )  # fmt: skip
        begin = self.yarn.snapshot()
        self.inbox.append(dataclasses.replace(begin, apps=yarn_apps, containers=tuple(self.yarn.containers.values())))
        for app in apps:
            self.inbox.append(ev.AgentUp(app.trace.app_id, app.attempt_id, "hyperband", app.demand(self.now)))
        self._drain()
        self._go_on()
        self.workload = Workload("outlook", (*(app.trace for app in apps), *come))

    def _go_on(self) -> None:
        """What the last round decided: gangs that it revoked stop, and apps plan for what they were promised."""
        d = self.arbiter.durable
        for x in [x for x in d.leases.each() if x.state is REVOKING]:
            self._revoke(ev.SendRevoke(x.app_id, x.gpus, x.end_s, max(0.0, x.end_s - self.now), x.reason))
        for promise in d.reservations.each():
            app = self.apps[promise.app_id]
            app.held.update(dict.fromkeys(promise.gpus, promise.granted_s))
            self.dirty[promise.app_id] = app
        self._drain()

    def result(self, starts_of: Iterable[str] = ()) -> Result:
        """Run all apps to their ends; the start of those in `starts_of` is unknown, because they had started before."""
        self.run_out([app.app_id for app in self.workload.apps])
        found, before = self._result(0.0), set(starts_of)
        apps = tuple(dataclasses.replace(x, started_s=None) if x.app_id in before else x for x in found.apps)
        return dataclasses.replace(found, apps=apps)

    def _resume(self, x: Mapping[str, Any], factor: float, rng: random.Random | None) -> SimApp:
        """One app with its jobs; those that hold gangs train on. Its real work left is `factor` times what its scripts'
        steps say, else what it declares; policies know only what it declares.

        An app says how much work it has in all: it is split among its jobs, at random if there is an `rng`.
        """
        self._in_time()
        jobs = max(x["gangs"], len(x["held"]), 1)
        declared, stepwise = max(1.0, x["left_gpu_s"]), x.get("stepwise_left_gpu_s")
        left = (declared if stepwise is None else max(1.0, stepwise)) * factor
        said = declared / left
        trace = TraceApp(
            x["app_id"], x["submitted_s"], x["gang_gpus"], phases(x.get("kind", ""), jobs, left, rng, x["started"]),
            x["queue"], x["user"], slowdown=tuple(x["slowdown"]), scope=Scope(x["scope"]), speedups=x["speedups"],
        )  # fmt: skip
        app = SimApp(trace, Misreport(work=said) if said != 1 else HONEST)
        app.next_phase()
        app.total = max(app.total, x["total_gpu_s"] - x["left_gpu_s"] + left)
        app.started_s = self.now if x["started"] else None
        self.apps[x["app_id"]] = app
        for job, gang in zip(app.jobs, x["held"], strict=False):
            self._train_on(app, job, tuple(Gpu(host, index) for host, index in gang))
        return app

    def _train_on(self, app: SimApp, job: SimJob, gpus: tuple[Gpu, ...]) -> None:
        by_host: dict[str, list[Gpu]] = {}
        for gpu in gpus:
            by_host.setdefault(gpu.host, []).append(gpu)
            app.job_at[gpu], app.held[gpu] = job, self.now
        for host, mine in by_host.items():
            container_id = _container_id(app.trace.app_id, host, mine[0].index)
            lease = self.arbiter.durable.leases[mine[0]]
            self.yarn.containers[container_id] = Container(
                container_id, app.trace.app_id, f"{host}:1", tuple(mine), lease.grant_id, 0, app.attempt_id
            )
            self.yarn.occupied.update(dict.fromkeys(mine, container_id))
            for held in self.arbiter.durable.leases.parts(mine):
                in_use = dataclasses.replace(
                    held, container_id=container_id, first_container=container_id, job_id=job.job_id
                )
                self.arbiter.durable.put(in_use)
            job.containers.append(container_id)
            self.job_of[container_id] = job
        job.state, job.gpus, job.launches, job.up_s, job.since_s = RUNNING, gpus, 1, self.now, self.now
        job.rate, job.slowdown = gang_rate(app.trace, gpus, self.topology)
        job.stamp += 1
        self.active += 1
        self.at(self.now + job.left / job.rate, self._job_ends, job, job.stamp)

    def run_out(self, sought: Iterable[str], starts: bool = False) -> dict[str, tuple[float | None, float | None]]:
        """(start, end) of these apps: until all have ended (or with `starts` have started), or the horizon."""
        end_s, waiting = self.now + HORIZON_S, set(sought)
        open_ = set(waiting)
        began = {i: app.started_s for i, app in self.apps.items()}
        for _ in range(STEPS_MAX):
            open_ = {x for x in open_ if x not in self.records and not (starts and self._started(x))}
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

    def _started(self, app_id: str) -> bool:
        app = self.apps.get(app_id)
        return app is not None and app.started_s is not None

    def _in_time(self) -> None:
        if time.process_time() > self._end_s:
            raise TooSlow


def _error(x: Mapping[str, Any], lease_s: float, error: float, rng: random.Random) -> float:
    """Of an app's real work left, as a multiple of what it declares.

    One that declared nothing says as much as it has done, or one lease (`agent.bids.unknown_left_gpu_s`): as likely as
    not it has more left (Gott, Nature 363, 1993), by a factor of at most LENGTH_MAX.
    """
    left, drawn = x["left_gpu_s"], rng.uniform(-1.0, 1.0)
    said = max(x["total_gpu_s"] - left, lease_s * x["gang_gpus"])
    if error and x.get("stepwise_left_gpu_s") is None and math.isclose(left, said, rel_tol=1e-6):
        return min(LENGTH_MAX, max(1 / LENGTH_MAX, (1 + drawn) / (1 - drawn)))
    return 1 + error * drawn


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


def _costs(p: Mapping[str, Any], found: SimulationSettings, rng: random.Random | None) -> SimulationSettings:
    """With what launches cost on this cluster, where LAUNCHES_MIN were measured; restarts as first ones before that.

    With an `rng` one of those measured, and a stop that takes up to twice what is assumed: both vary, and starts at
    leases' ends with them.
    """
    first_s, again_s = (p["durable"].get(x, ()) for x in ("first_launches_s", "restarts_s"))
    if len(again_s) < LAUNCHES_MIN:
        again_s = first_s
    drawn = statistics.median if rng is None else rng.choice
    return dataclasses.replace(
        found,
        checkpoint_s=found.checkpoint_s * (1.0 if rng is None else rng.uniform(0.0, 2.0)),
        start_s=drawn(first_s) if len(first_s) >= LAUNCHES_MIN else found.start_s,
        restart_s=drawn(again_s) if len(again_s) >= LAUNCHES_MIN else found.restart_s,
    )


def _container_id(app_id: str, host: str, index: int) -> str:
    return f"held {app_id} {host}:{index}"


def _unmanaged(p: Mapping[str, Any]) -> list[tuple[str, int]]:
    """GPUs held by apps without an Agent, and GPUs of leases without a container."""
    known = {(host, index) for x in p["apps"] for gang in x["held"] for host, index in gang}
    mine = {x["app_id"] for x in p["apps"]}
    leases = (x for x in map(load_lease, p["durable"]["leases"]) if x.app_id not in mine)
    return [gpu for x in leases for gpu in x.gpus if gpu not in known]


def _durable(p: Mapping[str, Any]) -> Durable:
    """The durable state with apps, clocks, the policy's memory, running leases, and what comes after those that end."""
    known = {x["app_id"] for x in p["apps"] if x["gang_gpus"] * x["gangs"] > 0}
    running = {Gpu(host, index) for x in p["apps"] for gang in x["held"] for host, index in gang}
    found = [part(x, mine) for x in map(load_lease, p["durable"]["leases"]) if (mine := running.intersection(x.gpus))]
    ending = {gpu for x in found if x.state is REVOKING for gpu in x.gpus}
    promised = [
        x for x in map(load_reservation, p["durable"]["next"]) if x.app_id in known and ending.issuperset(x.gpus)
    ]
    leases = [
        dump_lease(x if x.state is REVOKING else dataclasses.replace(x, state=ACTIVE, gang="")) for x in found
    ]  # fmt: skip
    return Durable.load(
        {
            **p["durable"],
            "leases": leases,
            "next": [dump_reservation(x) for x in promised],
            "switches": [],
            "exchange": {},
            "memory": dict(p["durable"]["memory"]),
        }
    )


def arrivals(p: Mapping[str, Any], rng: random.Random, until_s: float, most: int = 300) -> list[TraceApp]:
    """New apps until then: gaps and apps drawn with replacement from those of the last day.

    How much longer apps come is drawn, too: as likely as not, longer than they have come so far (Gott, Nature 363,
    1993). Otherwise a few submissions in a row at a cluster's beginning would be taken to go on for ever.
    """
    recent: Sequence[Mapping[str, Any]] = p["recent"]
    if len(recent) < 3:
        return []
    lasted_s = p["now_s"] - p.get("since_s", recent[0]["submitted_s"])
    until_s = min(until_s, p["now_s"] + lasted_s * (1 / (1 - rng.random()) - 1))
    at = [x["submitted_s"] for x in recent]
    gaps = [b - a for a, b in itertools.pairwise(at)] + [p["now_s"] - at[-1]]
    gangs = [x["gang_gpus"] for x in recent if x["gang_gpus"]] or [1]
    found: list[TraceApp] = []
    now_s = float(p["now_s"])
    while len(found) < most:
        now_s += max(1.0, rng.choice(gaps))
        if now_s > until_s:
            break
        like = rng.choice(recent)
        gang = min(like["gang_gpus"] or rng.choice(gangs), like["demand_gpus"])
        jobs = max(1, like["demand_gpus"] // max(1, gang))
        work = max(60.0, like["total_gpu_s"])
        parts = phases(like.get("kind", ""), jobs, work, rng, False)
        found.append(TraceApp(f"{NEW}{len(found)}", now_s, max(1, gang), parts, like["queue"], like["user"]))
    return found


def outlooks(
    p: Mapping[str, Any], *, runs: int = 12, error: float = 0.2, seed: int = 0,
    options: Mapping[str, Any] | None = None, only: str = "", starts: bool = False,
    sought: Sequence[str] = (), pause: Callable[[], None] = lambda: None, cells: Callable[[], Supply] | None = None,
    run_s: float = RUN_S,
) -> dict[str, Outlook]:  # fmt: skip
    """When each app of a picture (or `only` one, or those `sought`) starts and ends; raises NoOutlook.

    `starts`: their ends are not sought. `pause` is called after each run. `cells` makes the cells behind virtual
    clusters, which a picture does not have. Apps that would make a run take more than `run_s` have no outlook.
    """
    if p["cells"] and cells is None:
        raise NoOutlook("this cluster has virtual clusters: an estimate needs their cells file")
    if not p["ready"]:
        raise NoOutlook("no round is held at present")
    wanted = [only] if only else list(sought) or [x["app_id"] for x in p["apps"]]
    ends: dict[str, list[tuple[float | None, float | None]]] = {x: [] for x in wanted}
    for k in range(runs):
        while p["apps"]:
            come = arrivals(p, random.Random(f"{seed} {k}"), p["now_s"] + RECENT_S)
            supply = cells() if cells is not None else None
            try:
                world = Resumed(p, 1000 * seed + k, error=error, come=come, options=options, supply=supply, run_s=run_s)
                ran = world.run_out(ends, starts)
            except (TooSlow, MemoryError):
                p = _lighter(p)
                ends = {x["app_id"]: ends[x["app_id"]] for x in p["apps"] if x["app_id"] in ends}
                continue
            finally:
                pause()
            for app_id, found in ran.items():
                ends[app_id].append(found)
            break
    if only and only not in ends:
        raise NoOutlook("its gangs are too many to be simulated in time")
    return {x: Outlook(_quantiles([s for s, _ in found]), _quantiles([e for _, e in found]))
            for x, found in ends.items()}  # fmt: skip


def _lighter(p: Mapping[str, Any]) -> Mapping[str, Any]:
    """The picture without those apps, present and recent, that have the most gangs: at least half of all gangs."""
    weights = sorted(
        [(x["gangs"], "apps", i) for i, x in enumerate(p["apps"])]
        + [(x["demand_gpus"] // max(1, x["gang_gpus"]), "recent", i) for i, x in enumerate(p["recent"])]
    )
    most, so_far = sum(gangs for gangs, _, _ in weights) / 2, itertools.accumulate(gangs for gangs, _, _ in weights)
    kept = {(name, i) for (_, name, i), gangs in zip(weights[:-1], so_far, strict=False) if gangs <= most}
    return {**p, **{name: [x for i, x in enumerate(p[name]) if (name, i) in kept] for name in ("apps", "recent")}}


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
