"""From fractional shares to whole jobs, round by round: rounding with carried deviation (OEF 4.3), without stragglers.

A user's deviation on a type is what its shares came to so far, less the devices that it was given. In a round

1. a user whose longest-waiting job has waited for `patience` rounds saves for it: nothing else is charged to it, and
   as soon as its deviations add up to the job's size the job goes first, in one type, the longest wait first;
2. jobs stay where they run if their user's deviation on that type, rounded, allows; with a `stint` of more than one
   round a user may overdraw by `stint` - 1 times the job for that, so that jobs run longer before they take turns;
3. other jobs, the longest wait first, get types on which their user's deviation, rounded, allows; among those
   chosen, larger jobs choose their hosts first. Who runs moves only if its user owes `stint` whole jobs of that type;
4. devices to spare go to those who run there and whose user has no debt, then to the job that waited longest and fits
   in one type, and are charged to its user. Only a user that saves is not charged, and comes last.

Steps 2 and 3 are taken for one priority after the other, the highest first: it counts among a user's jobs alone, for
each user has its own deviations.

A job has devices of one type only, unless no type has as many in all. The paper's rule differs: it charges nothing
beyond the rounded shares and leaves what no job of their user can use to nobody; see `paper_round`.

No starvation: see `wait_bound_rounds`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

ANY_TYPE = ""
"""Of a job that is larger than every type."""
HALF = 0.5 - 1e-9
"""What rounding may add."""


@dataclass(frozen=True)
class PlacerJob:
    """A gang that wants to run for a round."""

    job_id: str
    user: str
    gpus: int
    types: tuple[str, ...]
    """GPU types that it can use, the fastest first; (ANY_TYPE,) where it must mix them."""
    waited: float = 0.0
    """Rounds since its app last ran."""
    home: str | None = None
    """The GPU type of where it runs now; ANY_TYPE if mixed; None if it does not run."""
    priority: int = 0
    """Among its user's jobs; the highest comes first."""


class Devices(Protocol):
    """The devices on offer; what is given is taken off them."""

    def stay(self, job: PlacerJob) -> bool:
        """Gives the job its home again; False where that is gone."""

    def settle(self, job: PlacerJob, gpu_type: str) -> bool:
        """Gives the job a new place in one type, on one host if possible; False where there is no room."""

    def hold(self, job: PlacerJob) -> None:
        """Keeps devices free for a job that is first but finds not enough of them on offer."""


@dataclass
class Placement:
    """The outcome of a round."""

    deviation: dict[str, dict[str, float]]
    """To be carried to the next."""
    how: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Job -> (GPU type, why: first, stays, entitled or spare)."""
    migrations: int = 0
    """Jobs that ran, run on, and had to move."""


def place_round(
    ideal: Mapping[str, Mapping[str, float]],
    carried: Mapping[str, Mapping[str, float]],
    jobs: Sequence[PlacerJob],
    hosts: Devices,
    patience: float,
    stint: float = 1.0,
) -> Placement:
    """`ideal`: devices by user and type that this round is worth; `carried`: the last round's deviation."""
    deviation = {
        user: {t: carried.get(user, {}).get(t, 0.0) + share for t, share in shares.items()}
        for user, shares in ideal.items()
    }
    return _Round(deviation, ideal, jobs, hosts, patience, stint).run()


def wait_bound_rounds(
    patience: float, largest: int, share: float, apps_of_user: int, apps: int, stint: float = 1.0
) -> float:
    """Rounds after which every app has run, if its user's shares come to `share` > 0 devices in each round, jobs
    have at most `largest`, all devices are on offer and some type has room for the job.

    After `patience` its user saves. Its debt is at most `stint` x `largest`, so each of its older apps, and then this
    one, waits at most ((stint + 1) largest + 1) / share rounds for the deviation; and the jobs that are ready and
    older, of which one at least runs in each round, are never joined by older ones.
    """
    return patience + apps_of_user * math.ceil(((stint + 1) * largest + 1) / share) + apps


