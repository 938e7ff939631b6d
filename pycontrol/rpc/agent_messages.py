"""Translates between the messages of agent.proto and the Arbiter's events and effects. Pure.

Agents are not trusted, so every number and size is checked here. Meaningful values are clipped to bounds that all
policies can handle; others raise Malformed, which costs only their own app the message or the stream.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from pycontrol.fairness.plausible import alike
from pycontrol.model.auction import (
    SEGMENTS_MAX,
    SLOWDOWN_PRIOR,
    Bid,
    BidRow,
    Demand,
    Gang,
    HeldGrant,
    gang_of,
    segments,
)
from pycontrol.model.bounds import COUNT_MAX, DURATION_S, METRIC, SLOWDOWN, SPEEDUP, WORK_GPU_S
from pycontrol.model.events import (
    AgentDone,
    AgentEffect,
    AgentUp,
    BidReceived,
    Event,
    GpusReleased,
    JobProgress,
    ProgressReported,
    RhoReported,
    SendAskRho,
    SendFinish,
    SendGrant,
    SendHosts,
    SendOffer,
    SendRegistered,
    SendRevoke,
    SendUseReply,
    UsePlanned,
    WorkerPlan,
)
from pycontrol.model.topology import Gpu, Scope, Topology
from pycontrol.rpc.message_checks import (
    DEMAND_MAX,
    ID_MAX_CHARS,
    JOBS_MAX,
    ROWS_MAX,
    TEXT_MAX_CHARS,
    WORKERS_MAX,
    Malformed,
    a_count,
    a_number,
    a_rho,
    a_step,
    an_id,
    few,
    finite,
    maybe,
    positive_rho,
    small_enough,
    texts,
    up_to,
)
from pycontrol.wire.fields import filled
from pycontrol.wire.v1 import agent_pb2 as pb

# ---- Agent to Arbiter

LINKS_MAX = 20
LINK = re.compile(r"https?://[^\s\"'<>]+|/proxy/application_[0-9_]+/tensorboard/")
"""Link targets that are allowed on an app's page."""


def demand_of(message: pb.Demand) -> Demand:
    """The app's demand; raises Malformed."""
    gangs = a_count(message.gangs, "demand.gangs")
    gang_gpus = a_count(message.gang_gpus, "demand.gang_gpus", least=1 if gangs else 0)
    within = an_id(message.within, "demand.within", required=False)
    pinned = an_id(message.pinned, "demand.pinned", required=False)
    if pinned and message.opportunistic:
        raise Malformed("demand: an opportunistic app cannot ask for a pinned cell")
    scope, parts = _scope(message.scope, "demand"), message.segments
    place = _scope(message.segment_scope, "demand.segment")
    in_racks = bool(within) and place is not Scope.MACHINE
    if parts > SEGMENTS_MAX or (parts and (gang_gpus % parts or in_racks or message.job_demand_max > gang_gpus)):
        raise Malformed(f"demand.segments is {parts}: must divide the {gang_gpus} GPUs of gangs of one size")
    return Demand(
        gang_gpus=up_to(gang_gpus, DEMAND_MAX),
        gangs=up_to(gangs, DEMAND_MAX),
        job_demand_max=up_to(a_count(message.job_demand_max, "demand.job_demand_max"), DEMAND_MAX),
        work_left_gpu_s=a_number(message.work_left_gpu_s, "demand.work_left_gpu_s"),
        work_total_gpu_s=a_number(message.work_total_gpu_s, "demand.work_total_gpu_s"),
        work_done_gpu_s=a_number(message.work_done_gpu_s, "demand.work_done_gpu_s"),
        paced=message.paced,
        slowdown=_slowdown(message.slowdown),
        loss_rate=a_number(message.loss_rate, "demand.loss_rate"),
        speedups=_speedups(message.speedups),
        gpu_type=an_id(message.gpu_type, "demand.gpu_type", required=False),
        scope=Scope.MACHINE if within and not parts else scope,
        within=within,
        pinned=pinned,
        opportunistic=message.opportunistic,
        lazy=message.lazy_preemption,
        mixes=message.mixes,
        unsaved=message.unsaved,
        members=segments(gang_gpus, parts, place),
    )


def _slowdown(values: Sequence[float]) -> tuple[float, float, float]:
    if not values:
        return SLOWDOWN_PRIOR
    if len(values) != len(SLOWDOWN_PRIOR) or not all(math.isfinite(v) and v >= 1 for v in values):
        raise Malformed(f"demand.slowdown is {list(values)[:4]}, it must be three numbers of at least 1")
    first, second, third = map(SLOWDOWN.clip, values)
    return first, second, third


