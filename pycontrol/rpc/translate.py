"""Between the messages of agent.proto and the Arbiter's events and effects. Pure.

An Agent is not trusted: every number and size is checked here, and what cannot be read is Malformed.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence

from pycontrol.model.auction import SLOWDOWN_PRIOR, Bid, BidRow, Demand, Gang, gang_of
from pycontrol.model.events import (
    AgentDone,
    AgentEffect,
    AgentUp,
    BidReceived,
    Contention,
    Event,
    GpusReleased,
    HeldGrant,
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
from pycontrol.wire.v1 import agent_pb2 as pb

ID_MAX_CHARS = 256
TEXT_MAX_CHARS = 4096
GPUS_MAX = 1 << 20
"""More GPUs, gangs or jobs than any cluster or app has."""
ROWS_MAX = 4096
JOBS_MAX = 8192
WORKERS_MAX = 8192
RHO_MAX = 1e12
RESTART_MAX_S = 1e9
"""What an infinite rho (an app that would never end) counts as."""
GPU_INDEX_MAX = 1023


class Malformed(Exception):
    """A message that cannot be read; says which field and why."""


# ---- checks


def _id(value: str, what: str, required: bool = True) -> str:
    if required and not value:
        raise Malformed(f"{what} is empty")
    if len(value) > ID_MAX_CHARS:
        raise Malformed(f"{what} is longer than {ID_MAX_CHARS} characters")
    return value


def _count(value: int, what: str, least: int = 0, most: int = GPUS_MAX) -> int:
    if not least <= value <= most:
        raise Malformed(f"{what} is {value}, not within {least} and {most}")
    return value


def _number(value: float, what: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise Malformed(f"{what} is {value}, not a number >= 0")
    return value


def _rho(value: float, what: str) -> float:
    if math.isnan(value) or value < 0:
        raise Malformed(f"{what} is {value}, not a number >= 0")
    return min(value, RHO_MAX)


def _positive_rho(value: float, what: str) -> float:
    if not value > 0:
        raise Malformed(f"{what} is {value}, not a number > 0")
    return min(value, RHO_MAX)


def _length(values: Sequence[object], what: str, most: int) -> None:
    if len(values) > most:
        raise Malformed(f"{what} has {len(values)} entries, at most {most} are read")


def _finite_or(value: float, otherwise: float) -> float:
    return value if math.isfinite(value) else otherwise


def _texts(values: Mapping[str, str]) -> dict[str, str]:
    _length(list(values), "configuration", 1024)
    return {k[:ID_MAX_CHARS]: v[:TEXT_MAX_CHARS] for k, v in values.items()}


# ---- Agent to Arbiter


def demand_of(message: pb.Demand) -> Demand:
    """What an app could use now."""
    gangs = _count(message.gangs, "demand.gangs")
    return Demand(
        gang_gpus=_count(message.gang_gpus, "demand.gang_gpus", least=1 if gangs else 0),
        gangs=gangs,
        job_demand_max=_count(message.job_demand_max, "demand.job_demand_max"),
        work_left_gpu_s=_number(message.work_left_gpu_s, "demand.work_left_gpu_s"),
        work_total_gpu_s=_number(message.work_total_gpu_s, "demand.work_total_gpu_s"),
        work_done_gpu_s=_number(message.work_done_gpu_s, "demand.work_done_gpu_s"),
        paced=message.paced,
        slowdown=_slowdown(message.slowdown),
        loss_rate=_number(message.loss_rate, "demand.loss_rate"),
        speedups=_speedups(message.speedups),
        gpu_type=message.gpu_type[:ID_MAX_CHARS],
    )


def _slowdown(values: Sequence[float]) -> tuple[float, float, float]:
    if not values:
        return SLOWDOWN_PRIOR
    if len(values) != len(SLOWDOWN_PRIOR) or not all(math.isfinite(v) and v >= 1 for v in values):
        raise Malformed(f"demand.slowdown is {list(values)}, it must be three numbers of at least 1")
    return values[0], values[1], values[2]


def _speedups(values: Mapping[str, float]) -> dict[str, float]:
    _length(list(values), "demand.speedups", 64)
    for gpu_type, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise Malformed(f"demand.speedups of {gpu_type} is {value}, it must be a positive number")
    return dict(values)


def gpus_of(message: Iterable[pb.MachineGpuIds], what: str = "gpus") -> tuple[Gpu, ...]:
    """GPU ids by machine as GPUs, sorted; each once."""
    found: set[Gpu] = set()
    for machine in message:
        host = _id(machine.host, f"{what}.host")
        for index in machine.gpu_ids:
            gpu = Gpu(host, _count(index, f"{what}.gpu_ids", most=GPU_INDEX_MAX))
            if gpu in found:
                raise Malformed(f"{what} names {gpu} twice")
            found.add(gpu)
    return tuple(sorted(found))


def agent_up(app_id: str, user: str, message: pb.Register) -> AgentUp:
    """Register, from an Agent whose token is `app_id`'s and was issued to `user`."""
    _length(message.grant_ids, "register.grant_ids", GPUS_MAX)
    return AgentUp(
        app_id=app_id,
        attempt_id=_id(message.attempt_id, "register.attempt_id", required=False),
        app_scheduler=_id(message.app_scheduler, "register.app_scheduler", required=False),
        demand=demand_of(message.demand),
        grant_ids=tuple(_id(g, "register.grant_ids") for g in message.grant_ids),
        user=user,
    )


