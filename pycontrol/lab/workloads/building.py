"""Builds a workload from columns of jobs: apps in the order of arrival, the first at time 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from pycontrol.lab.workloads.trace_table import BadTrace, Skipped
from pycontrol.simulation.trace_apps import TraceApp, Workload

Slowdown = tuple[float, float, float]
NO_SPEEDUPS: Mapping[str, float] = {}
"""One empty mapping for all apps without speedups."""
DAY_S = 86400.0
ROOT = "root."


def queue_of(name: str) -> str:
    """The leaf queue of a trace's virtual cluster or tenant."""
    return name if name.startswith(ROOT) else f"{ROOT}{name or 'default'}"


@dataclass(frozen=True, kw_only=True)
class Import:
    """Options of every importer."""

    bad_rows: Literal["refuse", "skip"] = "refuse"
    """How to treat malformed rows."""
    status: tuple[str, ...] = ()
    """Only jobs with these final states, if the trace has them (Pass, Killed, Failed; COMPLETED; Terminated)."""
    data: str = ""
    """Folder with throughputs, where a trace counts steps; empty: ISONOMY_DATA, or ../shared/data."""

    @property
    def lenient(self) -> bool:
        """Whether malformed rows are skipped."""
        return self.bad_rows == "skip"


@dataclass(frozen=True)
class Imported:
    """The workload of a file, and what was skipped."""

    workload: Workload
    skipped: Skipped = field(default_factory=Skipped)


Reader = Callable[[Path, Import, int], Imported]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The part of a workload to use; every generator and importer has these options."""

    queues: tuple[str, ...] = ()
    """Only apps of these queues (virtual clusters, tenants), with or without `root.`."""
    begin_s: float | None = None
    """Only what arrives from then on, seconds after the first app ..."""
    end_s: float | None = None
    """... and before then."""
    limit: PositiveInt | None = None
    """The most apps, from the first on."""
    faster: PositiveFloat = 1.0
    """Factor by which arrivals are faster."""
    elastic: NonNegativeFloat = 0.0
    """Jobs run on one GPU to so many times those of their gang (1: Themis' jobs); 0: on these, no more and no fewer."""
    scaling: Annotated[float, Field(gt=0, le=1)] = 1.0
    """k times the GPUs make an elastic job k^scaling times as fast."""

    def of(self, workload: Workload, skipped: Skipped) -> Workload:
        """The chosen apps, the first at time 0; BadTrace if there is none, or no such queue."""
        apps: Sequence[TraceApp] = workload.apps
        if self.queues:
            wanted, known = {queue_of(q) for q in self.queues}, {queue_of(a.queue) for a in apps}
            if wanted - known:
                lacking, have = ", ".join(sorted(wanted - known)), ", ".join(sorted(known))
                raise BadTrace(f"{workload.name}: queues: there is no {lacking}; there are {have}")
            apps = self._kept(apps, lambda a: queue_of(a.queue) in wanted, "of other queues", skipped)
        if self.begin_s is not None or self.end_s is not None:
            begin, end = self.begin_s or 0.0, float("inf") if self.end_s is None else self.end_s
            apps = self._kept(apps, lambda a: begin <= a.submitted_s < end, "outside the window", skipped)
        if self.limit is not None:
            skipped.drop("after the first so many", max(0, len(apps) - self.limit))
            apps = apps[: self.limit]
        if not apps:
            raise BadTrace(f"{workload.name}: no app is left ({skipped})")
        first_s = apps[0].submitted_s
        if first_s or self.faster != 1:
            apps = [replace(a, submitted_s=(a.submitted_s - first_s) / self.faster) for a in apps]
        if self.elastic:
            apps = [self._elastic(a) for a in apps]
        source = workload.source + (f"; arrivals x {self.faster:g}" if self.faster != 1 else "")
        source += f"; jobs of 1 to {self.elastic:g} x their GPUs" if self.elastic else ""
        return Workload(workload.name, tuple(apps), source)

    def _elastic(self, app: TraceApp) -> TraceApp:
        most = max(1, round(self.elastic * app.gang_gpus))
        return replace(app, gang_gpus=1, job_gpus_max=most, scaling=self.scaling)

    @staticmethod
    def _kept(
        apps: Sequence[TraceApp], keep: Callable[[TraceApp], bool], reason: str, skipped: Skipped
    ) -> list[TraceApp]:
        kept = [a for a in apps if keep(a)]
        skipped.drop(reason, len(apps) - len(kept))
        return kept
