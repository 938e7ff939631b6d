"""When the next round may be held: requests meet in one round, and rounds that achieve nothing wait longer each time.

It knows times and counts alone, and is told each `now_s`.
"""

from __future__ import annotations

IDLE_ROUNDS_MAX = 4
"""The wait doubles with each round that moved no GPU, at most this many times."""
UNUSED_GRANTS_MAX = 3
"""After this many rounds whose grants all came back unused, the next one waits."""


class RoundTimer:
    """Times in seconds; `retry_s` is the wait that is doubled."""

    def __init__(self, retry_s: float) -> None:
        self.retry_s = retry_s
        self.wanted_s: float | None = None
        """When a round is wanted, apart from ending leases."""
        self.not_before_s = 0.0
        """After a round that failed, the next one waits a little."""
        self.idle_rounds = 0
        """Rounds in a row that moved no GPU: the next one without a new event waits longer."""
        self.unused_grant_rounds = 0
        """Rounds in a row of which all grants were given back before the next."""

    def copy(self) -> RoundTimer:
        """The same, apart."""
        other = RoundTimer(self.retry_s)
        other.wanted_s, other.not_before_s = self.wanted_s, self.not_before_s
        other.idle_rounds, other.unused_grant_rounds = self.idle_rounds, self.unused_grant_rounds
        return other

    def request(self, at_s: float) -> None:
        """A round is wanted no later than `at_s`."""
        self.wanted_s = at_s if self.wanted_s is None else min(self.wanted_s, at_s)

    def due_s(self, first_end_s: float | None) -> float | None:
        """When the next round is due; None if nothing calls for one. `first_end_s`: when leases go on offer."""
        due_s = self.wanted_s
        if due_s is None or (first_end_s is not None and first_end_s < due_s):
            due_s = first_end_s
        return due_s if due_s is None or due_s > self.not_before_s else self.not_before_s

    def begun(self) -> None:
        """The requested round begins."""
        self.wanted_s = None

    def failed(self, now_s: float) -> None:
        """A round brought no plan: another one soon, and none before."""
        self.not_before_s = now_s + self.retry_s
        self.request(self.not_before_s)

    def held(self, now_s: float, moved: bool, more_to_do: bool, same_again: bool) -> None:
        """A round was held.

        `moved`: it moved GPUs. `more_to_do`: GPUs are left and apps want some. `same_again`: leases on offer call for
        the same round at once.
        """
        if more_to_do:
            self.request(now_s + self.retry_s * 2**self.idle_rounds)
        self.idle_rounds = 0 if moved else min(IDLE_ROUNDS_MAX, self.idle_rounds + 1)
        if same_again and not moved:
            self.not_before_s = now_s + self.retry_s

    def grants_used(self, used: bool, now_s: float) -> bool:
        """Whether any GPU of the last round that granted some is still held; returns whether the next one waits."""
        self.unused_grant_rounds = 0 if used else self.unused_grant_rounds + 1
        if self.unused_grant_rounds < UNUSED_GRANTS_MAX:
            return False
        wait_s = self.retry_s * 2 ** min(IDLE_ROUNDS_MAX, self.unused_grant_rounds - UNUSED_GRANTS_MAX)
        self.request(now_s + wait_s)
        return True
