"""App schedulers: which jobs of an app run, and how far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from submarine_patch.agent.schedulers.port import AppScheduler
from submarine_patch.agent.schedulers.rungs import RungScheduler
from submarine_patch.agent.spec import AppSpec

__all__ = ["AppScheduler", "RungScheduler", "create"]


def create(spec: AppSpec, saved: Mapping[str, Any] | None = None) -> AppScheduler:
    """The scheduler that the spec names, where it was if `saved` is what its dump() gave."""
    scheduler = RungScheduler(spec)
    if saved is not None:
        scheduler.restore(saved)
    return scheduler
