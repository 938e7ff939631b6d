"""The profiling agent's arithmetic: a few mini-batch times on each GPU type give a speedup vector (OEF 4.1).

Times vary and now and then one is far off (warm-up, a busy host), so a type's time is the median. A job type is
profiled once and its vector kept; while its jobs run, measured iteration times move it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pycontrol.shares.problem import ShareError

WARM_UP = 1
"""Mini-batches left out at the beginning, if more follow: the first pays for compilation and memory."""
KEEP = 0.8
"""How much of the old estimate each later measurement leaves."""
NORMAL_MEDIAN = 1.2533
"""Standard error of a median over that of a mean, normal noise."""
MAD_SIGMA = 1.4826
"""Standard deviation over median absolute deviation, normal noise."""


@dataclass(frozen=True)
class TypeTime:
    """One job type's seconds a mini-batch on one GPU type."""

    seconds: float
    error: float
    """Standard error relative to `seconds`; infinite for a single time."""
    samples: int


def type_time(times_s: Sequence[float], name: str = "times_s") -> TypeTime:
    """From a few mini-batches; ShareError where a time is no positive number."""
    for i, seconds in enumerate(times_s):
        if not (math.isfinite(seconds) and seconds > 0):
            raise ShareError(f"{name}[{i}]: {seconds} must be a positive number of seconds")
    if not times_s:
        raise ShareError(f"{name}: is empty")
    kept = list(times_s[WARM_UP:] or times_s)
    middle = statistics.median(kept)
    sigma = MAD_SIGMA * statistics.median(abs(t - middle) for t in kept)
    error = NORMAL_MEDIAN * sigma / math.sqrt(len(kept)) / middle if len(kept) > 1 else math.inf
    return TypeTime(middle, error, len(kept))


@dataclass(frozen=True)
class Profile:
    """A job type's times by GPU type."""

    times: Mapping[str, TypeTime]

    @classmethod
    def of(cls, times_s: Mapping[str, Sequence[float]]) -> Profile:
        """`times_s`: GPU type -> mini-batch times there."""
        if not times_s:
            raise ShareError("times_s: is empty")
        return cls({gpu_type: type_time(times, gpu_type) for gpu_type, times in sorted(times_s.items())})

    @property
    def speedups(self) -> dict[str, float]:
        """GPU type -> speed relative to the slowest of them (w, with 1 on the slowest)."""
        slowest = max(t.seconds for t in self.times.values())
        return {gpu_type: slowest / t.seconds for gpu_type, t in self.times.items()}

    def error_of(self, gpu_type: str) -> float:
        """Relative standard error of its speedup."""
        slowest = max(self.times, key=lambda t: self.times[t].seconds)
        return 0.0 if gpu_type == slowest else math.hypot(self.times[gpu_type].error, self.times[slowest].error)

    def measured(self, gpu_type: str, seconds: float) -> Profile:
        """After a measured iteration time there, for one GPU at S = 1. One outlier moves it by a fifth at most."""
        if not (math.isfinite(seconds) and seconds > 0):
            raise ShareError(f"{gpu_type}: {seconds} must be a positive number of seconds")
        old = self.times.get(gpu_type)
        if old is None:
            new = TypeTime(seconds, math.inf, 1)
        else:
            within = min(max(seconds, old.seconds / 2), old.seconds * 2)
            new = replace(old, seconds=old.seconds**KEEP * within ** (1 - KEEP), samples=old.samples + 1)
        return Profile({**self.times, gpu_type: new})


@dataclass(frozen=True)
class Profiles:
    """Profiles by job type; frozen, so that each change is a new value."""

    by_job_type: Mapping[str, Profile] = field(default_factory=dict)

    def missing(self, job_type: str, gpu_types: Sequence[str]) -> tuple[str, ...]:
        """The GPU types on which a job type is still to be tried."""
        known = self.by_job_type.get(job_type)
        return tuple(t for t in gpu_types if known is None or t not in known.times)

    def tried(self, job_type: str, times_s: Mapping[str, Sequence[float]]) -> Profiles:
        """With a trial's times; types tried before keep theirs."""
        old = self.by_job_type.get(job_type)
        new = Profile.of(times_s).times
        merged = Profile({**new, **(old.times if old is not None else {})})
        return Profiles({**self.by_job_type, job_type: merged})

    def measured(self, job_type: str, gpu_type: str, seconds: float) -> Profiles:
        """With an iteration time from a running job."""
        old = self.by_job_type.get(job_type, Profile({}))
        return Profiles({**self.by_job_type, job_type: old.measured(gpu_type, seconds)})

    def speedups(self, job_type: str) -> dict[str, float]:
        """Its vector; empty where nothing is known."""
        known = self.by_job_type.get(job_type)
        return {} if known is None else known.speedups
