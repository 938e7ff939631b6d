"""A cluster's own history as a workload: from YARN, from files of its past, or from Isonomy's journal."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from pycontrol.arbiter.ledger.facts import AppArrived, AppChanged, AppEnded, LeaseStarted, RoundHeld
from pycontrol.cli.client import Failure, Misused, Rm, failing, moment_s
from pycontrol.cli.tables import Data, lines, moment
from pycontrol.lab.workloads.own_format import write
from pycontrol.lab.workloads.trace_table import BadTrace, Skipped
from pycontrol.lab.workloads.yarn_history import OPEN, History, of_rest, read_files
from pycontrol.runtime.spans import Journal, SpanFold, changes_of
from pycontrol.simulation.trace_apps import TraceApp, Workload
from pycontrol.words import count

Actual = dict[str, tuple[float | None, float | None]]
"""App -> when it really got its first GPU and when it ended, seconds of the workload's time."""


@dataclass(frozen=True)
class Recorded:
    """Apps as they came, and what became of them."""

    workload: Workload
    actual: Actual
    assumed: str
    skipped: Skipped = field(default_factory=Skipped)
    covered: tuple[float, float] | tuple[()] = ()
    """From when to when its records are, Unix seconds; empty if there are none."""


@dataclass
class _Seen:
    app_id: str
    queue: str
    user: str
    submitted_s: float
    gpu_s: float = 0.0
    demand_gpus: int = 0
    gangs: list[int] = field(default_factory=list)
    started_s: float | None = None
    ended_s: float | None = None


def of_history(found: History, source: str) -> Recorded:
    """From what an administrator has of YARN."""
    assumed = "; ".join(found.assumed)
    return Recorded(found.workload(source), found.actual(), assumed, found.skipped, found.extent)


def of_files(files: Sequence[Path], since_s: float | None) -> Recorded:
    """From files of a YARN's past; Misused for others."""
    with failing(BadTrace, OSError, instead=Misused):
        found = read_files(files)
    return of_history(found if since_s is None else found.since(since_s), ", ".join(x.name for x in files))


def recorded_of_yarn(server: Rm, since: str) -> Recorded:
    """From the ResourceManager's list of applications that ended since a time: 7d, 12h, or 2026-11-20T14:00."""
    since_s = moment_s(since, time.time(), "--since")
    path = f"apps?states=FINISHED,KILLED,FAILED&startedTimeBegin={int(1000 * since_s)}"
    apps = (server.yarn(path).get("apps") or {}).get("app") or []
    return of_yarn(apps, since_s, f"applications of {server.base}")


def of_yarn(apps: Iterable[Mapping[str, Any]], since_s: float, source: str) -> Recorded:
    """From /ws/v1/cluster/apps of a running ResourceManager."""
    found = History()
    of_rest(apps, found)
    return of_history(found.since(since_s), source)