class _Round:
    def __init__(
        self,
        deviation: dict[str, dict[str, float]],
        ideal: Mapping[str, Mapping[str, float]],
        jobs: Sequence[PlacerJob],
        hosts: Devices,
        patience: float,
        stint: float,
    ) -> None:
        self.deviation, self.ideal, self.hosts, self.patience, self.stint = deviation, ideal, hosts, patience, stint
        self.jobs = sorted(jobs, key=lambda j: (-j.waited, j.home is None, -j.gpus, j.job_id))
        self.saving: set[str] = set()
        self.result = Placement(deviation)

    def run(self) -> Placement:
        """The four steps."""
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

    def _give(self, job: PlacerJob, gpu_type: str, why: str) -> None:
        self.result.how[job.job_id] = gpu_type, why
        self.result.migrations += not why.endswith("stays") and job.home is not None
        self._charge(job, gpu_type, job.gpus)

    def _charge(self, job: PlacerJob, gpu_type: str, gpus: float) -> None:
        deviation = self.deviation[job.user]
        if gpu_type != ANY_TYPE:
            deviation[gpu_type] = deviation.get(gpu_type, 0.0) - gpus
            return
        for t in deviation:  # mixed: from each type alike, since only the sum matters
            deviation[t] -= gpus / len(deviation)

    def _allows(self, job: PlacerJob, gpu_type: str, overdraft: float = 0.0) -> bool:
        deviation = self.deviation[job.user]
        have = sum(deviation.values()) if gpu_type == ANY_TYPE else deviation.get(gpu_type, 0.0)
        return have + overdraft + HALF >= job.gpus

    def _by_credit(self, job: PlacerJob) -> list[str]:
        """Its types, the one with the largest deviation first; the faster of equals."""
        deviation = self.deviation[job.user]
        return sorted(job.types, key=lambda t: -round(deviation.get(t, 0.0), 6))

    def _first(self) -> None:
        heads: dict[str, PlacerJob] = {}
        for job in self.jobs:
            if job.waited >= self.patience and job.home is None:
                heads.setdefault(job.user, job)
        self.saving = set(heads)
        served = False
        for job in sorted(heads.values(), key=lambda j: (-j.waited, j.job_id)):
            if sum(self.deviation[job.user].values()) + HALF < job.gpus:
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
        """Those of its user with a higher priority that still wait."""
        ahead = [j for j in self._open() if j.user == job.user and j.priority > job.priority]
        return sorted(ahead, key=lambda j: -j.priority)

    def _stay(self, priority: int) -> None:
        for job in sorted(self._open(), key=lambda j: (-j.gpus, j.job_id)):
            if job.priority != priority:
                continue
            overdraft = (self.stint - 1) * job.gpus
            if job.home is None or job.user in self.saving or not self._allows(job, job.home, overdraft):
                continue
            if self.hosts.stay(job):
                self._give(job, job.home, "stays")

    def _entitled(self, priority: int) -> None:
        chosen = []
        for job in self._open():
            if job.priority != priority or job.user in self.saving or self._content(job):
                continue
            gpu_type = next((t for t in self._by_credit(job) if self._allows(job, t)), None)
            if gpu_type is not None:
                self._charge(job, gpu_type, job.gpus)
                chosen.append((job, gpu_type))
        for job, gpu_type in sorted(chosen, key=lambda c: (-c[0].gpus, -c[0].waited, c[0].job_id)):
            self._charge(job, gpu_type, -job.gpus)
            if job.home == gpu_type and self.hosts.stay(job):
                self._give(job, gpu_type, "stays")
            elif self.hosts.settle(job, gpu_type):
                self._give(job, gpu_type, "entitled")

    def _content(self, job: PlacerJob) -> bool:
        """Whether it runs, and its user does not yet owe `stint` gangs of that type: no reason to move."""
        owed = -self.stint * job.gpus
        return job.home not in (None, ANY_TYPE) and self.deviation[job.user].get(str(job.home), 0.0) > owed

    def _linger(self) -> None:
        """A move costs more than a deviation: spare devices go first to those who run there and are in no debt."""
        for job in self._open():
            if job.home is None or job.user in self.saving or sum(self.deviation[job.user].values()) < -HALF:
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
        self._give(job, where, why)
        if job.user in self.saving:
            self._charge(job, where, -job.gpus)

    def _limit(self) -> None:
        """Debt is at most `stint` of the largest job; who wants no more devices carries no claim beyond it."""
        waiting = {j.user for j in self._open()}
        largest: dict[str, int] = {}
        for job in self.jobs:
            largest[job.user] = max(largest.get(job.user, 0), job.gpus)
        for user, deviation in self.deviation.items():
            if user not in waiting:
                for t in deviation:
                    deviation[t] = min(deviation[t], self.ideal[user].get(t, 0.0) + largest.get(user, 0))
            debt = -sum(deviation.values()) - self.stint * largest.get(user, 0)
            if debt > 0:
                for t in deviation:
                    deviation[t] += debt / len(deviation)


@dataclass(frozen=True)
class PaperRound:
    """Whole devices by user and type in a round, and the deviation after it."""

    real: dict[str, dict[str, int]]
    deviation: dict[str, dict[str, float]]


