"""The life of a lease between rounds: it starts, idles, lapses, is released or revoked, and ends.

While leases are suspended (rounds paused, or the ResourceManager not ready or recovering), none expires.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from pycontrol.arbiter.ledger import facts
from pycontrol.arbiter.ledger.lease import ACTIVE, GRANTED, REVOKING, Claim, Lease, Reservation, gpus_in, part, round_of
from pycontrol.arbiter.state import KILL_RETRY_S, Clerk, Holdings
from pycontrol.arbiter.supply.gpu_supply import GroupGpus
from pycontrol.arbiter.views.workers import WAITING
from pycontrol.auction.placing import FreeIndex, divides
from pycontrol.model.auction import SLOWDOWN_PRIOR, Demand, HeldGrant, as_gang, gang_of, gangs_by_host
from pycontrol.model.cluster import Container
from pycontrol.model.events import GpusReleased, Preempt, SendGrant
from pycontrol.model.grouping import grouped
from pycontrol.model.reasons import PREEMPTIONS, Cause, EndReason
from pycontrol.model.topology import Gpu, Scope


def end_s(s: Holdings, from_s: float, host: str, app_id: str) -> float:
    """When a lease of an app that begins at `from_s` ends.

    With `lease_timing` "spread": one lease length later. Otherwise at the first common end of the machine (or of the
    cluster) that is at least half a lease away. Leases of a machine then come on offer together; without that, a large
    gang would have to wait until enough of them happen to end at the same time.
    """
    vc = s.durable.apps[app_id].vc
    return common_end_s(s, from_s if s.settings.lease_timing == "spread" else from_s + s.lease_s_of(vc) / 2, host, vc)


def common_end_s(s: Holdings, from_s: float, host: str, vc: str) -> float:
    """The first common end of a virtual cluster's leases at `from_s` or later; if they are spread, a lease later."""
    lease_s = s.lease_s_of(vc)
    if s.settings.lease_timing == "spread":
        return from_s + lease_s
    phase_s = zlib.crc32(host.encode()) / 2**32 * lease_s if s.settings.lease_timing == "machine" else 0.0
    return math.ceil((from_s - phase_s) / lease_s) * lease_s + phase_s


def set_expiry(s: Holdings, clerk: Clerk, from_s: float, vcs: Collection[str] | None = None) -> None:
    """Gives open-ended leases, all or those of apps in these virtual clusters, the first common end from `from_s` on.

    If that is a lead from now, these are the ends that they would have if rounds had renewed them all the time.
    """
    if not s.gpus.open or (vcs is not None and not vcs):
        return
    vc_of = {a: s.durable.apps[a].vc for a in s.durable.leases.by_app}
    found = (x for a, vc in vc_of.items() if vcs is None or vc in vcs for x in s.durable.leases.of(a))
    gpus = sorted((gpu, vc_of[x.app_id]) for x in found if x.end_s == math.inf for gpu in x.gpus)
    extend(s, clerk, ((common_end_s(s, from_s, gpu.host, vc), [gpu]) for gpu, vc in gpus), counted=False)


def extend(s: Holdings, clerk: Clerk, ends: Iterable[tuple[float, Sequence[Gpu]]], *, counted: bool = True) -> None:
    """Records new ends of leases; leases in a row that end together are one fact."""
    for until_s, together in itertools.groupby(ends, key=lambda x: x[0]):
        clerk.record(facts.LeaseExtended(tuple(gpu for _, gpus in together for gpu in gpus), until_s, counted))


def in_force(s: Holdings, gang: Iterable[Lease]) -> list[Lease] | None:
    """The present state of these leases; None if a part of them has ended or is being revoked."""
    found: list[Lease] = []
    for before in gang:
        now = [x for x in s.durable.leases.parts(before.gpus) if x.grant_id == before.grant_id and x.state != REVOKING]
        if len(gpus_in(now)) < len(before.gpus):
            return None
        found += now
    return found


