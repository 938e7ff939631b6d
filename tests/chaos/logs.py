"""Launches of jobs from a worker's log, read by the parser of the workers' supervisors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from submarine_patch.worker.logparse import CheckpointLine, LogParser, Progress

WHERE = re.compile(r"jobs/(\w+)-(\w+)-(\d+)/staging/checkpoint_path/application_\d+_\d+/(job\d+)")
RESTORED = re.compile(r"Restored checkpoint for (\d+) ")
GOES_ON = "isonomy worker: goes on as "
"""Begins the next launch in the same process."""
EVALUATES = "Saving dict for global step"
TRAINING, EVALUATION = "training", "evaluation"


@dataclass(frozen=True)
class WorkerLog:
    """One launch of a job of the app `RUN-APP-NUMBER`; RUN is `calm` or `chaos`."""

    run: str
    app: str
    number: int
    job: str
    first: int
    """The step at which it began."""
    last: int
    """The last logged step; later ones may be lost."""
    step_s: float
    losses: tuple[tuple[str, int, float], ...]
    """(training or evaluation, step, loss)"""


def read(log: str) -> list[WorkerLog]:
    """One for each launch that reached its checkpoints; none for a log that is not a worker's."""
    return [launch for text in log.split(GOES_ON) if (launch := _launch(text))]


def _launch(log: str) -> WorkerLog | None:
    where = WHERE.search(log)
    if where is None:
        return None
    restored = RESTORED.search(log)
    first = last = int(restored[1]) if restored else 0
    step_s, losses, parser = 0.0, list[tuple[str, int, float]](), LogParser()
    for line in log.splitlines():
        told = parser.feed(line, 0.0)
        if isinstance(told, CheckpointLine | Progress):
            last = max(last, told.step)
        if isinstance(told, Progress):
            step_s = told.iter_time_s or step_s
            if told.loss is not None and math.isfinite(told.loss):
                losses.append((EVALUATION if EVALUATES in line else TRAINING, told.step, told.loss))
    return WorkerLog(where[1], where[2], int(where[3]), where[4], first, last, step_s, tuple(losses))
