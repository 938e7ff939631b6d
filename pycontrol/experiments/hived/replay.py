"""Replays jobs on a shared or private cluster, event by event, with a scheduler of choice inside each tenant.

A tenant's jobs keep their order of arrival for guaranteed GPUs. A job that waits may run on idle GPUs as an
opportunistic one; it keeps its place in the queue and becomes guaranteed when its turn comes, at no cost. One that is
stopped keeps its progress (a checkpoint) and loses no time (no grace). Idle GPUs go to the tenant with the least per
node that it owns, there to the oldest job that fits.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pycontrol.experiments.hived.places import NODE_GPUS, Job, Places

HOUR_S = 3600.0
DEMOTED_GPU_S = 3600.0
"""Tiresias: guaranteed service at which a job falls into the second queue (one GPU-hour)."""


@dataclass
class Series:
    """The cluster every hour: GPUs of regular and of all jobs, nodes without room for a regular 8-GPU job."""

    regular_gpus: list[int] = field(default_factory=list)
    all_gpus: list[int] = field(default_factory=list)
    broken_nodes: list[int] = field(default_factory=list)
    busy: list[bytes] = field(default_factory=list)
    """Node by node, whether a regular job is on it."""
    used: list[dict[str, int]] = field(default_factory=list)
    """Regular GPUs by tenant."""
    lent: list[dict[str, int]] = field(default_factory=list)
    """Opportunistic GPUs by tenant."""
    held: list[dict[str, int]] = field(default_factory=list)
    """Nodes with regular jobs of a tenant."""
    demand: list[dict[str, int]] = field(default_factory=list)
    """GPUs of all jobs that have come and not ended."""


@dataclass
class Replayed:
    """What a replay found. `preemptions`: (time, GPUs) of opportunistic jobs that gave way to a guarantee."""

    delay_s: dict[int, float]
    series: Series
    preemptions: list[tuple[float, int]]
    completed_s: dict[int, float]
    starts: list[tuple[float, int, bool]]
    """Guaranteed starts and ends in their order: (time, job, is a start)."""


class Replay:
    """FIFO with packing inside each tenant: YARN's capacity scheduler; head-of-line blocking as there."""

    def __init__(
        self,
        jobs: Sequence[Job],
        places: Places,
        weight: Mapping[str, float],
        opportunistic: bool = True,
        sampled_until_s: float = 0.0,
    ) -> None:
        self.jobs, self.places, self.weight, self.opportunistic = jobs, places, weight, opportunistic
        self.sampled_until_s = sampled_until_s
        self.now_s = 0.0
        self.queues: dict[str, deque[Job]] = {t: deque() for t in weight}
        self.hungry: dict[str, dict[int, list[tuple[int, Job]]]] = {t: {} for t in weight}
        """Waiting jobs by tenant and GPUs, oldest first (heaps; entries of jobs that run are stale)."""
        self.too_big = 1 << 30
        """Since the last stop, an opportunistic job of so many GPUs found no room."""
        self.calendar: list[tuple[float, int, int, Job]] = []
        self.demand = dict.fromkeys(weight, 0)
        self.running: dict[str, dict[Job, None]] = {t: {} for t in weight}
        """Guaranteed jobs by tenant."""
        self.series = Series()
        self.preemptions: list[tuple[float, int]] = []
        self.log: list[tuple[float, int, bool]] = []

    def run(self) -> Replayed:
        """All jobs to their ends."""
        at, jobs, sample_s = 0, self.jobs, 0.0
        while at < len(jobs) or self.calendar:
            arrives_s = jobs[at].submitted_s if at < len(jobs) else float("inf")
            while self.calendar and self.calendar[0][2] != self.calendar[0][3].version:
                heapq.heappop(self.calendar)
            ends_s = self.calendar[0][0] if self.calendar else float("inf")
            if ends_s == arrives_s == float("inf"):
                break
            self.now_s = min(arrives_s, ends_s)
            while sample_s <= min(self.now_s, self.sampled_until_s):
                self._sample()
                sample_s += HOUR_S
            if ends_s <= arrives_s:
                self._event(heapq.heappop(self.calendar)[3])
            else:
                self._arrive(jobs[at])
                at += 1
        stuck = [job for job in jobs if job.ended_s < 0]
        if stuck:
            raise ValueError(f"{len(stuck)} jobs can never run, as job {stuck[0].number} of {stuck[0].tenant}")
        return Replayed(
            {j.number: j.delay_s for j in jobs}, self.series, self.preemptions,
            {j.number: j.ended_s - j.submitted_s for j in jobs}, self.log,
        )  # fmt: skip

    def _sample(self) -> None:
        s, book = self.series, self.places.book
        regular = sum(book.used.values())
        s.regular_gpus.append(regular)
        s.all_gpus.append(regular + sum(book.lent.values()))
        s.broken_nodes.append(book.busy_nodes)
        s.busy.append(bytes(n > 0 for n in book.regular))
        s.used.append(dict(book.used))
        s.lent.append(dict(book.lent))
        s.held.append({t: len(nodes) for t, nodes in book.held.items()})
        s.demand.append(dict(self.demand))

    def _arrive(self, job: Job) -> None:
        self.demand[job.tenant] += job.gpus
        self.queues[job.tenant].append(job)
        self._wait(job)
        self.admit(job.tenant)
        self._fill()

    def _event(self, job: Job) -> None:
        """A job ends."""
        was_guaranteed = job.guaranteed
        self.stop(job)
        job.ended_s = self.now_s
        self.demand[job.tenant] -= job.gpus
        self.ended(job, was_guaranteed)
        self._after_stop(job.tenant, was_guaranteed)

    def ended(self, job: Job, was_guaranteed: bool) -> None:
        """For policies that do something then."""

    def _after_stop(self, tenant: str, was_guaranteed: bool) -> None:
        if was_guaranteed or self.queues[tenant]:
            for other in (tenant,) if self.places.apart else self.queues:
                self.admit(other)
        self._fill()

    def admit(self, tenant: str) -> None:
        """Guaranteed GPUs for the tenant's jobs in order; the first that finds no room blocks the others."""
        queue = self.queues[tenant]
        while queue:
            job = queue[0]
            if job.ended_s < 0 and not self.guarantee(job):
                return
            queue.popleft()

    def guarantee(self, job: Job) -> bool:
        """Starts a job, or makes it guaranteed, if there is room; those that give way wait again."""
        was_running = job.running
        stopped = self.places.guarantee(job)
        if stopped is None:
            return False
        self.log.append((self.now_s, job.number, True))
        self.running[job.tenant][job] = None
        for victim in stopped:
            self.preemptions.append((self.now_s, victim.gpus))
            self._pause(victim)
        if was_running:
            self._pause(job)
        if stopped or was_running:
            self.too_big = 1 << 30
        self.begin(job)
        return True

    def begin(self, job: Job) -> None:
        """The places have started it."""
        job.running, job.began_s = True, self.now_s
        heapq.heappush(self.calendar, (self.now_s + job.left_s, job.number, job.version, job))

    def _pause(self, job: Job) -> None:
        """The places have stopped it before its end."""
        job.left_s -= self.now_s - job.began_s
        job.running = False
        self._wait(job)

    def stop(self, job: Job) -> None:
        """Takes a running job off its GPUs."""
        self.places.free(job)
        self.too_big = 1 << 30
        if job.guaranteed:
            self.log.append((self.now_s, job.number, False))
            job.served_s += self.now_s - job.began_s
            del self.running[job.tenant][job]
        job.running = job.guaranteed = False
        job.left_s -= self.now_s - job.began_s

    def _wait(self, job: Job) -> None:
        if self.opportunistic:
            heapq.heappush(self.hungry[job.tenant].setdefault(job.gpus, []), (job.number, job))

    def _fill(self) -> None:
        """Idle GPUs to waiting jobs."""
        if not self.opportunistic:
            return
        lent, weight = self.places.book.lent, self.weight
        while idle := self.places.idle():
            limit = min(idle, self.too_big - 1)
            next_up = [
                (lent[tenant] / weight[tenant], job.number, job)
                for tenant, sizes in self.hungry.items()
                if sizes and (job := self._oldest(sizes, limit)) is not None
            ]
            if not next_up:
                return
            job = min(next_up)[2]
            if self.places.lend(job):
                self.begin(job)
            else:
                self.too_big = min(self.too_big, job.gpus)

    def regular(self, tenants: Sequence[str]) -> list[Job]:
        """Guaranteed jobs of these tenants."""
        return [job for tenant in tenants for job in self.running[tenant]]

    @staticmethod
    def _oldest(sizes: dict[int, list[tuple[int, Job]]], limit: int) -> Job | None:
        best: Job | None = None
        for gpus in [g for g in sizes if g <= limit]:
            heap = sizes[gpus]
            while heap and (heap[0][1].running or heap[0][1].ended_s >= 0):
                heapq.heappop(heap)
            if not heap:
                del sizes[gpus]
            elif best is None or heap[0][0] < best.number:
                best = heap[0][1]
        return best


