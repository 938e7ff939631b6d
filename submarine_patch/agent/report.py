"""The Agent's reports to the Arbiter: demand, rho, bids and progress."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Set
from datetime import UTC, datetime

from pycontrol.agentlogic import offers
from pycontrol.agentlogic.gang_sizes import wanted_gpus
from pycontrol.agentlogic.offers import RunningGang
from pycontrol.fairness.bidding import app_work, mean_speed
from pycontrol.fairness.gang_rho import AppWork
from pycontrol.model.topology import Gpu, Scope
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent import bids, jobs
from submarine_patch.agent.agent_state import SavedState, gpus_in
from submarine_patch.agent.app_leases import growing
from submarine_patch.agent.gangs import UNSAVED
from submarine_patch.agent.jobs import Job, Worker
from submarine_patch.agent.spec import CELL_TYPES, WITHIN
from submarine_patch.worker.logparse import ITERATION_MAX_S, STEP_MAX

PROGRESS_S = 1.0
LOSS_MAX = 1e100
"""A larger loss counts as diverged; the square of this one is still finite."""
ITERATION_MIN_S = 1e-9
RATE_MAX = 1e12
"""Upper bound of `loss_rate`, against losses that fall from a diverged value such as 1e100."""
NOTES_TOLD = 20
UNSEEN_S = 60.0
"""How long a job may run without reporting any progress, or report it without the app's metric, before its user is
told."""
HANG_S = 300.0
"""How long the workers of a gang may live and make no step before that is told."""
JOBS_TOLD = 2000
"""The most jobs in a report, which the Arbiter reads at most: the active ones first, then the newest."""
REPORT_BYTES = 500 << 10
"""The Arbiter ends the stream of an Agent with a larger report than 512 KiB."""


def done_gpu_s(s: SavedState) -> float:
    """Serial GPU-seconds of all steps done."""
    return sum(j.step * s.profiler.serial_s(j.job_id) for j in s.jobs.values())


def work(s: SavedState, c: pb.Contention) -> AppWork:
    """The app's work, as `AppWork` for rho."""
    done, gang = done_gpu_s(s), s.spec.gang_gpus
    phases = bids.work_left(s.scheduler, s.profile(), s.spec.job_gpu_s, c.lease_s * gang, done)
    speed = mean_speed(s.speeds.vector(), s.topology)
    elapsed_s, widest = c.now_s - c.submitted_s, s.scheduler.widest()
    return app_work(phases, gang, widest, c.cluster_gpus, c.n_avg, elapsed_s, done, speed, s.spec.job_gpus_max)


def demand(s: SavedState) -> pb.Demand:
    """The app's present demand."""
    runnable = len(s.scheduler.runnable()) if s.ending is None else 0
    trial = s.speeds.trial()
    done, elastic = done_gpu_s(s), s.elastic()
    left = work(s, s.contention).left_gpu_s if runnable else 0.0
    return pb.Demand(
        gang_gpus=s.spec.gang_gpus,
        gangs=min(1, runnable) if trial else _gangs(s, runnable),
        job_demand_max=s.spec.gang_gpus if elastic is None else elastic.sizes[-1],
        work_left_gpu_s=left,
        work_total_gpu_s=done + left,
        work_done_gpu_s=done,
        paced=s.spec.iteration_s is not None and bool(s.virtual),
        slowdown=list(s.profiler.slowdowns().values()),
        loss_rate=loss_rate(s),
        speedups=s.speeds.vector(),
        gpu_type=s.speeds.requested_type(),
        scope=bids.SCOPES[s.spec.scope],
        within=next((x for x in (s.spec.within, s.spec.segments[1]) if x in CELL_TYPES), ""),
        segments=s.spec.segments[0],
        segment_scope=bids.SCOPES[WITHIN[s.spec.segments[1]]],
        pinned=s.spec.pinned,
        opportunistic=s.spec.opportunistic,
        lazy_preemption=s.spec.lazy_preemption,
        mixes=s.spec.mix_types,
        unsaved=s.spec.unsaved or any(j.note == UNSAVED for j in s.jobs.values()),
    )


