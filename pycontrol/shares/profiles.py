"""Computes speedup vectors from a few mini-batch times on each GPU type, as OEF's profiling agent (section 4.1).

Times vary and have outliers (warm-up, a busy host), so a type's time is the median. A job type is profiled once and its
vector is stored; iteration times measured while its jobs run adjust it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pycontrol.shares.problem import ShareError

WARM_UP = 1
"""First mini-batches that are ignored, if more follow: they include compilation and allocation of memory."""
KEEP = 0.8
"""Weight of the old estimate against each later measurement."""
NORMAL_MEDIAN = 1.2533
"""Standard error of a median over that of a mean, for normal noise."""
MAD_SIGMA = 1.4826
"""Standard deviation over median absolute deviation, for normal noise."""


@dataclass(frozen=True)
class TypeTime:
    """One job type's seconds per mini-batch on one GPU type."""

    seconds: float
    error: float
    """Standard error relative to `seconds`; infinite for a single time."""
    samples: int


def type_time(times_s: Sequence[float], name: str = "times_s") -> TypeTime:
    """The time from a few mini-batches; raises ShareError if there are none or one is not a positive number."""
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
class TypeProfile:
    """A job type's times by GPU type."""

    times: Mapping[str, TypeTime] = field(default_factory=dict)

    @classmethod
    def of(cls, times_s: Mapping[str, Sequence[float]]) -> TypeProfile:
        """The profile from mini-batch times by GPU type; raises ShareError."""
        if not times_s:
            raise ShareError("times_s: is empty")
        return cls({gpu_type: type_time(times, gpu_type) for gpu_type, times in sorted(times_s.items())})

    @property
    def speedups(self) -> dict[str, float]:
        """GPU type -> speed relative to the slowest measured type (w, 1 on the slowest)."""
        slowest = max(t.seconds for t in self.times.values())
        return {gpu_type: slowest / t.seconds for gpu_type, t in self.times.items()}

    def with_prior(self, prior: Mapping[str, float], gpu_types: Iterable[str]) -> dict[str, float]:
        """GPU type -> speed relative to the slowest, for these types and those of the prior: measured, else `prior`,
        else 1.

        The prior is scaled so that it is right for the median measured type. Empty if nothing is known, which means
        that all types are equally fast.
        """
        known = {t: time.seconds for t, time in self.times.items()}
        if not known and not prior:
            return {}
        serial_s = statistics.median(s * prior.get(t, 1.0) for t, s in known.items()) if known else 1.0
        speed = {t: serial_s / known[t] if t in known else prior.get(t, 1.0) for t in {*gpu_types, *prior}}
        return {t: v / min(speed.values()) for t, v in sorted(speed.items())}

    def measured(self, gpu_type: str, seconds: float) -> TypeProfile:
        """The profile after a measured iteration time on one GPU at S = 1; raises ShareError.

        An outlier counts as at most twice or at least half the old time, with a weight of 1 - KEEP.
        """
        if not (math.isfinite(seconds) and seconds > 0):
            raise ShareError(f"{gpu_type}: {seconds} must be a positive number of seconds")
        old = self.times.get(gpu_type)
        if old is None:
            new = TypeTime(seconds, math.inf, 1)
        else:
            within = min(max(seconds, old.seconds / 2), old.seconds * 2)
            new = replace(old, seconds=old.seconds**KEEP * within ** (1 - KEEP), samples=old.samples + 1)
        return TypeProfile({**self.times, gpu_type: new})

    def tried(self, gpu_type: str, times_s: Sequence[float]) -> TypeProfile:
        """The profile with a trial's mini-batch times on a type; a known type keeps its time."""
        return TypeProfile({gpu_type: type_time(times_s, gpu_type), **self.times})
