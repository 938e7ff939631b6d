"""The life of a lease between rounds: started, idle, given back, lapsed, revoked, ended.

A lease is one GPU. While the cluster is frozen (paused, or the ResourceManager is not ready) no lease ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from pycontrol.arbiter.facts import (
    GRANTED,
    REVOKING,
    Lease,
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseIdle,
    LeaseRevoking,
    LeaseStarted,
    NextDropped,
)
from pycontrol.arbiter.state import State
from pycontrol.model.cluster import Container
from pycontrol.model.events import GpusReleased, Preempt
from pycontrol.model.topology import Gpu


def frozen(s: State, now_s: float) -> bool:
    """Whether leases stand still."""
    return s.paused or not s.ready or now_s < s.recovering_until_s


def end(s: State, gpu: Gpu, now_s: float, reason: str) -> None:
    """Ends a lease; whoever is next on the GPU has it now, else it is free for a round."""
    worker = s.worker_at.get(gpu)
    lease = s.durable.leases.get(gpu)
    if worker is not None and lease is not None and worker.app_id == lease.app_id and not worker.container_id:
        s.drop_worker(worker)
    s.record(LeaseEnded(gpu, now_s, reason))
    if gpu not in s.durable.leases:
        s.want_round(now_s + s.settings.settle_s)


def take_back(s: State, leases: Iterable[Lease], now_s: float, deadline_s: float, reason: str) -> None:
    """Revokes leases: at once where no container uses the GPU, else by the deadline, announced to all."""
    by_app: dict[str, list[Gpu]] = {}
    announced: set[str] = set()
    for lease in list(leases):
        by_app.setdefault(lease.app_id, []).append(lease.gpu)
        container_id = s.container_at.get(lease.gpu, "")
        if not container_id and not _placing(s, lease.gpu):
            end(s, lease.gpu, now_s, reason)
            continue
        if lease.state != REVOKING or deadline_s < lease.end_s:
            s.record(LeaseRevoking(lease.gpu, deadline_s, reason))
        if container_id and container_id not in announced:
            announced.add(container_id)
            s.emit(Preempt(s.new_id("p"), container_id, deadline_s))
    for app_id, gpus in by_app.items():
        s.revoke_notice(app_id, gpus, deadline_s, reason)


def _placing(s: State, gpu: Gpu) -> bool:
    worker = s.worker_at.get(gpu)
    return worker is not None and bool(worker.directive_id)


def drop_next(s: State, app_id: str, reason: str, host: str = "") -> None:
    """The app is no longer next on the GPUs it was promised (all, or those of a host)."""
    for gpu, lease in list(s.durable.next.items()):
        if lease.app_id == app_id and (not host or gpu.host == host):
            s.record(NextDropped(gpu, reason))


def container_up(s: State, container: Container, running: bool, now_s: float) -> None:
    """A container with GPUs was allocated or is running; its leases start with the first sign of launch."""
    s.containers[container.container_id] = container
    for gpu in container.gpus:
        s.container_at[gpu] = container.container_id
    worker = s.worker_at.get(container.gpus[0]) if container.gpus else None
    if worker is not None and worker.app_id == container.app_id:
        worker.container_id = container.container_id
    if running:
        job_id = worker.plan.job_id if worker is not None and worker.app_id == container.app_id else ""
        start(s, container, job_id, now_s)


def start(s: State, container: Container, job_id: str, now_s: float) -> None:
    """Starts the leases of a container's GPUs; the leases of a gang end together."""
    for gpu in container.gpus:
        lease = s.durable.leases.get(gpu)
        if lease is None or lease.app_id != container.app_id or lease.container_id == container.container_id:
            continue
        end_s = lease.end_s
        if lease.state == GRANTED:
            mates = [
                x.end_s
                for x in s.durable.leases.values()
                if x.app_id == lease.app_id and job_id and x.job_id == job_id and x.state != REVOKING
            ]
            if mates:
                end_s = min(mates)
            elif not lease.used:
                end_s = now_s + s.settings.lease_s
        s.record(LeaseStarted(gpu, container.container_id, job_id, now_s, end_s))


