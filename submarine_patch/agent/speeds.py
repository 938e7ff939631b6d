"""The speed of the app's job type on each GPU type: declared, tried where unknown, and measured while jobs run.

This is OEF's profiling agent (section 4.1): it times a few iterations of a job on each type, from the job's log.
Times are stored by job type for later apps, and running jobs refine them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pycontrol.shares.profiles import TypeProfile, TypeTime
from submarine_patch.agent.spec import AppSpec

FEW = 4
"""Iterations on a type before it counts as known, unless the user sets trial_steps."""
TIME_MIN_S, TIME_MAX_S = 1e-9, 1e9
"""Bounds of an iteration's time; a stored time outside them is rejected."""
MOVED = 0.08
"""Smaller relative changes of a speedup are not reported, because each makes a new virtual user of the tenant."""


@dataclass
class Trial:
    """A job's launch on a GPU type that is not yet known."""

    use_id: str = ""
    from_step: int = 0
    times_s: list[float] = field(default_factory=list)


class Speeds:
    """The speeds of one app's job type."""

    def __init__(self, spec: AppSpec) -> None:
        self._prior, self._steps = dict(spec.speedups), spec.trial_steps
        self._user_type = spec.gpu_type
        number = spec.app_id.rpartition("_")[2]
        self._first = int(number) if number.isdigit() else 0
        """Offset of the first type to try, so that apps begin on different types."""
        self.profile = TypeProfile()
        self.types: tuple[str, ...] = ()
        """GPU types with room for a gang."""
        self.given_up: set[str] = set()
        """Types that were not available within the wait for a trial."""
        self.waits_since_s: float | None = None
        """Since when the present trial has waited for a launch."""
        self.worth_keeping = False
        """Whether new measurements should be stored for later apps."""
        self._trials: dict[str, Trial] = {}
        self._said: dict[str, float] = {}

    # ---- what is known

    def vector(self) -> Mapping[str, float]:
        """{GPU type: speed relative to the slowest type}, to two digits; empty if nothing is known."""
        if len(self.types) < 2:
            return self._prior
        exact = self.profile.with_prior(self._prior, self.types)
        new = {t: float(f"{v:.2g}") for t, v in exact.items()}
        if new.keys() != self._said.keys() or any(abs(v / self._said[t] - 1) > MOVED for t, v in exact.items()):
            self._said = new
        return self._said

    def of(self, gpu_types: Iterable[str]) -> float:
        """The speed of a gang on GPUs of these types, which is that of the slowest type."""
        known = self.vector()
        return min((known.get(t, 1.0) for t in gpu_types), default=1.0)

    def requested_type(self) -> str:
        """The only GPU type to ask for: the user's, or the next to try; empty: any."""
        return self._user_type or self.trial() or ""

    def trial(self) -> str | None:
        """The next type to try; None if there is none."""
        if not self._steps or self._user_type or len(self.types) < 2:
            return None
        turned = [self.types[(self._first + k) % len(self.types)] for k in range(len(self.types))]
        return next((t for t in turned if t not in self.profile.times and t not in self.given_up), None)

    # ---- learning

    def observe(self, use_id: str, gpu_type: str, step: int, serial_s: float, warm: bool) -> None:
        """Add a measured iteration: `serial_s` on one GPU at S = 1; `warm`: not the launch's first."""
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
        """The measured times as JSON values."""
        return {"times": {t: [x.seconds, x.error, x.samples] for t, x in self.profile.times.items()}}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The inverse of `dump`; raises ValueError, KeyError or TypeError for malformed data."""
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
    """The name of the file that stores a job type's times."""
    return f"{hashlib.sha256(job_type.encode()).hexdigest()[:32]}.json"
