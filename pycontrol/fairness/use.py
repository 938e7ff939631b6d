"""GPU-seconds that an account used in the present day, week and month, as a clock that leases turn.

Periods are calendar periods in UTC: a day begins at midnight, a week on Monday, a month on its first day.
"""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta

from pycontrol.model.value import value

DAY_S = 86400.0
PERIOD_MAX_S = 31 * DAY_S


@functools.lru_cache(maxsize=64)
def _spans(day: int) -> tuple[tuple[float, float], ...]:
    date = datetime.fromtimestamp(day * DAY_S, UTC)
    week, month = date - timedelta(date.weekday()), date.replace(day=1)
    ends = date + timedelta(1), week + timedelta(7), (month + timedelta(31)).replace(day=1)
    return tuple((a.timestamp(), b.timestamp()) for a, b in zip((date, week, month), ends, strict=True))


def spans(at_s: float) -> tuple[tuple[float, float], ...]:
    """(begin, end) of the day, the week and the month of a time, Unix seconds: in the order of `PERIODS`."""
    return _spans(int(at_s // DAY_S))


@value
class Use:
    """GPU-seconds on the reference type in the periods of `at_s`; since then so many GPUs run."""

    at_s: float = 0.0
    running: float = 0.0
    """GPUs of the reference type."""
    gpu_s: tuple[float, ...] = (0.0, 0.0, 0.0)
    """In the order of `PERIODS`, until `at_s`."""

    def seen(self, now_s: float) -> tuple[float, ...]:
        """GPU-seconds in each of the periods of `now_s`."""
        now_s = max(now_s, self.at_s)
        if now_s // DAY_S == self.at_s // DAY_S:
            more, (day, week, month) = self.running * (now_s - self.at_s), self.gpu_s
            return day + more, week + more, month + more
        return tuple(
            (known if begin_s <= self.at_s else 0.0) + self.running * (now_s - max(begin_s, self.at_s))
            for known, (begin_s, _) in zip(self.gpu_s, spans(now_s), strict=True)
        )

    def turned(self, now_s: float, change: float) -> Use:
        """The same from `now_s` on, with so many more GPUs running."""
        running = self.running + change
        return Use(max(now_s, self.at_s), running if running > 1e-6 else 0.0, self.seen(now_s))
