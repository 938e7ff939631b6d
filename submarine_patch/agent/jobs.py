"""Jobs and their workers as the Agent knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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
    ready: list[Any] | None = None
    """[host, port] once registered."""
    exit_code: int | None = None
    heard_s: float = 0.0

    @property
    def gpus(self) -> list[Gpu]:
        """Its GPUs."""
        return [Gpu(self.host, i) for i in self.gpu_ids]


@dataclass
class Job:
    """A job of the app: one configuration."""

    job_id: str
    configuration: dict[str, str]
    state: str = PENDING
    step: int = 0
    until_step: int = 0
    rung: int = 0
    loss: float = 0.0
    accuracy: float = 0.0
    iter_time_s: float = 0.0
    launches: int = 0
    failures: int = 0
    use_id: str = ""
    use_accepted: bool = False
    started: bool = False
    """Start was sent."""
    since_s: float = 0.0
    """When the present launch began."""
    first_step_s: float = 0.0
    stop_deadline_s: float = 0.0
    stop_reason: str = ""
    workers: list[Worker] = field(default_factory=list)

    @property
    def gpus(self) -> list[Gpu]:
        """GPUs of the present launch."""
        return [g for w in self.workers for g in w.gpus]

    @property
    def active(self) -> bool:
        """Whether it has a launch under way."""
        return bool(self.workers)

    def dump(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Job:
        """The inverse of dump()."""
        return cls(**{**data, "workers": [Worker(**w) for w in data["workers"]]})