class Gandiva(Replay):
    """As above; when a job ends, the least used node is emptied onto others as far as its jobs fit (migration)."""

    def ended(self, job: Job, was_guaranteed: bool) -> None:
        if not was_guaranteed:
            return
        on: dict[int, list[Job]] = {}
        for one in self.regular((job.tenant,) if self.places.apart else tuple(self.queues)):
            if one.gpus < NODE_GPUS:
                on.setdefault(one.spots[0][0], []).append(one)
        if not on:
            return
        node = min(on, key=lambda n: (sum(j.gpus for j in on[n]), min(on[n])))
        for one in sorted(on[node], key=lambda j: (-j.gpus, j.number)):
            self.stop(one)
            if not self.guarantee(one):
                raise AssertionError("where a job just ran it can run again")


class Tiresias(Replay):
    """Two queues by attained service, least first, each by arrival; a job may stop those behind it."""

    def begin(self, job: Job) -> None:
        super().begin(job)
        until_s = DEMOTED_GPU_S / job.gpus - job.served_s
        if job.guaranteed and job.level == 0 and until_s < job.left_s:
            heapq.heappush(self.calendar, (self.now_s + max(0.0, until_s), job.number, job.version, job))

    def _event(self, job: Job) -> None:
        if job.left_s - (self.now_s - job.began_s) <= 1e-6:
            super()._event(job)
            return
        job.level = 1
        for tenant in (job.tenant,) if self.places.apart else self.queues:
            self.admit(tenant)
        self._fill()

    def admit(self, tenant: str) -> None:
        """In the order of the queues; a job without room does not block the smaller ones."""
        queue = self.queues[tenant]
        waiting = sorted((j for j in queue if j.ended_s < 0), key=self._rank)
        self.queues[tenant] = deque(waiting)
        least = 1 << 30
        for job in waiting:
            if job.gpus < least:
                if self.guarantee(job) or self._displace(job, tenant):
                    self.queues[tenant].remove(job)
                else:
                    least = job.gpus

    @staticmethod
    def _rank(job: Job) -> tuple[int, int]:
        return job.level, job.number

    def _displace(self, job: Job, tenant: str) -> bool:
        """Stops jobs behind this one, the last first, until it fits; if it never does, they go on."""
        tenants = (tenant,) if self.places.apart else tuple(self.queues)
        behind = sorted((j for j in self.regular(tenants) if self._rank(j) > self._rank(job)), key=self._rank)
        if job.level or sum(j.gpus for j in behind) < job.gpus:
            return False
        stopped: list[Job] = []
        fits = False
        while behind and not fits:
            victim = behind.pop()
            self.stop(victim)
            stopped.append(victim)
            fits = self.guarantee(job)
        for victim in reversed(stopped):
            if not self.guarantee(victim):
                self.queues[victim.tenant].append(victim)
                self._wait(victim)
        return fits


REPLAYS: Mapping[str, type[Replay]] = {"yarn_cs": Replay, "gandiva": Gandiva, "tiresias": Tiresias}
