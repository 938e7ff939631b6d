"""Jobs and their workers as the Agent knows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pycontrol.model.topology import Gpu

PENDING, STARTING, RUNNING, STOPPING, PAUSED, STOPPED, DONE, FAILED = (
    "pending", "starting", "running", "stopping", "paused", "stopped", "done", "failed",
)  # fmt: skip


@dataclass
class Worker:
    """One worker of a job's present launch: one container on one machine."""

    worker_id: str
    host: str
    gpu_ids: list[int]
    request_id: int
    container_id: str = ""
    asked: bool = False
    address: str = ""
    """host:port once it has registered."""
    reported_exit: int | None = None
    """The exit code that it reported itself."""
    reported_exit_s: float = 0.0
    exit_message: str = ""
    exit_code: int | None = None
    """Once its container is gone, so that its GPUs are free."""
    last_heard_s: float = 0.0

    @property
    def gpus(self) -> list[Gpu]:
        """Its GPUs."""
        return [Gpu(self.host, i) for i in self.gpu_ids]


@dataclass
class Job:
    """A job of the app: one configuration. While it has workers, it has a launch under way."""

    job_id: str
    configuration: dict[str, str]
    state: str = PENDING
    step: int = 0
    until_step: int = 0
    rung: int = 0
    loss: float = 0.0
    accuracy: float = 0.0
    metric: float | None = None
    """What jobs are compared by, where that is neither."""
    note: str = ""
    """What its user should know."""
    checkpoints_failed: int = 0
    """Since the newest complete one."""
    checkpoint_problem: str = ""
    """Why the last one failed."""
    losses: list[list[float]] = field(default_factory=list)
    """[step, loss] of the newest lines of its log."""
    curve: list[list[float]] = field(default_factory=list)
    """[step, value of the metric] over all launches, thinned out."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Its launches: when, on which GPUs, from and to which step, and why they ended."""
    iter_time_s: float = 0.0
    launches: int = 0
    failures: int = 0
    problem: str = ""
    """Why its last worker failed."""
    use_id: str = ""
    use_accepted: bool = False
    use_refusals: int = 0
    use_again_s: float = 0.0
    """When a refused plan is sent again; 0: it is not."""
    since_s: float = 0.0
    """When the present launch could begin."""
    first_step_s: float = 0.0
    settle_s: float = 0.0
    """Until when the last words of workers that ended well are waited for."""
    stop_deadline_s: float = 0.0
    stop_again_s: float = 0.0
    """When containers that are still there are stopped (again)."""
    stop_reason: str = ""
    settled: bool = False
    """An elastic job that found no place where growing would pay: it asks for no more before its lease's end."""
    stop_failed: bool = False
    """Stopped because a worker failed."""
    workers: list[Worker] = field(default_factory=list)

    @property
    def gpus(self) -> list[Gpu]:
        """GPUs of the present launch."""
        return [g for w in self.workers for g in w.gpus]

    @property
    def hosts(self) -> list[str]:
        """Machines of the present launch, chief's first."""
        return [w.host for w in self.workers]

    @property
    def active(self) -> bool:
        """Whether it has a launch under way."""
        return bool(self.workers)

    def value(self, metric: str) -> float:
        """Of what jobs are compared by; NaN where it was not seen yet."""
        if metric in ("loss", "accuracy"):
            return self.loss if metric == "loss" else self.accuracy
        return math.nan if self.metric is None else self.metric

    def dump(self) -> dict[str, Any]:
        """JSON-able form, which does not change with the job. Agents save all jobs at each change: asdict is slow."""
        form = {name: _plain(value) for name, value in vars(self).items()}
        form["workers"] = [{name: _plain(value) for name, value in vars(w).items()} for w in self.workers]
        return form

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Job:
        """The inverse of dump()."""
        return cls(**{**data, "workers": [Worker(**w) for w in data["workers"]]})


def _plain(value: Any) -> Any:
    """A copy of lists and dicts, however deep; anything else itself."""
    kind = type(value)
    if kind is list:
        return [_plain(x) for x in value]
    if kind is dict:
        return {k: _plain(x) for k, x in value.items()}
    return value
