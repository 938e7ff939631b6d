"""The journal: facts on disk before their effects (SQLite, WAL, synchronous=FULL).

The Arbiter's thread only appends. `journal_keeper` writes snapshots and prunes, on its own thread and connection;
`journal_check` checks and repairs files.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import Fact
from pycontrol.model.receipt import Receipt
from pycontrol.runtime import gpu_time
from pycontrol.runtime.journal_rows import (
    BAD,
    SCHEMA,
    VERSION,
    JournalError,
    JournalSize,
    Row,
    RowError,
    as_journal_error,
    base_of,
    connected,
    fact_of,
    journal_size,
    row_of,
    rows_of,
    sort_out,
    storable,
    unpacked,
    version_of,
)

__all__ = ["Journal", "JournalError", "NoJournal", "SqliteJournal", "open_journal", "read_facts", "reading"]

BUSY_S = 30.0
"""How long a transaction waits for the other connection's, which takes milliseconds."""


class Journal(Protocol):
    """The Arbiter's port to durable storage."""

    def append(self, facts: Iterable[Fact], now_s: float) -> None:
        """Make these facts durable, all or none."""


class NoJournal:
    """A journal that stores nothing, for simulation."""

    def append(self, facts: Iterable[Fact], now_s: float) -> None:
        """Do nothing."""


def lock_journal(path: Path) -> int:
    """Take the journal's lock and return its descriptor; raises JournalError if another control plane holds it."""
    lock = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        os.close(lock)
        raise JournalError(
            f"{path}: another control plane holds this journal; stop it, or set another state_dir"
        ) from e
    return lock


def open_journal(path: Path) -> sqlite3.Connection:
    """Open a journal for writing; creates a new file, or upgrades an older one to this version. Raises JournalError."""
    with as_journal_error(path):
        os.close(os.open(path, os.O_CREAT, 0o600))
        return _opened(path)


def _opened(path: Path) -> sqlite3.Connection:
    db = connected(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False))
    try:
        version = version_of(db, path)
        if not version:
            db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        if version < VERSION:
            _upgrade(db, version)
    except BaseException:
        db.close()
        raise
    return db


def _upgrade(db: sqlite3.Connection, version: int) -> None:
    """Upgrade the file in one transaction; older versions of isonomy refuse it afterwards."""
    with transaction(db):
        if version == 1:
            for table in ("facts", "snapshots"):
                db.execute(f"ALTER TABLE {table} ADD COLUMN crc INTEGER")
            # Version 1 restarted its count when all facts had been pruned: renumber those after the snapshot.
            db.execute(
                "UPDATE facts SET seq = seq + (SELECT MAX(seq) FROM snapshots) WHERE (SELECT MAX(seq) FROM facts)"
                " <= (SELECT MAX(seq) FROM snapshots) AND time_s > (SELECT MAX(time_s) FROM snapshots)"
            )
        for statement in filter(str.strip, SCHEMA.split(";")):
            db.execute(statement)
        db.execute("INSERT OR REPLACE INTO meta VALUES ('version', ?)", (str(VERSION),))