def suspended(s: Holdings, now_s: float) -> bool:
    """Whether leases are suspended: rounds are paused, or the ResourceManager is not ready or recovering."""
    return s.paused or not s.cluster.settled(now_s)


def end(s: Holdings, clerk: Clerk, gpus: Iterable[Gpu], now_s: float, cause: Cause) -> None:
    """Ends the leases of these GPUs; a GPU's reservation becomes its lease, else a round is requested."""
    gpus = tuple(gpus)
    for gpu in gpus:
        lease, coming = s.durable.leases.get(gpu), s.durable.reservations.get(gpu)
        if lease is not None and (coming is None or coming.app_id != lease.app_id):  # else it is planned for what comes
            _drop_planned(s, clerk, gpu, lease.app_id)
    clerk.record(facts.LeaseEnded(gpus, now_s, cause.text, cause.kind))
    if any(gpu not in s.durable.leases for gpu in gpus):
        clerk.request_round(now_s + s.settings.settle_s)


def revoke(s: Holdings, clerk: Clerk, leases: Iterable[Lease], now_s: float, deadline_s: float, cause: Cause) -> None:
    """Revokes leases: immediately where no container uses the GPU, else by the deadline; notifies the Agents."""
    leases, announced = list(leases), set[str]()
    for lease in leases:
        for container_id in _revoke_one(s, clerk, lease, now_s, deadline_s, cause):
            if container_id not in announced:
                announced.add(container_id)
                clerk.emit(Preempt(clerk.new_id("p"), container_id, deadline_s))
    for app_id, gpus in grouped((x.app_id, gpu) for x in leases for gpu in x.gpus).items():
        clerk.revoke_notice(app_id, gpus, deadline_s, cause.text, now_s)


def _revoke_one(s: Holdings, clerk: Clerk, lease: Lease, now_s: float, deadline_s: float, cause: Cause) -> list[str]:
    """Ends a lease where no container uses its GPUs, now or soon, and revokes it elsewhere; returns the containers."""
    at = {gpu: s.cluster.container_at.get(gpu, "") for gpu in lease.gpus}
    used = tuple(gpu for gpu in lease.gpus if s.in_use(gpu))
    unused = tuple(gpu for gpu in lease.gpus if gpu not in used)
    for gpus in sorted(filter(None, (used, unused))):
        if gpus is unused:
            end(s, clerk, unused, now_s, cause)
        elif lease.state != REVOKING or deadline_s < lease.end_s:
            clerk.record(facts.LeaseRevoking(used, deadline_s, cause.text, cause.kind))
            for gpu in used if lease.state != REVOKING else ():
                if gpu not in s.workers.placing:  # it waits for a container of the past to leave
                    _drop_planned(s, clerk, gpu, lease.app_id)
    return list(dict.fromkeys(filter(None, at.values())))


def _drop_planned(s: Holdings, clerk: Clerk, gpu: Gpu, app_id: str) -> None:
    """Drops the worker that the app planned on a GPU, unless it has a container."""
    worker = s.workers.at.get(gpu)
    if worker is not None and worker.app_id == app_id and not worker.container_id:
        clerk.drop_worker(worker)


def not_placed(s: Holdings, clerk: Clerk, gpus: Sequence[Gpu], now_s: float) -> None:
    """A placement on these GPUs failed: ends revoking leases that were only waiting for it."""
    clerk.reindex(*gpus)
    for lease in s.durable.leases.parts(g for g in gpus if g not in s.cluster.container_at):
        if lease.state == REVOKING:
            end(s, clerk, lease.gpus, now_s, Cause(lease.cause, lease.reason))


def drop_unplanned(s: Holdings, clerk: Clerk) -> None:
    """Cancels the reservations of unmanaged apps for which no container is planned: a control plane that has restarted
    does not know the plans, so that they would lapse unused. A round decides again."""
    why = "the control plane restarted before its container was placed"
    coming = (x for x in s.durable.reservations.each() if x.app_id in s.agents.unmanaged_apps)
    for x in sorted(coming, key=lambda x: x.gpus[0]):
        gpus = tuple(g for g in x.gpus if (w := s.workers.at.get(g)) is None or w.app_id != x.app_id)
        if gpus:
            clerk.record(facts.NextDropped(gpus, why))