def bid_received(app_id: str, message: pb.Bid, hosts: Container[str]) -> BidReceived:
    """Bid, with `bid` None and the problem where it is malformed; `hosts` are the cluster's."""
    try:
        round_id = _id(message.round_id, "bid.round_id", required=False)
        return BidReceived(app_id, round_id, _bid(app_id, message, hosts))
    except Malformed as e:
        return BidReceived(app_id, message.round_id[:ID_MAX_CHARS], None, str(e))


def _bid(app_id: str, message: pb.Bid, hosts: Container[str]) -> Bid:
    _length(message.rows, "bid.rows", ROWS_MAX)
    nothing = _positive_rho(message.rho_nothing, "bid.rho_nothing")
    rows = tuple(_row(row, f"bid.rows[{i}]", hosts) for i, row in enumerate(message.rows))
    restart_s = message.restart_s if 0 <= message.restart_s < RESTART_MAX_S else 0.0
    return Bid(app_id, nothing, rows, restart_s)


def _row(message: pb.BidRow, what: str, hosts: Container[str]) -> BidRow:
    rho = _positive_rho(message.rho, f"{what}.rho")
    _length(message.keep, f"{what}.keep", ROWS_MAX)
    new_gangs = _count(message.new_gangs, f"{what}.new_gangs")
    gang_gpus = _count(message.gang_gpus, f"{what}.gang_gpus", least=1 if new_gangs else 0)
    _count(new_gangs * gang_gpus, f"{what}: new_gangs x gang_gpus")
    keep = tuple(_gang(gang, f"{what}.keep", hosts) for gang in message.keep)
    if not keep and not new_gangs:
        raise Malformed(f"{what} asks for nothing")
    return BidRow(rho, keep, new_gangs, max(1, gang_gpus), _scope(message.scope, what))


def _scope(value: int, what: str) -> Scope:
    if value == pb.SCOPE_UNSPECIFIED:
        return Scope.CLUSTER
    try:
        return Scope(value)
    except ValueError:
        raise Malformed(f"{what}.scope is {value}, which is no scope") from None


def _gang(message: pb.Gang, what: str, hosts: Container[str]) -> Gang:
    gpus: dict[str, int] = {}
    for machine in message.machines:
        if machine.host not in hosts:
            raise Malformed(f"{what} names the unknown host {machine.host[:ID_MAX_CHARS]!r}")
        if machine.host in gpus:
            raise Malformed(f"{what} names {machine.host} twice")
        gpus[machine.host] = _count(machine.gpus, f"{what}.gpus", least=1)
    if not gpus:
        raise Malformed(f"{what} has an empty gang")
    return gang_of(gpus)


def use_planned(app_id: str, message: pb.Use) -> UsePlanned:
    """Use: whole gangs on GPUs that the Arbiter will check against the leases."""
    _length(message.workers, "use.workers", WORKERS_MAX)
    use_id = _id(message.use_id, "use.use_id")
    workers = tuple(_worker(w) for w in message.workers)
    if len({w.worker_id for w in workers}) != len(workers):
        raise Malformed("use names a worker twice")
    return UsePlanned(app_id, use_id, workers)


def _worker(message: pb.WorkerPlan) -> WorkerPlan:
    worker_id = _id(message.worker_id, "use.worker_id")
    if not message.gpu_ids:
        raise Malformed(f"use: worker {worker_id} has no GPU")
    machine = pb.MachineGpuIds(host=message.host, gpu_ids=message.gpu_ids)
    return WorkerPlan(
        worker_id=worker_id,
        job_id=_id(message.job_id, "use.job_id"),
        gpus=gpus_of([machine], f"use: worker {worker_id}"),
        allocation_request_id=message.allocation_request_id,
    )


def job_progress(message: pb.JobProgress) -> JobProgress:
    """How far a job is. A loss that diverged stays NaN or infinite: it is what the job computed."""
    return JobProgress(
        job_id=_id(message.job_id, "progress.job_id"),
        state=_id(message.state, "progress.state", required=False),
        step=message.step,
        loss=message.loss,
        accuracy=_finite_or(message.accuracy, 0.0),
        iter_time_s=_number(message.iter_time_s, "progress.iter_time_s"),
        slowdown=_number(message.slowdown, "progress.slowdown"),
        gpus=_count(message.gpus, "progress.gpus"),
        rung=message.rung,
        launches=message.launches,
        worker_failures=message.worker_failures,
        configuration=_texts(message.configuration),
    )


