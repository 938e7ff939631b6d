"""App schedulers: decide which jobs of an app run, and how far."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any, cast

from submarine_patch.agent.schedulers.asha import Asha
from submarine_patch.agent.schedulers.base import Scheduler, whole_runs
from submarine_patch.agent.schedulers.port import SchedulerError
from submarine_patch.agent.schedulers.rungs import brackets_of
from submarine_patch.agent.spec import AppSpec

ENTRY_POINTS = "isonomy.app_schedulers"
"""Entry point group for app schedulers of other distributions: acme.name = "module:make", where make(AppSpec) returns
a Scheduler. The dot keeps their names apart from the built-in ones. The package must be installed where the Agent
runs and where `submarine job run` checks the name."""

MAKERS: Mapping[str, str] = {
    "single": "rungs:RungScheduler",
    "hyperband": "rungs:RungScheduler",
    "successive_halving": "rungs:RungScheduler",
    "asha": "asha:Asha",
    "median": "stopping:MedianStopping",
    "curve": "stopping:CurveStopping",
    "optuna": "optuna_search:OptunaSearch",
}
"""Name -> module and class, so that a submission does not load what fits curves."""


@functools.cache
def others() -> Mapping[str, importlib.metadata.EntryPoint]:
    return {e.name: e for e in importlib.metadata.entry_points(group=ENTRY_POINTS) if "." in e.name}


def names() -> tuple[str, ...]:
    """Names of all installed app schedulers, those of other distributions last."""
    return (*MAKERS, *sorted(others()))


def _maker(name: str) -> Callable[[AppSpec], Scheduler]:
    if name in MAKERS:
        module, _, maker = MAKERS[name].partition(":")
        return cast(Callable[[AppSpec], Scheduler], getattr(importlib.import_module(f"{__name__}.{module}"), maker))
    if name not in others():
        raise SchedulerError(f"isonomy.app_scheduler={name}: must be one of {', '.join(names())}")
    try:
        return cast(Callable[[AppSpec], Scheduler], others()[name].load())
    except (ImportError, AttributeError) as error:
        raise SchedulerError(
            f"isonomy.app_scheduler={name}: {others()[name].value} cannot be loaded: {error}"
        ) from error


def plan(spec: AppSpec) -> tuple[int, list[int], int] | None:
    """(jobs, the steps of the rungs, iterations of all jobs at most) of an app, before it runs; None if unknown."""
    if spec.app_scheduler == "asha":
        asha = Asha(spec)
        return len(asha.configurations), asha.steps, asha.committed + sum(jobs * each for jobs, each in asha.later())
    if spec.app_scheduler in ("median", "curve", "optuna"):
        jobs = whole_runs(spec)
        return jobs, [spec.max_iterations], jobs * spec.max_iterations
    if spec.app_scheduler not in MAKERS:
        return None
    brackets = brackets_of(spec)
    steps = sorted({step for b in brackets for step in b.steps})
    return sum(b.counts[0] for b in brackets), steps, sum(b.iterations for b in brackets)


def create(spec: AppSpec, saved: Mapping[str, Any] | None = None) -> Scheduler:
    """The app scheduler that the spec names, restored from `saved` if given; raises SchedulerError."""
    scheduler = _maker(spec.app_scheduler)(spec)
    if saved is not None:
        scheduler.restore(saved)
    return scheduler