def paper_round(
    ideal: Mapping[str, Mapping[str, float]],
    carried: Mapping[str, Mapping[str, float]],
    smallest: Mapping[str, int],
    devices: Mapping[str, int],
) -> PaperRound:
    """The paper's rule: real = round(ideal + dev), 0 where all of a user's are fewer than its `smallest` job needs.

    Rounding may ask for more than there is; then the largest remainders are served. Which hosts, and that a job
    may mix types, is left to the caller, as in the paper.
    """
    want = {u: {t: s + carried.get(u, {}).get(t, 0.0) for t, s in shares.items()} for u, shares in ideal.items()}
    real: dict[str, dict[str, int]] = {u: {} for u in want}
    for t, total in devices.items():
        floors = {u: max(0, math.floor(w.get(t, 0.0) + 1e-9)) for u, w in want.items()}
        left = total
        for u in sorted(floors, key=lambda u: (-want[u].get(t, 0.0), u)):
            real[u][t] = min(floors[u], left)
            left -= real[u][t]
        for u in sorted(floors, key=lambda u: (floors[u] - want[u].get(t, 0.0), u)):
            if left > 0 and real[u][t] == floors[u] and want[u].get(t, 0.0) - floors[u] >= 0.5 - 1e-9:
                real[u][t] += 1
                left -= 1
    for u, own in real.items():
        if sum(own.values()) < smallest.get(u, 0):
            real[u] = dict.fromkeys(own, 0)
    deviation = {u: {t: want[u].get(t, 0.0) - real[u].get(t, 0) for t in want[u]} for u in want}
    return PaperRound(real, deviation)


MEMORY = 8.0
"""Leases over which what a user received is remembered (Gavel counts again every few rounds)."""
UNSERVED = 1e-3
"""Devices; what a user received counts as so many at least."""


def priority_round(
    shares: Mapping[str, Mapping[str, float]],
    received: Mapping[str, Mapping[str, float]],
    leases: float,
    jobs: Sequence[PlacerJob],
    hosts: Devices,
) -> Placement:
    """Rounds by priority, as Gavel has them (its section 5): what a scheme comes to without a placer of ours.

    The user whose share of a type is the largest multiple of what it received of it is next, with the job that waited
    longest of those that fit; what is left then goes to whoever waited longest. A job has one type, unless it is larger
    than each. No user starves: who received nothing comes first, equals by their longest wait.

    `received`: devices by user and type over the last `MEMORY` leases or so; `leases` have passed since. What it is
    now is the placement's `deviation`.
    """
    fades = math.exp(-leases / MEMORY)
    now = {u: {t: received.get(u, {}).get(t, 0.0) * fades for t in own} for u, own in shares.items()}
    return _Priority(shares, now, jobs, hosts).run()


class _Priority:
    def __init__(
        self,
        shares: Mapping[str, Mapping[str, float]],
        received: dict[str, dict[str, float]],
        jobs: Sequence[PlacerJob],
        hosts: Devices,
    ) -> None:
        self.shares, self.received, self.hosts = shares, received, hosts
        self.result = Placement(received)
        self.waiting: dict[str, list[PlacerJob]] = {}
        for job in sorted(jobs, key=lambda j: (-j.priority, -j.waited, j.home is None, -j.gpus, j.job_id)):
            self.waiting.setdefault(job.user, []).append(job)

    def run(self) -> Placement:
        """By priority, then what is left."""
        open_ = {(u, t) for u in self.waiting for t, share in self.shares.get(u, {}).items() if share > 0}
        while open_:
            user, gpu_type = max(open_, key=self._priority)
            if not any(self._give(job, gpu_type, "entitled") for job in self._able(user, gpu_type)):
                open_.remove((user, gpu_type))
        left = [job for own in self.waiting.values() for job in own]
        for job in sorted(left, key=lambda j: (-j.waited, j.job_id)):
            any(self._give(job, t, "spare") for t in _types(job))
        return self.result

    def _priority(self, of: tuple[str, str]) -> tuple[float, float, str, str]:
        user, gpu_type = of
        longest = max((j.waited for j in self.waiting[user]), default=0.0)
        received = max(self.received[user][gpu_type], UNSERVED)
        return self.shares[user][gpu_type] / received, longest, user, gpu_type

    def _able(self, user: str, gpu_type: str) -> list[PlacerJob]:
        return [j for j in self.waiting[user] if gpu_type in _types(j) or ANY_TYPE in _types(j)]

    def _give(self, job: PlacerJob, gpu_type: str, why: str) -> bool:
        where = gpu_type if gpu_type in _types(job) else ANY_TYPE
        stays = job.home == where and self.hosts.stay(job)
        if not stays and not (job.types and self.hosts.settle(job, where)):
            return False
        self.result.how[job.job_id] = where, why if not stays else "stays" if why == "entitled" else f"{why}, stays"
        self.result.migrations += not stays and job.home is not None
        own = self.received[job.user]
        for t in own if where == ANY_TYPE else (where,):
            own[t] = own.get(t, 0.0) + job.gpus / (len(own) if where == ANY_TYPE else 1)
        self.waiting[job.user].remove(job)
        return True


def _types(job: PlacerJob) -> tuple[str, ...]:
    """Those that it can use; of a gang of another size than its app's the one that it has."""
    return job.types or ((job.home,) if job.home is not None else ())
