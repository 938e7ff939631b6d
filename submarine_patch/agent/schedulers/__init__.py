"""App schedulers: which jobs of an app run, and how far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from submarine_patch.agent.schedulers.asha import Asha
from submarine_patch.agent.schedulers.port import AppScheduler, SchedulerError
from submarine_patch.agent.schedulers.rungs import RungScheduler
from submarine_patch.agent.schedulers.search import OptunaSearch
from submarine_patch.agent.schedulers.stopping import CurveStopping, MedianStopping
from submarine_patch.agent.spec import APP_SCHEDULERS, AppSpec

__all__ = ["MAKERS", "AppScheduler", "SchedulerError", "create"]

MAKERS: Mapping[str, Callable[[AppSpec], AppScheduler]] = {
    "single": RungScheduler,
    "hyperband": RungScheduler,
    "successive_halving": RungScheduler,
    "asha": Asha,
    "median": MedianStopping,
    "curve": CurveStopping,
    "optuna": OptunaSearch,
}


def create(spec: AppSpec, saved: Mapping[str, Any] | None = None) -> AppScheduler:
    """The scheduler that the spec names, where it was if `saved` is what its dump() gave."""
    if spec.app_scheduler not in MAKERS:
        names = ", ".join(APP_SCHEDULERS)
        raise SchedulerError(f"isonomy.app_scheduler={spec.app_scheduler}: must be one of {names}")
    scheduler = MAKERS[spec.app_scheduler](spec)
    if saved is not None:
        scheduler.restore(saved)
    return scheduler
