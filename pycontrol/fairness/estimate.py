"""rho as the paper defines it for single jobs and for successive halving (Themis, section 4.3)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def n_avg(counts: Sequence[tuple[float, float, float]], start_s: float, now_s: float) -> float:
    """Time-weighted average number of apps between start and now; `counts`: (start, end, number of apps)."""
    total = sum((min(end, now_s) - max(begin, start_s)) * n for begin, end, n in counts if end > start_s)
    return total / (now_s - start_s)


@dataclass(frozen=True, slots=True)
class SingleJob:
    """One job; times in seconds."""

    serial_iter_time_s: float
    iter_total: float
    iter_left: float
    job_demand_max: int
    start_s: float
    now_s: float

    def t_sh(self, gpus: int, slowdown: float) -> float:
        """T_current - T_start + iter_left x iter_time(G)."""
        per_iter_s = self.serial_iter_time_s * slowdown / min(gpus, self.job_demand_max)
        return self.now_s - self.start_s + self.iter_left * per_iter_s

    def t_cluster(self, cluster_gpus: int) -> float:
        """iter_total x iter_time_serial / min(R_C, job_demand_max)."""
        return self.iter_total * self.serial_iter_time_s / min(cluster_gpus, self.job_demand_max)


@dataclass(frozen=True, slots=True)
class Halving:
    """Successive halving: the present phase's jobs, then (jobs, iterations) of each later one."""

    serial_iter_times_s: tuple[float, ...]
    iterations_left: float
    future_phases: tuple[tuple[int, float], ...]
    job_demand_max: int
    slowdown: float
    elapsed_s: float

    def _phases(self) -> list[list[float]]:
        """Serial seconds of each job, slowdown included; later phases take the median job."""
        median_s = statistics.median(self.serial_iter_times_s)
        now = [t * self.iterations_left * self.slowdown for t in self.serial_iter_times_s]
        return [now, *([median_s * n * self.slowdown] * jobs for jobs, n in self.future_phases)]

    def phases_s(self, gpus: int) -> list[float]:
        """How long each phase takes on `gpus` whole GPUs (exact)."""
        return [phase_end(jobs, gpus, self.job_demand_max) for jobs in self._phases()]

    def fluid_s(self, gpus: int) -> list[float]:
        """The same with each phase as divisible work, as the paper's Table 3 has it."""
        return [sum(jobs) / min(gpus, len(jobs) * self.job_demand_max) for jobs in self._phases()]

    def t_sh(self, gpus: int) -> float:
        """Elapsed time plus the phases left."""
        return self.elapsed_s + sum(self.phases_s(gpus))

    def fluid_t_sh(self, gpus: int) -> float:
        """T_sh of divisible work."""
        return self.elapsed_s + sum(self.fluid_s(gpus))


def phase_end(jobs_s: Sequence[float], gpus: int, job_demand_max: int) -> float:
    """The earliest end of a phase of jobs (serial seconds).

    Fewer GPUs than jobs: one GPU a job, packed exactly. Else each job gets 1..job_demand_max GPUs: handing
    the next GPU to the job that ends last is optimal, as only it can shorten the phase.
    """
    if gpus < len(jobs_s):
        return pack(jobs_s, gpus)
    share = [1] * len(jobs_s)
    for _ in range(gpus - len(jobs_s)):
        last = max(range(len(jobs_s)), key=lambda i: jobs_s[i] / share[i])
        if share[last] == job_demand_max:
            break
        share[last] += 1
    return max(t / n for t, n in zip(jobs_s, share, strict=True))


def pack(jobs_s: Sequence[float], machines: int) -> float:
    """The exact minimum makespan on identical machines (branch and bound, longest job first)."""
    jobs = sorted(jobs_s, reverse=True)
    left = [0.0] * (len(jobs) + 1)
    for i in range(len(jobs) - 1, -1, -1):
        left[i] = left[i + 1] + jobs[i]
    best = _longest_first(jobs, machines)
    bound = max(jobs[0], left[0] / machines)
    ends = [0.0] * machines

    def search(i: int) -> None:
        nonlocal best
        if i == len(jobs):
            best = min(best, max(ends))
            return
        if best <= bound * (1 + 1e-12) or (sum(ends) + left[i]) / machines >= best:
            return
        tried: set[float] = set()
        for m in range(machines):
            if ends[m] in tried or ends[m] + jobs[i] >= best * (1 - 1e-12):
                continue
            tried.add(ends[m])
            ends[m] += jobs[i]
            search(i + 1)
            ends[m] -= jobs[i]

    search(0)
    return best


def _longest_first(jobs: Sequence[float], machines: int) -> float:
    ends = [0.0] * machines
    for job in jobs:
        m = min(range(machines), key=lambda k: ends[k])
        ends[m] += job
    return max(ends)
