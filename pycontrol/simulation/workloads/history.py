"""A YARN cluster's own past: applications that have ended, and from when to when the records are.

What an application ran on is its GPU-seconds, over the time that it ran: one gang, at full speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pycontrol.hadoopconf.names import GPU
from pycontrol.model.value import value
from pycontrol.simulation.apps import TraceApp, Workload
from pycontrol.simulation.workloads.reading import BAD_ROW, SHOWN_BAD, Skipped

ASSUMED = "work is the GPU-seconds that were counted, in one gang of as many GPUs as it had on average, at speed 1"
WITHOUT, SHORT, OPEN = "without GPUs", "that ran for less than a second", "that have not ended"
DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError)


@value
class PastApp:
    """An application that has ended; Unix seconds."""

    app_id: str
    queue: str
    user: str
    submitted_s: float
    began_s: float
    ended_s: float
    gpu_s: float

    @property
    def gpus(self) -> int:
        """Its GPUs on average."""
        return max(1, round(self.gpu_s / (self.ended_s - self.began_s)))


@dataclass
class History:
    """What was found, from when to when."""

    apps: dict[str, PastApp] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=Skipped)
    from_s: float = float("inf")
    to_s: float = 0.0
    assumed: list[str] = field(default_factory=lambda: [ASSUMED])
    _left: dict[str, str] = field(default_factory=dict)
    """Application that is left out -> why."""

    @property
    def extent(self) -> tuple[float, float] | tuple[()]:
        """The time of its records; empty without any."""
        return (self.from_s, self.to_s) if self.to_s else ()

    def cover(self, *times_s: float) -> None:
        """Notes that the records include these times."""
        self.from_s, self.to_s = min(self.from_s, *times_s), max(self.to_s, *times_s)

    def add(self, app: PastApp, problem: str = "") -> None:
        """Adds an application, or counts why it is left out; one that several files name counts once."""
        why = problem or (WITHOUT if app.gpu_s <= 0 else SHORT if app.ended_s - app.began_s < 1 else "")
        known = self._left.get(app.app_id)
        if app.app_id in self.apps or (known is not None and why):
            self.skipped.parts["named again"] += 1
        elif why:
            self._left[app.app_id] = why
            self.skipped.drop(why, 1)
        else:
            self.apps[app.app_id] = app
            if known is not None:  # another file knows more, such as its end
                del self._left[app.app_id]
                self.skipped.reasons -= Counter([known])

    def bad(self, problem: str) -> None:
        """Counts a part that cannot be understood."""
        self.skipped.drop(BAD_ROW, 1)
        self.skipped.bad += [problem] if len(self.skipped.bad) < SHOWN_BAD else []

    def since(self, at_s: float) -> History:
        """Without the applications that were submitted before."""
        kept = {k: x for k, x in self.apps.items() if x.submitted_s >= at_s}
        self.skipped.drop("submitted before the time", len(self.apps) - len(kept))
        return replace(self, apps=kept, from_s=max(self.from_s, at_s))

    def workload(self, source: str) -> Workload:
        """The applications in the order of their arrival, the first at time 0."""
        ordered = sorted(self.apps.values(), key=lambda x: (x.submitted_s, x.app_id))
        begin_s = ordered[0].submitted_s if ordered else 0.0
        apps = (TraceApp(x.app_id, x.submitted_s - begin_s, x.gpus, ((x.gpu_s,),), x.queue, x.user) for x in ordered)
        return Workload("recorded", tuple(apps), source)

    def actual(self) -> dict[str, tuple[float | None, float | None]]:
        """When each really got its GPUs, and ended, in the workload's time."""
        begin_s = min((x.submitted_s for x in self.apps.values()), default=0.0)
        return {x.app_id: (x.began_s - begin_s, x.ended_s - begin_s) for x in self.apps.values()}


def of_rest(apps: Iterable[Mapping[str, Any]], found: History) -> None:
    """The elements of /ws/v1/cluster/apps; times in milliseconds."""
    for x in apps:
        try:
            submitted_ms, ended_ms = float(x["startedTime"]), float(x["finishedTime"])
            began_ms = float(x.get("launchTime") or submitted_ms)
            app = PastApp(x["id"], x["queue"], x["user"], submitted_ms / 1e3, began_ms / 1e3, ended_ms / 1e3,
                          _gpu_seconds(x))  # fmt: skip
            found.cover(app.submitted_s, *([app.ended_s] if ended_ms else []))
            found.add(app, "" if ended_ms else OPEN)
        except DAMAGED as e:
            found.bad(f"an application cannot be understood: {e!r}")


def _gpu_seconds(app: Mapping[str, Any]) -> float:
    """Of resourceSecondsMap, which YARN writes as a map or as a list of entries."""
    of = app.get("resourceSecondsMap") or {}
    entries = of.get("entry", of) if isinstance(of, Mapping) else of
    if isinstance(entries, Mapping):
        entries = [entries] if "key" in entries else [{"key": k, "value": v} for k, v in entries.items()]
    return float(next((e["value"] or 0 for e in entries if e.get("key") == GPU), 0))
