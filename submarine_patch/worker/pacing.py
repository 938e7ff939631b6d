"""Pacing: stretches the steps on virtual GPUs to the time that real GPUs would take.

A step on n virtual GPUs takes at least serial_iter_s x S / n seconds, where S is the slowdown of the placement
(Themis, section 4: S(G)). On a GPU type that is v times as fast, only the GPU-bound fraction b of a step is faster, so
the step takes 1 - b + b / v of that time (Amdahl). The NodeManager sets the type and v; the app cannot override them.
Steps on real GPUs are never paced.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

LATE_SHARE = 0.5
"""A step that is late by more than this share of its time is not made up for, because a real GPU could not either."""


class PacingError(ValueError):
    """ISONOMY_PACING is malformed."""


@dataclass(frozen=True)
class Pacing:
    """The pacing of one gang's steps."""

    serial_iter_s: float
    slowdown: float
    gpus: int
    gpu_bound: float = 1.0
    """The fraction of a step that a faster GPU shortens."""
    gpu_type: str = ""
    speed: float = 1.0
    """Speed of this machine's GPUs, relative to a type of speed 1."""

    @property
    def step_s(self) -> float:
        """The least time of one step, in seconds."""
        return self.serial_iter_s * self.slowdown / self.gpus * (1 - self.gpu_bound + self.gpu_bound / self.speed)

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPU{'s' * (self.gpus > 1)} of type {self.gpu_type or 'unknown'} (speed {self.speed:g})"
        return f"{self.step_s:.4f} sec/step as {gpus}, of which {self.gpu_bound:.0%} is GPU-bound"

    @staticmethod
    def parse(env: Mapping[str, str]) -> Pacing | None:
        """The pacing that the environment sets; None without ISONOMY_PACING (real GPUs).

        Reads ISONOMY_PACING, the Agent's JSON {"serial_iter_s", "slowdown", "gpus", "gpu_bound"}, and the machine's
        ISONOMY_VIRTUAL_GPU_TYPE and _SPEED. Raises PacingError.
        """
        text, speed = env.get("ISONOMY_PACING", ""), env.get("ISONOMY_VIRTUAL_GPU_SPEED") or "1"
        if not text.strip():
            return None
        try:
            value = json.loads(text)
            pacing = Pacing(
                float(value["serial_iter_s"]),
                float(value.get("slowdown", 1.0)),
                int(value["gpus"]),
                float(value.get("gpu_bound", 1.0)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise PacingError(f"ISONOMY_PACING: {text!r} is not JSON with serial_iter_s, slowdown, gpus") from e
        sane = math.isfinite(pacing.serial_iter_s) and pacing.serial_iter_s >= 0 and pacing.gpus >= 1
        if not sane or not math.isfinite(pacing.slowdown) or pacing.slowdown < 1.0:
            raise PacingError(f"ISONOMY_PACING: {text!r}: need serial_iter_s >= 0, slowdown >= 1, gpus >= 1")
        if not 0 <= pacing.gpu_bound <= 1:
            raise PacingError(f"ISONOMY_PACING: {text!r}: need gpu_bound from 0 to 1")
        return replace(pacing, gpu_type=env.get("ISONOMY_VIRTUAL_GPU_TYPE", ""), speed=_speed(speed))


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not 0 < speed < math.inf:
        raise PacingError(f"ISONOMY_VIRTUAL_GPU_SPEED: {text!r} is not a number above 0")
    return speed


class Pacer:
    """Delays the end of each step until its time has passed; small delays of the waiting do not accumulate."""

    def __init__(
        self, pacing: Pacing | None, wait: Callable[[float], object], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`pacing`: None paces nothing."""
        self._step_s, self._wait, self._now_s = pacing.step_s if pacing else 0.0, wait, now_s
        self._due_s = -math.inf
        self._began_s = now_s()

    def begin(self) -> None:
        """Mark the begin of a step."""
        now_s = self._now_s()
        on_time = now_s - self._due_s <= LATE_SHARE * self._step_s
        self._began_s = self._due_s if on_time else now_s

    def end(self) -> None:
        """Mark the end of the step's work, and wait for the rest of its time."""
        self._due_s = self._began_s + self._step_s
        left_s = self._due_s - self._now_s()
        if left_s > 0:
            self._wait(left_s)
