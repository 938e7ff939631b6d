"""rho as the paper defines it for single jobs, successive halving and performance curves (Themis, section 4.3)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Protocol

from pycontrol.fairness.curves import fit, longest_run
from pycontrol.fairness.figure7 import JobInfo
from pycontrol.fairness.makespan import Packed, pack
from pycontrol.model.value import value


class SuccessiveHalving(Protocol):
    """App schedulers that stop jobs phase by phase (successive halving, Hyperband)."""

    def get_num_phases(self) -> int:
        """Phases left, the present one included."""

    def get_jobs_in_phase(self, phase: int, gpu_alloc: Sequence[int]) -> Sequence[JobInfo]:
        """The jobs of a phase (0: the present one) if the app held these GPUs by machine."""


class PerformanceCurve(Protocol):
    """App schedulers that stop jobs by forecasts of their curves (HyperDrive, Vizier)."""

    def get_jobs_remaining(self, gpu_alloc: Sequence[int]) -> Sequence[JobInfo]:
        """The jobs still running, each with the most iterations that its forecast allows."""


def phase_end(jobs_s: Sequence[float], gpus: int, job_demand_max: int) -> Packed:
    """The earliest end of a phase of jobs, given in serial seconds (Themis, section 4.3.2).

    With fewer GPUs than jobs, each job runs on one GPU, and the jobs of a GPU run one after another. Otherwise each job
    gets 1 to `job_demand_max` GPUs: giving the next GPU to the job that ends last is optimal, as only that job can
    shorten the phase.
    """
    if not any(jobs_s):
        return Packed(0.0)
    if gpus < 1:
        return Packed(math.inf)
    if gpus < len(jobs_s):
        return pack(jobs_s, gpus)
    share = [1] * len(jobs_s)
    for _ in range(gpus - len(jobs_s)):
        last = max(range(len(jobs_s)), key=lambda i: jobs_s[i] / share[i])
        if share[last] >= job_demand_max:
            break
        share[last] += 1
    return Packed(max(t / n for t, n in zip(jobs_s, share, strict=True)))


@value
class SharedTime:
    """T_sh in seconds, by phases; `proved`: whether no packing on whole GPUs ends sooner."""

    elapsed_s: float
    phases_s: tuple[float, ...]
    proved: bool = True

    @property
    def t_sh_s(self) -> float:
        """The elapsed time plus the phases left."""
        return self.elapsed_s + sum(self.phases_s)


def halving_t_sh(app: SuccessiveHalving, gpu_alloc: Sequence[int], elapsed_s: float, job_demand_max: int) -> SharedTime:
    """T_sh = elapsed time + the sum of the phases' makespans, on whole GPUs."""
    phases = [_placed_s(app.get_jobs_in_phase(i, gpu_alloc)) for i in range(app.get_num_phases())]
    ends = [phase_end(jobs, sum(gpu_alloc), job_demand_max) for jobs in phases]
    return SharedTime(elapsed_s, tuple(e.end_s for e in ends), all(e.proved for e in ends))


def fluid_t_sh(app: SuccessiveHalving, gpu_alloc: Sequence[int], elapsed_s: float, job_demand_max: int) -> SharedTime:
    """T_sh with the work of each phase divisible, as in the paper's Table 3."""
    gpus, ends = sum(gpu_alloc), []
    for i in range(app.get_num_phases()):
        jobs = _placed_s(app.get_jobs_in_phase(i, gpu_alloc))
        parallel = min(gpus, len(jobs) * job_demand_max)
        ends.append(sum(jobs) / parallel if parallel else (float("inf") if any(jobs) else 0.0))
    return SharedTime(elapsed_s, tuple(ends))


def curve_t_sh(app: PerformanceCurve, gpu_alloc: Sequence[int], elapsed_s: float, job_demand_max: int) -> SharedTime:
    """T_sh = elapsed time + the latest forecast end of the running jobs, as one phase."""
    end = phase_end(_placed_s(app.get_jobs_remaining(gpu_alloc)), sum(gpu_alloc), job_demand_max)
    return SharedTime(elapsed_s, (end.end_s,), end.proved)


