"""Hosts for the gangs that placers choose, within demand, scope and queue limits; and the placer of OEF's paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pycontrol.auction.handout import Caps
from pycontrol.auction.placing import FreeIndex
from pycontrol.model.auction import AppView, Gang, Snapshot, gang_of
from pycontrol.model.topology import Scope, Topology
from pycontrol.shares.placer import ANY_TYPE, Placement, PlacerJob, paper_round


def gpus_by_type(parts: Iterable[tuple[str, int]], topology: Topology) -> dict[str, int]:
    """GPUs by type; `parts`: (host, GPUs), as in a gang."""
    counts: dict[str, int] = {}
    for host, n in parts:
        counts[topology.type_of(host)] = counts.get(topology.type_of(host), 0) + n
    return counts


class HostPool:
    """The GPUs on offer for a placer; gives gangs within demand, scope and queue limits."""

    def __init__(self, s: Snapshot, supply: Mapping[str, int], packed: bool = True) -> None:
        """`supply`: GPUs by type that the round divides. Not `packed`: gangs take free GPUs in the order of host names,
        however far apart."""
        order = None if packed else {host: k for k, host in enumerate(sorted(s.free))}
        self.pool = FreeIndex(s.free, s.topology, order)
        self.topology, self.supply = s.topology, supply
        self.jobs: list[PlacerJob] = []
        self.view: dict[str, AppView] = {}
        self.home: dict[str, Gang | None] = {}
        self.caps = Caps(s.apps)
        self.got: dict[str, list[Gang]] = {}
        self.held: list[tuple[str, Gang]] = []
        """(app, GPUs held free for it)."""

    def know(self, job: PlacerJob, view: AppView, home: Gang | None) -> None:
        """Adds a job of an app; `home`: the gang on which it runs, if its leases end."""
        self.jobs.append(job)
        self.view[job.job_id], self.home[job.job_id] = view, home

    def unused(self) -> dict[str, int]:
        """GPUs by host that no app got; returns held GPUs to the pool first."""
        for _, gang in self.held:
            self.pool.give(gang)
        return self.pool.unused

    def stay(self, job: PlacerJob) -> bool:
        """Lets the job keep its home, if all of it is left; returns whether."""
        home = self.home[job.job_id]
        return home is not None and self.pool.holds(home) and self._take(job, home)

    def settle(self, job: PlacerJob, gpu_type: str) -> bool:
        """Gives the job a new gang of a GPU type; returns whether there was room."""
        if not self._may_get(job):
            return False
        demand = self.view[job.job_id].demand
        members = demand.members if job.gpus == demand.gang_gpus else ()
        gang = self.pool.place(job.gpus, demand.scope, gpu_type, members)
        return gang is not None and self._take(job, gang)

    def hold(self, job: PlacerJob) -> None:
        """Holds all free GPUs of one type for the job: of types large enough, the one with the most free GPUs."""
        types = [t for t in job.types if self.supply.get(t, 0) >= job.gpus] if self._may_get(job) else []
        free = {t: [(h, n) for h, n in self.pool.unused.items() if self.topology.type_of(h) == t] for t in types}
        if free:
            gang: Gang = tuple(sorted(max(free.values(), key=lambda pairs: sum(n for _, n in pairs))))
            self.pool.take(gang)
            self.held.append((self.view[job.job_id].app_id, gang))

    def settle_mixed(self, job: PlacerJob, parts: Mapping[str, int]) -> bool:
        """Gives the job a gang with `parts` (type -> GPUs): its home if that matches, else a new place; returns
        whether it fits the job's scope and size."""
        home = self.home[job.job_id]
        wanted = {t: n for t, n in parts.items() if n}
        if home is not None and gpus_by_type(home, self.topology) == wanted and self.stay(job):
            return True
        gang: dict[str, int] = {}
        for gpu_type, n in parts.items():
            part = self.pool.place(n, Scope.CLUSTER, gpu_type) if n else ()
            if part is None:
                return False
            gang.update(part)
        view = self.view[job.job_id]
        if self.topology.scope_of(gang) > view.demand.scope or job.gpus != view.demand.gang_gpus:
            return False
        return self._take(job, gang_of(gang))

    def _may_get(self, job: PlacerJob) -> bool:
        return self.caps.of(self.view[job.job_id]) >= job.gpus

    def _take(self, job: PlacerJob, gang: Gang) -> bool:
        if not self._may_get(job):
            return False
        view = self.view[job.job_id]
        self.pool.take(gang)
        self.caps.use(view, job.gpus)
        self.got.setdefault(view.app_id, []).append(gang)
        return True


def paper_placement(
    ideal: Mapping[str, Mapping[str, float]], carried: Mapping[str, Mapping[str, float]], hosts: HostPool
) -> Placement:
    """The placer of OEF, section 4.3: whole devices by rounding with carried deviation; `_fill` assigns them to jobs.

    `ideal`: virtual user -> type -> GPUs due in this round. `carried`: virtual user -> type -> deviation before it.
    """
    smallest: dict[str, int] = {}
    for job in hosts.jobs:
        smallest[job.user] = min(smallest.get(job.user, job.gpus), job.gpus)
    outcome = paper_round(ideal, carried, smallest, gpus_by_type(hosts.pool.left.items(), hosts.topology))
    return _fill(outcome.real, outcome.deviation, hosts)


def _fill(real: Mapping[str, Mapping[str, int]], deviation: dict[str, dict[str, float]], hosts: HostPool) -> Placement:
    """Assigns each user's devices to its jobs, the longest waiting first; jobs mix types if they must.

    Larger jobs choose their hosts first. Devices that no job of their user can use stay idle.
    """
    left = {user: dict(own) for user, own in real.items()}
    chosen: list[tuple[PlacerJob, dict[str, int]]] = []
    for job in sorted(hosts.jobs, key=lambda j: (-j.waited, j.home is None, -j.gpus, j.job_id)):
        own, parts, need = left[job.user], dict[str, int](), job.gpus
        usable = own if ANY_TYPE in job.types or not job.types else {t: own.get(t, 0) for t in job.types}
        if sum(usable.values()) < need:
            continue
        for t in sorted(usable, key=lambda t: (t != job.home, -usable[t], t)):
            parts[t] = min(need, own[t])
            own[t] -= parts[t]
            need -= parts[t]
        chosen.append((job, parts))
    result = Placement(deviation)
    for job, parts in sorted(chosen, key=lambda c: (-c[0].gpus, c[0].job_id)):
        ran = hosts.home[job.job_id]
        if hosts.settle_mixed(job, parts):
            types = [t for t, n in parts.items() if n]
            result.how[job.job_id] = types[0] if len(types) == 1 else ANY_TYPE, "entitled"
            result.migrations += ran is not None and hosts.got[hosts.view[job.job_id].app_id][-1] != ran
    return result