def agent_done(app_id: str, message: pb.Done) -> AgentDone:
    """Done. It is an app's last word, so odd numbers in it count as 0 instead of refusing it."""
    return AgentDone(
        app_id=app_id,
        succeeded=message.succeeded,
        message=message.message[:TEXT_MAX_CHARS],
        best_job_id=message.best_job_id[:ID_MAX_CHARS],
        best_configuration=_texts(message.best_configuration),
        best_accuracy=_finite_or(message.best_accuracy, 0.0),
        work_done_gpu_s=max(0.0, _finite_or(message.work_done_gpu_s, 0.0)),
        model_path=message.model_path[:TEXT_MAX_CHARS],
    )


def event_of(app_id: str, message: pb.AgentMessage, hosts: Container[str]) -> Event | None:
    """The event of an Agent's message after Register; None for kinds that are no event. Raises Malformed."""
    match message.WhichOneof("kind"):
        case "rho":
            rho = message.rho
            round_id = _id(rho.round_id, "rho.round_id")
            return RhoReported(app_id, round_id, _rho(rho.rho, "rho.rho"), demand_of(rho.demand))
        case "bid":
            return bid_received(app_id, message.bid, hosts)
        case "use":
            return use_planned(app_id, message.use)
        case "released":
            gpus = frozenset(gpus_of(message.released.gpus, "released.gpus"))
            return GpusReleased(app_id, gpus, message.released.reason[:TEXT_MAX_CHARS])
        case "progress":
            progress = message.progress
            _length(progress.jobs, "progress.jobs", JOBS_MAX)
            jobs = tuple(job_progress(j) for j in progress.jobs)
            rho_now = _rho(progress.rho, "progress.rho")
            return ProgressReported(app_id, demand_of(progress.demand), jobs, rho_now)
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


def contention(value: Contention) -> pb.Contention:
    """What an Agent needs to compute rho."""
    return pb.Contention(
        cluster_gpus=value.cluster_gpus,
        n_avg=value.n_avg,
        now_s=value.now_s,
        submitted_s=value.submitted_s,
        lease_s=value.lease_s,
    )


def grant(value: HeldGrant, round_id: str = "", renewal: bool = False, leftover: bool = False) -> pb.Grant:
    """A lease for each GPU of a grant."""
    return pb.Grant(
        grant_id=value.grant_id,
        round_id=round_id,
        gpus=machine_gpu_ids(value.gpus),
        end_s=value.end_s,
        available_s=value.available_s,
        renewal=renewal,
        leftover=leftover,
    )


def hosts_of(topology: Topology) -> list[pb.Host]:
    """The cluster's machines, in host order."""
    return [
        pb.Host(host=m.host, rack=m.rack, gpus=m.gpus, virtual_gpus=m.virtual, gpu_type=m.gpu_type)
        for m in topology.machines.values()
    ]


def message_of(effect: AgentEffect, topology: Topology) -> pb.ArbiterMessage:
    """An effect as the message that its Agent gets."""
    match effect:
        case SendRegistered():
            grants = [grant(g) for g in effect.grants]
            known = contention(effect.contention)
            return pb.ArbiterMessage(
                registered=pb.Registered(contention=known, hosts=hosts_of(topology), grants=grants)
            )
        case SendHosts():
            return pb.ArbiterMessage(hosts=pb.Hosts(hosts=hosts_of(topology)))
        case SendAskRho():
            return pb.ArbiterMessage(
                ask_rho=pb.AskRho(
                    round_id=effect.round_id,
                    contention=contention(effect.contention),
                    ending=machine_gpu_ids(effect.ending),
                    deadline_s=effect.deadline_s,
                )
            )
        case SendOffer():
            return pb.ArbiterMessage(offer=_offer(effect))
        case SendGrant():
            return pb.ArbiterMessage(
                grant=grant(effect.grant, effect.round_id, effect.renewal, effect.leftover)
            )
        case SendRevoke():
            gpus = machine_gpu_ids(effect.gpus)
            return pb.ArbiterMessage(
                revoke=pb.Revoke(gpus=gpus, deadline_s=effect.deadline_s, reason=effect.reason)
            )
        case SendUseReply():
            return use_reply(effect.use_id, effect.accepted, effect.reason)
        case SendFinish():
            return pb.ArbiterMessage(finish=pb.Finish(reason=effect.reason))


def _offer(effect: SendOffer) -> pb.Offer:
    return pb.Offer(
        round_id=effect.round_id,
        contention=contention(effect.contention),
        machines=[pb.MachineGpus(host=h, gpus=n) for h, n in sorted(effect.machines.items()) if n],
        ending=machine_gpu_ids(effect.ending),
        deadline_s=effect.deadline_s,
    )


def use_reply(use_id: str, accepted: bool, reason: str) -> pb.ArbiterMessage:
    """Whether a Use lies inside the app's leases."""
    reply = pb.UseReply(use_id=use_id[:ID_MAX_CHARS], accepted=accepted, reason=reason)
    return pb.ArbiterMessage(use_reply=reply)