def cancel_reservations(s: Holdings, clerk: Clerk, promised: Sequence[Reservation], now_s: float, cause: Cause) -> None:
    """Cancels reservations and notifies their Agents, as they may have planned workers there."""
    for coming in promised:
        for gpu in coming.gpus:
            planned = s.workers.at.get(gpu)
            if planned is not None and planned.app_id == coming.app_id:
                planned.void = planned.state is WAITING
        clerk.record(facts.NextDropped(coming.gpus, cause.text))
    for app_id, gpus in grouped((x.app_id, gpu) for x in promised for gpu in x.gpus).items():
        clerk.revoke_notice(app_id, gpus, now_s, cause.text, now_s)


Closed = Callable[[str], Collection[str]]
"""App -> hosts where none of its new containers may start."""


def evacuate_bad_gpus(
    s: Holdings, clerk: Clerk, now_s: float, closed: Closed, gpus: Iterable[Gpu] | None = None
) -> None:
    """Revokes the leases and cancels the reservations of bad GPUs, of these or of all.

    Where the gang cannot be mended, it loses its other GPUs, too: it stops anyway, and resumes when a round finds it
    another place. An unmanaged app asks for its containers again.
    """
    held = {*s.durable.leases, *s.durable.reservations} if gpus is None else gpus
    for gpu in sorted(filter(s.cluster.bad, held)):
        why = Cause(EndReason.BAD_GPU, f"GPU {gpu} is bad")
        reservation = s.durable.reservations.get(gpu)
        if reservation is not None:
            _leave(s, clerk, reservation, gpu, now_s, why, closed)
        lease = s.durable.leases.get(gpu)
        if lease is not None and lease.state != REVOKING:
            _leave(s, clerk, lease, gpu, now_s, why, closed)


def _leave(s: Holdings, clerk: Clerk, lease: Claim, gpu: Gpu, now_s: float, why: Cause, closed: Closed) -> None:
    """Mends the gang to which a GPU belongs, or revokes its leases and cancels its reservations."""
    key, gangs = s.gang_key(lease, gpu), s.gangs_of(lease.app_id)
    gang = next((gang for gang in gangs if s.gang_key(gang[0], gang[0].gpus[0]) == key), [])
    mine = [(x, [g for g in x.gpus if s.gang_key(x, g) == key]) for x in s.durable.reservations.of(lease.app_id)]
    coming = [part(x, gpus) for x, gpus in mine if gpus]
    if coming:
        cancel_reservations(s, clerk, coming, now_s, why)
        clerk.request_round(now_s + s.settings.settle_s)
    bad = [g for g in gpus_in(gang) if s.cluster.bad(g)]
    grant = None if coming else mend(s, clerk, gang, bad, now_s, closed)
    revoke(s, clerk, s.durable.leases.parts(bad) if grant else gang, now_s, now_s + s.lead_s, why)
    if grant:  # after the notice: an Agent returns GPUs for which none of its jobs waits or stops
        clerk.emit(grant)


