"""N_avg: the time-weighted average number of apps in the system over an app's life (Themis, section 4.3.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class NAvgClock:
    """A value; `observe` gives the next one. Times in seconds on any one clock."""

    started_s: float
    at_s: float
    count: int
    app_seconds: float = 0.0
    """Integral of the number of apps from the start to `at_s`."""

    @classmethod
    def start(cls, now_s: float, count: int) -> NAvgClock:
        """The clock of an app that arrives now, as one of `count` apps."""
        return cls(now_s, now_s, count)

    def observe(self, now_s: float, count: int) -> NAvgClock:
        """From now on there are `count` apps. A time before the last one changes the count alone."""
        return replace(self, at_s=max(self.at_s, now_s), count=count, app_seconds=self._total(now_s))

    def mean(self, now_s: float) -> float:
        """N_avg at `now_s`; the present number of apps where no time has passed."""
        elapsed_s = max(self.at_s, now_s) - self.started_s
        return self._total(now_s) / elapsed_s if elapsed_s > 0 else float(self.count)

    def _total(self, now_s: float) -> float:
        return self.app_seconds + self.count * max(0.0, now_s - self.at_s)
