"""Where HiveD's experiments run jobs: a cluster of 8-GPU nodes shared by cells, or by a quota of GPUs (YARN-CS)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pycontrol.cells.config import CellsFile, layout
from pycontrol.cells.core import Cells
from pycontrol.cells.values import OPPORTUNISTIC, Outcome, Request

NODE_GPUS = 8


class Job:
    """A gang on its way: up to 8 GPUs on one node, more on whole nodes."""

    __slots__ = (
        "began_s", "ended_s", "gpus", "group", "guaranteed", "left_s", "level", "number", "run_s", "running",
        "served_s", "spots", "submitted_s", "tenant", "version",
    )  # fmt: skip

    def __init__(self, number: int, tenant: str, gpus: int, submitted_s: float, run_s: float) -> None:
        self.number, self.tenant, self.gpus = number, tenant, gpus
        self.submitted_s, self.run_s, self.left_s = submitted_s, run_s, run_s
        self.began_s = self.ended_s = -1.0
        self.running = self.guaranteed = False
        self.spots: tuple[tuple[int, int], ...] = ()
        """Node and GPUs there."""
        self.group = ""
        self.version = 0
        """Changes with every start and stop, so that an old end in the calendar is known."""
        self.level, self.served_s = 0, 0.0
        """Tiresias' queue, and the guaranteed time that decides on it."""

    def __lt__(self, other: Job) -> bool:
        return self.number < other.number

    @property
    def members(self) -> tuple[tuple[int, int], ...]:
        """Workers and their GPUs."""
        return ((1, self.gpus),) if self.gpus <= NODE_GPUS else ((self.gpus // NODE_GPUS, NODE_GPUS),)

    @property
    def delay_s(self) -> float:
        """All the time that it waited."""
        return max(0.0, self.ended_s - self.submitted_s - self.run_s)


class Places(Protocol):
    """What a replay asks of a cluster. Lists are of opportunistic jobs that had to stop; None: there is no room."""

    book: Book
    apart: bool
    """Whether a tenant's guaranteed room depends only on its own guaranteed jobs."""

    def guarantee(self, job: Job) -> list[Job] | None:
        """Starts a waiting job, or makes an opportunistic one guaranteed."""

    def lend(self, job: Job) -> bool:
        """Starts a waiting job on idle GPUs."""

    def free(self, job: Job) -> None:
        """A running job stops."""

    def idle(self) -> int:
        """GPUs without any job."""


class Book:
    """Who uses what: regular (guaranteed) GPUs by node and tenant, nodes of each tenant, opportunistic GPUs."""

    def __init__(self, nodes: int, tenants: Sequence[str]) -> None:
        self.regular = [0] * nodes
        self.busy_nodes = 0
        self.used = dict.fromkeys(tenants, 0)
        self.lent = dict.fromkeys(tenants, 0)
        self.held: dict[str, dict[int, int]] = {t: {} for t in tenants}

    def add(self, job: Job, sign: int) -> None:
        """A job starts (1) or stops (-1) as what it is."""
        if not job.guaranteed:
            self.lent[job.tenant] += sign * job.gpus
            return
        self.used[job.tenant] += sign * job.gpus
        held = self.held[job.tenant]
        for node, gpus in job.spots:
            before = self.regular[node]
            now = self.regular[node] = before + sign * gpus
            self.busy_nodes += (now > 0) - (before > 0)
            mine = held.get(node, 0) + sign * gpus
            if mine:
                held[node] = mine
            else:
                del held[node]


class Celled:
    """Tenants with cells: HiveD. With one tenant that owns all of it: a private cluster."""

    apart = True

    def __init__(self, nodes: int, owned: Mapping[str, Mapping[str, int]], static: bool = False) -> None:
        file = CellsFile.model_validate({
            "levels": {"switch": 2, "socket": 2, "node": 2},
            "hosts": [str(n) for n in range(nodes)],
            "virtual_clusters": {t: dict(cells) for t, cells in owned.items()},
            "binding": "static" if static else "dynamic",
        })  # fmt: skip
        plan = layout(file)
        self.cells = Cells(plan)
        self.own = {vc.name: plan.gpus(vc) for vc in plan.vcs}
        self.book = Book(nodes, list(owned))
        self.jobs: dict[str, Job] = {}
        self.low = self.cells.spaces[0].low

    def idle(self) -> int:
        return self.low.free_gpus

    def guarantee(self, job: Job) -> list[Job] | None:
        if self.book.used[job.tenant] + job.gpus > self.own[job.tenant]:
            return None
        request = Request(f"{job.number}.{job.version}", job.tenant, 0, job.members)
        decision = self.cells.request(request)
        if decision.outcome is Outcome.WAIT:
            return None
        victims = [self.jobs[name] for name in decision.victims]
        if job.running and job not in victims:
            self.free(job)
        for victim in victims:
            self.free(victim)
        if decision.outcome is Outcome.PREEMPT:
            decision = self.cells.request(request)
        job.guaranteed = True
        self._start(job, request.group, decision.workers)
        return [victim for victim in victims if victim is not job]

    def by_luck(self, job: Job) -> bool:
        """Whether a worker of it lies in several cells, which are on one host by chance: no cell promises that."""
        seen: dict[int, object] = {}
        for part in self.cells.groups[job.group].parts:
            assert part.virtual is not None
            root = part.space.root_of(part.virtual)
            if part.worker >= 0 and seen.setdefault(part.worker, root) != root:
                return True
        return False

    def lend(self, job: Job) -> bool:
        request = Request(f"{job.number}.{job.version}", job.tenant, OPPORTUNISTIC, job.members)
        decision = self.cells.request(request)
        if decision.outcome is not Outcome.PLACED:
            return False
        job.guaranteed = False
        self._start(job, request.group, decision.workers)
        return True

    def _start(self, job: Job, group: str, workers: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        job.group, self.jobs[group] = group, job
        job.spots = tuple((int(host), len(gpus)) for host, gpus in workers)
        job.version += 1
        self.book.add(job, 1)

    def free(self, job: Job) -> None:
        self.cells.release(job.group)
        del self.jobs[job.group]
        self.book.add(job, -1)
        job.version += 1


class Counted:
    """A quota of GPUs a tenant and best-fit packing: YARN's capacity scheduler, packing and preempting by affinity.

    `quota` None for all: nobody is limited. A tenant within its quota may stop any opportunistic job; it does so
    wherever its job packs best or, with `idle_first`, only where no node has the idle GPUs.
    """

    apart = False

    def __init__(self, nodes: int, quota: Mapping[str, int | None], idle_first: bool = False) -> None:
        self.quota, self.idle_first = quota, idle_first
        self.book = Book(nodes, list(quota))
        self.room = [NODE_GPUS] * nodes
        """GPUs without a guaranteed job, by node; `vacant`: without any job."""
        self.vacant = [NODE_GPUS] * nodes
        self.by_room: list[dict[int, None]] = [{} for _ in range(NODE_GPUS + 1)]
        self.by_vacant: list[dict[int, None]] = [{} for _ in range(NODE_GPUS + 1)]
        for n in range(nodes - 1, -1, -1):
            self.by_room[NODE_GPUS][n] = self.by_vacant[NODE_GPUS][n] = None
        self.guests: list[dict[Job, None]] = [{} for _ in range(nodes)]
        self.idle_gpus = nodes * NODE_GPUS

    def idle(self) -> int:
        return self.idle_gpus

    def guarantee(self, job: Job) -> list[Job] | None:
        quota = self.quota[job.tenant]
        if quota is not None and self.book.used[job.tenant] + job.gpus > quota:
            return None
        if job.running:
            spots = job.spots
            self.free(job)
        else:
            found = self._best(job)
            if found is None:
                return None
            spots = found
        victims: list[Job] = []
        for node, gpus in spots:
            guests = sorted(self.guests[node], key=lambda j: (j.gpus < gpus - self.vacant[node], j.gpus, -j.began_s))
            for guest in guests:
                if self.vacant[node] >= gpus:
                    break
                self.free(guest)
                victims.append(guest)
        job.guaranteed = True
        self._start(job, spots)
        return victims

    def _best(self, job: Job) -> tuple[tuple[int, int], ...] | None:
        """The fullest nodes with room, among them those with the fewest opportunistic GPUs."""
        vacant = self.vacant
        if job.gpus > NODE_GPUS:
            count, whole = job.gpus // NODE_GPUS, self.by_room[NODE_GPUS]
            if len(whole) < count:
                return None
            return tuple((n, NODE_GPUS) for n in sorted(whole, key=lambda n: (-vacant[n], n))[:count])
        bucket = next((b for b in self.by_vacant[job.gpus :] if b), None) if self.idle_first else None
        if bucket is not None:
            return ((next(iter(bucket)), job.gpus),)
        for room in range(job.gpus, NODE_GPUS + 1):
            if self.by_room[room]:
                return ((max(self.by_room[room], key=lambda n: (vacant[n], -n)), job.gpus),)
        return None

    def lend(self, job: Job) -> bool:
        if job.gpus > NODE_GPUS:
            count, whole = job.gpus // NODE_GPUS, self.by_vacant[NODE_GPUS]
            if len(whole) < count:
                return False
            spots = tuple((n, NODE_GPUS) for n in list(whole)[:count])
        else:
            bucket = next((b for b in self.by_vacant[job.gpus :] if b), None)
            if bucket is None:
                return False
            spots = ((next(iter(bucket)), job.gpus),)
        job.guaranteed = False
        self._start(job, spots)
        return True

    def _start(self, job: Job, spots: tuple[tuple[int, int], ...]) -> None:
        job.spots = spots
        job.version += 1
        self._use(job, 1)

    def free(self, job: Job) -> None:
        self._use(job, -1)
        job.version += 1

    def _use(self, job: Job, sign: int) -> None:
        self.book.add(job, sign)
        self.idle_gpus -= sign * job.gpus
        for node, gpus in job.spots:
            if job.guaranteed:
                self._move(self.room, self.by_room, node, -sign * gpus)
            elif sign > 0:
                self.guests[node][job] = None
            else:
                del self.guests[node][job]
            self._move(self.vacant, self.by_vacant, node, -sign * gpus)

    @staticmethod
    def _move(level: list[int], buckets: list[dict[int, None]], node: int, change: int) -> None:
        del buckets[level[node]][node]
        level[node] += change
        buckets[level[node]][node] = None
