"""The last day, minute by minute: GPUs by state and each app's rho or other measure; also the jobs and their losses, of
apps that have ended, too.

In memory only, so a restart clears it; a day of 2,000 apps takes about 30 MB.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Mapping
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.model.events import JobProgress
from pycontrol.queries import views
from pycontrol.queries.demands import Demands
from pycontrol.queries.lookup import whole_number
from pycontrol.queries.standing import Standing, standings

POINTS_KEPT = 1440
POINT_S = 60.0
SAMPLE_S = 15.0
"""How often to call `sample`, in seconds."""
LOSSES_KEPT = 60
"""Points of a job's learning curve; if there are more, every other one is dropped."""
JOBS_KEPT = 20_000
"""The most jobs of all apps; the apps that were heard of longest ago are dropped first."""
APPS_SHOWN = 12
"""The most apps in the chart of all apps: those with the worst numbers now."""
STATES = ("leased", "free", "waiting", "out")
"""GPU counts: leased; free; wanted by apps but not held; drained, bad or down."""
NOTHING = float("nan")


class Trends:
    """Samples the Arbiter's state; any thread may read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_s: deque[float] = deque(maxlen=POINTS_KEPT)
        self._gpus: dict[str, deque[int]] = {state: deque(maxlen=POINTS_KEPT) for state in STATES}
        self._apps: dict[str, tuple[int, array[float]]] = {}
        """By app: the index of its first point, counted since the start, and one number per point."""
        self._measure = ""
        self._count = 0
        self._jobs: dict[str, tuple[JobProgress, ...]] = {}
        """What the Agent of each app told of its jobs last; the one that was heard of longest ago comes first."""
        self._jobs_kept = 0
        self._losses: dict[str, dict[str, list[tuple[int, float]]]] = {}
        """(step, loss) by app and job."""

    def sample(self, a: Arbiter, now_s: float) -> None:
        """Record the present state; call it every SAMPLE_S seconds."""
        with self._lock:
            if self._at_s and now_s - self._at_s[-1] < POINT_S - SAMPLE_S / 2:
                return
            self._at_s.append(now_s)
            counts = views.gpu_counts(a)
            wanted, demands = 0, Demands(a, now_s)
            for app_id in a.durable.live:
                demand = demands.of(app_id)
                wanted += max(0, demand.gpus - a.holdings.holding(app_id)) if demand is not None else 0
            out = counts["drained"] + counts["bad"] + counts["down"]
            for state, n in zip(STATES, (counts["leased"], counts["free"], wanted, out), strict=True):
                self._gpus[state].append(n)
            self._note_apps(a, standings(a, now_s, demands))
            self._count += 1

    def _note_apps(self, a: Arbiter, placed: Mapping[str, Standing]) -> None:
        """Record each app's rho, or the other measure by which the policy orders apps."""
        measure = next((s.measure for s in placed.values()), "")
        if measure and measure != self._measure:
            self._apps.clear()  # another policy's numbers are not comparable
            self._measure = measure
        for app_id in a.durable.live:
            first, numbers = self._apps.setdefault(app_id, (self._count, array("f")))
            found = placed.get(app_id)
            number = found.amount if found is not None else None
            if number is None and self._measure == "rho":
                agent = a.agents.get(app_id)
                number = agent.rho if agent is not None else None
            numbers.extend([NOTHING] * (self._count - first - len(numbers)))
            numbers.append(NOTHING if number is None else number)
        for app_id in self._apps.keys() - a.durable.live.keys():
            first, numbers = self._apps[app_id]
            if first + len(numbers) < self._count - POINTS_KEPT // 4:
                del self._apps[app_id]
        for app_id, (first, numbers) in self._apps.items():
            if len(numbers) > 2 * POINTS_KEPT:
                gone = len(numbers) - POINTS_KEPT
                self._apps[app_id] = (first + gone, numbers[gone:])

    def progressed(self, app_id: str, jobs: tuple[JobProgress, ...]) -> None:
        """Note what an Agent tells of its app's jobs."""
        with self._lock:
            self._jobs_kept += len(jobs) - len(self._jobs.pop(app_id, ()))
            self._jobs[app_id] = jobs
            losses = self._losses.setdefault(app_id, {})
            for job in jobs:
                seen = losses.setdefault(job.job_id, [])
                if job.step > 0 and (not seen or seen[-1][0] < job.step):
                    seen.append((job.step, job.loss))
                if len(seen) > LOSSES_KEPT:
                    del seen[1:-1:2]
            while self._jobs_kept > JOBS_KEPT and len(self._jobs) > 1:
                oldest = next(iter(self._jobs))
                self._jobs_kept -= len(self._jobs.pop(oldest))
                del self._losses[oldest]

    # ---- reading

    def jobs(self, app_id: str) -> tuple[JobProgress, ...]:
        """What the app's Agent told of its jobs last, also after the app's end; empty if that is no longer known."""
        with self._lock:
            return self._jobs.get(app_id, ())

    def trends(self, a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
        """The last `hours` (default 24): GPUs by state, and the numbers of `app` or of the APPS_SHOWN worst apps."""
        hours = whole_number(params, "hours", 24, 1, 24)
        app_id = params.get("app", "")
        with self._lock:
            n = sum(at_s >= now_s - hours * 3600.0 for at_s in self._at_s)
            shown = [app_id] if app_id in self._apps else [] if app_id else self._worst()
            return {
                "now_s": now_s,
                "app_id": app_id,
                "at_s": list(self._at_s)[len(self._at_s) - n :],
                "gpus": {state: list(series)[len(series) - n :] for state, series in self._gpus.items()},
                "measure": self._measure,
                "apps": {x: self._series(x, n) for x in shown},
                "losses": {job: list(seen) for job, seen in self._losses.get(app_id, {}).items() if seen},
            }

    def _worst(self) -> list[str]:
        """Apps with a number in the newest point, worst first: the largest rho, or the smallest other measure."""
        now = {x: numbers[-1] for x, (first, numbers) in self._apps.items()
               if numbers and first + len(numbers) == self._count and numbers[-1] == numbers[-1]}  # fmt: skip
        return sorted(now, key=lambda x: (-now[x] if self._measure == "rho" else now[x], x))[:APPS_SHOWN]

    def _series(self, app_id: str, n: int) -> list[float | None]:
        first, numbers = self._apps[app_id]
        begin = self._count - n
        found: list[float | None] = [None] * n
        for i in range(max(first, begin), min(self._count, first + len(numbers))):
            number = numbers[i - first]
            found[i - begin] = round(number, 4) if number == number else None
        return found
