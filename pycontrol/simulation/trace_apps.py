"""Workloads: apps with arrivals, gangs and work, from traces and generators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from pycontrol.model.auction import SLOWDOWN_PRIOR
from pycontrol.model.topology import Scope
from pycontrol.model.value import value


@value
class TraceApp:
    """One app: a hyper-parameter exploration of many jobs, or a single job.

    A phase begins when all jobs of the previous one have ended (successive halving keeps the best of them; a
    plain app has one phase). Its jobs are gangs of `gang_gpus` GPUs, one GPU per task.
    """

    app_id: str
    submitted_s: float
    gang_gpus: int
    phases: tuple[tuple[float, ...], ...]
    """Serial GPU-seconds of each job of each phase, at S = 1 on the slowest GPU type."""
    queue: str = "root.default"
    user: str = ""
    model: str = ""
    slowdown: tuple[float, float, float] = SLOWDOWN_PRIOR
    """S on one machine, in one rack, anywhere."""
    scope: Scope = Scope.CLUSTER
    """The widest scope in which a gang can run."""
    speedups: Mapping[str, float] = field(default_factory=dict)
    """{GPU type: speed relative to the slowest type}; empty: all equal."""
    loss_decay: float = 3.0
    """Its loss, which SLAQ uses, is exp(-loss_decay x fraction of the work done)."""
    mixes: bool = False
    """Whether a gang may have GPUs of several types."""
    job_gpus_max: int = 0
    """The most GPUs of a gang; if it is more than `gang_gpus`, the jobs are elastic."""
    scaling: float = 1.0
    """An elastic job's gang with k times the fewest GPUs is k^scaling times as fast."""
    agentless: bool = False
    """Whether it has no Agent: it asks YARN for one container for each job, and says nothing of its work."""
    partition: str | None = None
    """Its node label expression; None: its queue's default."""

    @property
    def work_gpu_s(self) -> float:
        """Serial GPU-seconds of the whole app."""
        return sum(sum(jobs) for jobs in self.phases)

    @property
    def demand_gpus(self) -> int:
        """The most GPUs that it can use at the same time."""
        return self.widest_gang_gpus * max((len(jobs) for jobs in self.phases), default=0)

    @property
    def widest_gang_gpus(self) -> int:
        """The most GPUs of one gang."""
        return max(self.gang_gpus, self.job_gpus_max)

    @property
    def elastic(self) -> bool:
        """Whether its jobs can run on a varying number of GPUs."""
        return self.job_gpus_max > self.gang_gpus

    def efficiency(self, gpus: int) -> float:
        """E of a gang: the speed per GPU relative to that in the smallest gang."""
        return float((gpus / self.gang_gpus) ** (self.scaling - 1.0)) if self.elastic else 1.0


@value
class Workload:
    """Apps in the order of their arrival. `source`: the trace or the generator with its seed."""

    name: str
    apps: tuple[TraceApp, ...]
    source: str = ""