def _placed_s(jobs: Sequence[JobInfo]) -> list[float]:
    """Seconds left on one GPU of each job's placement."""
    return [job.serial_s * job.locality_sensitivity for job in jobs]


@value
class SingleJob:
    """One job; times in seconds (section 4.3.1, equation 1)."""

    serial_iter_time_s: float
    iter_total: float
    iter_left: float
    job_demand_max: int
    start_s: float
    now_s: float

    def iter_time_s(self, gpus: int, slowdown: float) -> float:
        """Seconds of one iteration on `gpus` GPUs in a placement with this S."""
        return self.serial_iter_time_s * slowdown / min(gpus, self.job_demand_max)

    def t_sh(self, gpus: int, slowdown: float) -> float:
        """T_current - T_start + iter_left x iter_time(G)."""
        return self.now_s - self.start_s + self.iter_left * self.iter_time_s(gpus, slowdown)

    def t_cluster(self, cluster_gpus: int) -> float:
        """iter_total x iter_time_serial / min(R_C, job_demand_max)."""
        return self.iter_total * self.iter_time_s(cluster_gpus, 1.0)


@value
class Halving:
    """Successive halving: the present phase's jobs, then (jobs, iterations) of each later phase.

    It is not known yet which jobs continue, so later phases consist of copies of the median job (section 4.3.3).
    """

    serial_iter_times_s: tuple[float, ...]
    iterations_left: float
    future_phases: tuple[tuple[int, float], ...]
    job_demand_max: int
    slowdown: float
    elapsed_s: float

    def get_num_phases(self) -> int:
        """Figure 7."""
        return 1 + len(self.future_phases)

    def get_jobs_in_phase(self, phase: int, gpu_alloc: Sequence[int]) -> Sequence[JobInfo]:
        """Figure 7."""
        if phase == 0:
            return [JobInfo(self.iterations_left, t, self.slowdown) for t in self.serial_iter_times_s]
        jobs, iterations = self.future_phases[phase - 1]
        return [JobInfo(iterations, statistics.median(self.serial_iter_times_s), self.slowdown)] * jobs

    def on(self, gpus: int) -> SharedTime:
        """T_sh on `gpus` whole GPUs."""
        return halving_t_sh(self, [gpus], self.elapsed_s, self.job_demand_max)

    def fluid_on(self, gpus: int) -> SharedTime:
        """T_sh of divisible work on `gpus` GPUs."""
        return fluid_t_sh(self, [gpus], self.elapsed_s, self.job_demand_max)


@value
class ObservedJob:
    """A job under performance-curve stopping; `seen`: its observed (step, loss) pairs."""

    serial_iter_time_s: float
    seen: tuple[tuple[float, float], ...]
    slowdown: float = 1.0


@value
class Forecast:
    """Jobs that train until their loss is `target` or for `iter_total` iterations, by each job's slowest curve."""

    jobs: tuple[ObservedJob, ...]
    iter_total: float
    target: float | None
    job_demand_max: int
    elapsed_s: float

    def get_jobs_remaining(self, gpu_alloc: Sequence[int]) -> Sequence[JobInfo]:
        """Figure 7."""
        return [JobInfo(self._left(job), job.serial_iter_time_s, job.slowdown) for job in self.jobs]

    def _left(self, job: ObservedJob) -> float:
        step = job.seen[-1][0] if job.seen else 0.0
        curves = fit([n for n, _ in job.seen], [loss for _, loss in job.seen])
        return max(0.0, longest_run(curves, self.target, self.iter_total) - step)

    def on(self, gpus: int) -> SharedTime:
        """T_sh on `gpus` whole GPUs."""
        return curve_t_sh(self, [gpus], self.elapsed_s, self.job_demand_max)
