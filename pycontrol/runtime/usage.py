"""GPU time by day, app and type, as a fold of facts: what was held, used, lost and borrowed, and how long was waited.

The journal's keeper adds the days of each snapshot to the journal's totals, which are never pruned; `isonomy usage`
reads those, or folds the facts of the time that is asked for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from itertools import takewhile

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
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value
from pycontrol.runtime.spans import IntervalChange, Journal, LeaseInterval, SpanFold, changes_of

TOTALS = """
CREATE TABLE IF NOT EXISTS totals (day INTEGER, user TEXT, queue TEXT, type TEXT, kind TEXT, apps INTEGER,
    revocations INTEGER, held_gpu_s REAL, used_gpu_s REAL, lost_gpu_s REAL, borrowed_gpu_s REAL, wait_s REAL,
    PRIMARY KEY (day, user, queue, type, kind)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS covered (begin_s REAL PRIMARY KEY, end_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS counted (begin_s REAL NOT NULL, end_s REAL NOT NULL);
"""
"""Use by day (since 1970, UTC); the times in which all containers were seen; the time that `totals` counts."""


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

    def __add__(self, other: Tally) -> Tally:
        """The sum."""
        return Tally(*(getattr(self, name) + getattr(other, name) for name in NUMBERS))


NUMBERS = tuple(f.name for f in fields(Tally))
WHOSE = ("day", "user", "queue", "type", "kind")
TABLES = {"totals": (*WHOSE, *NUMBERS), "covered": ("begin_s", "end_s"), "counted": ("begin_s", "end_s")}


@dataclass(slots=True)
class AppTimes:
    """When an app came, began and ended."""

    who: Who
    submitted_s: float
    first_s: float | None = None
    """When its first container started."""
    ended_s: float | None = None
    seen: bool = False
    """Whether it had any event within the requested time."""


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
    """Facts about leases whose grant is no longer in the journal."""
    first_s: float | None = None
    last_s: float = 0.0
    """Times of the first and the last fact."""
    _fold: SpanFold = field(default_factory=SpanFold)
    _counted_s: dict[Gpu, float] = field(default_factory=dict)
    """By GPU: until when an open lease's time has been counted."""
    _plain: dict[tuple[Who, str], tuple[int, float]] = field(default_factory=dict)
    """GPUs of containers without a lease, and until when their time has been counted."""
    _launched: set[tuple[str, str]] = field(default_factory=set)
    _launches: dict[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def going_on(cls, state: Durable, since_s: float) -> Usage:
        """From a state at `since_s` on."""
        found = cls(since_s, float("inf"), first_s=since_s, last_s=since_s)
        found._know_all(state)
        for span in found._fold.go_on(state.leases.each(), state.reservations.each()):
            if span.lease.state is REVOKING:
                found._fold.open[span.gpu] = replace(span, revoking_s=since_s)
            found._counted_s[span.gpu] = since_s
        for (user, queue, kind, gpu_type), gpus in state.plain.items():
            found._plain[_outside(user, queue, kind), gpu_type] = gpus, since_s
        return found

    def _know_all(self, state: Durable) -> None:
        used = {x.app_id for x in state.leases.each() if x.used}
        for x in state.apps.values():
            self._know(Who(x.app_id, x.name, x.user, x.queue, x.vc, x.kind), x.submitted_s)
            if x.attained_gpu_s > 0 or x.app_id in used:
                self.apps[x.app_id].first_s = x.arrived_s
            self.apps[x.app_id].ended_s = x.finished_s
            self._launches |= {(x.app_id, job_id): n for job_id, n in x.launches.items()}

    def read(self, *journals: Journal) -> None:
        """Read the facts of consecutive control planes in order, from the beginning."""
        within = (takewhile(lambda row: row[1] <= self.until_s, facts) for facts in journals)
        for time_s, fact, changes in changes_of(self._fold, *within):
            self._take(fact, time_s, changes)

    def take(self, time_s: float, fact: Fact) -> None:
        """Fold one more fact."""
        self._take(fact, time_s, self._fold.take(fact, time_s))

    def close(self, until_s: float | None = None) -> None:
        """Count the leases that have not ended, and end the time that is counted."""
        self.until_s = self.until_s if until_s is None else until_s
        for span in self._fold.open.values():
            self._count(span, self.until_s)
        for key in list(self._plain):
            self._count_plain(*key, self.until_s)

    # ---- facts

    def _take(self, fact: Fact, time_s: float, changes: list[IntervalChange]) -> None:
        self.first_s, self.last_s = time_s if self.first_s is None else self.first_s, max(self.last_s, time_s)
        match fact:
            case Restored():
                self._know_all(Durable.load(fact.data))
            case AppArrived():
                who = Who(fact.app_id, fact.name, fact.user, fact.queue, fact.vc, fact.kind)
                self._know(who, fact.submitted_s)
                self.apps[fact.app_id].seen |= time_s >= self.since_s
            case AppMoved() if (app := self.apps.get(fact.app_id)) is not None:
                for span in [x for x in self._fold.open.values() if x.app_id == fact.app_id]:
                    self._count(span, fact.at_s)
                app.who = replace(app.who, vc=fact.vc, queue=fact.queue or app.who.queue)
            case AppChanged():
                launched = fact.changes.get("launched", {})
                self._launches |= {(fact.app_id, job_id): n for job_id, n in launched.items()}
            case AppEnded() if fact.app_id in self.apps:
                self.apps[fact.app_id].ended_s = fact.at_s
            case AllocationChanged():
                self._restarted(fact)
            case PlainUse():
                who = _outside(fact.user, fact.queue, fact.kind)
                self._count_plain(who, fact.gpu_type, fact.at_s)
                self._plain[who, fact.gpu_type] = fact.count, fact.at_s
            case Watched():
                begin_s, end_s = max(fact.since_s, self.since_s), min(fact.at_s, self.until_s)
                self.covered += [(begin_s, end_s)] if begin_s < end_s else []
        self.unknown += isinstance(fact, OF_LEASE) and not changes
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
        revoked = before.running_s is not None and before.revoking_s is None and after.revoking_s is not None
        if app is not None and revoked and self.since_s <= time_s:
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
                self._add(app, gpu_type, "lost_gpu_s", max(begin_s, span.revoking_s), at_s)

    def _restarted(self, fact: AllocationChanged) -> None:
        """Count a job's time from grant to first step as lost, except for its first launch."""
        key, app = (fact.app_id, fact.job_id), self.apps.get(fact.app_id)
        if app is not None and (key in self._launched or self._launches.get(key, 0) > 1):
            for span in self._fold.open.values():
                if (span.app_id, span.job_id) == key:
                    self._add(app, span.lease.gpu_type, "lost_gpu_s", fact.at_s - fact.seconds, fact.at_s)
        self._launched.add(key)

    def _count_plain(self, who: Who, gpu_type: str, at_s: float) -> None:
        gpus, begin_s = self._plain.get((who, gpu_type), (0, at_s))
        for day, seconds in self._days(begin_s, at_s) if gpus else ():
            tally = self._tally(day * DAY_S, who, gpu_type)
            tally.held_gpu_s, tally.used_gpu_s = tally.held_gpu_s + gpus * seconds, tally.used_gpu_s + gpus * seconds
        self._plain[who, gpu_type] = gpus, at_s

    def _add(self, app: AppTimes, gpu_type: str, name: str, begin_s: float, end_s: float) -> None:
        for day, seconds in self._days(begin_s, end_s):
            tally = self._tally(day * DAY_S, app.who, gpu_type)
            setattr(tally, name, getattr(tally, name) + seconds)
            app.seen = True

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


def counted(db: sqlite3.Connection) -> tuple[float, float] | None:
    """The time that the totals count; None before the first snapshot."""
    found: tuple[float, float] | None = db.execute("SELECT begin_s, end_s FROM counted").fetchone()
    return found


def add_totals(db: sqlite3.Connection, found: Usage) -> None:
    """Adds what was counted up to now; the caller holds a transaction."""
    more = ", ".join(f"{name} = {name} + excluded.{name}" for name in NUMBERS)
    names, marks = ", ".join(TABLES["totals"]), ", ".join("?" * len(TABLES["totals"]))
    db.executemany(
        f"INSERT INTO totals ({names}) VALUES ({marks}) ON CONFLICT DO UPDATE SET {more}",
        [(*key, *astuple(tally)) for key, tally in by_day(found).items()],
    )
    begin_s = known[0] if (known := counted(db)) is not None else found.first_s
    if begin_s is None:  # no fact could be read
        return
    db.execute("DELETE FROM counted")
    db.execute("INSERT INTO counted VALUES (?, ?)", (begin_s, found.until_s))
    for begin_s, end_s in found.covered:
        db.execute("UPDATE covered SET end_s = ? WHERE end_s = ?", (end_s, begin_s)).rowcount or db.execute(
            "INSERT OR REPLACE INTO covered VALUES (?, ?)", (begin_s, end_s)
        )


@value
class Totals:
    """What a journal has counted, with facts that it no longer has."""

    first_s: float
    last_s: float
    rows: Mapping[Key, Tally]
    covered: list[tuple[float, float]]
    """Times in which all containers were seen."""


def read_totals(db: sqlite3.Connection) -> Totals | None:
    """The totals; None before the first snapshot."""
    known = counted(db)
    if known is None:
        return None
    rows = db.execute(f"SELECT {', '.join(TABLES['totals'])} FROM totals")
    return Totals(*known, {row[:5]: Tally(*row[5:]) for row in rows}, list(db.execute("SELECT * FROM covered")))


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
