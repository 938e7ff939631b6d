"""A YARN cluster's own past, from files that its administrator has.

- the ResourceManager's answer to /ws/v1/cluster/apps, saved;
- the ResourceManager's log, whose lines of RMAppManager$ApplicationSummary name resourceSeconds, and those of
  RMAuditLogger each container with GPUs;
- Spark's event logs, plain or gzip, also rolling ones: executors with GPUs, from when they came until they went;
- the job history server's .jhist files, each with its _conf.xml, which says how many GPUs a task has.

What an application ran on is its GPU-seconds, over the time from its first GPUs to its end: one gang, at full speed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from pycontrol.configerror import ConfigError
from pycontrol.hadoopconf.names import GPU
from pycontrol.hadoopconf.sitefile import read_site
from pycontrol.lab.workloads.building import Import, Imported
from pycontrol.lab.workloads.trace_table import BAD_ROW, NOT_TEXT, SHOWN_BAD, BadTrace, Skipped, head, open_text
from pycontrol.model.bounds import within
from pycontrol.model.value import value
from pycontrol.simulation.trace_apps import TraceApp, Workload

ASSUMED = "work is the GPU-seconds that were counted, in one gang of as many GPUs as it had on average, at speed 1"
WITHOUT, SHORT, OPEN = "without GPUs", "that ran for less than a second", "that have not ended"
DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
LAUNCHED = "an app whose containers with GPUs no log names got them when its application master started"
SPARK_ASSUMED = "a Spark app was submitted when its driver started"


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
    label: str | None = None
    """Its node label expression; None: its queue's default."""

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
    given_s: dict[str, float] = field(default_factory=dict)
    """Application -> when it was given its first container with GPUs, by the log's own clock."""
    zones_s: dict[str, float] = field(default_factory=dict)
    """Application -> seconds from that clock to UTC at its end; they change with daylight saving time."""
    zone_s: float = 0.0
    """Of the last one."""
    logged_s: list[tuple[float, float | None]] = field(default_factory=list)
    """The first and the last time of each log by its own clock, and how far UTC was from it then; None: not known."""
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

    def dated(self) -> None:
        """Lets applications begin with their first GPUs, where that is known; their masters may have started before."""
        if self.logged_s:
            self.cover(*(int(at_s + (self.zone_s if zone_s is None else zone_s)) for at_s, zone_s in self.logged_s))
        for app_id in self.given_s.keys() & self.apps.keys():
            app, given_s = self.apps[app_id], self.given_s[app_id] + self.zones_s.get(app_id, self.zone_s)
            if app.submitted_s <= given_s <= app.ended_s - 1:
                self.apps[app_id] = replace(app, began_s=given_s)

    def launched(self, app: PastApp) -> None:
        """Notes that only the start of an application's master is known, unless an audit line said more."""
        if app.gpu_s > 0 and app.app_id not in self.given_s and LAUNCHED not in self.assumed:
            self.assumed.append(LAUNCHED)

    def since(self, at_s: float) -> History:
        """Without the applications that were submitted before."""
        kept = {k: x for k, x in self.apps.items() if x.submitted_s >= at_s}
        self.skipped.drop("submitted before the time", len(self.apps) - len(kept))
        return replace(self, apps=kept, from_s=max(self.from_s, at_s))

    def workload(self, source: str) -> Workload:
        """The applications in the order of their arrival, the first at time 0."""
        ordered = sorted(self.apps.values(), key=lambda x: (x.submitted_s, x.app_id))
        begin_s = ordered[0].submitted_s if ordered else 0.0
        apps = (
            TraceApp(x.app_id, x.submitted_s - begin_s, x.gpus, ((x.gpu_s,),), x.queue, x.user, partition=x.label)
            for x in ordered
        )
        return Workload("recorded", tuple(apps), source)

    def actual(self) -> dict[str, tuple[float | None, float | None]]:
        """When each really got its GPUs, and ended, in the workload's time."""
        begin_s = min((x.submitted_s for x in self.apps.values()), default=0.0)
        return {x.app_id: (x.began_s - begin_s, x.ended_s - begin_s) for x in self.apps.values()}