def _gangs(s: SavedState, runnable: int) -> int:
    """The gangs that the app could use now; for elastic jobs, in gangs of the smallest size."""
    elastic = s.elastic()
    if elastic is None or not runnable:
        return runnable
    under_way = growing(s)
    return wanted_gpus(max(0, runnable - len(under_way)), under_way, elastic, s.topology) // s.spec.gang_gpus


def loss_rate(s: SavedState) -> float:
    """Decrease of the loss per serial GPU-second, averaged over the active jobs; 0 if unknown.

    Per job it is the slope of the least-squares line through its newest losses (SLAQ uses the newest decrease).
    """
    rates = []
    for job in s.jobs.values():
        if job.active and len({step for step, _ in job.losses}) > 1:
            steps, losses = zip(*job.losses, strict=True)
            rates.append(-statistics.linear_regression(steps, losses).slope / s.profiler.serial_s(job.job_id))
    return min(RATE_MAX, max(0.0, statistics.fmean(rates))) if rates else 0.0


def stepwise_left_gpu_s(s: SavedState) -> float | None:
    """Serial GPU-seconds left by the steps that scripts say; None where that is not known, or declared steps say it."""
    ids = s.scheduler.runnable() if s.ending is None else []
    mine = [s.jobs[j] for j in ids if j in s.jobs and s.jobs[j].said_step and s.jobs[j].step_gpu_s]
    if not ids or len(mine) < len(ids) or any(s.scheduler.until_step(j) for j in ids):
        return None
    return sum(max(0, j.said_step - j.step) * j.step_gpu_s for j in mine)


def gangs(s: SavedState) -> list[RunningGang]:
    """The app's active gangs; `known` are those that the Arbiter knew as their job's when the round began."""
    found = []
    for j in (j for j in s.jobs.values() if j.active):
        slowdown = s.profiler.slowdown(s.scope_of(j)) / s.speeds.of(s.types_of(j)) / _size(s, j)
        found.append(RunningGang(tuple(j.gpus), slowdown, j.job_id in s.on_offer and _known(j)))
    return found


def _size(s: SavedState, job: Job) -> float:
    """The speed of the job's gang, relative to a gang of the smallest size."""
    gpus = len(job.gpus)
    return gpus * s.scaling.of(gpus) / s.spec.gang_gpus if s.spec.elastic else 1.0


def rho(s: SavedState, c: pb.Contention, ending: Set[Gpu] = frozenset()) -> float:
    """rho with the held GPUs other than `ending`; a projected rho if none are left."""
    return offers.rho(work(s, c), gangs(s), s.held, ending, c.lease_s)


def ask_rho(s: SavedState, m: pb.AskRho) -> None:
    """Handle AskRho, the begin of a round: answer with rho and the demand."""
    s.contention = m.contention
    s.on_offer = frozenset(j.job_id for j in s.jobs.values() if _known(j))
    left = work(s, m.contention)
    now = offers.rho(left, gangs(s), s.held, gpus_in(m.ending), m.contention.lease_s)
    ids = s.scheduler.runnable() if s.ending is None and left.phases else []
    phases = [bids.phase_left(p) for p in left.phases]
    ids = ids if left.phases and len(ids) == len(left.phases[0].job_serial_s) <= JOBS_TOLD else []
    s.send(rho=pb.Rho(round_id=m.round_id, rho=now, demand=demand(s), phases=phases, job_ids=ids))


def _known(job: Job) -> bool:
    """Whether the Arbiter knows the gang as this job's."""
    return job.active and job.state != jobs.STOPPING and (job.use_accepted or job.state == jobs.RUNNING)


def offer(s: SavedState, m: pb.Offer) -> None:
    """Handle Offer: answer with one bid."""
    s.contention = m.contention
    gpu_type = s.speeds.requested_type()
    bid = offers.bid_for(
        s.spec.app_id,
        work(s, m.contention),
        gangs(s),
        s.held,
        gpus_in(m.ending),
        len(s.scheduler.runnable()) if s.ending is None else 0,
        {x.host: x.gpus for x in m.machines if not gpu_type or s.type_of(x.host) == gpu_type},
        {scope: s.profiler.slowdown(scope) for scope in Scope if scope <= s.spec.scope},
        s.topology,
        s.restart_s,
        m.contention.lease_s,
        s.speeds.vector(),
        s.spec.mix_types,
        s.elastic(),
    )
    s.send(bid=bids.message(bid, m.round_id))


