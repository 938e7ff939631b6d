"""How fast the app's job type runs on each GPU type: declared, tried where it is not known, measured while jobs run.

OEF's profiling agent (4.1): a few iterations of a job on each type, from its TensorFlow log; kept by job type for
later apps, and moved by what running jobs show.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pycontrol.shares.profiles import TypeProfile, TypeTime
from submarine_patch.agent.spec import AppSpec

FEW = 4
"""Iterations on a type before it counts as known, where the user does not say."""
TIME_MIN_S, TIME_MAX_S = 1e-9, 1e9
"""Of an iteration; what a file says beyond them is not believed."""
MOVED = 0.08
"""Reported speedups stay as they are until one has moved by more: each change is a new virtual user of its tenant."""


@dataclass
class Trial:
    """A launch of a job on a type that is not known yet."""

    use_id: str = ""
    from_step: int = 0
    times_s: list[float] = field(default_factory=list)


class Speeds:
    """Of one app's job type."""

    def __init__(self, spec: AppSpec) -> None:
        self._prior, self._steps = dict(spec.speedups), spec.trial_steps
        self._user_type = spec.gpu_type
        number = spec.app_id.rpartition("_")[2]
        self._first = int(number) if number.isdigit() else 0
        """Apps begin their trials on different types."""
        self.profile = TypeProfile()
        self.types: tuple[str, ...] = ()
        """GPU types with room for a gang."""
        self.given_up: set[str] = set()
        """Types that were asked for in vain."""
        self.waits_since_s: float | None = None
        """Since when the present trial's type has been asked for without a launch."""
        self.worth_keeping = False
        """Something was learnt that later apps should know."""
        self._trials: dict[str, Trial] = {}
        self._said: dict[str, float] = {}

    # ---- what is known

    def vector(self) -> Mapping[str, float]:
        """GPU type -> speed relative to the slowest type, two digits; empty where nothing is known."""
        if len(self.types) < 2:
            return self._prior
        exact = self.profile.with_prior(self._prior, self.types)
        new = {t: float(f"{v:.2g}") for t, v in exact.items()}
        if new.keys() != self._said.keys() or any(abs(v / self._said[t] - 1) > MOVED for t, v in exact.items()):
            self._said = new
        return self._said

    def of(self, gpu_types: Iterable[str]) -> float:
        """The speed of a gang on GPUs of these types: the slowest keeps the pace."""
        known = self.vector()
        return min((known.get(t, 1.0) for t in gpu_types), default=1.0)

    def requested_type(self) -> str:
        """The only type to ask for: the user's, or the next to be tried; empty: any."""
        return self._user_type or self.trial() or ""

    def trial(self) -> str | None:
        """The type to be tried next, if there is one."""
        if not self._steps or self._user_type or len(self.types) < 2:
            return None
        turned = [self.types[(self._first + k) % len(self.types)] for k in range(len(self.types))]
        return next((t for t in turned if t not in self.profile.times and t not in self.given_up), None)

    # ---- learning

    def observe(self, use_id: str, gpu_type: str, step: int, serial_s: float, warm: bool) -> None:
        """A line of a chief's log: `serial_s` an iteration, for one GPU at S = 1. Not `warm`: its launch's first."""
        if not 0 < serial_s < float("inf"):
            return
        if gpu_type in self.profile.times:
            if warm:
                self.profile = self.profile.measured(gpu_type, serial_s)
            return
        trial = self._trials.get(gpu_type)
        if trial is None or trial.use_id != use_id:
            trial = self._trials[gpu_type] = Trial(use_id, step)
        trial.times_s.append(serial_s)
        if step - trial.from_step >= (self._steps or FEW):
            self.profile = self.profile.tried(gpu_type, trial.times_s)
            del self._trials[gpu_type]
            self.worth_keeping = len(self.types) > 1

    # ---- keeping

    def dump(self) -> dict[str, Any]:
        """JSON-able."""
        return {"times": {t: [x.seconds, x.error, x.samples] for t, x in self.profile.times.items()}}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The inverse; ValueError, KeyError or TypeError where it is no such thing."""
        times: Mapping[str, Sequence[Any]] = saved["times"]
        if not isinstance(times, Mapping):
            raise TypeError(f"times is a {type(times).__name__}")
        self.profile = TypeProfile({t: _time_of(*known) for t, known in times.items()})


def _time_of(seconds: float, error: float, samples: int) -> TypeTime:
    known = TypeTime(float(seconds), float(error), samples)
    if not (TIME_MIN_S <= known.seconds <= TIME_MAX_S and known.error >= 0 and type(samples) is int and samples >= 0):
        raise ValueError(f"{known} is no time of an iteration")
    return known


def file_of(job_type: str) -> str:
    """The name of the file in which a job type's times are kept."""
    return f"{hashlib.sha256(job_type.encode()).hexdigest()[:32]}.json"
