"""The Arbiter's settings, and when the next round may be held: close requests share one, vain ones back off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from pycontrol.model.accounts import NO_ACCOUNTS, Accounts
from pycontrol.model.value import value


@value
class Settings:
    """The Arbiter's settings; times in seconds."""

    lease_s: float = 600.0
    lead_s: float | None = None
    """How long before leases end their round is held; None: 60 s, at most a fifth of the lease."""
    grant_timeout_s: float = 60.0
    f: float = 0.8
    round_retry_s: float = 5.0
    rho_s: float = 0.5
    bid_s: float = 2.0
    solve_s: float = 2.0
    settle_s: float = 0.3
    """Delay of a round after a request, so that apps that arrive close together share it."""
    recovery_s: float = 5.0
    """Time for Agents and nodes to come back after a restart, before leases change again."""
    standin_revocable: bool | Literal["auto"] = "auto"
    """Whether apps without an Agent lose GPUs at leases' ends as others do; auto: within `preemptions_per_hour`."""
    preemptions_per_hour: int = 3
    """How often an app without an Agent may lose GPUs in rounds within an hour."""
    exempt_queues: tuple[str, ...] = ()
    """Queues whose apps without an Agent lose no GPUs in rounds."""
    interactive_gpus: int = 1
    """GPUs that the interactive apps of a user may hold together."""
    interactive_idle_s: float = 1800.0
    """How long a container of an interactive app may idle before it loses its GPUs."""
    accounts: Accounts = NO_ACCOUNTS
    """The tree of accounts: whose weights the policy respects, and whose limits the Arbiter."""
    gpu_speeds: Mapping[str, float] = field(default_factory=dict)
    """GPU type -> the GPUs of the reference type for which one counts in budgets; 1 if it is not named."""
    lease_timing: str = "aligned"
    """When leases end: a lease after they began (spread), or together: on each machine, or everywhere (aligned)."""
    open_leases: bool = False
    """Whether leases that a round could only renew are open-ended instead, until it could do more."""
    last_pass: bool = True
    """Whether a round gives GPUs that its policy leaves free to apps that can use them; off to measure a published
    rule exactly."""
    seed: int = 0
    ended_apps_s: float = 30 * 86400.0
    """How long records of ended apps are retained."""

    validate: bool = False
    """Whether the state is validated after every event (`validate.py`); slow."""

    @property
    def lead(self) -> float:
        """The lead in force, seconds."""
        return min(60.0, self.lease_s / 5) if self.lead_s is None else self.lead_s


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

    def slow_down(self, retry_s: float) -> None:
        """From now on waits this long, where nothing is expected to change."""
        self.retry_s = retry_s

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

    def learned(self) -> None:
        """Grants came back from where their apps will not be placed again: the next round is another."""
        self.unused_grant_rounds = 0

    def grants_used(self, used: bool, now_s: float) -> bool:
        """Notes whether a GPU of the last round with grants is still held (`used`); returns whether to back off."""
        self.unused_grant_rounds = 0 if used else self.unused_grant_rounds + 1
        if self.unused_grant_rounds < UNUSED_GRANTS_MAX:
            return False
        wait_s = self.retry_s * 2 ** min(IDLE_ROUNDS_MAX, self.unused_grant_rounds - UNUSED_GRANTS_MAX)
        self.request(now_s + wait_s)
        return True
