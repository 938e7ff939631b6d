"""What a simulation assumes about jobs, Agents and machines, beside the Arbiter's own settings."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pycontrol.arbiter.views.settings import Settings as ArbiterSettings
from pycontrol.model.value import value

ARBITER = ArbiterSettings(recovery_s=0.0)
"""The production defaults; nothing recovers when a simulation begins."""


@value
class Misreport:
    """What an app says of itself, as multiples of the truth."""

    work: float = 1.0
    """Of the work that is left."""
    slowdown: float = 1.0
    """Of S beyond one machine; at least 1 is said."""
    speed: float = 1.0
    """Of its speed on every GPU type but the slowest, relative to that."""
    rho: float = 1.0
    """Of every rho that it reports or bids."""
    total: float = 1.0
    """Of its whole work, done and left, as `work` has it."""
    elapsed: float = 1.0
    """Of the time since its submission, in its rho; YARN's own clock cannot be lied to."""
    loss: float = 1.0
    """Of the decrease of its loss."""
    width: float = 1.0
    """Of the gangs that it could use at the same time; at least one is said while it has jobs."""
    saved: float = 1.0
    """Of its periodic checkpoints, how many its workers tell; 0: none."""


HONEST = Misreport()


@value
class Fault:
    """A machine is lost, or comes back (`up`)."""

    at_s: float
    host: str
    up: bool = False


@dataclass(frozen=True)
class SimulationSettings:
    """Costs in seconds. An allocation change costs checkpoint_s + restart_s; a renewal costs nothing."""

    arbiter: ArbiterSettings = ARBITER
    checkpoint_s: float = 5.0
    """From a revocation until the gang's GPUs are free; what it had done is kept if there is that much notice."""
    restart_s: float = 35.0
    """From a launch until the first step, except for the first launch of a job of an app's first phase."""
    start_s: float = 0.0
    """The same for that first launch."""
    checkpoint_every_s: float = 600.0
    """Time of training between periodic checkpoints: at a kill, what came after the newest one is lost."""
    saves: bool = True
    """Whether jobs write a checkpoint when they are warned; if not, a revocation costs as much as a kill."""
    error: float = 0.0
    """Estimates of work and slowdown are wrong by up to this fraction, drawn for each app (Themis, section 8.4)."""
    lies: Mapping[str, Misreport] = field(default_factory=dict)
    """By app id."""
    faults: tuple[Fault, ...] = ()
    until_s: float = math.inf
    """The simulation ends here at the latest."""

    def misreport_of(self, app_id: str, seed: int) -> Misreport:
        """An app's misreport: its lies and the errors of its estimates."""
        said = self.lies.get(app_id, HONEST)
        x = self.error
        if not x:
            return said
        rng = random.Random(f"{seed} {app_id}")
        work, slowdown = (1 + rng.uniform(-x, x) for _ in range(2))
        return replace(said, work=said.work * work, slowdown=said.slowdown * slowdown)
