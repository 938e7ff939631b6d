"""Validates the progress that workers report, because a script may print any number."""

from __future__ import annotations

import math

from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.worker.logparse import ITERATION_MAX_S, STEP_MAX

LOSS_MAX = 1e100
"""A larger loss counts as diverged; the square of this one is still finite."""
ITERATION_MIN_S = 1e-9


def reading(p: pb.WorkerProgress) -> pb.WorkerProgress | None:
    """The progress with implausible times and accuracy set to 0; None if the step is impossible.

    A diverged loss is a real result of the job, so it stays, as infinity or NaN.
    """
    if not 0 <= p.step <= STEP_MAX:
        return None
    timed = ITERATION_MIN_S <= p.iter_time_s <= ITERATION_MAX_S
    return pb.WorkerProgress(
        step=p.step,
        loss=_loss(p.loss),
        accuracy=p.accuracy if abs(p.accuracy) <= LOSS_MAX else 0.0,
        iter_time_s=p.iter_time_s if timed else 0.0,
        paced=p.paced,
        time_s=p.time_s,
        until_step=p.until_step if p.step <= p.until_step <= STEP_MAX else 0,
        metric=p.metric if p.HasField("metric") and math.isfinite(p.metric) and abs(p.metric) <= LOSS_MAX else None,
    )


def _loss(loss: float) -> float:
    return loss if math.isnan(loss) or abs(loss) <= LOSS_MAX else math.copysign(math.inf, loss)
