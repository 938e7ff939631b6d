"""What workers report of their training, noted as it is relayed: no Agent can change it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from pycontrol.model.bounds import bound
from pycontrol.model.events import WorkerSteps
from pycontrol.rpc.message_checks import a_step
from pycontrol.wire.v1 import agent_pb2 as pb

KEPT = 8
"""The newest reports of a worker that are noted between two messages of its Agent."""


@dataclass(slots=True)
class _Worker:
    until_step: int = 0
    reports: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    """(step, seconds of an iteration)."""
    saved: tuple[int, float] | None = None
    """(step, when it was told) of its newest complete checkpoint since the last message of its Agent."""


class Tally:
    """The newest reports of the workers with an open stream, by app; belongs to the server's event loop."""

    def __init__(self) -> None:
        self._by_app: dict[str, dict[str, _Worker]] = {}

    def up(self, app_id: str, worker_id: str) -> None:
        """A worker's stream began, perhaps again."""
        self._by_app.setdefault(app_id, {}).setdefault(worker_id, _Worker())

    def gone(self, app_id: str, worker_id: str) -> None:
        """Its stream ended."""
        workers = self._by_app.get(app_id, {})
        workers.pop(worker_id, None)
        if not workers:
            self._by_app.pop(app_id, None)

    def reported(self, app_id: str, message: pb.WorkerMessage) -> None:
        """Notes a worker's progress and complete checkpoints; other messages are ignored."""
        worker = self._by_app.get(app_id, {}).get(message.worker_id)
        if worker is not None and message.WhichOneof("kind") == "checkpoint" and not message.checkpoint.problem:
            worker.saved = a_step(message.checkpoint.step), time.time()
        if worker is not None and message.WhichOneof("kind") == "progress":
            iter_time_s = message.progress.iter_time_s
            timed = bound("iter_time_s").holds(iter_time_s) and iter_time_s > 0
            worker.reports.append((a_step(message.progress.step), iter_time_s if timed else 0.0))

    def told(self, app_id: str, command: pb.WorkerCommand) -> None:
        """Notes how far an Agent told a worker to train."""
        worker = self._by_app.get(app_id, {}).get(command.worker_id)
        if worker is not None and command.WhichOneof("kind") == "start":
            worker.until_step = a_step(command.start.until_step)

    def take(self, app_id: str) -> tuple[WorkerSteps, ...]:
        """Returns and forgets the reports since the last call."""
        found = []
        for worker_id, worker in self._by_app.get(app_id, {}).items():
            if worker.saved is not None:
                step, at_s = worker.saved
                found.append(WorkerSteps(worker_id, step, 0.0, worker.until_step, saved_s=at_s))
            found += [WorkerSteps(worker_id, step, time_s, worker.until_step) for step, time_s in worker.reports]
            worker.reports.clear()
            worker.saved = None
        return tuple(found)