def _speedups(values: Mapping[str, float]) -> dict[str, float]:
    few(values, "demand.speedups", 64)
    for gpu_type, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise Malformed(f"demand.speedups of {gpu_type[:64]!r} is {value}, it must be a positive number")
    return {an_id(k, "demand.speedups"): SPEEDUP.clip(v) for k, v in values.items()}


def gpus_of(message: Iterable[pb.MachineGpuIds], what: str = "gpus") -> tuple[Gpu, ...]:
    """GPU ids by machine as sorted, unique GPUs; raises Malformed."""
    found: set[Gpu] = set()
    for machine in message:
        host = an_id(machine.host, f"{what}.host")
        for index in machine.gpu_ids:
            gpu = Gpu(host, a_count(index, f"{what}.gpu_ids"))
            if gpu in found:
                raise Malformed(f"{what} names {gpu} twice")
            found.add(gpu)
    return tuple(sorted(found))


def agent_up(app_id: str, user: str, message: pb.Register) -> AgentUp:
    """Register, from an Agent whose token is `app_id`'s and was issued to `user`."""
    small_enough(message, "register")
    return AgentUp(
        app_id=app_id,
        attempt_id=an_id(message.attempt_id, "register.attempt_id", required=False),
        app_scheduler=an_id(message.app_scheduler, "register.app_scheduler", required=False),
        demand=demand_of(message.demand),
        grant_ids=tuple(an_id(g, "register.grant_ids") for g in message.grant_ids),
        user=user,
    )


def bid_received(app_id: str, message: pb.Bid, hosts: Container[str]) -> BidReceived:
    """Bid, with `bid` None and the problem where it is malformed; `hosts` are the cluster's."""
    try:
        round_id = an_id(message.round_id, "bid.round_id", required=False)
        return BidReceived(app_id, round_id, _bid(app_id, message, hosts))
    except Malformed as e:
        return BidReceived(app_id, message.round_id[:ID_MAX_CHARS], None, str(e))


def _bid(app_id: str, message: pb.Bid, hosts: Container[str]) -> Bid:
    few(message.rows, "bid.rows", ROWS_MAX)
    nothing = positive_rho(message.rho_nothing, "bid.rho_nothing")
    rows = tuple(_row(row, f"bid.rows[{i}]", hosts) for i, row in enumerate(message.rows))
    restart_s = message.restart_s if DURATION_S.holds(message.restart_s) else 0.0
    return Bid(app_id, nothing, rows, restart_s)


def _row(message: pb.BidRow, what: str, hosts: Container[str]) -> BidRow:
    rho = positive_rho(message.rho, f"{what}.rho")
    few(message.keep, f"{what}.keep", ROWS_MAX)
    new_gangs = a_count(message.new_gangs, f"{what}.new_gangs")
    gang_gpus = a_count(message.gang_gpus, f"{what}.gang_gpus", least=1 if new_gangs else 0)
    a_count(new_gangs * gang_gpus, f"{what}: new_gangs x gang_gpus")
    keep = tuple(_gang(gang, f"{what}.keep", hosts) for gang in message.keep)
    if not keep and not new_gangs:
        raise Malformed(f"{what} asks for nothing")
    gpu_type = an_id(message.gpu_type, f"{what}.gpu_type", required=False)
    return BidRow(rho, keep, new_gangs, max(1, gang_gpus), _scope(message.scope, what), gpu_type, message.mixes)


def _scope(value: int, what: str) -> Scope:
    if value == pb.SCOPE_UNSPECIFIED:
        return Scope.CLUSTER
    try:
        return Scope(value)
    except ValueError:
        raise Malformed(f"{what}.scope is {value}, which is not a scope") from None


def _gang(message: pb.Gang, what: str, hosts: Container[str]) -> Gang:
    gpus: dict[str, int] = {}
    for machine in message.machines:
        if machine.host not in hosts:
            raise Malformed(f"{what} names the unknown host {machine.host[:ID_MAX_CHARS]!r}")
        if machine.host in gpus:
            raise Malformed(f"{what} names {machine.host} twice")
        gpus[machine.host] = a_count(machine.gpus, f"{what}.gpus", least=1)
    if not gpus:
        raise Malformed(f"{what} has an empty gang")
    return gang_of(gpus)


