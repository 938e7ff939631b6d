"""Gavel's rounds as Shockwave's artifact simulates them, each departure from ours as a switch.

After scheduler/scheduler.py of uw-mad-dash/shockwave at 8a44f4a27a45 (`simulate`, `_update_priorities`,
`_schedule_jobs_on_workers_helper`) and scheduler/policies/gandiva_fair_proportional.py. One GPU type, no locality.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

ROUND_S, RESTART_S = 120.0, 20.0
"""A round, and the part of it that a job loses if it did not run in the round before."""
RESET_S = 1000.0
"""The least time between two allocations."""
SHORT_S = 115.0
"""A job with less left than this loses nothing (the artifact: else its rounding would leave a long tail)."""
NEW_S = ROUND_S / 2
"""What each job counts as having received at a reset."""


@dataclass(frozen=True)
class ArtifactJob:
    """Arrival and serial seconds of work; it runs on `gang` GPUs at once."""

    arrival_s: float
    gang: int
    work_s: float


@dataclass(frozen=True)
class ArtifactRounds:
    """Which of the artifact's rules are in force; without one the simulation does what ours does."""

    time_shares: bool
    """Gandiva_fair there: each job has the same part of the time, however many GPUs it runs on; else the same GPUs."""
    waits: bool = True
    """A job that arrives is not run before the next reset."""
    forgets: bool = True
    """At a reset, what each job has received is forgotten."""
    idles: bool = True
    """GPUs that become free in a round stay idle to its end, and who arrives waits for it."""

    def shares(self, here: Sequence[int], jobs: Sequence[ArtifactJob], gpus: int) -> dict[int, float]:
        """The part of the time that each job is to run."""
        if self.time_shares:
            return {j: min(1.0, gpus / len(here)) for j in here}
        found, left = {}, float(gpus)
        todo = sorted(here, key=lambda j: jobs[j].gang)
        for k, j in enumerate(todo):
            given = min(jobs[j].gang, left / (len(todo) - k))
            found[j], left = given / jobs[j].gang, left - given
        return found


@dataclass
class _Cluster:
    """What runs, and what is left of it."""

    jobs: Sequence[ArtifactJob]
    gpus: int
    rules: ArtifactRounds
    now_s: float = 0.0
    left_s: list[float] = field(default_factory=list)
    ended_s: dict[int, float] = field(default_factory=dict)
    received_s: dict[int, float] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    reset_s: float | None = None
    known: frozenset[int] = frozenset()
    changed: bool = True
    running: dict[int, float] = field(default_factory=dict)
    """Job: seconds that its restart still takes."""

    def here(self) -> list[int]:
        """Jobs that have arrived and have not ended."""
        return [j for j, job in enumerate(self.jobs) if job.arrival_s <= self.now_s and j not in self.ended_s]

    def allocate(self, here: Sequence[int]) -> None:
        """New shares, if jobs came or went and the last ones are old enough."""
        self.changed |= frozenset(here) != self.known
        self.known = frozenset(here)
        for j in here:
            self.received_s.setdefault(j, NEW_S)
        due = not self.reset_s or self.now_s - self.reset_s >= RESET_S
        if self.changed and due:
            self.shares, self.reset_s, self.changed = self.rules.shares(here, self.jobs, self.gpus), self.now_s, False
            if self.rules.forgets:
                self.received_s = dict.fromkeys(here, NEW_S)
        elif not self.rules.waits:
            self.shares = self.rules.shares(here, self.jobs, self.gpus)

    def fill(self, here: Sequence[int], stay: Mapping[int, float]) -> dict[int, float]:
        """Those that stay, and on the other GPUs those that are furthest behind their shares, as far as they fit."""
        free, chosen = self.gpus - sum(self.jobs[j].gang for j in stay), dict(stay)
        behind: Callable[[int], float] = lambda j: -self.shares.get(j, 0.0) / self.received_s[j]  # noqa: E731
        for j in sorted(set(here) - set(stay), key=lambda j: (behind(j), j)):
            if self.jobs[j].gang <= free:
                free -= self.jobs[j].gang
                if j in self.shares:
                    lost = 0.0 if j in self.running or self.left_s[j] < SHORT_S else RESTART_S
                    chosen[j] = self.running.get(j, lost)
        return chosen

    def run(self, until_s: float) -> None:
        """Runs what was chosen; a job that ends leaves."""
        for j, restart_s in list(self.running.items()):
            needs_s, span_s = restart_s + self.left_s[j], until_s - self.now_s
            if needs_s <= span_s + 1e-9:
                self.ended_s[j] = self.now_s + needs_s
                continue
            worked_s = max(0.0, span_s - restart_s)
            self.left_s[j] -= worked_s
            self.received_s[j] += worked_s
            self.running[j] = max(0.0, restart_s - span_s)
        self.running = {j: s for j, s in self.running.items() if j not in self.ended_s}
        self.now_s = until_s

    def round(self) -> None:
        """One round, to its end or to that of its last job."""
        here = self.here()
        self.allocate(here)
        self.running = self.fill(here, {})
        end_s = self.now_s + ROUND_S
        while self.now_s < end_s - 1e-9:
            ends = [self.now_s + restart_s + self.left_s[j] for j, restart_s in self.running.items()]
            if self.rules.idles:
                self.run(min(end_s, max(ends, default=end_s)))
                return
            arrivals = [job.arrival_s for job in self.jobs if self.now_s < job.arrival_s < end_s]
            self.run(min([end_s, *ends, *arrivals]))
            here = self.here()
            self.allocate(here)
            self.running = self.fill(here, self.running)


def completions(jobs: Sequence[ArtifactJob], gpus: int, rules: ArtifactRounds) -> list[float]:
    """The completion time of each job, seconds."""
    cluster = _Cluster(jobs, gpus, rules, min(job.arrival_s for job in jobs), [job.work_s for job in jobs])
    while len(cluster.ended_s) < len(jobs):
        if not cluster.here():
            cluster.now_s = min(job.arrival_s for job in jobs if job.arrival_s > cluster.now_s)
        cluster.round()
    return [cluster.ended_s[j] - job.arrival_s for j, job in enumerate(jobs)]