def mend(
    s: Holdings, clerk: Clerk, gang: Sequence[Lease], lost: Collection[Gpu], now_s: float, closed: Closed
) -> SendGrant | None:
    """Gives a gang with an Agent free GPUs for those that it loses, for the time that its leases last.

    They join its grant, and the others keep their places; the job resumes from its checkpoint on all of them. Returns
    what is to be sent to the Agent; None if nothing is left of the gang, or no free GPUs suit it, or its limits do not
    allow them: then a round decides.
    """
    gone = set(gpus_in(gang)).intersection(lost)
    kept = [gpu for gpu in gpus_in(gang) if gpu not in gone]
    agent, first = s.agents.get(gang[0].app_id), s.durable.leases.get(kept[0]) if kept else None
    if agent is None or agent.demand.within or first is None or suspended(s, now_s):
        return None
    ended = len(gone.difference(s.durable.leases))
    if any(room < ended for room in s.rooms(first.app_id, now_s).values()):  # lowered, or the cluster shrank
        return None
    gpus = _instead(s, agent.demand, kept, sorted(gone), first, closed(first.app_id))
    if not gpus:
        return None
    claims: list[Claim] = [*itertools.chain(*s.gangs_of(first.app_id)), *s.durable.reservations.of(first.app_id)]
    mine = {*gpus_in(x for x in claims if x.grant_id == first.grant_id), *gpus} - gone
    held = GroupGpus(first.grant_id, s.durable.apps[first.app_id].vc, first.guaranteed, tuple(sorted(mine)))
    if not s.supply.shrink(held):  # no cells of its own can be bound there
        s.supply.shrink(replace(held, gpus=tuple(sorted(mine.difference(gpus)))))
        return None
    until_s = min(x.end_s for x in gang)
    clerk.record(
        facts.LeaseMended(gpus, first.app_id, first.grant_id, now_s, until_s, first.gang, (), first.guaranteed)
    )
    return SendGrant(first.app_id, "", HeldGrant(first.grant_id, gpus, until_s))


def _instead(
    s: Holdings, demand: Demand, kept: Sequence[Gpu], gone: Sequence[Gpu], lease: Lease, closed: Collection[str]
) -> tuple[Gpu, ...]:
    """Free GPUs that make a gang whole again, as near to the kept ones as can be; none if its demand allows none, or it
    would lie farther apart than before while free GPUs have a place for all of it."""
    topology, here, n = s.topology, as_gang(kept), len(gone)
    near, types = [host for host, _ in here], {topology.type_of(gpu.host) for gpu in kept}
    widest = s.cluster.machines.known.scope_of({gpu.host for gpu in (*kept, *gone)})
    own = {m.host for m in s.supply.machines(s.durable.apps[lease.app_id].vc)} if lease.guaranteed else set()
    counts = s.gpus.free.counts()
    usable = [h for h in counts if h not in closed and (demand.mixes or topology.type_of(h) in types)]
    free = {host: counts[host] for host in usable}
    members = demand.members if len(kept) + n == demand.gang_gpus else ()
    if widest < demand.scope and FreeIndex(free, topology).place(len(kept) + n, widest, members=members) is None:
        widest = demand.scope
    for scope in (x for x in Scope if x <= widest):
        here_too = {h: k for h, k in free.items() if topology.scope_of([*near, h]) <= scope and (not own or h in own)}
        room = FreeIndex(here_too, topology)
        for more in filter(None, (room.place(n, Scope.MACHINE), room.place(n, Scope.CLUSTER))):
            gang = gang_of(gangs_by_host((here, more)))
            if not members or divides(members, gang, topology):
                return tuple(gpu for gpu in s.pick(more) if gpu not in s.durable.leases)
    return ()


def container_up(s: Holdings, clerk: Clerk, container: Container, running: bool, now_s: float) -> None:
    """A container was allocated or is running; its leases start when it is first reported running."""
    clerk.occupied(container)
    if container.plain:
        if s.cluster.ready:
            give_way(s, clerk, container, now_s)
        return
    if container.gpus and s.cluster.refusals.placed(container.gpus[0].host, container.app_id):
        clerk.update_closed()
        clerk.request_round(now_s + s.settings.settle_s)
    job_id = s.workers.reported(container)
    ready, recovering = s.cluster.ready, now_s < s.cluster.recovering_until_s
    if ready and recovering and not any(g in s.durable.leases for g in container.gpus):
        adopt(s, clerk, container, now_s)  # its machine came back late
    elif ready and not _leased(s, container):
        _kill_unleased(s, clerk, container, now_s)
    elif running:
        start(s, clerk, container, job_id, now_s)


