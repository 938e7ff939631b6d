"""Columns of single jobs as apps, and what importers of JSON read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from pycontrol.lab.workloads.building import NO_SPEEDUPS, Slowdown, queue_of
from pycontrol.lab.workloads.trace_table import NOT_TEXT, BadTrace, Floats, Mask, Skipped, TraceTable, open_text
from pycontrol.model.auction import SLOWDOWN_PRIOR
from pycontrol.model.topology import Scope
from pycontrol.simulation.trace_apps import TraceApp

EPOCH = datetime(1970, 1, 1)


def seconds_of(text: str) -> float:
    """Seconds since 1970 of an ISO date and time without a zone; a zone, if there is one, is left out."""
    return (datetime.fromisoformat(text.strip()).replace(tzinfo=None) - EPOCH).total_seconds()


def times(t: TraceTable, name: str) -> Floats:
    """A column of dates and times as seconds since 1970, taken as they stand (no time zone)."""
    return t.parsed(name, seconds_of, "a time such as 2017-10-09 07:01:55", None)


@dataclass
class Jobs:
    """Jobs of one gang each, as columns of equal length. `work_gpu_s`: serial GPU-seconds."""

    ids: Sequence[str]
    submitted_s: Floats
    gpus: Floats
    work_gpu_s: Floats
    queues: Sequence[str] = ()
    users: Sequence[str] = ()
    models: Sequence[str] = ()
    slowdown: Callable[[str], Slowdown] | None = None
    """S by model; None: the priors."""
    speedups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Speedups by model."""
    scopes: Callable[[int], Scope] | None = None
    """The widest scope by GPUs; None: any."""

    def apps(self, good: Mask, skipped: Skipped) -> tuple[TraceApp, ...]:
        """One app per job; rows that are not `good`, or have no GPUs or no work, are skipped and counted."""
        none = good & (self.gpus < 1)
        idle = good & ~none & ~(self.work_gpu_s > 0)
        skipped.drop("without GPUs", int(none.sum()))
        skipped.drop("without work", int(idle.sum()))
        keep = np.flatnonzero(good & ~none & ~idle)
        keep = keep[np.argsort(self.submitted_s[keep], kind="stable")]
        if not len(keep):
            return ()
        submitted = (self.submitted_s[keep] - self.submitted_s[keep[0]]).tolist()
        gpus = self.gpus[keep].astype(int).tolist()
        work = self.work_gpu_s[keep].tolist()
        queues = {name: queue_of(name) for name in set(self.queues)}
        scopes = {g: self.scopes(g) if self.scopes else Scope.CLUSTER for g in set(gpus)}
        slowdowns = {m: self.slowdown(m) for m in set(self.models)} if self.slowdown else {}
        made = []
        for i, at_s, g, w in zip(keep.tolist(), submitted, gpus, work, strict=True):
            model = self.models[i] if self.models else ""
            made.append(
                TraceApp(
                    self.ids[i],
                    at_s,
                    g,
                    ((w,),),
                    queues[self.queues[i]] if self.queues else "root.default",
                    self.users[i] if self.users else "",
                    model,
                    slowdowns.get(model, SLOWDOWN_PRIOR),
                    scopes[g],
                    self.speedups.get(model, NO_SPEEDUPS),
                )
            )
        return tuple(made)


def load_json(path: Path) -> Any:
    """A JSON document, gzip or not; BadTrace where it is none."""
    try:
        with open_text(path) as file:
            return json.load(file)
    except (ValueError, RecursionError, *NOT_TEXT) as e:
        raise BadTrace(f"{path}: is not JSON: {e}") from e


def number_of(value: Any, where: str, expected: str = "a number of at least 0") -> float:
    """A JSON number; BadTrace with `where` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise BadTrace(f"{where}: {value!r}, expected {expected}")
    return float(value)
