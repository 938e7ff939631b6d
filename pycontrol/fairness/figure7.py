"""The interface from app schedulers to Agents (Themis, Figure 7), and T_sh computed from it (section 4.3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pycontrol.fairness.makespan import phase_end
from pycontrol.model.value import value


@value
class JobInfo:
    """A job as its app scheduler reports it.

    `avg_time_per_iter_s`: seconds of one iteration on one GPU. `locality_sensitivity`: S >= 1 of the placement.
    """

    iters_remaining: float
    avg_time_per_iter_s: float
    locality_sensitivity: float = 1.0

    @property
    def serial_s(self) -> float:
        """Work left in serial GPU-seconds (S = 1)."""
        return self.iters_remaining * self.avg_time_per_iter_s

    @property
    def placed_s(self) -> float:
        """Seconds left on one GPU of that placement."""
        return self.serial_s * self.locality_sensitivity


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
    return [job.placed_s for job in jobs]