def phases_of(message: Sequence[pb.PhaseLeft]) -> tuple[tuple[float, ...], ...]:
    """The work left by phase and job; raises Malformed."""
    a_count(sum(same.jobs for phase in message for same in phase.jobs), "rho.phases: jobs", most=DEMAND_MAX)
    return tuple(
        tuple(left for same in phase.jobs for left in [a_number(same.serial_s, "rho.phases.serial_s")] * same.jobs)
        for phase in message
    )


def use_planned(app_id: str, message: pb.Use) -> UsePlanned:
    """Use: whole gangs on GPUs that the Arbiter will check against the leases."""
    few(message.workers, "use.workers", WORKERS_MAX)
    use_id = an_id(message.use_id, "use.use_id")
    workers = tuple(_worker(w) for w in message.workers)
    if len({w.worker_id for w in workers}) != len(workers):
        raise Malformed("use names a worker twice")
    return UsePlanned(app_id, use_id, workers)


def _worker(message: pb.WorkerPlan) -> WorkerPlan:
    worker_id = an_id(message.worker_id, "use.worker_id")
    if not message.gpu_ids:
        raise Malformed(f"use: worker {worker_id} has no GPU")
    machine = pb.MachineGpuIds(host=message.host, gpu_ids=message.gpu_ids)
    return WorkerPlan(
        worker_id=worker_id,
        job_id=an_id(message.job_id, "use.job_id"),
        gpus=gpus_of([machine], f"use: worker {worker_id}"),
        allocation_request_id=message.allocation_request_id,
        container_id=an_id(message.container_id, "use.container_id", required=False),
    )


def links_of(messages: Sequence[pb.Link]) -> tuple[tuple[str, str], ...]:
    """The links to web addresses or below YARN's proxy; others are left out."""
    found = ((m.label[:ID_MAX_CHARS], m.url[:TEXT_MAX_CHARS]) for m in messages[:LINKS_MAX])
    return tuple((label, url) for label, url in found if label and LINK.fullmatch(url))


def job_progress(message: pb.JobProgress) -> JobProgress:
    """A job's progress; a loss that is NaN or infinite has diverged and counts as the greatest."""
    return JobProgress(
        job_id=an_id(message.job_id, "progress.job_id"),
        state=an_id(message.state, "progress.state", required=False),
        step=a_step(message.step),
        loss=METRIC.clip(message.loss) if math.isfinite(message.loss) else METRIC.high,
        accuracy=finite(message.accuracy),
        iter_time_s=a_number(message.iter_time_s, "progress.iter_time_s", infinite=True),
        slowdown=min(SLOWDOWN.high, message.slowdown) if message.slowdown >= 0 else SLOWDOWN.high,
        gpus=a_count(message.gpus, "progress.gpus"),
        rung=up_to(message.rung, COUNT_MAX),
        launches=up_to(message.launches, COUNT_MAX),
        worker_failures=up_to(message.worker_failures, COUNT_MAX),
        configuration=texts(message.configuration),
        metric=maybe(message.metric, message.HasField("metric")),
        until_step=a_step(max(0, message.until_step)),
        note=message.note[:TEXT_MAX_CHARS],
        checkpoints_failed=up_to(message.checkpoints_failed, COUNT_MAX),
        lost_steps=a_step(max(0, message.lost_steps)),
        lost_gpu_s=WORK_GPU_S.clip(finite(message.lost_gpu_s)),
        hangs=message.hangs,
    )


def agent_done(app_id: str, message: pb.Done) -> AgentDone:
    """Done. It is an app's last message, so malformed numbers count as 0 and do not reject it."""
    return AgentDone(
        app_id=app_id,
        succeeded=message.succeeded,
        message=message.message[:TEXT_MAX_CHARS],
        best_job_id=message.best_job_id[:ID_MAX_CHARS],
        best_configuration=texts(message.best_configuration),
        best_accuracy=finite(message.best_accuracy),
        work_done_gpu_s=WORK_GPU_S.clip(finite(message.work_done_gpu_s)),
        model_path=message.model_path[:TEXT_MAX_CHARS],
        metric=message.metric[:ID_MAX_CHARS],
        best_metric=maybe(message.best_metric, message.HasField("best_metric")),
    )


