"""The interface from app schedulers to Agents (Themis, Figure 7)."""

from __future__ import annotations

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
