"""GPU time by day, app and type, as a fold of facts: what was held, used, lost and borrowed, and how long was waited.

The journal's keeper adds the days of each snapshot to the journal's totals, which are never pruned; `isonomy usage`
reads those, or folds the facts of the time that is asked for.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import (
    OF_LEASE,
    AllocationChanged,
    AppArrived,
    AppChanged,
    AppEnded,
    AppMoved,
    Fact,
    PlainUse,
    Restored,
    Watched,
)
from pycontrol.arbiter.ledger.lease import REVOKING
from pycontrol.fairness.use import DAY_S
from pycontrol.model.grouping import summed
from pycontrol.model.reasons import PREEMPTIONS
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value
from pycontrol.runtime.spans import IntervalChange, Journal, LeaseInterval, SpanFold, changes_of

TOTALS = """
CREATE TABLE IF NOT EXISTS totals (day INTEGER, user TEXT, queue TEXT, type TEXT, kind TEXT, apps INTEGER,
    revocations INTEGER, held_gpu_s REAL, used_gpu_s REAL, lost_gpu_s REAL, borrowed_gpu_s REAL, wait_s REAL,
    PRIMARY KEY (day, user, queue, type, kind)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lost (day INTEGER, user TEXT, queue TEXT, type TEXT, kind TEXT, cause TEXT, gpu_s REAL,
    PRIMARY KEY (day, user, queue, type, kind, cause)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS covered (begin_s REAL PRIMARY KEY, end_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS counted (begin_s REAL NOT NULL, end_s REAL NOT NULL);
"""
"""Use by day (since 1970, UTC), and what of it was lost by cause; the times in which all containers were seen; the time
that `totals` counts."""
WHOSE = ("day", "user", "queue", "type", "kind")
NUMBERS = ("apps", "revocations", "held_gpu_s", "used_gpu_s", "lost_gpu_s", "borrowed_gpu_s", "wait_s")
TIMES = ("begin_s", "end_s")
TABLES = {"totals": (*WHOSE, *NUMBERS), "lost": (*WHOSE, "cause", "gpu_s"), "covered": TIMES, "counted": TIMES}
GAP_S = 900.0
"""It is told each WATCHED_EVERY_S that containers are seen: shorter gaps may be none."""
RESTART, UNKNOWN = "restart", "unknown"
"""Causes of lost time beside `EndReason`: a worker failed or its app stopped it; the journal of then did not tell."""


@value
class Who:
    """Whose GPU time it is: an app's, or all containers without a lease of a user in a queue."""

    app_id: str
    name: str
    user: str
    queue: str
    vc: str
    kind: str


@dataclass(slots=True)
class Tally:
    """What adds up; times in GPU-seconds."""

    apps: int = 0
    """Apps whose first container with GPUs started."""
    revocations: int = 0
    held_gpu_s: float = 0.0
    """Time of leases, used or not."""
    used_gpu_s: float = 0.0
    """Time with a container."""
    lost_gpu_s: float = 0.0
    """Time until revoked GPUs were released, and from the next grants to the first step."""
    borrowed_gpu_s: float = 0.0
    """Part of the held time on other virtual clusters' cells."""
    wait_s: float = 0.0
    """Seconds from submission to the first container of these apps."""
    causes: dict[str, float] = field(default_factory=dict)
    """The lost GPU-seconds by cause: an `EndReason`, RESTART or UNKNOWN."""

    def __add__(self, other: Tally) -> Tally:
        """The sum."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in NUMBERS}
        return Tally(**sums, causes=summed([*self.causes.items(), *other.causes.items()]))


@dataclass(slots=True)
class AppTimes:
    """When an app came, began and ended."""

    who: Who
    submitted_s: float
    first_s: float | None = None
    """When its first container started; -inf: before these records."""
    ended_s: float | None = None


@dataclass
class Usage:
    """Folds facts; time before `since_s` and after `until_s` is not counted."""

    since_s: float
    until_s: float
    apps: dict[str, AppTimes] = field(default_factory=dict)
    tallies: dict[tuple[int, Who, str], Tally] = field(default_factory=dict)
    """(day, whose, GPU type) -> what adds up."""
    covered: list[tuple[float, float]] = field(default_factory=list)
    """Times in which all containers were seen, those without a lease too."""
    unknown: int = 0
    """Facts about leases whose grant is no longer in the journal, or whose app is not."""
    first_s: float | None = None
    last_s: float = 0.0
    newest_s: float = 0.0
    """Times of the first and the last fact, and of the last one after `until_s` too."""
    _fold: SpanFold = field(default_factory=SpanFold)
    _counted_s: dict[Gpu, float] = field(default_factory=dict)
    """By GPU: until when an open lease's time has been counted."""
    _plain: dict[tuple[Who, str], tuple[int, float]] = field(default_factory=dict)
    """GPUs of containers without a lease, and since when."""
    _former: list[tuple[Who, str, int, float, float]] = field(default_factory=list)
    """What they were since `_seen_s`, from when until when: their time counts once it is told that they were seen."""
    _seen_s: float | None = None
    """Until when it was told that all containers were seen."""
    _launches: dict[tuple[str, str], int] = field(default_factory=dict)
    stopped: dict[str, dict[str, str]] = field(default_factory=dict)
    """By app and job: why it lost its GPUs, if the app did not cause that and the job has not trained since."""

    @classmethod
    def going_on(cls, db: sqlite3.Connection, state: Durable, since_s: float) -> Usage:
        """From the state of a journal at `since_s` on."""
        found = cls(since_s, float("inf"), first_s=since_s, last_s=since_s)
        for (text,) in db.execute("SELECT value FROM meta WHERE key = 'stopped'"):
            found.stopped = json.loads(text)
        found._know_all(state, {x.app_id for x in state.leases.each() if x.used})
        for span in found._fold.go_on(state.leases.each(), state.reservations.each()):
            if span.lease.state is REVOKING:
                found._fold.open[span.gpu] = replace(span, revoking_s=since_s, cause=span.lease.cause)
            found._counted_s[span.gpu] = since_s
        for (user, queue, kind, gpu_type), gpus in state.plain.items():
            found._plain[_outside(user, queue, kind), gpu_type] = gpus, since_s
        (found._seen_s,) = db.execute("SELECT MAX(end_s) FROM covered").fetchone()
        return found

    def _know_all(self, state: Durable, used: Container[str]) -> None:
        for x in state.apps.values():
            self._know(Who(x.app_id, x.name, x.user, x.queue, x.vc, x.kind), x.submitted_s)
            if x.attained_gpu_s > 0 or x.app_id in used:
                self.apps[x.app_id].first_s = -math.inf
            self.apps[x.app_id].ended_s = x.finished_s
            self._launches |= {(x.app_id, job_id): n for job_id, n in x.launches.items()}

    def read(self, *journals: Journal) -> None:
        """Read the facts of consecutive control planes in order, from the beginning."""
        for time_s, fact, changes in changes_of(self._fold, *map(self._within, journals)):
            self._take(fact, time_s, changes)

    def _within(self, journal: Journal) -> Journal:
        self._plain, self._former = {}, []  # a control plane without the former's journal tells of all that it sees
        for row in journal:
            self.first_s = row[1] if self.first_s is None else self.first_s
            self.newest_s = max(self.newest_s, row[1])
            if row[1] > self.until_s:
                return
            yield row

    def take(self, time_s: float, fact: Fact) -> None:
        """Fold one more fact."""
        self._take(fact, time_s, self._fold.take(fact, time_s))

    def close(self, until_s: float | None = None) -> None:
        """Count the leases that have not ended, and end the time that is counted."""
        self.until_s = self.until_s if until_s is None else until_s
        for span in self._fold.open.values():
            self._count(span, self.until_s)
        seen_s = self.first_s if self._seen_s is None else self._seen_s
        if seen_s is not None and self.until_s <= seen_s + GAP_S:
            self._count_plain(seen_s, self.until_s)

    # ---- facts

    def _take(self, fact: Fact, time_s: float, changes: list[IntervalChange]) -> None:
        self.first_s, self.last_s = time_s if self.first_s is None else self.first_s, max(self.last_s, time_s)
        match fact:
            case Restored():
                state = Durable.load(fact.data)
                self._know_all(state, {x.app_id for x in state.apps.values() if x.leases})  # it has no leases
            case AppArrived():
                who = Who(fact.app_id, fact.name, fact.user, fact.queue, fact.vc, fact.kind)
                self._know(who, fact.submitted_s)
            case AppMoved() if (app := self.apps.get(fact.app_id)) is not None:
                for span in [x for x in self._fold.open.values() if x.app_id == fact.app_id]:
                    self._count(span, fact.at_s)
                app.who = replace(app.who, vc=fact.vc, queue=fact.queue or app.who.queue)
            case AppChanged():
                launched = fact.changes.get("launched", {})
                self._launches |= {(fact.app_id, job_id): n for job_id, n in launched.items()}
            case AppEnded() if fact.app_id in self.apps:
                self.apps[fact.app_id].ended_s = fact.at_s
                self.stopped.pop(fact.app_id, None)
            case AllocationChanged():
                self._restarted(fact)
            case PlainUse():
                key = _outside(fact.user, fact.queue, fact.kind), fact.gpu_type
                self._former.append((*key, *self._plain.get(key, (0, fact.at_s)), fact.at_s))
                self._plain[key] = fact.count, fact.at_s
            case Watched():
                self._count_plain(fact.since_s, fact.at_s)
                begin_s, end_s = max(fact.since_s, self.since_s), min(fact.at_s, self.until_s)
                self.covered += [(begin_s, end_s)] if begin_s < end_s else []
        self.unknown += isinstance(fact, OF_LEASE) and all(x.span and x.span.app_id not in self.apps for x in changes)
        for change in changes:
            self._changed(change, time_s)

    def _know(self, who: Who, submitted_s: float) -> None:
        self.apps.setdefault(who.app_id, AppTimes(who, submitted_s))

    def _changed(self, change: IntervalChange, time_s: float) -> None:
        before, after = change.before, change.after
        if after is None:
            return
        if before is None:
            self._counted_s[after.gpu] = after.granted_s
            return
        began = before.running_s is None and after.running_s is not None
        gone = after.ended_s is not None or (before.running_s is not None and after.running_s is None)
        at_s = after.running_s if began else after.gone_s if gone else time_s
        assert at_s is not None
        self._count(before, at_s, after.lease.gpu_type)
        app = self.apps.get(after.app_id)
        if app is not None and began and app.first_s is None:
            app.first_s = at_s
            if self.since_s <= at_s <= self.until_s:
                tally = self._tally(at_s, app.who, after.lease.gpu_type)
                tally.apps, tally.wait_s = tally.apps + 1, tally.wait_s + max(0.0, at_s - app.submitted_s)
        cause = after.end_cause if after.revoking_s is None else after.cause
        if before.running_s is not None and cause in PREEMPTIONS:
            self.stopped.setdefault(after.app_id, {})[after.job_id] = cause
        if app is not None and change.revokes and self.since_s <= time_s:
            self._tally(time_s, app.who, after.lease.gpu_type).revocations += 1

    def _count(self, span: LeaseInterval, at_s: float, gpu_type: str = "") -> None:
        """Count the lease's time until now."""
        app, begin_s = self.apps.get(span.app_id), self._counted_s[span.gpu]
        self._counted_s[span.gpu] = max(begin_s, at_s)
        if app is None:
            return
        gpu_type = gpu_type or span.lease.gpu_type
        self._add(app, gpu_type, "held_gpu_s", begin_s, at_s)
        if not span.lease.guaranteed:
            self._add(app, gpu_type, "borrowed_gpu_s", begin_s, at_s)
        if span.running_s is not None:
            self._add(app, gpu_type, "used_gpu_s", max(begin_s, span.running_s), at_s)
            if span.revoking_s is not None:
                self._add(app, gpu_type, "lost_gpu_s", max(begin_s, span.revoking_s), at_s, span.cause or UNKNOWN)

    def _restarted(self, fact: AllocationChanged) -> None:
        """Count a job's time from grant to first step as lost, except for its first launch."""
        key, app = (fact.app_id, fact.job_id), self.apps.get(fact.app_id)
        cause = self.stopped.get(fact.app_id, {}).pop(fact.job_id, RESTART)
        if app is not None and self._launches.get(key, 0) > 1:
            for span in self._fold.open.values():
                if (span.app_id, span.job_id) == key:
                    self._add(app, span.lease.gpu_type, "lost_gpu_s", fact.at_s - fact.seconds, fact.at_s, cause)
        self._launches[key] = max(2, self._launches.get(key, 0))  # the next one is a restart

    def _count_plain(self, begin_s: float, end_s: float) -> None:
        """Count the containers without a lease in a time in which all were seen."""
        present = [(*key, *x, end_s) for key, x in self._plain.items()]
        for who, gpu_type, gpus, since_s, until_s in [*self._former, *present]:
            for day, seconds in self._days(max(begin_s, since_s), min(end_s, until_s)) if gpus else ():
                tally = self._tally(day * DAY_S, who, gpu_type)
                tally.held_gpu_s += gpus * seconds
                tally.used_gpu_s += gpus * seconds
        self._former, self._seen_s = [], end_s

    def _add(self, app: AppTimes, gpu_type: str, name: str, begin_s: float, end_s: float, cause: str = "") -> None:
        for day, seconds in self._days(begin_s, end_s):
            tally = self._tally(day * DAY_S, app.who, gpu_type)
            setattr(tally, name, getattr(tally, name) + seconds)
            if cause:
                tally.causes[cause] = tally.causes.get(cause, 0.0) + seconds

    def _days(self, begin_s: float, end_s: float) -> Iterator[tuple[int, float]]:
        """(day, seconds) of the part of a time that is counted."""
        begin_s, end_s = max(begin_s, self.since_s), min(end_s, self.until_s)
        while begin_s < end_s:
            day = int(begin_s // DAY_S)
            yield day, min(end_s, (day + 1) * DAY_S) - begin_s
            begin_s = (day + 1) * DAY_S

    def _tally(self, at_s: float, who: Who, gpu_type: str) -> Tally:
        return self.tallies.setdefault((int(at_s // DAY_S), who, gpu_type), Tally())


def _outside(user: str, queue: str, kind: str) -> Who:
    return Who("", "", user, queue, "", kind)


# ---- the journal's totals

Key = tuple[int, str, str, str, str]
"""Day, user, queue, GPU type, kind."""


def by_day(found: Usage) -> dict[Key, Tally]:
    """What is kept for ever."""
    kept: dict[Key, Tally] = {}
    for (day, who, gpu_type), tally in found.tallies.items():
        key = day, who.user, who.queue, gpu_type, who.kind
        kept[key] = kept.get(key, Tally()) + tally
    return kept


def tables_of(version: int) -> dict[str, tuple[str, ...]]:
    """The tables with totals in a journal of this version, with their columns."""
    return {name: columns for name, columns in TABLES.items() if version >= (6 if name == "lost" else 5)}


def counted(db: sqlite3.Connection) -> tuple[float, float] | None:
    """The time that the totals count; None before the first snapshot."""
    found: tuple[float, float] | None = db.execute("SELECT begin_s, end_s FROM counted").fetchone()
    return found


def add_totals(db: sqlite3.Connection, found: Usage) -> None:
    """Adds what was counted up to now; the caller holds a transaction."""
    days = by_day(found).items()
    _add_rows(db, "totals", NUMBERS, [(*key, *(getattr(tally, name) for name in NUMBERS)) for key, tally in days])
    _add_rows(db, "lost", ("gpu_s",), [(*key, *lost) for key, tally in days for lost in tally.causes.items()])
    db.execute("INSERT OR REPLACE INTO meta VALUES ('stopped', ?)", (json.dumps(found.stopped),))
    begin_s = known[0] if (known := counted(db)) is not None else found.first_s
    if begin_s is None:  # no fact could be read
        return
    db.execute("DELETE FROM counted")
    db.execute("INSERT INTO counted VALUES (?, ?)", (begin_s, found.until_s))
    for begin_s, end_s in found.covered:
        db.execute("UPDATE covered SET end_s = ? WHERE end_s = ?", (end_s, begin_s)).rowcount or db.execute(
            "INSERT OR REPLACE INTO covered VALUES (?, ?)", (begin_s, end_s)
        )


def _add_rows(db: sqlite3.Connection, table: str, added: Iterable[str], rows: list[tuple[Any, ...]]) -> None:
    names, marks = ", ".join(TABLES[table]), ", ".join("?" * len(TABLES[table]))
    more = ", ".join(f"{name} = {name} + excluded.{name}" for name in added)
    db.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT DO UPDATE SET {more}", rows)


@value
class Totals:
    """What a journal has counted, with facts that it no longer has."""

    first_s: float
    last_s: float
    rows: Mapping[Key, Tally]
    covered: list[tuple[float, float]]
    """Times in which all containers were seen."""


def read_totals(db: sqlite3.Connection, version: int) -> Totals | None:
    """The totals of a journal of this version; None before the first snapshot."""
    tables = tables_of(version)
    known = counted(db) if tables else None
    if known is None:
        return None
    rows = {row[:5]: Tally(*row[5:]) for row in db.execute(f"SELECT {', '.join(TABLES['totals'])} FROM totals")}
    for *key, cause, gpu_s in db.execute("SELECT * FROM lost") if "lost" in tables else ():
        rows.setdefault(tuple(key), Tally()).causes[cause] = gpu_s
    for tally in rows.values():
        if (older_gpu_s := tally.lost_gpu_s - sum(tally.causes.values())) > 1e-3:
            tally.causes[UNKNOWN] = tally.causes.get(UNKNOWN, 0.0) + older_gpu_s
    return Totals(*known, rows, list(db.execute("SELECT * FROM covered")))


def uncover(db: sqlite3.Connection, first_day: float, last_day: float) -> None:
    """Notes that rows of these days are missing; the caller holds a transaction."""
    missing = first_day * DAY_S, (last_day + 1) * DAY_S
    left = [x for times in db.execute("SELECT * FROM covered") for x in without([missing], *times)]
    db.execute("DELETE FROM covered")
    db.executemany("INSERT OR REPLACE INTO covered VALUES (?, ?)", left)


def without(covered: Iterable[tuple[float, float]], since_s: float, until_s: float) -> list[tuple[float, float]]:
    """The gaps between these times within a time."""
    gaps, at_s = [], since_s
    for begin_s, end_s in sorted(covered):
        if begin_s > at_s:
            gaps.append((at_s, min(begin_s, until_s)))
        at_s = max(at_s, end_s)
        if at_s >= until_s:
            break
    return [*gaps, *([(at_s, until_s)] if at_s < until_s else [])]
