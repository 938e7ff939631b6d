"""The Agent's records of jobs and their workers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pycontrol.model.topology import Gpu
from submarine_patch.agent.schedulers.base import plain

PENDING, STARTING, RUNNING, STOPPING = "pending", "starting", "running", "stopping"
PAUSED, STOPPED, DONE, FAILED = "paused", "stopped", "done", "failed"


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
    """Set once its container has ended and its GPUs are free."""
    last_heard_s: float = 0.0
    step: int = 0
    """The last step that it reported itself; 0: none."""
    stepped_s: float = 0.0
    """When it reported that; 0: not in this launch."""
    goes_on_from: str = ""
    """The worker whose process, which waited, it goes on with; empty: none's."""

    @property
    def gpus(self) -> list[Gpu]:
        """Its GPUs."""
        return [Gpu(self.host, i) for i in self.gpu_ids]

    @property
    def planned(self) -> bool:
        """Whether the Arbiter must know its plan yet: it has no container, or has not come into that of another."""
        return not self.container_id or (bool(self.goes_on_from) and not self.address)


@dataclass
class Job:
    """A job of the app: one configuration. It has workers while a launch is active."""

    job_id: str
    configuration: dict[str, str]
    state: str = PENDING
    step: int = 0
    until_step: int = 0
    said_step: int = 0
    """Its last step, as its script says; 0: it does not."""
    first_step: int = 0
    """The first step that its present launch reported."""
    step_gpu_s: float = 0.0
    """Serial GPU-seconds of a step over its newest launch, with what is between steps; 0 before two reports."""
    rung: int = 0
    loss: float = 0.0
    accuracy: float = 0.0
    metric: float | None = None
    """The app's metric; None until a report has it."""
    note: str = ""
    """A note for the user."""
    missing: str = ""
    """What its log should have shown by now, for the user."""
    hangs: str = ""
    """Where it hangs, for the user."""
    pause_s: float = 0.0
    """The longest time between two reported steps of its workers."""
    checkpoints_failed: int = 0
    """Failed checkpoints since the newest complete one."""
    checkpoint_problem: str = ""
    """Why the newest checkpoint failed; empty if it did not."""
    losses: list[list[float]] = field(default_factory=list)
    """[step, loss] of the newest lines of its log."""
    curve: list[list[float]] = field(default_factory=list)
    """[step, metric] over all launches, thinned out."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Its launches: times, GPUs, first and last step, and why they ended."""
    iter_time_s: float = 0.0
    lost_steps: int = 0
    """Steps trained again after launches that ended without a checkpoint of them."""
    lost_gpu_s: float = 0.0
    launches: int = 0
    reports: int = 0
    """Reports of progress, of all launches."""
    failures: int = 0
    problem: str = ""
    """Why its last worker failed."""
    failed_as: str = ""
    """How its last worker failed soon after its start: exit code, exception and step; empty if it was not soon."""
    hopeless: bool = False
    """Whether it failed so twice in a row."""
    use_id: str = ""
    use_accepted: bool = False
    use_refusals: int = 0
    use_again_s: float = 0.0
    """When a refused plan is sent again; 0: never."""
    since_s: float = 0.0
    """When the present launch could begin: its GPUs are free."""
    first_step_s: float = 0.0
    settle_s: float = 0.0
    """Until when to wait for the final messages of workers that ended with 0."""
    stop_deadline_s: float = 0.0
    stop_again_s: float = 0.0
    """When to stop (again) the containers that are still running."""
    stop_reason: str = ""
    settled: bool = False
    """Growing this elastic job does not pay at present; it asks for no more GPUs until its lease is renewed."""
    stop_failed: bool = False
    """Whether it was stopped because a worker failed."""
    workers: list[Worker] = field(default_factory=list)

    @property
    def gpus(self) -> list[Gpu]:
        """GPUs of the present launch."""
        return [g for w in self.workers for g in w.gpus]

    @property
    def hosts(self) -> list[str]:
        """Machines of the present launch, the chief's first."""
        return [w.host for w in self.workers]

    @property
    def active(self) -> bool:
        """Whether a launch is active."""
        return bool(self.workers)

    @property
    def value(self) -> float:
        """The newest value of the app's metric; NaN if it diverged, or has not been reported."""
        return math.nan if self.metric is None else self.metric

    def unseen(self, metric: str) -> str:
        """What no report has shown: any progress, or the app's metric; empty if nothing is missing."""
        if not self.reports:
            return "no line of its log shows progress (docs/submit.md says which do)"
        return "" if self.metric is not None else f"no line of its log shows {metric}, by which its jobs are compared"

    def dump(self) -> dict[str, Any]:
        """A JSON copy of the job. Agents save all jobs at each change, and dataclasses.asdict is too slow for that."""
        form = {name: plain(value) for name, value in vars(self).items()}
        form["workers"] = [{name: plain(value) for name, value in vars(w).items()} for w in self.workers]
        return form

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Job:
        """The inverse of `dump`; leaves out what an older version kept."""
        known = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        return cls(**{**known, "workers": [Worker(**w) for w in data["workers"]]})