def of_rest(apps: Iterable[Mapping[str, Any]], found: History) -> None:
    """The elements of /ws/v1/cluster/apps; times in milliseconds."""
    for x in apps:
        try:
            submitted_s, ended_s = _unix_s(x["startedTime"]), _unix_s(x["finishedTime"])
            app = PastApp(
                x["id"],
                x["queue"],
                x["user"],
                submitted_s,
                _unix_s(x.get("launchTime") or 0) or submitted_s,
                ended_s,
                _gpu_seconds(x),
                _label(x.get("appNodeLabelExpression")),
            )
            found.cover(submitted_s, *([ended_s] if ended_s else []))
            found.launched(app)
            found.add(app, "" if ended_s else OPEN)
        except DAMAGED as e:
            who = x.get("id") if isinstance(x, Mapping) else x
            found.bad(f"an application ({who}) cannot be understood: {e!r}")


def _unix_s(ms: Any) -> float:
    """Unix seconds of milliseconds; raises one of DAMAGED, also for NaN and what is beyond all times."""
    return within(float(ms) / 1e3, "time_s")


def _label(text: str | None) -> str | None:
    """YARN's text for none is <Not set>, in the log also an empty one."""
    return None if text in (None, "", "<Not set>") else text


def _gpu_seconds(app: Mapping[str, Any]) -> float:
    """Of resourceSecondsMap, which YARN writes as a map or as a list of entries."""
    of = app.get("resourceSecondsMap") or {}
    entries = of.get("entry", of) if isinstance(of, Mapping) else of
    if isinstance(entries, Mapping):
        entries = [entries] if "key" in entries else [{"key": k, "value": v} for k, v in entries.items()]
    return within(float(next((e["value"] or 0 for e in entries if e.get("key") == GPU), 0)), "work_done_gpu_s")


def _apps_json(files: list[Path], found: History) -> None:
    for file in files:
        try:
            with open_text(file) as text:
                apps = (json.load(text).get("apps") or {}).get("app") or []
        except (ValueError, AttributeError, RecursionError) as e:
            raise BadTrace(f"{file}: is no answer of /ws/v1/cluster/apps: {e}") from e
        of_rest(apps, found)


SUMMARY = "RMAppManager$ApplicationSummary"
LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
PAIR = re.compile(r"(\w+)=((?:[^,=\\]|\\.)*)(?:,|$)")
SECONDS = re.compile(rf"(\d+) {re.escape(GPU)}-seconds")
GIVEN = re.compile(
    r"[^\t]*RMAuditLogger: USER=[^\t]*\tOPERATION=AM Allocated Container\t.*\tAPPID=(\w+)\t"
    rf".*\tRESOURCE=<[^>\t]*{re.escape(GPU)}: [1-9]"
)
ZONES_S, FARTHEST_S, DAYLIGHT_S = 900.0, 14 * 3600.0, 3600.0
"""Time zones differ by multiples of the first: the log has the ResourceManager's, and each app's end in UTC, too."""


def _summaries(files: list[Path], found: History) -> None:
    """Lines of the log; a value has `\\` before each comma, equals sign and `\\` in it."""
    for file in files:
        at_s, first_s, zones_s = 0.0, None, dict[str, float]()
        for number, line in enumerate(_lines(file), 1):
            if LOGGED.match(line):
                at_s = datetime.fromisoformat(f"{line[:19]}.{line[20:23]}").timestamp()
                first_s = at_s if first_s is None else first_s
            if SUMMARY not in line:
                if given := GIVEN.match(line):
                    found.given_s[given[1]] = min(at_s, found.given_s.get(given[1], at_s))
                continue
            pairs = PAIR.findall(line[line.find("appId=") :].rstrip())
            at = {key: re.sub(r"\\(.)", r"\1", text) for key, text in pairs}
            try:
                submitted_s, ended_s = _unix_s(at.get("submitTime", at["startTime"])), _unix_s(at["finishTime"])
                began_s = _unix_s(at.get("launchTime") or 0) or submitted_s
                gpu_s = SECONDS.search(at.get("resourceSeconds", ""))
                app = PastApp(
                    at["appId"],
                    at["queue"],
                    at["user"],
                    submitted_s,
                    began_s,
                    ended_s,
                    float(gpu_s[1]) if gpu_s else 0.0,
                    _label(at.get("applicationNodeLabel")),
                )
                zone_s = round((ended_s - at_s) / ZONES_S) * ZONES_S
                if abs(zone_s) <= FARTHEST_S:
                    zones_s.setdefault(app.app_id, zone_s)
                found.cover(submitted_s, ended_s)
                found.launched(app)
                found.add(app, "" if "resourceSeconds" in at else "of a Hadoop that logs no resourceSeconds")
            except DAMAGED as e:
                found.bad(f"{file}: line {number}: cannot be understood: {e!r}")
        if first_s is not None:
            # summaries that are logged again, at a start or a takeover, come late and make their zones too small
            most_s = max(zones_s.values(), default=0.0)
            own = {app_id: x for app_id, x in zones_s.items() if most_s - x in (0.0, DAYLIGHT_S)}
            for app_id, zone_s in own.items():
                found.zone_s, found.zones_s[app_id] = zone_s, max(zone_s, found.zones_s.get(app_id, zone_s))
            zones: list[float | None] = [*own.values()] or [None]
            found.logged_s += [(first_s, zones[0]), (at_s, zones[-1])]