class transaction:
    """Context manager: BEGIN IMMEDIATE, then COMMIT, or ROLLBACK on an error."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def __enter__(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self.db.execute("COMMIT")
        finally:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")


class SqliteJournal:
    """A journal in one file, held by one control plane at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with as_journal_error(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = lock_journal(path)
        try:
            with as_journal_error(path):
                self.db = open_journal(path)
                self._begin()
        except BaseException:
            os.close(self._lock)
            raise

    def _begin(self) -> None:
        """Reads the journal's id and its newest numbers, and begins an epoch."""
        self.id = self._meta("id", uuid.uuid4().hex)
        self.epoch = int(self._meta("epoch", "0")) + 1
        self.db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(self.epoch),))
        self.set_aside: list[str] = []
        """What `recover` skipped, one line each."""
        self.seq: int = max(
            self.db.execute(f"SELECT COALESCE(MAX(seq), 0) FROM {table}").fetchone()[0]
            for table in ("facts", "snapshots", "quarantine")
        )
        """Number of the last fact. Counted here because SQLite's numbers restart once all facts are pruned."""
        self.until_s = max(
            float(self.db.execute(f"SELECT COALESCE(MAX(time_s), 0) FROM {table}").fetchone()[0])
            for table in ("facts", "snapshots")
        )
        """The latest time in the journal when it was opened, Unix seconds; 0 if it was empty."""

    def _meta(self, key: str, default: str) -> str:
        self.db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, default))
        row = self.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(row[0])

    def follow(self, epoch: int) -> int:
        """Move to an epoch later than `epoch`, which is another journal's; returns the new epoch."""
        self.epoch = max(self.epoch, epoch + 1)
        self.db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(self.epoch),))
        return self.epoch

    def append(self, facts: Iterable[Fact], now_s: float) -> None:
        """Make these facts durable in one transaction."""
        rows = [(seq, self.epoch, now_s, *row_of(f)) for seq, f in enumerate(facts, self.seq + 1)]
        if not rows:
            return
        with as_journal_error(self.path), transaction(self.db):
            self.db.executemany("INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?)", rows)
        self.seq += len(rows)

    def recover(self) -> Durable:
        """The durable state: the newest snapshot and the facts after it.

        Unreadable rows that do not say who has which GPU are set aside; any other raises JournalError.
        """
        problems: list[str] = []
        try:
            state, seq = base_of(self.db, VERSION, problems)
            bad, error = sort_out(self.db, state, seq)
            if error is not None:
                raise error
        except (RowError, JournalError) as e:
            raise JournalError(f"{self.path}: {e}; {self._advice()}") from e
        except (sqlite3.DatabaseError, *BAD) as e:
            raise JournalError(f"{self.path}: is damaged ({e}); {self._advice()}") from e
        if bad:
            with transaction(self.db):
                quarantine(self.db, bad)
        self.set_aside += [*problems, *(str(error) for _, error in bad)]
        return state

    def _advice(self) -> str:
        return f"see `isonomy journal check {self.path}`, and its --repair"

    def size(self) -> JournalSize:
        """The journal's size; from any thread."""
        with closing(reading(self.path)) as db:
            return journal_size(db, self.path)

    def rounds(self, limit: int) -> list[Receipt]:
        """The newest receipts, newest first; from any thread."""
        with closing(reading(self.path)) as db:
            rows = db.execute(
                "SELECT data FROM facts WHERE kind = 'RoundHeld' ORDER BY seq DESC LIMIT ?", (limit,)
            ).fetchall()
        receipts = []
        for (data,) in rows:
            try:
                receipts.append(Receipt.load(json.loads(unpacked(data))["receipt"]))
            except BAD:
                continue
        return receipts

    def newest(self, limit: int) -> list[tuple[float, Fact]]:
        """The newest facts with their times, oldest first; unreadable ones are left out."""
        found: list[tuple[float, Fact]] = []
        with closing(reading(self.path)) as db, suppress(RowError):
            for row in rows_of(db, max(0, self.seq - limit), VERSION, whole=False):
                with suppress(RowError):
                    found.append((row.time_s, fact_of(row)))
        return found

    def copy_to(self, path: Path) -> None:
        """Write a copy of the journal, in place of an earlier one; raises JournalError or OSError."""
        path.unlink(missing_ok=True)
        os.close(os.open(path, os.O_CREAT, 0o600))
        with as_journal_error(path), closing(sqlite3.connect(path)) as copy:
            self.db.backup(copy)

    def close(self, aside: str = "") -> None:
        """Close the journal. `aside`: rename its files with this suffix, so that the next start finds none."""
        self.db.close()
        if aside:
            for suffix in ("-wal", "-shm", ""):
                part = self.path.with_name(self.path.name + suffix)
                if part.exists():
                    part.rename(self.path.with_name(f"{self.path.stem}-{aside}{self.path.suffix}{suffix}"))
        os.close(self._lock)


def quarantine(db: sqlite3.Connection, bad: Iterable[tuple[Row, RowError]]) -> None:
    """Move bad rows from the facts to the quarantine; the caller holds a transaction."""
    for row, error in bad:
        values = (row.seq, row.epoch, row.time_s, storable(row.kind), storable(row.data), row.crc, error.problem)
        db.execute("INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        db.execute("DELETE FROM facts WHERE seq = ?", (row.seq,))


def reading(path: Path) -> sqlite3.Connection:
    """Open a read-only connection; safe while a control plane writes."""
    return connected(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=BUSY_S))


def read_totals(path: Path, newest: bool = True) -> gpu_time.Totals | None:
    """What a journal has counted for ever, `newest`: and the facts since; None if there is nothing of either.

    Safe while a control plane writes. Raises JournalError.
    """
    with as_journal_error(path), closing(reading(path)) as db:
        db.execute("BEGIN")  # one state of the file
        version = version_of(db, path)
        found = gpu_time.read_totals(db, version)
        if not newest:
            return found
        base, used = 0, gpu_time.Usage(0.0, math.inf)
        if found is not None:
            state, base = base_of(db, VERSION, [])
            used = gpu_time.Usage.going_on(db, state, found.last_s)
        for row in rows_of(db, base, version):
            with suppress(RowError):
                used.take(row.time_s, fact_of(row))
        used.close(used.last_s)
    if used.first_s is None:
        return None
    found = found or gpu_time.Totals(used.first_s, used.last_s, {}, [])
    rows = dict(found.rows)
    for key, tally in gpu_time.by_day(used).items():
        rows[key] = rows.get(key, gpu_time.Tally()) + tally
    return gpu_time.Totals(found.first_s, used.last_s, rows, [*found.covered, *used.covered])


def read_facts(path: Path, since_seq: int = 0) -> Iterator[tuple[int, float, Fact]]:
    """(sequence number, time, fact) of a journal, for audits and replays; safe while a control plane writes.

    Raises JournalError if a row cannot be read.
    """
    with closing(reading(path)) as db:
        try:
            for row in rows_of(db, since_seq, version_of(db, path) or VERSION, whole=False):
                yield row.seq, row.time_s, fact_of(row)
        except RowError as e:
            raise JournalError(f"{path}: {e}; see `isonomy journal check {path}`") from e
        except (sqlite3.DatabaseError, *BAD) as e:
            raise JournalError(f"{path}: is damaged ({e}); see `isonomy journal check {path}`") from e
