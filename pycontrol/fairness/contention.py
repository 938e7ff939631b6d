"""N_avg: the time-weighted mean number of active apps in an app's life (Themis, section 4.3.1)."""

from __future__ import annotations

from pycontrol.model.value import value


@value
class ContentionClock:
    """The integral of the number of apps over time, in app-seconds, up to `at_s`; there are `count` apps since then.

    One clock serves all apps of a cluster: each app stores the clock's value at its arrival. It is a plain value that
    can be journaled; times are in seconds of any one clock.
    """

    value: float = 0.0
    at_s: float = 0.0
    count: int = 0

    def app_seconds(self, now_s: float) -> float:
        """The clock's value at `now_s`, but no less than its value at `at_s`."""
        return self.value + self.count * max(0.0, now_s - self.at_s)

    def turned(self, now_s: float, change: int) -> ContentionClock:
        """The clock after the number of apps changed by `change`."""
        return ContentionClock(self.app_seconds(now_s), max(self.at_s, now_s), self.count + change)

    def n_avg(self, since_s: float, value_then: float, now_s: float) -> float:
        """N_avg of an app that arrived at `since_s`, when the clock's value was `value_then`; at least 1."""
        elapsed_s = now_s - since_s
        if elapsed_s <= 0:
            return float(max(1, self.count))
        return max(1.0, (self.app_seconds(now_s) - value_then) / elapsed_s)
