"""What the Agents said of their apps; rebuilt when they register again."""

from __future__ import annotations

from dataclasses import dataclass

from pycontrol.model.auction import Demand
from pycontrol.model.events import JobProgress


@dataclass(slots=True)
class AgentState:
    """What an Agent last said of its app."""

    demand: Demand
    app_scheduler: str
    attempt_id: str = ""
    jobs: tuple[JobProgress, ...] = ()
    rho: float | None = None
    connected: bool = True
