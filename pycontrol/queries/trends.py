"""The last day, minute by minute: GPUs by state and each app's rho or other measure; also the jobs and their losses, of
apps that have ended, too.

In memory, a day of 2,000 apps takes about 30 MB; of that a file keeps the jobs and losses of ended apps over restarts.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from pycontrol.arbiter.core import Arbiter
from pycontrol.fairness.curves import add
from pycontrol.model.events import JobProgress
from pycontrol.queries import views
from pycontrol.queries.demands import Demands
from pycontrol.queries.lookup import is_known, user_of, whole_number
from pycontrol.queries.standing import standings

POINTS_KEPT = 1440
POINT_S = 60.0
SAMPLE_S = 15.0
"""How often to call `sample`, in seconds."""
LOSSES_KEPT = 60
"""The most points of a job's learning curve."""
JOBS_KEPT = 20_000
"""The most jobs of all apps; the apps that were heard of longest ago are dropped first."""
JOBS_OF_APP = 2_048
"""The most jobs of one app, likewise."""
APPS_SHOWN = 12
"""The most apps in the chart of all apps: those with the worst numbers now."""
STATES = ("leased", "free", "waiting", "out")
"""GPU counts: leased; free; wanted by apps but not held; drained, bad or down."""
NOTHING = float("nan")
log = structlog.get_logger("isonomy.trends")


@dataclass(frozen=True, slots=True)
class _Point:
    """The state at one time."""

    at_s: float
    gpus: tuple[int, ...]
    """By STATES."""
    measure: str
    apps: tuple[str, ...]
    """Those that had not ended, sorted."""
    numbers: array[float]
    """The measure of each of them."""

    def number(self, app_id: str, measure: str) -> float | None:
        """The app's number; None if it has none, or another measure's, which is not comparable."""
        at = bisect_left(self.apps, app_id)
        if self.measure != measure or at == len(self.apps) or self.apps[at] != app_id:
            return None
        number = self.numbers[at]
        return round(number, 4) if number == number else None


