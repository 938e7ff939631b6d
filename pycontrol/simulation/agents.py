"""What a simulated Agent answers: rho, bids, and which jobs get the GPUs of a grant."""

from __future__ import annotations

from collections.abc import Mapping, Set

from pycontrol.auction.placing import place_gang
from pycontrol.fairness.bidding import Bidder, OwnGang, app_work, rho_of
from pycontrol.fairness.gangs import AppWork, Phase
from pycontrol.model.auction import Bid, BidRow, gang_of
from pycontrol.model.events import Contention, SendOffer
from pycontrol.model.topology import Gpu, Scope, Topology
from pycontrol.simulation.jobs import IDLE, PLANNED, RUNNING, STOPPING, SimApp, SimJob

ACTIVE = (PLANNED, RUNNING)


def work(app: SimApp, c: Contention) -> AppWork:
    """The app as its Agent's rho sees it."""
    phases = tuple(Phase(jobs) for jobs in app.phases_left(c.now_s) if jobs)
    widest = app.trace.demand_gpus // app.trace.gang_gpus
    left_gpu_s = app.left_gpu_s(c.now_s)
    said, report = left_gpu_s * app.report.work, app.report
    done = (app.total - left_gpu_s + said) * report.total - said
    elapsed_s = (c.now_s - c.submitted_s) * report.elapsed
    return app_work(phases, app.trace.gang_gpus, widest, c.cluster_gpus, c.n_avg, elapsed_s, done)


def counts(gpus: Set[Gpu] | tuple[Gpu, ...] | list[Gpu]) -> dict[str, int]:
    """GPUs by host."""
    result: dict[str, int] = {}
    for gpu in gpus:
        result[gpu.host] = result.get(gpu.host, 0) + 1
    return result


def slots(app: SimApp, ending: Set[Gpu], topology: Topology) -> list[float]:
    """Slowdowns of the gangs that it keeps whatever comes of the GPUs that end."""
    held = app.held
    stay = (j for j in app.jobs if j.state in ACTIVE and all(g in held and g not in ending for g in j.gpus))
    return [app.slowdown(topology.scope_of(g.host for g in j.gpus)) for j in stay]


def rho(app: SimApp, c: Contention, ending: Set[Gpu], topology: Topology) -> float:
    """rho with the GPUs that do not end; the projected one if there are none."""
    return rho_of(work(app, c), slots(app, ending, topology), c.lease_s) * app.report.rho


def bid(app: SimApp, e: SendOffer, topology: Topology, restart_s: float) -> Bid:
    """The Agent's one bid, by the code of the real one."""
    ending = frozenset(e.ending)
    gang = app.trace.gang_gpus
    kept_gpus = sum(g not in ending for g in app.held)
    own = [OwnGang(gang_of(counts(j.gpus)), app.slowdown(topology.scope_of(g.host for g in j.gpus)))
           for j in app.jobs if j.state in ACTIVE and ending.issuperset(j.gpus)]  # fmt: skip
    slowdowns: Mapping[Scope, float] = {s: app.slowdown(s) for s in Scope if s <= app.trace.scope}
    bidder = Bidder(
        work(app, e.contention),
        slots(app, ending, topology),
        own,
        e.machines,
        max(0, (app.open * gang - kept_gpus) // gang),
        slowdowns,
        topology,
        restart_s,
        e.contention.lease_s,
    )
    said = bidder.bid(app.trace.app_id)
    k = app.report.rho
    if k == 1.0:
        return said
    rows = tuple(BidRow(r.rho * k, r.keep, r.new_gangs, r.gang_gpus, r.scope) for r in said.rows)
    return Bid(said.app_id, said.rho_nothing * k, rows, said.restart_s)


def assign(app: SimApp, topology: Topology) -> tuple[list[tuple[SimJob, tuple[Gpu, ...]]], list[Gpu]]:
    """Free GPUs to waiting jobs, the longest first, whole gangs; and the GPUs that nobody can use."""
    idle = [g for g in app.held if g not in app.job_at] if app.job_at else list(app.held)
    if not idle:
        return [], []
    size = app.trace.gang_gpus
    waiting = [j for j in app.jobs if j.state == IDLE]
    if len(waiting) == 1 and len(idle) == size and topology.scope_of(g.host for g in idle) <= app.trace.scope:
        return [(waiting[0], tuple(sorted(idle)))], []
    waiting.sort(key=lambda j: -j.left)
    launches: list[tuple[SimJob, tuple[Gpu, ...]]] = []
    for job in waiting:
        gang = _gang(app, idle, topology)
        if gang is None:
            break
        idle = [g for g in idle if g not in gang]
        launches.append((job, gang))
    soon = sum(j.state == STOPPING and not all(g in app.held for g in j.gpus) for j in app.jobs)
    for _ in range(soon):
        kept = _gang(app, idle, topology) or ()
        idle = [g for g in idle if g not in kept]
    return launches, idle


def _gang(app: SimApp, idle: list[Gpu], topology: Topology) -> tuple[Gpu, ...] | None:
    place = place_gang(app.trace.gang_gpus, app.trace.scope, counts(idle), topology)
    if place is None:
        return None
    order = sorted(idle, key=lambda g: (app.held[g], g))
    return tuple(sorted(g for host, n in place for g in [x for x in order if x.host == host][:n]))
