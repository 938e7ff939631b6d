"""The journal: facts on disk before their effects (SQLite, WAL, synchronous=FULL, one writer)."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from pycontrol.arbiter.durable import Durable
from pycontrol.arbiter.facts import Fact, RoundHeld, from_json, to_json

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (seq INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, time_s REAL NOT NULL,
                                  kind TEXT NOT NULL, data TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (seq INTEGER PRIMARY KEY, time_s REAL NOT NULL, data TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
VERSION = "1"


class Journal(Protocol):
    """The Arbiter's port to durable storage."""

    def append(self, facts: Iterable[Fact], now_s: float) -> None:
        """Makes these facts durable, all or none."""


class JournalError(Exception):
    """The journal cannot be opened; the message names the file and what to do."""


class NoJournal:
    """Keeps nothing: for simulation."""

    def append(self, facts: Iterable[Fact], now_s: float) -> None:
        """Forgets them."""


class SqliteJournal:
    """A journal in one file, held by one control plane at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise JournalError(
                f"{path}: another control plane holds this journal; stop it, or set another state_dir"
            ) from e
        os.close(os.open(path, os.O_CREAT, 0o600))
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
        except sqlite3.DatabaseError as e:
            raise JournalError(f"{path}: not a journal ({e}); move it away to start anew") from e
        known = self._meta("version", VERSION)
        if known != VERSION:
            raise JournalError(f"{path}: written by version {known} of the journal, this one reads {VERSION}")
        self.id = self._meta("id", uuid.uuid4().hex)
        self.epoch = int(self._meta("epoch", "0")) + 1
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(self.epoch),))

    def _meta(self, key: str, default: str) -> str:
        self._db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, default))
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(row[0])

    def follow(self, epoch: int) -> int:
        """Goes on in an epoch later than this one, which was another journal's; returns it."""
        self.epoch = max(self.epoch, epoch + 1)
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(self.epoch),))
        return self.epoch

    def append(self, facts: Iterable[Fact], now_s: float) -> None:
        """Makes these facts durable in one transaction."""
        rows = [(self.epoch, now_s, type(f).__name__, json.dumps(to_json(f))) for f in facts]
        if not rows:
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany("INSERT INTO facts (epoch, time_s, kind, data) VALUES (?, ?, ?, ?)", rows)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def recover(self) -> Durable:
        """The durable state: the newest snapshot and the facts after it."""
        row = self._db.execute("SELECT seq, data FROM snapshots ORDER BY seq DESC LIMIT 1").fetchone()
        state, seq = (Durable.load(json.loads(row[1])), row[0]) if row else (Durable(), 0)
        for kind, data in self._db.execute("SELECT kind, data FROM facts WHERE seq > ? ORDER BY seq", (seq,)):
            state.apply(from_json(kind, json.loads(data)))
        return state

    def prune(self, state: Durable, now_s: float, retention_s: float) -> None:
        """Writes a snapshot of `state` (all facts so far applied) and drops what is older than the retention."""
        seq = self._db.execute("SELECT COALESCE(MAX(seq), 0) FROM facts").fetchone()[0]
        oldest = now_s - retention_s
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (seq, now_s, json.dumps(state.dump()))
        )
        self._db.execute("DELETE FROM snapshots WHERE seq < ?", (seq,))
        self._db.execute("DELETE FROM facts WHERE time_s < ? AND seq <= ?", (oldest, seq))
        self._db.execute("COMMIT")

    def rounds(self, limit: int) -> list[dict[str, Any]]:
        """The newest receipts, newest first."""
        rows = self._db.execute(
            "SELECT data FROM facts WHERE kind = ? ORDER BY seq DESC LIMIT ?", (RoundHeld.__name__, limit)
        )
        return [json.loads(data)["receipt"] for (data,) in rows]

    def close(self, aside: str = "") -> None:
        """Gives the journal up; `aside`: under a name with this in it, so that the next one begins empty."""
        self._db.close()
        if aside:
            for suffix in ("-wal", "-shm", ""):
                part = self.path.with_name(self.path.name + suffix)
                if part.exists():
                    part.rename(self.path.with_name(f"{self.path.stem}-{aside}{self.path.suffix}{suffix}"))
        os.close(self._lock)


def read_facts(path: Path, since_seq: int = 0) -> Iterator[tuple[int, float, Fact]]:
    """(sequence, time, fact) of a journal that a control plane may be writing; for audits and replays."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        for seq, time_s, kind, data in db.execute(
            "SELECT seq, time_s, kind, data FROM facts WHERE seq > ? ORDER BY seq", (since_seq,)
        ):
            yield seq, time_s, from_json(kind, json.loads(data))
    finally:
        db.close()