def container_gone(s: State, container_id: str, now_s: float) -> None:
    """A container ended: its leases are idle, or over if they were being revoked."""
    container = s.containers.pop(container_id, None)
    s.kills_sent.pop(container_id, None)
    if container is None:
        return
    foreign = s.is_foreign(container.app_id)
    for worker in [w for w in s.workers.values() if w.container_id == container_id]:
        s.drop_worker(worker)
    for gpu in container.gpus:
        if s.container_at.get(gpu) == container_id:
            del s.container_at[gpu]
        lease = s.durable.leases.get(gpu)
        if lease is None or lease.app_id != container.app_id:
            s.want_round(now_s + s.settings.settle_s)
        elif lease.state == REVOKING:
            end(s, gpu, now_s, "revoked")
        elif foreign:
            end(s, gpu, now_s, "container ended")
        elif lease.container_id:
            s.record(LeaseIdle(gpu, now_s))


def released(s: State, e: GpusReleased, now_s: float) -> None:
    """An app gives GPUs back early, held or promised ones."""
    for gpu in sorted(e.gpus):
        coming = s.durable.next.get(gpu)
        if coming is not None and coming.app_id == e.app_id:
            s.record(NextDropped(gpu, "released"))
            s.want_round(now_s + s.settings.settle_s)
        lease = s.durable.leases.get(gpu)
        if lease is None or lease.app_id != e.app_id:
            continue
        if gpu in s.container_at:
            s.record(LeaseRevoking(gpu, now_s + s.settings.lead, "released"))
        else:
            end(s, gpu, now_s, "released")


def expire(s: State, now_s: float) -> None:
    """What time does to leases: revoked ones end, unused grants lapse, the stand-in's are renewed."""
    if frozen(s, now_s):
        return
    for lease in sorted(s.durable.leases.values(), key=lambda x: x.gpu):
        if lease.state == REVOKING and lease.end_s <= now_s:
            container_id = s.container_at.get(lease.gpu)
            if container_id:
                s.kill_container(container_id, now_s, "lease ended")
            elif not _placing(s, lease.gpu):
                end(s, lease.gpu, now_s, "revoked")
        elif _lapsed(s, lease, now_s):
            s.revoke_notice(lease.app_id, [lease.gpu], now_s, "grant not used in time")
            end(s, lease.gpu, now_s, "grant not used in time")
        elif lease.container_id and lease.end_s - s.settings.lead <= now_s and _self_renewing(s, lease):
            s.record(LeaseExtended(lease.gpu, lease.end_s + s.settings.lease_s))


def _lapsed(s: State, lease: Lease, now_s: float) -> bool:
    since_s = lease.unused_since_s
    return (
        lease.state == GRANTED
        and since_s is not None
        and lease.gpu not in s.container_at
        and not _placing(s, lease.gpu)
        and since_s + s.settings.grant_timeout_s <= now_s
    )


def _self_renewing(s: State, lease: Lease) -> bool:
    return s.is_foreign(lease.app_id) and not s.settings.standin_revocable and not s.drained(lease.gpu.host)


def thaw(s: State, now_s: float) -> None:
    """After a time when leases stood still, none ends before a whole lead has passed."""
    earliest_s = now_s + 2 * s.settings.lead
    for lease in s.durable.leases.values():
        if lease.end_s < earliest_s:
            s.record(LeaseExtended(lease.gpu, earliest_s, counted=False))


def adopt(s: State, container: Container, now_s: float) -> None:
    """A running container whose lease the journal does not know: its tags are the truth."""
    for gpu in container.gpus:
        lease = s.durable.leases.get(gpu)
        if lease is not None and lease.app_id != container.app_id:
            s.kill_container(container.container_id, now_s, f"{gpu} is leased to {lease.app_id}")
            return
        if lease is None:
            end_s = now_s + s.settings.lease_s
            grant_id = container.lease_id or f"adopted-{container.container_id}"
            s.record(LeaseGranted(gpu, container.app_id, grant_id, now_s, end_s, container.container_id))
    start(s, container, "", now_s)


def next_wake_s(s: State, now_s: float) -> float | None:
    """When `expire` has something to do next."""
    if s.paused or not s.ready:
        return None
    if now_s < s.recovering_until_s:
        return s.recovering_until_s
    times: list[float] = []
    for lease in s.durable.leases.values():
        if lease.state == REVOKING:
            sent_s = s.kills_sent.get(lease.container_id)
            times.append(lease.end_s if sent_s is None else sent_s + 5.0)
        elif lease.state == GRANTED and lease.unused_since_s is not None and lease.gpu not in s.container_at:
            times.append(lease.unused_since_s + s.settings.grant_timeout_s)
        elif _self_renewing(s, lease):
            times.append(lease.end_s - s.settings.lead)
    return min(times, default=None)