def give_way(s: Holdings, clerk: Clerk, container: Container, now_s: float) -> None:
    """Ends the leases of GPUs that CapacityScheduler has given to a container before their apps used them."""
    why = Cause(EndReason.REFUSED, f"CapacityScheduler gave it to {container.container_id}")
    for gpu in container.gpus:
        while (lease := s.durable.leases.get(gpu)) is not None:
            for worker in (s.workers.at.get(gpu), s.workers.placing.get(gpu)):
                if worker is not None:
                    clerk.drop_worker(worker)
            clerk.revoke_notice(lease.app_id, [gpu], now_s, why.text, now_s)
            end(s, clerk, [gpu], now_s, why)


def _leased(s: Holdings, container: Container) -> bool:
    """Whether the container's app has leases of all its GPUs, or it needs none."""
    at, app_id = s.durable.leases, container.app_id
    return container.plain or all((x := at.get(gpu)) is not None and x.app_id == app_id for gpu in container.gpus)


def _kill_unleased(s: Holdings, clerk: Clerk, container: Container, now_s: float) -> None:
    """Kills the container, repeatedly until it is gone."""
    clerk.kill_container(container.container_id, now_s, f"{container.app_id} does not hold its GPUs")
    s.gpus.look_at(container.gpus[0], clerk.kills_sent[container.container_id] + KILL_RETRY_S)


def start(s: Holdings, clerk: Clerk, container: Container, job_id: str, now_s: float) -> None:
    """Starts the leases of a container's GPUs; all leases of a job end together."""
    for lease in s.durable.leases.parts(container.gpus):
        if lease.app_id != container.app_id or lease.container_id == container.container_id:
            continue
        until_s = lease.end_s
        if lease.state == GRANTED:
            mine = s.durable.leases.by_app[lease.app_id].values() if job_id else ()
            others_end_s = [x.end_s for x in mine if x.job_id == job_id and x.state != REVOKING]
            if others_end_s:
                until_s = min(others_end_s)
            elif not lease.used and not _lent(s, lease):
                until_s = end_s(s, now_s, container.gpus[0].host, lease.app_id)
        _started(s, clerk, lease, container.container_id, job_id, now_s, until_s)


def _started(
    s: Holdings, clerk: Clerk, lease: Lease, container_id: str, job_id: str, now_s: float, until_s: float
) -> None:
    speed, gpu_type = s.speed_of(lease.gpus[0]), s.topology.type_of(lease.gpus[0].host)
    slowdown = _slowdown(s, lease)
    clerk.record(facts.LeaseStarted(lease.gpus, container_id, job_id, now_s, until_s, slowdown, speed, gpu_type))


def goes_on(s: Holdings, clerk: Clerk, container: Container, job_id: str, now_s: float) -> None:
    """The container goes on with another job of its app: from now on its leases count for that one."""
    for lease in s.durable.leases.parts(container.gpus):
        if lease.container_id == container.container_id and lease.job_id != job_id:
            clerk.record(facts.LeaseIdle(lease.gpus, now_s))
    start(s, clerk, container, job_id, now_s)


def _lent(s: Holdings, lease: Lease) -> bool:
    """Whether it was granted with an earlier end than usual (`Award.until_s`).

    The tolerance of 1.5 leads allows for a GPU that became free before it was due.
    """
    return lease.end_s < end_s(s, lease.granted_s, lease.gpus[0].host, lease.app_id) - 1.5 * s.lead_s


def _slowdown(s: Holdings, lease: Lease) -> float:
    """S of its gang's locality, by the prior rather than by what the app's own Agent measured."""
    gang, mine = s.gang_key(lease, lease.gpus[0]), s.durable.leases.by_app[lease.app_id].values()
    hosts = {gpu.host for x in mine for gpu in x.gpus if s.gang_key(x, gpu) == gang}
    return SLOWDOWN_PRIOR[s.topology.scope_of(sorted(hosts)) - 1]