# ---- Spark and MapReduce


def _events(files: list[Path], found: History) -> Iterator[dict[str, Any]]:
    """The JSON objects of the files' lines; the last may be cut off."""
    for file in files:
        for number, line in enumerate(_lines(file), 1):
            if line.startswith("{"):
                try:
                    yield json.loads(line)
                except ValueError:
                    found.bad(f"{file}: line {number}: is no JSON")


@dataclass
class _Held:
    """GPUs of one application's containers."""

    since: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Container -> since when, and how many GPUs."""
    gpu_s: float = 0.0
    first_s: float | None = None

    def begin(self, name: str, at_s: float, gpus: int) -> None:
        if gpus:
            self.since[name] = at_s, gpus
            self.first_s = at_s if self.first_s is None else min(self.first_s, at_s)

    def end(self, name: str, at_s: float) -> None:
        begun_s, gpus = self.since.pop(name, (at_s, 0))
        self.gpu_s += gpus * max(0.0, at_s - begun_s)


def _spark(files: list[Path], found: History) -> None:
    app_id, user, queue, submitted_s, ended_s, gpus = "", "", "default", 0.0, 0.0, 0
    held = _Held()
    for event in _events(files, found):
        try:
            at_s = _unix_s(event.get("Timestamp", 0))
            match event["Event"]:
                case "SparkListenerApplicationStart":
                    app_id, user, submitted_s = event["App ID"], event["User"], at_s
                case "SparkListenerEnvironmentUpdate":
                    of = event["Spark Properties"]
                    queue = of.get("spark.yarn.queue", queue)
                    gpus = int(float(of.get("spark.executor.resource.gpu.amount", 0)))
                case "SparkListenerExecutorAdded":
                    own = event["Executor Info"].get("Resources", {}).get("gpu")
                    held.begin(event["Executor ID"], at_s, len(own["addresses"]) if own else gpus)
                case "SparkListenerExecutorRemoved":
                    held.end(event["Executor ID"], at_s)
                case "SparkListenerApplicationEnd":
                    ended_s = at_s
        except DAMAGED as e:
            found.bad(f"{files[0]}: an event cannot be understood: {e!r}")
    for name in list(held.since):
        held.end(name, ended_s)
    if not app_id:
        found.bad(f"{files[0]}: has no SparkListenerApplicationStart")
        return
    found.cover(submitted_s, *([ended_s] if ended_s else []))
    began_s = held.first_s if held.first_s is not None else submitted_s
    found.add(PastApp(app_id, queue, user, submitted_s, began_s, ended_s, held.gpu_s), "" if ended_s else OPEN)
    if SPARK_ASSUMED not in found.assumed:
        found.assumed.append(SPARK_ASSUMED)


ENDS = ("JOB_FINISHED", "JOB_FAILED", "JOB_KILLED", "JOB_ERROR")


def _jhist(files: list[Path], found: History) -> None:
    """MapReduce's events, in Avro's JSON; the GPUs of a task are in the job's configuration beside the file."""
    for file in files:
        conf = file.with_name(f"{file.name.partition('-')[0]}_conf.xml")
        try:
            site = read_site(conf) if conf.is_file() else None
            gpus = {kind: int((site or {}).get(f"mapreduce.{kind}.resource.{GPU}", 0)) for kind in ("map", "reduce")}
        except (ConfigError, ValueError) as e:
            found.bad(f"{conf}: cannot be understood: {e}")
            continue
        job, held, ended_s = dict[str, Any](), _Held(), 0.0
        try:
            for event in _events([file], found):
                kind = str(event.get("type"))
                of: dict[str, Any] = next(iter((event.get("event") or {}).values()), {})
                if kind == "JOB_SUBMITTED":
                    job = of
                elif kind in ENDS:
                    ended_s = _unix_s(of.get("finishTime", 0))
                elif kind.endswith("_ATTEMPT_STARTED"):
                    held.begin(of["attemptId"], _unix_s(of["startTime"]), gpus.get(kind.partition("_")[0].lower(), 0))
                elif "_ATTEMPT_" in kind and "attemptId" in of:
                    held.end(of["attemptId"], _unix_s(of.get("finishTime", 0)))
            submitted_s = _unix_s(job["submitTime"])
            app_id = job["jobid"].replace("job_", "application_")
            app = PastApp(
                app_id,
                job.get("jobQueueName") or "default",
                job["userName"],
                submitted_s,
                held.first_s if held.first_s is not None else submitted_s,
                ended_s,
                held.gpu_s,
            )
            found.cover(submitted_s, *([ended_s] if ended_s else []))
            found.add(app, "whose _conf.xml is not beside them" if site is None else "" if ended_s else OPEN)
        except DAMAGED as e:
            found.bad(f"{file}: cannot be understood: {e!r}")