def event_of(app_id: str, message: pb.AgentMessage, hosts: Container[str]) -> Event | None:
    """The event of an Agent's message after Register; None for kinds that are no event. Raises Malformed."""
    kind = message.WhichOneof("kind")
    if kind == "bid":
        return bid_received(app_id, message.bid, hosts)
    small_enough(message, kind)
    match kind:
        case "rho":
            rho = message.rho
            round_id = an_id(rho.round_id, "rho.round_id")
            demand = demand_of(rho.demand)
            phases = phases_of(rho.phases) or alike(demand)
            few(rho.job_ids, "rho.job_ids", JOBS_MAX)
            ids = tuple(an_id(j, "rho.job_ids") for j in rho.job_ids)
            return RhoReported(app_id, round_id, a_rho(rho.rho, "rho.rho"), demand, phases, ids)
        case "use":
            return use_planned(app_id, message.use)
        case "released":
            gpus = frozenset(gpus_of(message.released.gpus, "released.gpus"))
            return GpusReleased(app_id, gpus)
        case "progress":
            progress = message.progress
            few(progress.jobs, "progress.jobs", JOBS_MAX)
            jobs = tuple(job_progress(j) for j in progress.jobs)
            rho_now = a_rho(progress.rho, "progress.rho")
            links = links_of(progress.links)
            left = WORK_GPU_S.clip(finite(progress.stepwise_left_gpu_s))
            known = left if progress.HasField("stepwise_left_gpu_s") else None
            return ProgressReported(app_id, demand_of(progress.demand), jobs, rho_now, links, (), known)
        case "done":
            return agent_done(app_id, message.done)
        case "register":
            raise Malformed("Register may come only once in a stream")
    return None


# ---- Arbiter to Agent


def machine_gpu_ids(gpus: Iterable[Gpu]) -> list[pb.MachineGpuIds]:
    """GPUs by machine, hosts and ids in order."""
    by_host: dict[str, list[int]] = {}
    for gpu in sorted(gpus):
        by_host.setdefault(gpu.host, []).append(gpu.index)
    return [pb.MachineGpuIds(host=host, gpu_ids=ids) for host, ids in by_host.items()]


def grant(value: HeldGrant, *about: SendGrant) -> pb.Grant:
    """A lease for each GPU of a grant."""
    return filled(pb.Grant, value, *about, gpus=machine_gpu_ids(value.gpus))


def hosts_of(topology: Topology) -> list[pb.Host]:
    """The cluster's machines, in host order."""
    return [filled(pb.Host, m, virtual_gpus=m.virtual) for m in topology.machines.values()]


def message_of(effect: AgentEffect, hosts: Callable[[], Sequence[pb.Host]]) -> pb.ArbiterMessage:
    """An effect as the message to its Agent; `hosts`: the cluster's machines, where it tells them."""
    match effect:
        case SendRegistered():
            grants = [grant(g) for g in effect.grants]
            known = filled(pb.Contention, effect.contention)
            registered = pb.Registered(contention=known, hosts=hosts(), grants=grants)
            return pb.ArbiterMessage(registered=registered)
        case SendHosts():
            return pb.ArbiterMessage(hosts=pb.Hosts(hosts=hosts()))
        case SendAskRho():
            known, ending = filled(pb.Contention, effect.contention), machine_gpu_ids(effect.ending)
            return pb.ArbiterMessage(ask_rho=filled(pb.AskRho, effect, contention=known, ending=ending))
        case SendOffer():
            known, ending = filled(pb.Contention, effect.contention), machine_gpu_ids(effect.ending)
            machines = [pb.MachineGpus(host=h, gpus=n) for h, n in sorted(effect.machines.items()) if n]
            offer = filled(pb.Offer, effect, contention=known, machines=machines, ending=ending)
            return pb.ArbiterMessage(offer=offer)
        case SendGrant():
            return pb.ArbiterMessage(grant=grant(effect.grant, effect))
        case SendRevoke():
            return pb.ArbiterMessage(revoke=filled(pb.Revoke, effect, gpus=machine_gpu_ids(effect.gpus)))
        case SendUseReply():
            return use_reply(effect.use_id, effect.accepted, effect.reason)
        case SendFinish():
            return pb.ArbiterMessage(finish=filled(pb.Finish, effect))


def use_reply(use_id: str, accepted: bool, reason: str) -> pb.ArbiterMessage:
    """The reply to a Use: whether it is within the app's leases."""
    reply = pb.UseReply(use_id=use_id[:ID_MAX_CHARS], accepted=accepted, reason=reason)
    return pb.ArbiterMessage(use_reply=reply)