def container_gone(s: Holdings, clerk: Clerk, container_id: str, now_s: float) -> None:
    """A container ended: its leases become idle; they end if they were being revoked or the app is unmanaged."""
    container = s.cluster.container_gone(container_id)
    clerk.kills_sent.pop(container_id, None)
    if container is None:
        return
    unmanaged = s.is_unmanaged(container.app_id)
    for worker in [w for w in s.workers.of(container.app_id) if w.container_id == container_id]:
        clerk.drop_worker(worker)
    lost = container.plain or not _leased(s, container)
    clerk.vacate(gpu for gpu in container.gpus if s.cluster.container_at.get(gpu) == container_id)
    for lease in s.durable.leases.parts(container.gpus):
        if lease.app_id != container.app_id:
            continue
        if lease.state == REVOKING:
            end(s, clerk, lease.gpus, now_s, Cause(lease.cause, "revoked"))
        elif unmanaged:
            end(s, clerk, lease.gpus, now_s, Cause(EndReason.CONTAINER_ENDED, "container ended"))
        elif lease.container_id:
            clerk.record(facts.LeaseIdle(lease.gpus, now_s))
    if lost:
        clerk.request_round(now_s + s.settings.settle_s)
    if container.plain:
        clerk.reindex_host(container.gpus[0].host)


def released(s: Holdings, clerk: Clerk, e: GpusReleased, now_s: float) -> None:
    """An app releases leased or reserved GPUs early."""
    gpus, d = sorted(e.gpus), s.durable
    claims: list[Claim] = [*d.reservations.parts(gpus), *d.leases.parts(gpus)]
    for x in sorted((x for x in claims if x.app_id == e.app_id), key=lambda x: x.gpus[0]):
        coming = tuple(g for g in x.gpus if (y := d.reservations.get(g)) is not None and y.app_id == e.app_id)
        if coming:
            clerk.record(facts.NextDropped(coming, "released"))
            clerk.request_round(now_s + s.settings.settle_s)
        if isinstance(x, Lease):
            deadline_s = x.end_s if x.state == REVOKING else now_s + s.lead_s
            _revoke_one(s, clerk, x, now_s, deadline_s, Cause(EndReason.RELEASED, "released"))


def expire(s: Holdings, clerk: Clerk, now_s: float) -> None:
    """Handles GPUs that are due: ends revoked and unused leases, renews those of unmanaged apps, kills stray
    containers and gives up placements without a container."""
    if suspended(s, now_s):
        return
    for gpu in sorted(s.gpus.due(now_s)):
        worker, container = s.workers.placing.get(gpu), s.cluster.containers.get(s.cluster.container_at.get(gpu, ""))
        if worker is not None and worker.placing_until_s <= now_s:
            clerk.drop_worker(worker)  # a container that comes late is killed unless the app holds its GPUs then
            not_placed(s, clerk, worker.plan.gpus, now_s)
        if container is not None and not container.ending and not _leased(s, container):
            _kill_unleased(s, clerk, container, now_s)
        lease = s.durable.leases.get(gpu)
        if lease is not None:
            _handle_due_lease(s, clerk, lease, now_s)


def _handle_due_lease(s: Holdings, clerk: Clerk, lease: Lease, now_s: float) -> None:
    if lease.state == REVOKING and lease.end_s <= now_s:
        _end_revoked(s, clerk, lease, now_s)
    elif (limit := s.limit(lease)) is not None and limit.at_s <= now_s:
        revoke(s, clerk, s.gang_at(lease.gpus[0]), now_s, now_s + s.lead_s, limit.cause)
    elif lease.state == GRANTED:
        _end_unused(s, clerk, lease, now_s)
    elif lease.state == ACTIVE and lease.end_s - s.lead_s <= now_s:
        good = tuple(g for g in lease.gpus if not s.cluster.bad(g)) if s.renews_itself(lease) else ()
        if good:
            clerk.record(facts.LeaseExtended(good, end_s(s, lease.end_s, lease.gpus[0].host, lease.app_id)))
        if len(good) < len(lease.gpus):
            rest = next(gpu for gpu in lease.gpus if gpu not in good)
            s.gpus.to_offer(rest, lease.end_s)  # it renewed itself when a round last looked