# ---- progress


def progress(s: SavedState) -> pb.Progress:
    """The progress report: the demand, rho, and the state of up to JOBS_TOLD jobs; if it were larger than REPORT_BYTES,
    the oldest that are not active go without their configurations."""
    now = rho(s, s.contention) if s.ending is None else 0.0
    told = list(s.jobs.values())
    if len(told) > JOBS_TOLD:
        told = sorted(told, key=lambda j: j.active)[-JOBS_TOLD:]
    rows = [_job(s, j) for j in told]
    for row in [r for r in rows if r.note][NOTES_TOLD:]:
        row.note = ""
    left = stepwise_left_gpu_s(s)
    found = pb.Progress(
        demand=demand(s), jobs=rows, rho=now, metric=s.spec.metric, links=links(s), stepwise_left_gpu_s=left
    )
    beyond = found.ByteSize() - REPORT_BYTES
    for row in sorted(found.jobs, key=lambda row: row.gpus > 0):
        if beyond > 0:
            beyond -= row.ByteSize()
            row.ClearField("configuration")
            beyond += row.ByteSize()
    return found


def links(s: SavedState) -> list[pb.Link]:
    """TensorBoard below YARN's proxy, and what the user named; worker-N (and master-0, the first) of the first gang."""
    found = [pb.Link(label="TensorBoard", url=f"/proxy/{s.spec.app_id}/tensorboard/")] if s.board_port else []
    hosts = next((j.hosts for j in s.jobs.values() if j.active), [])
    for label, scheme, host, port in s.spec.quicklinks:
        role = re.fullmatch(r"(?:worker|master)-(\d+)", host)
        if role is None:
            found.append(pb.Link(label=label, url=f"{scheme}{host}:{port}"))
        elif int(role[1]) < len(hosts):
            found.append(pb.Link(label=label, url=f"{scheme}{hosts[int(role[1])]}:{port}"))
    return found


def _job(s: SavedState, job: Job) -> pb.JobProgress:
    scope = s.scope_of(job) if job.active else Scope.MACHINE
    return pb.JobProgress(
        job_id=job.job_id,
        state=job.state,
        configuration=job.configuration,
        step=job.step,
        loss=job.loss,
        accuracy=job.accuracy,
        iter_time_s=job.iter_time_s,
        slowdown=s.profiler.slowdown(scope),
        gpus=len(job.gpus),
        rung=job.rung,
        launches=job.launches,
        worker_failures=job.failures,
        metric=finite(job.value),
        until_step=job.until_step or s.scheduler.until_step(job.job_id) or job.said_step,
        note=_note(s, job),
        checkpoints_failed=job.checkpoints_failed,
        lost_steps=job.lost_steps,
        lost_gpu_s=job.lost_gpu_s,
        hangs=bool(job.hangs),
    )


