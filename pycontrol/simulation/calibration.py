"""How wrong estimates were, and ranges widened (or narrowed) by it: split-conformal prediction.

Conformalized quantile regression (Romano, Patterson, Candes, NeurIPS 2019, sections 4 and 6), either side for itself: a
range of 10 % to 90 % of the runs misses on the lower side by log(low) - log(real) and on the upper one by log(real) -
log(high), of times from now; the range that is given is moved by such a quantile of the misses seen in the past that a
tenth lies beyond it on either side. Pure: no clock, no I/O.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Mapping, Sequence

Range = Sequence[float | None]
"""When something happens: 10 %, 50 % and 90 % quantile, seconds; None: not in sight."""
OFFSET_S = 60.0
"""Added before logarithms are taken: a minute more or less is no miss of an estimate of minutes."""
BOUNDS_S = (300.0, 1800.0, 7200.0)
"""Classes of waits by their middle: minutes, up to half an hour, up to two hours, longer."""
BEYOND = 0.1
"""Of what really happens, before the range and behind it."""
KEPT = 200
"""Misses of a class."""
FEWEST = 12
"""With fewer of its class, those of all classes count."""
FAR_S = 7 * 86400.0
"""What is not in sight is taken to be so far away."""


class Calibration:
    """Of one kind of estimate (starts, or ends) under one policy. One estimate of each app counts for each class."""

    def __init__(self) -> None:
        self._open: dict[str, dict[int, tuple[float, float, float, float]]] = {}
        """App -> class -> (when it was made, low, middle, high), seconds from then."""
        self._misses: dict[int, deque[tuple[float, float, float]]] = {}
        self._number = 0

    def said(self, key: str, now_s: float, found: Range) -> None:
        """An estimate, as the runs gave it."""
        low, middle, high = (max(0.0, (FAR_S if x is None else x - now_s)) for x in found)
        if found[1] is not None:
            self._open.setdefault(key, {}).setdefault(class_of(middle), (now_s, low, middle, high))

    def happened(self, key: str, at_s: float) -> None:
        """What was estimated has happened."""
        for kind, (made_s, low, middle, high) in self._open.pop(key, {}).items():
            real = _log(max(0.0, at_s - made_s))
            miss = (_log(low) - real, real - _log(middle), real - _log(high))
            self._misses.setdefault(kind, deque(maxlen=KEPT)).append(miss)

    def forget(self, keys: Sequence[str]) -> None:
        """These will not happen, or nobody will know when."""
        for key in keys:
            self._open.pop(key, None)

    @property
    def open(self) -> tuple[str, ...]:
        """What is waited for."""
        return tuple(self._open)

    def widened(self, now_s: float, found: Range) -> tuple[float | None, float | None, float | None]:
        """The range by what was learnt; as it is where too little was. Its order is kept."""
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

    def _of(self, kind: int) -> Sequence[tuple[float, float, float]]:
        own = self._misses.get(kind, ())
        return own if len(own) >= FEWEST else [m for misses in self._misses.values() for m in misses]


def class_of(wait_s: float) -> int:
    """The class of a wait of so long."""
    return bisect.bisect_right(BOUNDS_S, wait_s)


def _log(seconds: float) -> float:
    return math.log(max(0.0, seconds) + OFFSET_S)


def _moved(seconds: float, by: float) -> float:
    return max(0.0, math.exp(_log(seconds) + by) - OFFSET_S)


def _quantile(ordered: Sequence[float], part: float) -> float:
    """The ceil(part (n + 1))-th smallest, else the largest: at least that part of what comes lies below it."""
    return ordered[min(len(ordered), math.ceil(part * (len(ordered) + 1))) - 1]


class Calibrations:
    """By policy; fed by successive pictures and the estimates made of them."""

    def __init__(self) -> None:
        self._starts: dict[str, Calibration] = {}
        self._ends: dict[str, Calibration] = {}

    def looked(self, now_s: float, apps: Mapping[str, bool], gone: Sequence[str] = ()) -> None:
        """A picture: its apps, and whether each has started. `gone`: not in it although they have not ended."""
        for found in (self._starts.values(), self._ends.values()):
            for calibration in found:
                calibration.forget(gone)
        for key in [k for c in self._starts.values() for k in c.open if apps.get(k, True)]:
            for calibration in self._starts.values():
                calibration.happened(key, now_s)
        for key in [k for c in self._ends.values() for k in c.open if k not in apps]:
            for calibration in self._ends.values():
                calibration.happened(key, now_s)

    def estimates(
        self, policy: str, now_s: float, apps: Mapping[str, bool], found: Mapping[str, tuple[Range, Range]]
    ) -> dict[str, tuple[Range, Range]]:
        """Estimates (start, end) by app as they are given to people; those that the runs gave are remembered."""
        starts = self._starts.setdefault(policy, Calibration())
        ends = self._ends.setdefault(policy, Calibration())
        said: dict[str, tuple[Range, Range]] = {}
        for app_id, (start, end) in found.items():
            said[app_id] = starts.widened(now_s, start), ends.widened(now_s, end)
            if not apps.get(app_id, True):
                starts.said(app_id, now_s, start)
            ends.said(app_id, now_s, end)
        return said
