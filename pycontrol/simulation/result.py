"""What a simulation gives back: one record for each app, and counters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from pycontrol.model.value import value


@value
class AppResult:
    """One app. Times in seconds of virtual time; `started_s` and `finished_s` are None where it did not come to it."""

    app_id: str
    queue: str
    user: str
    model: str
    submitted_s: float
    started_s: float | None
    finished_s: float | None
    n_avg: float
    """Time-weighted average number of apps in its life, from the Arbiter's clock."""
    work_gpu_s: float
    """Serial GPU-seconds of the whole app (B)."""
    work_done_gpu_s: float
    demand_gpus: int
    longest_path_s: float
    """Sum over its phases of the longest job on one whole gang at S = 1."""
    cluster_gpus: int
    gpu_s: float
    """GPU-seconds in containers."""
    placement: float
    """1/S, averaged over its GPU-seconds; 1 where it never ran."""
    launches: int
    restarts: int
    lost_gpu_s: float
    """Serial GPU-seconds that were done and lost."""
    guaranteed_after_s: float | None = None
    """From its submission to its first GPUs of its virtual cluster's own cells; None where it never had any."""
    shadow_finished_s: float | None = None
    """When it ended in its private schedule, else on its private cluster alone; None: no such cluster, or not there."""

    @property
    def t_cluster_s(self) -> float:
        """B / min(R_C, app_demand_max) (Themis, section 4.3.2)."""
        return self.work_gpu_s / max(1, min(self.cluster_gpus, self.demand_gpus))

    @property
    def t_cluster_path_s(self) -> float:
        """The same, but no shorter than the app's longest path: nobody can be faster."""
        return max(self.t_cluster_s, self.longest_path_s)

    @property
    def completion_s(self) -> float:
        """T_sh: from its submission to its end; infinite where it did not end."""
        return math.inf if self.finished_s is None else self.finished_s - self.submitted_s

    @property
    def waited_s(self) -> float:
        """From its submission to its first container; infinite where none came."""
        return math.inf if self.started_s is None else self.started_s - self.submitted_s

    @property
    def excess_s(self) -> float | None:
        """By how much it ended later than on its private cluster (below 0: earlier); None where nothing compares."""
        if self.shadow_finished_s is None:
            return None
        return (math.inf if self.finished_s is None else self.finished_s) - self.shadow_finished_s

    @property
    def rho(self) -> float:
        """T_sh / (T_cluster x N_avg)."""
        return self.completion_s / (self.t_cluster_s * self.n_avg)

    @property
    def rho_path(self) -> float:
        """rho with the longest path in T_cluster."""
        return self.completion_s / (self.t_cluster_path_s * self.n_avg)


@value
class Counters:
    """How much happened, and what the simulation itself cost (wall seconds: the only part that may differ)."""

    events: int = 0
    """Events that the Arbiter handled."""
    steps: int = 0
    """Events of the simulated world: arrivals, ends of jobs and checkpoints, faults, wake-ups."""
    rounds: int = 0
    containers: int = 0
    kills: int = 0
    unproved: int = 0
    """Rounds whose plan was not proved optimal."""
    wall_s: float = field(default=0.0, compare=False)
    policy_s: float = field(default=0.0, compare=False)
    """Of it, in the policy's decide."""
    bids_s: float = field(default=0.0, compare=False)
    """Of it, in the simulated Agents' rho and bids."""


@value
class Result:
    """One simulation; equal for equal input, the wall times of its counters aside."""

    workload: str
    cluster_gpus: int
    policy: str
    options: Mapping[str, object]
    seed: int
    end_s: float
    apps: tuple[AppResult, ...]
    counters: Counters
