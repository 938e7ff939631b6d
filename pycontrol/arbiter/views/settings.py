"""The Arbiter's settings."""

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
    unsaved_last: bool = False
    """Whether apps that keep no checkpoints are revoked last among equals."""
    accounts: Accounts = NO_ACCOUNTS
    """The tree of accounts: whose weights the policy respects, and whose limits the Arbiter."""
    gpu_speeds: Mapping[str, float] = field(default_factory=dict)
    """GPU type -> the GPUs of the reference type for which one counts in budgets; 1 if it is not named."""
    lease_timing: str = "aligned"
    """When leases end: a lease after they began (spread), or together: on each machine, or everywhere (aligned)."""
    open_leases: bool = False
    """Whether leases with GPUs that no other app wants are open-ended instead of being renewed."""
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
