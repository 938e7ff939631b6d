"""Calibrates ranges of estimates by the errors of past ones: split-conformal prediction.

Conformalized quantile regression (Romano, Patterson, Candes, NeurIPS 2019, sections 4 and 6), for each side separately.
A range from 10 % to 90 % of the runs misses by log(low) - log(real) on the lower side and by log(real) - log(high) on
the upper one, where times count from now. Each end of the range is moved by the quantile of the past misses that
leaves a tenth of them beyond it. Pure: no clock, no I/O.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

Range = Sequence[float | None]
"""The 10 %, 50 % and 90 % quantiles of an event's time, seconds; None: not within the horizon."""
Miss = tuple[float, float, float]
"""How far the event was before the low end, behind the median, and behind the high end: logarithms of times."""
OFFSET_S = 60.0
"""Added before taking logarithms, so that an error of a minute counts little in an estimate of minutes."""
BOUNDS_S = (300.0, 1800.0, 7200.0)
"""Upper bounds of the classes of waits, by the median estimate; the last class has none."""
BEYOND = 0.1
"""Share of the real times that may be before the range, and after it."""
KEPT = 200
"""The most misses kept per class."""
FEWEST = 12
"""With fewer misses in a class, the misses of all classes are used."""
FAR_S = 7 * 86400.0
"""The assumed wait for what is not within the horizon."""


class Calibration:
    """Calibrates one kind of estimate (starts or ends) under one policy; one estimate per app and class counts."""

    def __init__(self) -> None:
        self._open: dict[str, dict[int, tuple[float, float, float, float]]] = {}
        """By app and class: (when it was made, low, median, high), in seconds from then."""
        self.misses: dict[int, deque[Miss]] = {}
        self._number = 0

    def estimated(self, key: str, now_s: float, found: Range) -> None:
        """Record an estimate as the runs gave it."""
        low, middle, high = (max(0.0, (FAR_S if x is None else x - now_s)) for x in found)
        if found[1] is not None:
            self._open.setdefault(key, {}).setdefault(class_of(middle), (now_s, low, middle, high))

    def dump(self) -> dict[str, list[list[float]]]:
        """The misses by class, as plain JSON."""
        return {str(kind): [list(miss) for miss in misses] for kind, misses in self.misses.items()}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take the misses of a dump; ValueError if one is none."""
        found: dict[int, deque[Miss]] = {}
        for kind, misses in data.items():
            kept = [(float(low), float(middle), float(high)) for low, middle, high in misses]
            if not all(math.isfinite(x) for miss in kept for x in miss):
                raise ValueError("a miss is not finite")
            found[int(kind)] = deque(kept, maxlen=KEPT)
        self.misses = found

    def happened(self, key: str, at_s: float) -> None:
        """Record that the estimated event has happened, and its misses."""
        for kind, (made_s, low, middle, high) in self._open.pop(key, {}).items():
            real = _log(max(0.0, at_s - made_s))
            miss = (_log(low) - real, real - _log(middle), real - _log(high))
            self.misses.setdefault(kind, deque(maxlen=KEPT)).append(miss)

    def forget(self, keys: Sequence[str]) -> None:
        """Drop estimates whose events will not happen or cannot be observed."""
        for key in keys:
            self._open.pop(key, None)

    @property
    def open(self) -> tuple[str, ...]:
        """The keys with open estimates."""
        return tuple(self._open)

    def widened(self, now_s: float, found: Range) -> tuple[float | None, float | None, float | None]:
        """The range adjusted by past misses, in order; unchanged if there are fewer than FEWEST."""
        low, middle, high = found
        if low is None or middle is None:
            return low, middle, high
        misses = self._of(class_of(max(0.0, middle - now_s)))
        n = len(misses)
        if n < FEWEST:
            return low, middle, high
        down = _quantile(sorted(m[0] for m in misses), 1 - BEYOND)
        off = _quantile(sorted(m[1] for m in misses), 0.5)
        up = _quantile(sorted(m[2] for m in misses), 1 - BEYOND)
        first = now_s + _moved(low - now_s, -down)
        centre = max(first, now_s + _moved(middle - now_s, off))
        last = None if high is None else max(centre, now_s + _moved(high - now_s, up))
        return first, centre, last

    def _of(self, kind: int) -> Sequence[Miss]:
        own = self.misses.get(kind, ())
        return own if len(own) >= FEWEST else [m for misses in self.misses.values() for m in misses]


def class_of(wait_s: float) -> int:
    """The class of a wait, by BOUNDS_S."""
    return bisect.bisect_right(BOUNDS_S, wait_s)


def _log(seconds: float) -> float:
    return math.log(max(0.0, seconds) + OFFSET_S)


def _moved(seconds: float, by: float) -> float:
    return max(0.0, math.exp(_log(seconds) + by) - OFFSET_S)


def _quantile(ordered: Sequence[float], part: float) -> float:
    """The ceil(part (n + 1))-th smallest value, at most the largest: the conformal quantile."""
    return ordered[min(len(ordered), math.ceil(part * (len(ordered) + 1))) - 1]


class Calibrations:
    """Calibrations by policy, fed by successive pictures and their estimates."""

    def __init__(self) -> None:
        self._starts: dict[str, Calibration] = {}
        self._ends: dict[str, Calibration] = {}

    def dump(self) -> dict[str, Any]:
        """The misses, as plain JSON; open estimates are left out."""
        kinds = {"starts": self._starts, "ends": self._ends}
        return {kind: {policy: c.dump() for policy, c in found.items()} for kind, found in kinds.items()}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take a dump; ValueError, TypeError or AttributeError if it is none, and nothing changes."""
        found: list[dict[str, Calibration]] = [{}, {}]
        for kind, into in zip(("starts", "ends"), found, strict=True):
            for policy, misses in data.get(kind, {}).items():
                into.setdefault(policy, Calibration()).load(misses)
        self._starts, self._ends = found

    def looked(
        self, now_s: float, apps: Mapping[str, bool], gone: Sequence[str] = (),
        started_s: Mapping[str, float] = MappingProxyType({}), ended_s: Mapping[str, float] = MappingProxyType({}),
    ) -> bool:  # fmt: skip
        """Observe a picture: its apps and whether each has started; returns whether an estimated event happened.

        `gone`: apps not in it that have not ended. `started_s`, `ended_s`: when events happened, where that is known;
        others count as happening now.
        """
        starts, ends = [*self._starts.values()], [*self._ends.values()]
        for calibration in (*starts, *ends):
            calibration.forget(gone)
        begun = [k for c in starts for k in c.open if apps.get(k, True)]
        for key, calibration in itertools.product(begun, starts):
            calibration.happened(key, started_s.get(key, ended_s.get(key, now_s)))
        over = [k for c in ends for k in c.open if k not in apps]
        for key, calibration in itertools.product(over, ends):
            calibration.happened(key, ended_s.get(key, now_s))
        return bool(begun or over)

    def estimates(
        self, policy: str, now_s: float, apps: Mapping[str, bool], found: Mapping[str, tuple[Range, Range]]
    ) -> dict[str, tuple[Range, Range]]:
        """The calibrated (start, end) estimates by app; records those that the runs gave."""
        starts = self._starts.setdefault(policy, Calibration())
        ends = self._ends.setdefault(policy, Calibration())
        said: dict[str, tuple[Range, Range]] = {}
        for app_id, (start, end) in found.items():
            said[app_id] = starts.widened(now_s, start), ends.widened(now_s, end)
            if not apps.get(app_id, True):
                starts.estimated(app_id, now_s, start)
            ends.estimated(app_id, now_s, end)
        return said
