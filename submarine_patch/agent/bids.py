"""From the app's work to rho and to a bid (Themis, sections 4.3 and 4.4)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pycontrol.fairness.gangs import AppWork, Phase, projected_rho, rho_with_gangs, t_id, t_sh
from pycontrol.model.topology import Scope, Topology
from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.agent.profiler import Profiler
from submarine_patch.agent.schedulers import RungScheduler

ROWS_MAX = 64


def work_left(
    scheduler: RungScheduler, steps: Mapping[str, int], profiler: Profiler, lease_s: float, done_gpu_s: float
) -> tuple[Phase, ...]:
    """The phases left; future ones at the median job's iteration time, as the paper does."""
    serial_s, until = profiler.serial_s(), scheduler.until_step()
    running = scheduler.runnable()
    if not until:
        # Only the script knows when it ends: as much again as was done, at least one lease of the gang.
        least = lease_s * max(1, scheduler.spec.gang_gpus)
        return (Phase((max(done_gpu_s, least),)),) if running else ()
    left = tuple(max(1, until - steps.get(j, 0)) * serial_s for j in running)
    median_s = statistics.median([serial_s] * max(1, len(running)))
    future = tuple(Phase((n * median_s,) * jobs) for jobs, n in scheduler.phases_left())
    return (Phase(left), *future) if left else future


def app_work(phases: tuple[Phase, ...], scheduler: RungScheduler, c: pb.Contention, done_gpu_s: float) -> AppWork:
    """The app as rho sees it now."""
    gang = max(1, scheduler.spec.gang_gpus)
    left = sum(sum(p.job_serial_s) for p in phases)
    t_id_s = t_id(done_gpu_s + left, c.cluster_gpus, scheduler.widest() * gang, max(1.0, c.n_avg))
    return AppWork(phases, gang, max(0.0, c.now_s - c.submitted_s), max(1e-3, t_id_s))


def rho_of(app: AppWork, slots: Sequence[float], lease_s: float) -> float:
    """rho with these gangs; the projected one with none."""
    return rho_with_gangs(app, slots) if slots else projected_rho(app, lease_s)


def make_bid(
    round_id: str,
    app: AppWork,
    kept: Sequence[float],
    ending: Sequence[tuple[pb.Gang, float]],
    offered_gpus: int,
    jobs: int,
    profiler: Profiler,
    lease_s: float,
    restart_s: float,
) -> pb.Bid:
    """The bid: keep k of the ending gangs (the fastest first), add q new ones, in each scope.

    `kept`: slowdowns of the gangs not on offer. A new gang costs a restart, spread over the app's gangs.
    Rows worth no more than nothing, and scopes that a wider one equals, are left out.
    """
    nothing = rho_of(app, kept, lease_s)
    by_speed = sorted(ending, key=lambda e: e[1])
    room = max(0, jobs - len(kept))
    scopes = [s for s in Scope if s is Scope.CLUSTER or profiler.slowdown(s) < profiler.slowdown(Scope(s + 1))]
    rows: list[pb.BidRow] = []
    for k in range(min(len(by_speed), room) + 1):
        held = [*kept, *(s for _, s in by_speed[:k])]
        for q in range(min(room - k, offered_gpus // app.gang_gpus) + 1):
            for scope in scopes if q else [Scope.MACHINE]:
                slots = [*held, *[profiler.slowdown(scope)] * q]
                if not (k or q):
                    continue
                cost_s = restart_s * q / len(slots)
                rho = (t_sh(app, slots) + cost_s) / app.t_id_s
                if rho < nothing:
                    row = pb.BidRow(rho=rho, new_gangs=q, gang_gpus=app.gang_gpus, scope=int(scope))
                    row.keep.extend(g for g, _ in by_speed[:k])
                    rows.append(row)
    rows.sort(key=lambda r: r.rho)
    if len(rows) > ROWS_MAX:  # spread over the whole range of sizes
        rows = [rows[i * len(rows) // ROWS_MAX] for i in range(ROWS_MAX)]
    return pb.Bid(round_id=round_id, rho_nothing=nothing, rows=rows)


def scope_of(hosts: Sequence[str], topology: Topology) -> Scope:
    """The scope that a gang on these hosts spans."""
    return topology.scope_of(hosts)