def of_journal(facts: Journal, since_s: float, source: str) -> Recorded:
    """From the journal: work as the Agents reported it, gangs as rounds awarded them, starts and ends as they were."""
    seen: dict[str, _Seen] = {}
    times: list[float] = []
    for time_s, fact, changes in changes_of(SpanFold(), facts):
        times = [times[0] if times else time_s, time_s]
        match fact:
            case AppArrived():
                seen[fact.app_id] = _Seen(fact.app_id, fact.queue, fact.user, fact.submitted_s)
            case AppChanged() if fact.app_id in seen:
                app = seen[fact.app_id]
                app.gpu_s = max(app.gpu_s, fact.changes.get("work_done_gpu_s", 0.0))
                app.demand_gpus = max(app.demand_gpus, fact.changes.get("demand_gpus", 0))
            case AppEnded() if fact.app_id in seen:
                seen[fact.app_id].ended_s = fact.at_s
            case RoundHeld():
                for award in fact.receipt.done.awards:
                    if award.app_id in seen:
                        seen[award.app_id].gangs += [sum(n for _, n in gang) for gang in award.gangs]
            case LeaseStarted() if changes and (span := changes[0].after) is not None:
                first = seen.get(span.app_id)
                if first is not None and first.started_s is None:
                    first.started_s = fact.at_s
    skipped, whole = Skipped(), list[_Seen]()
    for x in seen.values():
        early, ended = x.submitted_s < since_s, x.ended_s is not None
        why = "submitted before the time" if early else "" if ended else OPEN
        if why or x.gpu_s <= 0:
            skipped.drop(why or "of which no work was reported", 1)
        else:
            whole.append(x)
    ordered = sorted(whole, key=lambda x: (x.submitted_s, x.app_id))
    begin_s = ordered[0].submitted_s if ordered else 0.0
    apps, actual = [], Actual()
    for x in ordered:
        gang = min(x.gangs, default=1)
        jobs = max(1, x.demand_gpus // max(1, gang))
        apps.append(TraceApp(x.app_id, x.submitted_s - begin_s, gang, ((x.gpu_s / jobs,) * jobs,), x.queue, x.user))
        actual[x.app_id] = tuple(None if t is None else t - begin_s for t in (x.started_s, x.ended_s))  # type: ignore[assignment]
    assumed = "work as the Agents reported it, split evenly among an app's gangs"
    covered = (max(times[0], since_s), times[1]) if times else ()
    return Recorded(Workload("recorded", tuple(apps), source), actual, assumed, skipped, covered)


def anonymised(found: Recorded) -> Recorded:
    """Users, queues and apps by number."""
    names: dict[str, str] = {}

    def name(kind: str, text: str) -> str:
        return names.setdefault(f"{kind} {text}", f"{kind}{sum(k.startswith(kind) for k in names) + 1}")

    apps = tuple(
        replace(a, app_id=name("app", a.app_id), user=name("user", a.user), queue=f"root.{name('queue', a.queue)}")
        for a in found.workload.apps
    )
    actual = {names[f"app {app_id}"]: times for app_id, times in found.actual.items()}
    return replace(found, workload=replace(found.workload, apps=apps, source="anonymised"), actual=actual)


# ---- files


def beside(file: Path) -> Path:
    """Where what really happened is kept."""
    return file.with_name(f"{file.name}.actual.json")


def save(found: Recorded, file: Path) -> None:
    """The workload, and beside it what really happened; OSError."""
    write(found.workload, file)
    beside(file).write_text(json.dumps({"assumed": found.assumed, "actual": found.actual}) + "\n", encoding="utf-8")


def record(found: Recorded, out: Path, anonymise: bool) -> dict[str, Any]:
    """Saves what was found, and what there is to say of it; Failure where that is nothing."""
    if not found.workload.apps:
        what = f"in {_covered(found.covered)}: {found.skipped}" if found.covered else f"there: {found.skipped}"
        raise Failure("; ".join([f"no application with GPUs has ended {what}", *found.skipped.bad]))
    found = anonymised(found) if anonymise else found
    with failing(OSError, what=f"--out {out}: cannot be written"):
        save(found, out)
    return {
        "written": str(out),
        "apps": len(found.workload.apps),
        "skipped": sum(found.skipped.reasons.values()),
        "left_out": dict(found.skipped.reasons),
        "left_out_parts": dict(found.skipped.parts),
        "bad_rows": found.skipped.bad,
        "assumed": found.assumed,
        "covered": dict(zip(("from_s", "to_s"), found.covered, strict=False)),
    }


def draw(d: Data) -> RenderableType:
    """What `record` has to say, for people."""
    left_out = Skipped(Counter(d["left_out"]), Counter(d["left_out_parts"]))
    return lines(
        f"covered: {_covered(d['covered'].values())}",
        f"{count(d['apps'], 'app')} in {d['written']}; {left_out}",
        *(f"bad: {problem}" for problem in d["bad_rows"]),
        f"assumed: {d['assumed']}",
    )


def _covered(times: Iterable[float]) -> str:
    return " to ".join(map(moment, times)) or "no time"


def median(values: Iterable[float]) -> float | None:
    """None of nothing."""
    found = list(values)
    return statistics.median(found) if found else None
