"""When the next round may be held: close requests share one round, and rounds without effect back off exponentially.

It knows only times and counts, and reads no clock.
"""

from __future__ import annotations

IDLE_ROUNDS_MAX = 4
"""The wait doubles with each round that moves no GPU, at most this many times."""
UNUSED_GRANTS_MAX = 3
"""After this many consecutive rounds with only unused grants, the next one waits."""


class RoundTimer:
    """Times in seconds; `retry_s` is the wait that is doubled."""

    def __init__(self, retry_s: float) -> None:
        self.retry_s = retry_s
        self.wanted_s: float | None = None
        """When a round is requested, apart from ending leases."""
        self.not_before_s = 0.0
        """No round is held before this time."""
        self.idle_rounds = 0
        """Consecutive rounds that moved no GPU."""
        self.unused_grant_rounds = 0
        """Consecutive rounds with grants that all came back before the next round."""

    def copy(self) -> RoundTimer:
        """An independent copy."""
        other = RoundTimer(self.retry_s)
        other.wanted_s, other.not_before_s = self.wanted_s, self.not_before_s
        other.idle_rounds, other.unused_grant_rounds = self.idle_rounds, self.unused_grant_rounds
        return other

    def request(self, at_s: float) -> None:
        """Requests a round no later than `at_s`."""
        self.wanted_s = at_s if self.wanted_s is None else min(self.wanted_s, at_s)

    def due_s(self, first_end_s: float | None) -> float | None:
        """When the next round is due; None if none is. `first_end_s`: when the next leases go on offer."""
        due_s = self.wanted_s
        if due_s is None or (first_end_s is not None and first_end_s < due_s):
            due_s = first_end_s
        return due_s if due_s is None or due_s > self.not_before_s else self.not_before_s

    def begun(self) -> None:
        """The requested round has begun."""
        self.wanted_s = None

    def failed(self, now_s: float) -> None:
        """A round brought no plan: the next one comes after `retry_s`."""
        self.not_before_s = now_s + self.retry_s
        self.request(self.not_before_s)

    def held(self, now_s: float, moved: bool, more_to_do: bool, same_again: bool) -> None:
        """A round was held.

        `moved`: it moved GPUs. `more_to_do`: GPUs are left and apps want some. `same_again`: the leases on offer would
        start the same round immediately.
        """
        if more_to_do:
            self.request(now_s + self.retry_s * 2**self.idle_rounds)
        self.idle_rounds = 0 if moved else min(IDLE_ROUNDS_MAX, self.idle_rounds + 1)
        if same_again and not moved:
            self.not_before_s = now_s + self.retry_s

    def grants_used(self, used: bool, now_s: float) -> bool:
        """Notes whether a GPU of the last round with grants is still held (`used`); returns whether to back off."""
        self.unused_grant_rounds = 0 if used else self.unused_grant_rounds + 1
        if self.unused_grant_rounds < UNUSED_GRANTS_MAX:
            return False
        wait_s = self.retry_s * 2 ** min(IDLE_ROUNDS_MAX, self.unused_grant_rounds - UNUSED_GRANTS_MAX)
        self.request(now_s + wait_s)
        return True
