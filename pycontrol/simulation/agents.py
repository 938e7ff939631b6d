"""A simulated Agent: passes its app's state to the logic of all Agents, with the app's misreports applied."""

from __future__ import annotations

import math
from collections.abc import Collection, Set
from dataclasses import replace

from pycontrol.agentlogic import offers
from pycontrol.agentlogic.allocation import Allocation, allocate
from pycontrol.agentlogic.gang_sizes import Composition, Running, compose, wanted_gpus
from pycontrol.agentlogic.offers import RunningGang
from pycontrol.fairness.bidding import app_work, mean_speed, speed_of
from pycontrol.fairness.elastic import Elastic
from pycontrol.fairness.gang_rho import AppWork, PhaseWork
from pycontrol.model.auction import Bid, Contention, Demand, gang_sizes
from pycontrol.model.events import BidReceived, RhoReported, SendAskRho, SendOffer, WorkerSteps
from pycontrol.model.topology import Gpu, Scope, Topology
from pycontrol.simulation.simulated_jobs import DONE, IDLE, PLANNED, RUNNING, STOPPING, SimApp

ACTIVE = (PLANNED, RUNNING)
STEP_GPU_S = 1.0
"""Serial GPU-seconds of a training step."""
NOTHING = Composition(Allocation((), ()))


def work(app: SimApp, c: Contention, topology: Topology) -> AppWork:
    """The app's work for rho, as its Agent reports it."""
    phases = tuple(PhaseWork(jobs) for jobs in app.phases_left(c.now_s) if jobs)
    widest = app.trace.demand_gpus // app.trace.widest_gang_gpus
    left_gpu_s = app.left_gpu_s(c.now_s)
    said, report = left_gpu_s * app.report.work, app.report
    done = (app.total - left_gpu_s + said) * report.total - said
    elapsed_s = (c.now_s - c.submitted_s) * report.elapsed
    mean = mean_speed(app.speedups, topology)
    return app_work(
        phases, app.trace.gang_gpus, widest, c.cluster_gpus, c.n_avg, elapsed_s, done, mean, app.trace.job_gpus_max
    )


def gangs(app: SimApp, topology: Topology) -> list[RunningGang]:
    """The app's active gangs, with the slowdown that it reports."""
    active = (j for j in app.jobs if j.state in ACTIVE)
    return [RunningGang(j.gpus, _slowdown(app, [g.host for g in j.gpus], topology)) for j in active]


def elastic(app: SimApp, restart_s: float) -> Elastic:
    """How the app's elastic jobs scale, as it reports it."""
    trace = app.trace
    efficiency = {n: trace.efficiency(n) for n in gang_sizes(trace.gang_gpus, trace.job_gpus_max)}
    slowdown = app.slowdown(Scope.MACHINE), app.slowdown(Scope.RACK), app.slowdown(Scope.CLUSTER)
    return Elastic(trace.gang_gpus, trace.job_gpus_max, slowdown, restart_s, efficiency)


def demand(app: SimApp, now_s: float, topology: Topology, restart_s: float) -> Demand:
    """The app's present demand, as it reports it."""
    if not app.trace.elastic:
        return app.demand(now_s)
    waiting = sum(j.state in (IDLE, STOPPING) for j in app.jobs)
    wanted = wanted_gpus(waiting, _running(app, now_s), elastic(app, restart_s), topology)
    return app.demand(now_s, wanted // app.trace.gang_gpus)


def answer(
    app: SimApp, e: SendAskRho | SendOffer, now_s: float, topology: Topology, restart_s: float
) -> RhoReported | BidReceived:
    """The app's answer: its bid for an offer, or its rho and the work left from which that follows."""
    if isinstance(e, SendOffer):
        return BidReceived(app.trace.app_id, e.round_id, bid(app, e, topology, restart_s))
    said = rho(app, e.contention, frozenset(e.ending), topology)
    phases = tuple(p for p in app.phases_left(now_s) if p)
    ids = tuple(j.job_id for j in app.jobs if j.state != DONE)
    return RhoReported(
        app.trace.app_id, e.round_id, said, demand(app, now_s, topology, restart_s), phases, ids, steps(app, now_s)
    )


def steps(app: SimApp, now_s: float, every_s: float = math.inf) -> tuple[WorkerSteps, ...]:
    """What the workers of its running jobs report: true, whatever its Agent says. A step is `STEP_GPU_S` of work.

    `every_s`: the time between the checkpoints that they tell.
    """
    found = []
    for j in app.jobs:
        if j.state == RUNNING and now_s > j.since_s:
            trained = int((now_s - j.since_s) * j.rate / STEP_GPU_S) - j.told_steps
            if trained > 0:
                j.told_steps += trained
                until = math.ceil(j.work / STEP_GPU_S)
                step = min(until, int((j.work - j.left_at(now_s)) / STEP_GPU_S))
                saved_s = j.newly_saved_s(now_s, every_s)
                j.saved_s = max(j.saved_s, saved_s)
                found.append(WorkerSteps(j.worker_id, step, STEP_GPU_S / j.rate, until, trained, saved_s))
    return tuple(found)


def _running(app: SimApp, now_s: float) -> list[Running]:
    return [Running(j.job_id, j.gpus, j.left_at(now_s), j.settled) for j in app.jobs if j.state in ACTIVE]


def _slowdown(app: SimApp, hosts: Collection[str], topology: Topology) -> float:
    s = app.slowdown(topology.scope_of(hosts))
    if app.trace.elastic:
        s /= len(hosts) * app.trace.efficiency(len(hosts)) / app.trace.gang_gpus
    return s / speed_of(app.speedups, hosts, topology) if app.trace.speedups else s


def rho(app: SimApp, c: Contention, ending: Set[Gpu], topology: Topology) -> float:
    """The app's rho without the GPUs in `ending`, as it reports it."""
    return offers.rho(work(app, c, topology), gangs(app, topology), app.held, ending, c.lease_s) * app.report.rho


def bid(app: SimApp, e: SendOffer, topology: Topology, restart_s: float) -> Bid:
    """The app's bid for an offer."""
    said = offers.bid_for(
        app.trace.app_id,
        work(app, e.contention, topology),
        gangs(app, topology),
        app.held,
        frozenset(e.ending),
        app.open,
        e.machines,
        {s: app.slowdown(s) for s in Scope if s <= app.trace.scope},
        topology,
        restart_s,
        e.contention.lease_s,
        app.speedups,
        app.trace.mixes,
        elastic(app, restart_s) if app.trace.elastic else None,
    )
    k = app.report.rho
    if k == 1.0:
        return said
    rows = tuple(replace(r, rho=r.rho * k) for r in said.rows)
    return Bid(said.app_id, said.rho_nothing * k, rows, said.restart_s)


def assign(app: SimApp, now_s: float, topology: Topology, restart_s: float) -> Composition:
    """The launches, growths and releases for the app's idle GPUs."""
    idle = [g for g in app.held if g not in app.job_at] if app.job_at else list(app.held)
    if not idle:
        return NOTHING
    waiting = {j.job_id: j.left for j in app.jobs if j.state == IDLE}
    if app.trace.elastic:
        stops = sum(j.state == STOPPING for j in app.jobs)
        mine = elastic(app, restart_s)
        return compose(idle, waiting, stops, _running(app, now_s), app.held, mine, app.trace.scope, topology)
    stopping = [j.gpus for j in app.jobs if j.state == STOPPING]
    return Composition(allocate(idle, waiting, stopping, app.held, app.trace.gang_gpus, app.trace.scope, topology))
