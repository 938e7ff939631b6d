"""The interface from app schedulers to Agents (Themis, Figure 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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
