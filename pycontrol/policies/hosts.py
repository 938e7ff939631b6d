"""Hosts for the gangs that placers choose, within demand, scope and queue limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pycontrol.auction.handout import Caps
from pycontrol.auction.placing import FreeIndex
from pycontrol.model.auction import AppView, Gang, Snapshot
from pycontrol.model.grouping import summed
from pycontrol.model.topology import Topology
from pycontrol.shares.placer import PlacerJob


def gpus_by_type(parts: Iterable[tuple[str, int]], topology: Topology) -> dict[str, int]:
    """GPUs by type; `parts`: (host, GPUs), as in a gang."""
    return summed((topology.type_of(host), n) for host, n in parts)


class HostPool:
    """The GPUs on offer for a placer; gives gangs within demand, scope and queue limits."""

    def __init__(self, s: Snapshot, supply: Mapping[str, int]) -> None:
        """`supply`: GPUs by type that the round divides."""
        self.pool = FreeIndex(s.free, s.topology)
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
        return home is not None and self.pool.holds(home) and self.take(job, home)

    def settle(self, job: PlacerJob, gpu_type: str) -> bool:
        """Gives the job a new gang of a GPU type; returns whether there was room."""
        if not self.may_get(job):
            return False
        demand = self.view[job.job_id].demand
        members = demand.members if job.gpus == demand.gang_gpus else ()
        gang = self.pool.place(job.gpus, demand.scope, gpu_type, members)
        return gang is not None and self.take(job, gang)

    def hold(self, job: PlacerJob) -> None:
        """Holds all free GPUs of one type for the job: of types large enough, the one with the most free GPUs."""
        types = [t for t in job.types if self.supply.get(t, 0) >= job.gpus] if self.may_get(job) else []
        free = {t: [(h, n) for h, n in self.pool.unused.items() if self.topology.type_of(h) == t] for t in types}
        if free:
            gang: Gang = tuple(sorted(max(free.values(), key=lambda pairs: sum(n for _, n in pairs))))
            self.pool.take(gang)
            self.held.append((self.view[job.job_id].app_id, gang))

    def may_get(self, job: PlacerJob) -> bool:
        """Whether the job's app may have so many GPUs more."""
        return self.caps.of(self.view[job.job_id]) >= job.gpus

    def take(self, job: PlacerJob, gang: Gang) -> bool:
        """Gives the job these GPUs; returns whether it may have them."""
        if not self.may_get(job):
            return False
        view = self.view[job.job_id]
        self.pool.take(gang)
        self.caps.use(view, job.gpus)
        self.got.setdefault(view.app_id, []).append(gang)
        return True
