"""The placer: turns fractional shares into whole jobs, round by round, by rounding with carried deviation (OEF, section
4.3), without starvation.

A user's deviation on a type is the sum of its shares so far, less the devices that it was given. docs/shares.md has the
four steps of a round, and what differs from the rule of the paper, which charges nothing beyond the rounded shares and
leaves devices idle that no job of their user can use. `wait_bound_rounds`, in the laboratory, bounds the wait of a job.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

ANY_TYPE = ""
"""The type of a job that is larger than every type."""
HALF = 0.5 - 1e-9
"""The most that rounding adds."""


@dataclass(frozen=True)
class PlacerJob:
    """A gang that wants to run for a round."""

    job_id: str
    user: str
    gpus: int
    types: tuple[str, ...]
    """GPU types that it can use, the fastest first; (ANY_TYPE,) if it must mix types."""
    waited: float = 0.0
    """Rounds since its app last ran."""
    home: str | None = None
    """The GPU type on which it runs; ANY_TYPE if mixed; None if it does not run."""
    priority: int = 0
    """Its priority among its user's jobs; the highest comes first."""


class Devices(Protocol):
    """The devices on offer; each gang that is given reduces them."""

    def stay(self, job: PlacerJob) -> bool:
        """Lets the job keep its home; False if that is gone."""

    def settle(self, job: PlacerJob, gpu_type: str) -> bool:
        """Gives the job a new place in one type, on one host if possible; False if there is no room."""

    def hold(self, job: PlacerJob) -> None:
        """Holds devices for a job that is first but does not find enough on offer."""


