"""The profiling agent's arithmetic: a few mini-batch times on each GPU type give a speedup vector (OEF 4.1).

Times vary and now and then one is far off (warm-up, a busy host), so a type's time is the median. A job type is
profiled once and its vector kept; while its jobs run, measured iteration times move it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
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
class TypeProfile:
    """A job type's times by GPU type."""

    times: Mapping[str, TypeTime] = field(default_factory=dict)

    @classmethod
    def of(cls, times_s: Mapping[str, Sequence[float]]) -> TypeProfile:
        """`times_s`: GPU type -> mini-batch times there."""
        if not times_s:
            raise ShareError("times_s: is empty")
        return cls({gpu_type: type_time(times, gpu_type) for gpu_type, times in sorted(times_s.items())})

    @property
    def speedups(self) -> dict[str, float]:
        """GPU type -> speed relative to the slowest of them (w, with 1 on the slowest)."""
        slowest = max(t.seconds for t in self.times.values())
        return {gpu_type: slowest / t.seconds for gpu_type, t in self.times.items()}

    def with_prior(self, prior: Mapping[str, float], gpu_types: Iterable[str]) -> dict[str, float]:
        """Speeds relative to the slowest of these types and the prior's: measured ones, else `prior`, else 1.

        Prior and measurement meet in the serial time that makes the prior right for the median measured type. Empty
        where nothing is known: all types are alike then.
        """
        known = {t: time.seconds for t, time in self.times.items()}
        if not known and not prior:
            return {}
        serial_s = statistics.median(s * prior.get(t, 1.0) for t, s in known.items()) if known else 1.0
        speed = {t: serial_s / known[t] if t in known else prior.get(t, 1.0) for t in {*gpu_types, *prior}}
        return {t: v / min(speed.values()) for t, v in sorted(speed.items())}

    def measured(self, gpu_type: str, seconds: float) -> TypeProfile:
        """After a measured iteration time there, for one GPU at S = 1. One outlier moves it by a fifth at most."""
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
        """With a trial's mini-batches there; a type that is known keeps its time."""
        return TypeProfile({gpu_type: type_time(times_s, gpu_type), **self.times})