class Trends:
    """Samples the Arbiter's state; any thread may read."""

    def __init__(self, file: Path | None = None) -> None:
        """`file`: what it keeps, one ended app in each line."""
        self._lock = threading.Lock()
        self._points: deque[_Point] = deque(maxlen=POINTS_KEPT)
        self._measure = ""
        """The newest."""
        self._jobs: dict[str, tuple[JobProgress, ...]] = {}
        """What the Agent of each app told of its jobs last; the one that was heard of longest ago comes first."""
        self._jobs_kept = 0
        self._losses: dict[str, dict[str, list[tuple[int, float]]]] = {}
        """(step, loss) by app and job."""
        self._file, self._in_file = file, 0
        """And the jobs in it, about."""
        self._ended: list[str] = []
        """Apps that have ended and are not in the file yet."""
        try:
            if file is not None and file.exists():
                self._shorten(file, load=True)
        except OSError as e:
            log.warning("the jobs of ended apps cannot be read", problem=str(e))

    def sample(self, a: Arbiter, now_s: float) -> None:
        """Record the present state; call it every SAMPLE_S seconds."""
        with self._lock:
            if self._points and now_s - self._points[-1].at_s < POINT_S - SAMPLE_S / 2:
                return
            demands, counts = Demands(a, now_s), views.gpu_counts(a)
            placed = standings(a, now_s, demands)
            self._measure = next((s.measure for s in placed.values()), "") or self._measure
            apps, numbers, wanted = tuple(sorted(a.durable.live)), array("f"), 0
            for app_id in apps:
                demand, found = demands.of(app_id), placed.get(app_id)
                wanted += max(0, demand.gpus - a.holdings.holding(app_id)) if demand is not None else 0
                number = found.amount if found is not None else None
                if number is None and self._measure == "rho" and (agent := a.agents.get(app_id)) is not None:
                    number = agent.rho
                numbers.append(NOTHING if number is None else number)
            out = counts["drained"] + counts["bad"] + counts["down"]
            gpus = counts["leased"], counts["free"], wanted, out
            self._points.append(_Point(now_s, gpus, self._measure, apps, numbers))

    def progressed(self, app_id: str, jobs: tuple[JobProgress, ...]) -> None:
        """Note what an Agent tells of its app's jobs."""
        with self._lock:
            self._jobs.pop(app_id, None)
            self._jobs[app_id] = jobs
            losses = self._losses.setdefault(app_id, {})
            self._jobs_kept -= len(losses)
            for job in jobs:
                seen = losses[job.job_id] = losses.pop(job.job_id, [])
                if job.step > 0 and (not seen or seen[-1][0] < job.step):
                    add(seen, (job.step, job.loss), LOSSES_KEPT)
            while len(losses) > JOBS_OF_APP:
                del losses[next(iter(losses))]
            self._jobs_kept += len(losses)
            while self._jobs_kept > JOBS_KEPT and len(self._jobs) > 1:
                oldest = next(iter(self._jobs))
                del self._jobs[oldest]
                self._jobs_kept -= len(self._losses.pop(oldest))

    # ---- over restarts

    def ended(self, app_id: str) -> None:
        """Note that the app has ended; `keep` writes what is known of its jobs."""
        with self._lock:
            self._ended.append(app_id)

    def keep(self) -> None:
        """Append the apps that have ended to the file; a file that cannot be written costs only that."""
        with self._lock:
            ended, self._ended = [x for x in self._ended if x in self._jobs], []
            rows = [
                {"app_id": x, "jobs": [dataclasses.asdict(j) for j in self._jobs[x]], "losses": self._losses[x]}
                for x in ended
            ]
        if not rows or self._file is None:
            return
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            self._in_file += sum(len(row["jobs"]) for row in rows)
            if self._in_file > 2 * JOBS_KEPT:
                self._shorten(self._file)
        except OSError as e:
            log.warning("the jobs of ended apps cannot be kept", problem=str(e))

    def _shorten(self, file: Path, load: bool = False) -> None:
        """Write the file anew with the apps that are still known; `load`: first read what it keeps."""
        lines: dict[str, str] = {}
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
                if load and row["app_id"] not in self._jobs:
                    jobs = tuple(JobProgress(**j) for j in row["jobs"])
                    losses = {j: [(s, x) for s, x in seen] for j, seen in row["losses"].items()}
                    self._losses[row["app_id"]], self._jobs_kept = losses, self._jobs_kept + len(losses)
                    self.progressed(row["app_id"], jobs)
                lines[row["app_id"]] = line
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # cut off, or of another version
                continue
        with self._lock:
            kept = [line for app_id, line in lines.items() if app_id in self._jobs]
            self._in_file = self._jobs_kept
        part = file.with_name(f"{file.name}.part")
        part.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        part.replace(file)

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
            points = [p for p in self._points if p.at_s >= now_s - hours * 3600.0]
            series = {x: [p.number(x, self._measure) for p in points] for x in ([app_id] if app_id else self._worst())}
            return {
                "now_s": now_s,
                "app_id": app_id,
                "user": user_of(a, app_id) if is_known(a, app_id) else "",
                "at_s": [p.at_s for p in points],
                "gpus": {state: [p.gpus[i] for p in points] for i, state in enumerate(STATES)},
                "measure": self._measure,
                "apps": {x: numbers for x, numbers in series.items() if any(n is not None for n in numbers)},
                "losses": {job: list(seen) for job, seen in self._losses.get(app_id, {}).items() if seen},
            }

    def _worst(self) -> list[str]:
        """Apps with a number in the newest point, worst first: the largest rho, or the smallest other measure."""
        newest = self._points[-1] if self._points else _Point(0.0, (), "", (), array("f"))
        now = {x: number for x, number in zip(newest.apps, newest.numbers, strict=True) if number == number}
        return sorted(now, key=lambda x: (-now[x] if self._measure == "rho" else now[x], x))[:APPS_SHOWN]