def _end_revoked(s: Holdings, clerk: Clerk, lease: Lease, now_s: float) -> None:
    """Ends a lease that had to end by now; kills the containers that still use it."""
    containers = {gpu: s.cluster.container_at.get(gpu, "") for gpu in lease.gpus}
    for container_id in dict.fromkeys(filter(None, containers.values())):
        clerk.kill_container(container_id, now_s, "lease ended", again=lease.cause in PREEMPTIONS)
        s.gpus.look_at(lease.gpus[0], clerk.kills_sent[container_id] + KILL_RETRY_S)
    gone = [gpu for gpu in lease.gpus if not containers[gpu] and gpu not in s.workers.placing]
    if gone:
        end(s, clerk, gone, now_s, Cause(lease.cause, "revoked"))


def _end_unused(s: Holdings, clerk: Clerk, lease: Lease, now_s: float) -> None:
    """Ends a granted lease where no container came in time."""
    lapses = {gpu: at_s for gpu in lease.gpus if (at_s := _lapse_s(s, lease, gpu)) is not None}
    due = [gpu for gpu, at_s in lapses.items() if at_s <= now_s]
    for gpu in due:
        clerk.revoke_notice(lease.app_id, [gpu], now_s, "grant not used in time", now_s)
    if due:
        end(s, clerk, due, now_s, Cause(EndReason.LAPSED, "grant not used in time"))
    later = [(at_s, gpu) for gpu, at_s in lapses.items() if at_s > now_s]
    if later:
        at_s, gpu = min(later)
        s.gpus.look_at(gpu, at_s)


def _lapse_s(s: Holdings, lease: Lease, gpu: Gpu) -> float | None:
    """When an unused grant lapses; None while it is used. Time in which no placement could be sent does not count."""
    since_s = lease.unused_since_s
    if since_s is None or s.in_use(gpu):
        return None
    if gpu in s.workers.at:
        since_s = max(since_s, s.workers.full_s)
    return since_s + s.settings.grant_timeout_s


def extend_after_pause(s: Holdings, clerk: Clerk, now_s: float) -> None:
    """Extends leases after a suspension: none ends before two leads have passed."""
    earliest_s = now_s + 2 * s.lead_s
    s.agents.restart_waits(now_s)
    short = [x for x in s.durable.leases.each() if x.end_s < earliest_s]
    extend(s, clerk, ((earliest_s, x.gpus) for x in short), counted=False)


def adopt(s: Holdings, clerk: Clerk, container: Container, now_s: float) -> None:
    """Makes leases for a running container that the journal does not know, as its tags say; kills it if it may not
    have them. They end at the next common end, as before or earlier, lest apps wait longer after every takeover."""
    others = [x for g in container.gpus if (x := s.durable.leases.get(g)) and x.app_id != container.app_id]
    free = tuple(g for g in container.gpus if g not in s.durable.leases)
    if others or (free and container.app_id not in s.durable.live):
        _kill_unleased(s, clerk, container, now_s)
        return
    if free:
        app_id, grant_id = container.app_id, container.lease_id or f"adopted-{container.container_id}"
        until_s = max(common_end_s(s, now_s, free[0].host, s.durable.apps[app_id].vc), now_s + 2 * s.lead_s)
        s.groups.adopted()
        clerk.taken_rounds.add(round_of(grant_id))
        own, of = s.supply.whole or bool(s.durable.apps[app_id].vc), container.container_id
        clerk.record(facts.LeaseGranted(free, app_id, grant_id, now_s, until_s, of, guaranteed=own))
        _started(s, clerk, s.durable.leases[free[0]], container.container_id, "", now_s, until_s)
    start(s, clerk, container, s.workers.reported(container), now_s)


def next_wake_s(s: Holdings, now_s: float) -> float | None:
    """When `expire` has something to do next; None: not before the next event."""
    if s.paused or not s.cluster.ready:
        return None
    if now_s < s.cluster.recovering_until_s:
        return s.cluster.recovering_until_s
    return s.gpus.next_look_s()