def _note(s: SavedState, job: Job) -> str:
    """The note that the user should see, the most urgent one first."""
    if job.hangs:
        return job.hangs
    if job.checkpoint_problem:
        return f"its newest checkpoint failed, a revocation would cost what it learnt since: {job.checkpoint_problem}"
    if s.token_told and job.active:
        ends = datetime.fromtimestamp(s.token_ends_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
        return f"the app's HDFS token ends at {ends}: no checkpoint can be written after that"
    return job.note or job.missing or s.board_problem


def unseen(s: SavedState, job: Job) -> str:
    """What the job's log has not shown so far; a metric only if it matters: named by the user, or several jobs."""
    matters = not job.reports or s.spec.metric != "accuracy" or len(s.jobs) > 1
    return job.unseen(s.spec.metric) if matters else ""


def note_unseen(s: SavedState, job: Job, now_s: float) -> None:
    """Note for the user what a running job's log should have shown by now."""
    missing = unseen(s, job)
    if missing and missing != job.missing:
        due_s = (job.first_step_s if job.reports else job.since_s) + UNSEEN_S
        missing = missing if job.state == jobs.RUNNING and now_s >= due_s else ""
    if missing != job.missing:
        job.missing, s.report_due = missing, True


def reading(p: pb.WorkerProgress) -> pb.WorkerProgress | None:
    """The progress with implausible times and accuracy set to 0; None if the step is impossible.

    A diverged loss or metric is a real result of the job, so it stays: the loss as infinity or NaN, the metric as NaN.
    """
    if not 0 <= p.step <= STEP_MAX:
        return None
    timed = ITERATION_MIN_S <= p.iter_time_s <= ITERATION_MAX_S
    return pb.WorkerProgress(
        step=p.step,
        loss=p.loss if math.isnan(p.loss) or abs(p.loss) <= LOSS_MAX else math.copysign(math.inf, p.loss),
        accuracy=p.accuracy if abs(p.accuracy) <= LOSS_MAX else 0.0,
        iter_time_s=p.iter_time_s if timed else 0.0,
        paced=p.paced,
        time_s=p.time_s,
        until_step=p.until_step if p.step <= p.until_step <= STEP_MAX else 0,
        metric=(p.metric if abs(p.metric) <= LOSS_MAX else math.nan) if p.HasField("metric") else None,
    )


def stepped(job: Job, worker: Worker, step: int, now_s: float) -> None:
    """Note a step that a worker reported, and how long none of its gang did."""
    if step != worker.step:
        last_s = max(w.stepped_s for w in job.workers)
        job.pause_s = max(job.pause_s, now_s - last_s) if last_s else job.pause_s
        worker.step, worker.stepped_s = step, now_s


def note_hang(s: SavedState, job: Job, now_s: float) -> None:
    """Note for user and operator that a gang whose workers all live makes no more steps, and which rank is behind.

    Workers that wait in a collective operation for another one are ahead of it, or at the same step. A job that pauses
    long by itself, as between epochs, has twice its longest pause.
    """
    last_s = max((w.stepped_s for w in job.workers), default=0.0)
    due_s = last_s + max(HANG_S, 2 * job.pause_s)
    hangs = _hangs(job, now_s - last_s) if job.state == jobs.RUNNING and last_s and now_s >= due_s else ""
    if bool(hangs) != bool(job.hangs):
        job.hangs, s.report_due = hangs, True
        if hangs:
            s.notify("hangs", now_s, job=job.job_id, reason=hangs)


def _hangs(job: Job, for_s: float) -> str:
    seen = [(w.step, rank, w) for rank, w in enumerate(job.workers) if w.stepped_s]
    step, rank, worker = min(seen, key=lambda x: x[:2])
    most = max(seen, key=lambda x: x[:2])[0]
    said = f"no step for {for_s / 60:.0f} min, though all its workers live: "
    if len(job.workers) > 1 and step == most:
        silent = [f"rank {k} on {w.host}" for k, w in enumerate(job.workers) if not w.stepped_s]
        unseen = f"; {', '.join(silent[:3])} showed none" if silent else ", each waits for another"
        return f"{said}the ranks that report are at step {step}{unseen}"
    return f"{said}rank {rank} on {worker.host} hangs at step {step}" + (
        f", others are at {most}" if most > step else ""
    )


def finite(value: float) -> float | None:
    """The value, or None if it is not finite."""
    return value if math.isfinite(value) else None


def tell(s: SavedState, now_s: float, at_once: bool = False) -> None:
    """Send progress if something changed, at most once per PROGRESS_S unless `at_once`; also the fraction done, for
    YARN's pages."""
    if s.done_sent or not (s.report_due and s.registered and (at_once or now_s >= s.report_from_s)):
        return
    s.report_due, s.report_from_s = False, now_s + PROGRESS_S
    message = progress(s)
    s.send(progress=message)
    done = message.demand.work_done_gpu_s
    stepwise = message.HasField("stepwise_left_gpu_s")
    total = done + message.stepwise_left_gpu_s if stepwise else message.demand.work_total_gpu_s
    fraction = done / total if total else 0.0
    if abs(fraction - s.reported_fraction) >= 0.01:
        s.reported_fraction = fraction
        s.shell(progress=am.AmProgress(fraction=fraction))