@dataclass
class Placement:
    """The outcome of a round."""

    deviation: dict[str, dict[str, float]]
    """User -> type -> deviation, to be carried to the next round."""
    how: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Job -> (GPU type, why: first, stays, entitled, spare, or "spare, stays")."""
    migrations: int = 0
    """The number of running jobs that continue and had to move."""


class Credit:
    """What a user is owed, by type. A job of mixed types is charged to all types equally: only the sum matters."""

    def __init__(self, owed: dict[str, float]) -> None:
        self.owed = owed

    @property
    def total(self) -> float:
        """Devices of all types."""
        return sum(self.owed.values())

    def of(self, gpu_type: str) -> float:
        """Devices of one type."""
        return self.total if gpu_type == ANY_TYPE else self.owed.get(gpu_type, 0.0)

    def allows(self, gpus: float, gpu_type: str) -> bool:
        """Whether so many devices, rounded, are owed."""
        return self.of(gpu_type) + HALF >= gpus

    def charge(self, gpu_type: str, gpus: float) -> None:
        """Takes devices off the account; a negative number adds them."""
        types = self.owed if gpu_type == ANY_TYPE else (gpu_type,)
        for t in types:
            self.owed[t] = self.owed.get(t, 0.0) - gpus / len(types)


class PlacerRound:
    """One round of the placer."""

    def __init__(
        self,
        ideal: Mapping[str, Mapping[str, float]],
        carried: Mapping[str, Mapping[str, float]],
        jobs: Sequence[PlacerJob],
        hosts: Devices,
        patience: float,
        stint: float = 1.0,
        busy: Container[str] = (),
    ) -> None:
        """`ideal`: user -> type -> devices due in this round. `carried`: user -> type -> the last round's deviation.

        `patience`: rounds that a job waits before its user saves for it. `stint`: jobs of a type that a user must owe
        before one of its running jobs moves. `busy`: users with jobs that run on and are not among `jobs`.
        """
        deviation = {
            user: {t: carried.get(user, {}).get(t, 0.0) + share for t, share in shares.items()}
            for user, shares in ideal.items()
        }
        self.credits = {user: Credit(owed) for user, owed in deviation.items()}
        self.ideal, self.hosts, self.patience, self.stint = ideal, hosts, patience, stint
        self.busy = busy
        self.jobs = sorted(jobs, key=lambda j: (-j.waited, j.home is None, -j.gpus, j.job_id))
        self.saving: set[str] = set()
        self.result = Placement(deviation)

    def run(self) -> Placement:
        """Takes the four steps; returns who is placed, and how."""
        self._first()
        for priority in sorted({j.priority for j in self.jobs}, reverse=True):
            self._stay(priority)
            self._entitled(priority)
        self._linger()
        for saver in (False, True):
            for job in self._open():
                if (job.user in self.saving) is saver:
                    for other in self._ahead(job):
                        self._spare(other)
                    self._spare(job)
        self._limit()
        return self.result

    def _open(self) -> list[PlacerJob]:
        return [j for j in self.jobs if j.job_id not in self.result.how]

    def _give(self, job: PlacerJob, gpu_type: str, why: str, charged: bool = True) -> None:
        """`charged`: to the user's credit, now."""
        self.result.how[job.job_id] = gpu_type, why
        self.result.migrations += not why.endswith("stays") and job.home is not None
        if charged:
            self.credits[job.user].charge(gpu_type, job.gpus)

    def _by_credit(self, job: PlacerJob) -> list[str]:
        """The job's types, the one with the largest deviation first, then the faster one."""
        owed = self.credits[job.user].owed
        return sorted(job.types, key=lambda t: -round(owed.get(t, 0.0), 6))

    def _first(self) -> None:
        heads: dict[str, PlacerJob] = {}
        for job in self.jobs:
            if job.waited >= self.patience and job.home is None:
                heads.setdefault(job.user, job)
        self.saving = set(heads)
        served = False
        for job in sorted(heads.values(), key=lambda j: (-j.waited, j.job_id)):
            if not self.credits[job.user].allows(job.gpus, ANY_TYPE):
                continue
            where = next((t for t in self._by_credit(job) if self.hosts.settle(job, t)), None)
            if where is not None:
                self._give(job, where, "first")
                self.saving.discard(job.user)
                served = True
            elif not served:
                self.hosts.hold(job)
                served = True

    def _ahead(self, job: PlacerJob) -> list[PlacerJob]:
        """Waiting jobs of the same user with a higher priority."""
        ahead = [j for j in self._open() if j.user == job.user and j.priority > job.priority]
        return sorted(ahead, key=lambda j: -j.priority)

    def _stay(self, priority: int) -> None:
        for job in sorted(self._open(), key=lambda j: (-j.gpus, j.job_id)):
            if job.priority != priority:
                continue
            if job.home is None or job.user in self.saving:
                continue
            owed = self.credits[job.user].of(job.home) + (self.stint - 1) * job.gpus
            if owed + HALF >= job.gpus and self.hosts.stay(job):
                self._give(job, job.home, "stays")

    def _entitled(self, priority: int) -> None:
        chosen = []
        for job in self._open():
            if job.priority != priority or job.user in self.saving or self._content(job):
                continue
            credit = self.credits[job.user]
            gpu_type = next((t for t in self._by_credit(job) if credit.allows(job.gpus, t)), None)
            if gpu_type is not None:
                credit.charge(gpu_type, job.gpus)
                chosen.append((job, gpu_type))
        for job, gpu_type in sorted(chosen, key=lambda c: (-c[0].gpus, -c[0].waited, c[0].job_id)):
            if job.home == gpu_type and self.hosts.stay(job):
                self._give(job, gpu_type, "stays", charged=False)
            elif self.hosts.settle(job, gpu_type):
                self._give(job, gpu_type, "entitled", charged=False)
            else:  # there is no room
                self.credits[job.user].charge(gpu_type, -job.gpus)

    def _content(self, job: PlacerJob) -> bool:
        """Whether it runs and its user owes less than `stint` such gangs of that type, so that it need not move."""
        owed = -self.stint * job.gpus
        return job.home not in (None, ANY_TYPE) and self.credits[job.user].of(str(job.home)) > owed

    def _linger(self) -> None:
        """Gives spare devices to jobs that run there if their user has no debt: a move costs more than a deviation.

        A user's jobs stay on the types that it is owed most first.
        """
        for job in sorted(self._open(), key=lambda j: -self.credits[j.user].owed.get(j.home or ANY_TYPE, 0.0)):
            if job.home is None or job.user in self.saving or self.credits[job.user].total < -HALF:
                continue
            if self.hosts.stay(job):
                self._give(job, job.home, "spare, stays")

    def _spare(self, job: PlacerJob) -> None:
        if job.job_id in self.result.how:
            return
        if job.home is not None and self.hosts.stay(job):
            where, why = job.home, "spare, stays"
        else:
            found = next((t for t in job.types if self.hosts.settle(job, t)), None)
            if found is None:
                return
            where, why = found, "spare"
        self._give(job, where, why, charged=job.user not in self.saving)

    def _limit(self) -> None:
        """Limits debts to `stint` times the user's largest job, and the claims of users with no waiting job.

        Not those of users with jobs that are not here.
        """
        waiting = {j.user for j in self._open()}
        largest: dict[str, int] = {}
        for job in self.jobs:
            largest[job.user] = max(largest.get(job.user, 0), job.gpus)
        for user, credit in self.credits.items():
            if user in self.busy:
                continue
            owed = credit.owed
            if user not in waiting:
                for t in owed:
                    owed[t] = min(owed[t], self.ideal[user].get(t, 0.0) + largest.get(user, 0))
            debt = -credit.total - self.stint * largest.get(user, 0)
            if debt > 0:
                credit.charge(ANY_TYPE, -debt)