# ---- files


def _lines(file: Path) -> Iterator[str]:
    try:
        with open_text(file) as text:
            yield from text
    except NOT_TEXT as e:
        raise BadTrace(f"{file}: is not text, nor gzip of text: {e}") from e


Read = Callable[[list[Path], History], None]
FORMS: Mapping[str, tuple[Callable[[str], bool], Read]] = {
    "apps": (lambda text: text.lstrip()[:1] == "{" and '"apps"' in text[:200], _apps_json),
    "spark": (lambda text: text.startswith('{"Event":"SparkListener'), _spark),
    "jhist": (lambda text: text.startswith("Avro-Json"), _jhist),
    "log": (lambda text: SUMMARY in text or LOGGED.match(text) is not None, _summaries),
}
"""How a file begins, and what reads it."""
BESIDE = re.compile(r"\..*|_SUCCESS|appstatus_.*|.*\.crc|.*_conf\.xml|.*\.summary")
"""Files beside those that are read."""
PART = re.compile(r"events_(\d+)_.*")


def fits(text: str) -> bool:
    """Whether a file that begins with this text is of the past."""
    return any(form(text) for form, _ in FORMS.values())


def read_files(paths: Iterable[Path]) -> History:
    """The past in these files and folders; BadTrace for a file of another format, OSError where one cannot be read."""
    found = History()
    for path in paths:
        inside = path.is_dir()
        for files in _units(path):
            try:
                text = head(files[0])
            except BadTrace:
                if not inside:
                    raise
                text = ""
            read = next((read for form, read in FORMS.values() if form(text)), None)
            if read is not None:
                read(files, found)
            elif not text and not inside:
                raise BadTrace(f"{path}: is empty")
            elif inside:
                found.skipped.parts["files of no known format, or compressed other than by gzip"] += 1
            else:
                known = "/ws/v1/cluster/apps as JSON, a ResourceManager's log, a Spark event log, or a .jhist"
                raise BadTrace(f"{path}: is none of {known}")
    found.dated()
    return found


def _units(path: Path) -> Iterator[list[Path]]:
    """The files of a folder, those of a rolling Spark log together."""
    if not path.is_dir():
        yield [path]
        return
    below = sorted(x for x in path.iterdir() if not BESIDE.fullmatch(x.name))
    parts = sorted((int(m[1]), x) for x in below if (m := PART.fullmatch(x.name)))
    if parts:
        yield [x for _, x in parts]
        return
    yield from chain.from_iterable(map(_units, below))


def read(path: Path, o: Import, seed: int) -> Imported:
    """The past in one file, as a workload."""
    found = read_files([path])
    if found.skipped.bad and not o.lenient:
        raise BadTrace(f"{found.skipped.bad[0]} (bad_rows=skip leaves such rows out)")
    times = " to ".join(f"{datetime.fromtimestamp(x):%Y-%m-%d %H:%M}" for x in found.extent)
    return Imported(found.workload(f"{path.name}, {times}; assumed: {'; '.join(found.assumed)}"), found.skipped)
