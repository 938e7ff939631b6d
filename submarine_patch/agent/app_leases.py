"""The app's leases: grants and revocations, assignment of GPUs to jobs, and release of unused GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pycontrol.agentlogic.allocation import allocate
from pycontrol.agentlogic.gang_sizes import Running, compose
from pycontrol.model.topology import Gpu, Machine, Topology
from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.agent import bids, gangs, jobs
from submarine_patch.agent.agent_state import HeldGpu, SavedState, gpus_in
from submarine_patch.agent.jobs import Job
from submarine_patch.deadline import on_this_clock

GROW_GRACE_S = 60.0
"""Time for the checkpoint of a gang that grows; longer than STOP_GRACE_S because no other app waits for its GPUs."""


def registered(s: SavedState, m: pb.Registered, now_s: float) -> None:
    """Handle Registered: take over the Arbiter's list of grants, and resend what a lost stream may not have carried."""
    s.registered = True
    s.contention = m.contention
    machines(s, m.hosts)
    granted = {g: HeldGpu(x.grant_id, x.available_s) for x in m.grants for g in gpus_in(x.gpus)}
    lost = set(s.held) - set(granted)
    s.held = granted
    s.heard_all(now_s)
    if lost:
        lose(s, lost, now_s + gangs.STOP_GRACE_S, "its lease has ended", now_s)
    for job in s.jobs.values():
        gangs.resend(s, job, now_s)
    s.report_due = True


def machines(s: SavedState, hosts: Iterable[pb.Host]) -> None:
    """Update the topology and the GPU types that have room for a gang; machines that are away have no GPUs."""
    known = list(hosts)
    s.topology = Topology.of(Machine(h.host, h.rack, h.gpus, h.gpu_type or "gpu", h.virtual_gpus) for h in known)
    s.virtual = {h.host for h in known if h.virtual_gpus}
    room = Counter[str]()
    for machine in s.topology.machines.values():
        room[machine.gpu_type] += machine.gpus
    s.speeds.types = tuple(sorted(t for t, gpus in room.items() if gpus >= s.spec.gang_gpus))


def granted(s: SavedState, m: pb.Grant) -> None:
    """Handle Grant: new leases or renewals."""
    gpus = gpus_in(m.gpus)
    s.held |= dict.fromkeys(gpus, HeldGpu(m.grant_id, m.available_s))
    if not m.renewal:
        s.mark()
    elif s.spec.elastic:
        for job in s.jobs.values():
            job.settled = job.settled and gpus.isdisjoint(job.gpus)
        s.report_due = True


def revoked(s: SavedState, m: pb.Revoke, now_s: float) -> None:
    """Handle Revoke: the gangs on these GPUs checkpoint and end before the deadline."""
    gpus = gpus_in(m.gpus)
    if s.start_told and s.ending is None and not gpus.isdisjoint(s.held):
        s.notify("revoked", now_s, gpus=sorted(map(str, gpus & s.held.keys())), reason=m.reason)
    lose(s, gpus, on_this_clock(m, now_s), m.reason, now_s)


def lose(s: SavedState, gpus: set[Gpu], deadline_s: float, reason: str, now_s: float) -> None:
    """Remove these GPUs from those held, and stop their gangs by the deadline."""
    for gpu in gpus:
        s.held.pop(gpu, None)
    for job in s.jobs.values():
        if gpus.intersection(job.gpus):
            gangs.stop(s, job, deadline_s, reason, now_s)
    s.mark()


def free(s: SavedState) -> list[Gpu]:
    """Held GPUs that no launch uses, and no process that ends."""
    used = {g for job in s.jobs.values() for g in job.gpus} | {g for w, _ in s.leaving.values() for g in w.gpus}
    return sorted(g for g in s.held if g not in used)


def assign(s: SavedState, now_s: float) -> None:
    """Launch waiting jobs on free GPUs, each gang as close together as possible; release GPUs that no job can use."""
    if not s.registered or s.ending is not None:
        return
    gpu_type = s.speeds.requested_type()
    idle = free(s)
    if gpu_type:
        s.give_back([g for g in idle if s.type_of(g.host) != gpu_type], f"not of the type {gpu_type}")
        idle = free(s)
    if not idle:
        return
    runnable = s.scheduler.runnable()
    waiting = {j.job_id: left_gpu_s(s, j) for j in map(s.job, runnable) if not j.active}
    if s.spec.elastic:
        _compose(s, idle, waiting, now_s)
        return
    grants = {gpu: held.grant_id for gpu, held in s.held.items()} if s.spec.within or s.spec.segments[0] else {}
    stopping = [j.gpus for j in s.jobs.values() if j.state == jobs.STOPPING and j.job_id in runnable]
    spec = s.spec
    found = allocate(idle, waiting, stopping, available_s(s), spec.gang_gpus, spec.scope, s.topology, grants)
    for job_id, gpus in found.launches:
        gangs.launch(s, s.job(job_id), list(gpus), now_s)
    _give_back(s, found.unused)


def _give_back(s: SavedState, unused: Iterable[Gpu]) -> None:
    """Give back what no job can use; where a process waits, once that has ended."""
    waited = {g for w in s.waiting.values() for g in w.gpus}
    s.give_back([g for g in unused if g not in waited], "no job can use them")


def _compose(s: SavedState, idle: list[Gpu], waiting: dict[str, float], now_s: float) -> None:
    """`assign` for elastic jobs: gangs have several sizes, and running gangs may grow."""
    elastic = s.elastic()
    assert elastic is not None
    stopping = sum(j.state == jobs.STOPPING for j in s.jobs.values())
    found = compose(idle, waiting, stopping, growing(s), available_s(s), elastic, s.spec.scope, s.topology)
    for job_id, gpus in found.allocation.launches:
        gangs.launch(s, s.job(job_id), list(gpus), now_s)
    for job_id in found.grow:
        why = f"grows: more than its {len(s.job(job_id).gpus)} GPUs are free for it"
        gangs.stop(s, s.job(job_id), now_s + GROW_GRACE_S, why, now_s)
    if found.allocation.unused:
        for job in s.jobs.values():
            job.settled = job.active
    _give_back(s, found.allocation.unused)


def growing(s: SavedState) -> list[Running]:
    """Gangs that are starting or running, with their jobs' work left; one without a first step does not grow yet."""
    mine = [j for j in s.jobs.values() if j.state in (jobs.STARTING, jobs.RUNNING)]
    return [Running(j.job_id, tuple(j.gpus), left_gpu_s(s, j), j.settled or not j.first_step_s) for j in mine]


def left_gpu_s(s: SavedState, job: Job) -> float:
    """Serial GPU-seconds that a job has left."""
    serial_s, until = s.profile().serial_s(job.job_id), s.scheduler.until_step(job.job_id)
    if not until:
        least_gpu_s = s.contention.lease_s * s.spec.gang_gpus
        return bids.unknown_left_gpu_s(s.spec.job_gpu_s, least_gpu_s, job.step * serial_s)
    return max(0, until - job.step) * serial_s


def available_s(s: SavedState) -> dict[Gpu, float]:
    """When the previous holder of each held GPU is gone at the latest, Unix seconds."""
    return {gpu: held.available_s for gpu, held in s.held.items()}
