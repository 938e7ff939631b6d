"""The rows of a journal: the schema, and how facts and snapshots are encoded, decoded and verified."""

from __future__ import annotations

import dataclasses
import json
import math
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import (
    FACTS,
    AllocationChanged,
    Fact,
    PolicyMemory,
    RoundHeld,
    Watched,
    from_json,
    to_json,
)
from pycontrol.model.receipt import in_runs
from pycontrol.model.value import value
from pycontrol.runtime import gpu_time

VERSION = 7
"""The file's version. Version 1 (isonomy 0.1.0) has no checksums, no compression and no index; in version 2 each fact
about leases is about one GPU; version 3 knows no boosts, version 4 no totals, version 5 no causes of lost time; before
version 7, receipts name each host (`runs_of`)."""
CHECKED_SINCE = 2
"""The first version with checksums and a quarantine."""
SCHEMA = (
    """
CREATE TABLE IF NOT EXISTS facts (seq INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, time_s REAL NOT NULL,
                                  kind TEXT NOT NULL, data TEXT NOT NULL, crc INTEGER);
CREATE TABLE IF NOT EXISTS snapshots (seq INTEGER PRIMARY KEY, time_s REAL NOT NULL, data TEXT NOT NULL, crc INTEGER);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS quarantine (seq INTEGER PRIMARY KEY, epoch INTEGER, time_s REAL, kind TEXT, data TEXT,
                                       crc INTEGER, problem TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS receipts ON facts (seq) WHERE kind = 'RoundHeld';
"""
    + gpu_time.TOTALS
)
DEFLATED_FROM = 512
"""JSON of this many characters or more is deflated: large receipts to about an eighth, in 1 ms for 165 kB."""
DATA_MAX = 64 << 20
"""The most bytes that a row may inflate to."""
HARMLESS = frozenset({RoundHeld.__name__, AllocationChanged.__name__, PolicyMemory.__name__, Watched.__name__})
"""Facts that do not say who has which GPU: an unreadable one is set aside without harm to the rest."""
BAD = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, zlib.error)
"""Exceptions that reading a damaged row, or applying one that does not fit, may raise."""


MISSING = "is missing"


class JournalError(Exception):
    """The journal cannot be opened or read; the message names the file and what to do."""


class RowError(Exception):
    """A row is damaged, of a kind that this version does not know, or does not fit the rows before it."""

    def __init__(self, seq: int, kind: str, problem: str) -> None:
        super().__init__(f"row {seq} ({kind or 'no kind'}) {problem}")
        self.seq, self.kind, self.problem = seq, kind, problem


@value
class Row:
    """A stored fact."""

    seq: int
    epoch: int
    time_s: float
    kind: str
    data: str | bytes
    crc: int | None


@value
class JournalSize:
    """The size of a journal."""

    bytes: int
    """Size of the file and its WAL."""
    facts: int
    """Facts in the file."""
    facts_after_snapshot: int
    """Facts that a start has to read."""
    first_s: float | None
    """Unix seconds of the oldest fact in the file; None without any."""


def packed(text: str) -> str | bytes:
    """JSON text in its stored form, deflated if it is long."""
    return text if len(text) < DEFLATED_FROM else zlib.compress(text.encode(), 1)


def unpacked(data: object) -> str:
    """The inverse of `packed`; raises ValueError or zlib.error for data that `packed` did not write."""
    if isinstance(data, str):
        return data
    if not isinstance(data, bytes):
        raise ValueError("is neither text nor deflated text")
    inflate = zlib.decompressobj()
    text = inflate.decompress(data, DATA_MAX)
    if not inflate.eof:
        raise ValueError("is cut off, or larger than any row")
    return text.decode()


def checksum(kind: str, data: str | bytes) -> int:
    """CRC-32 of a row's kind and data."""
    return zlib.crc32(_bytes(data), zlib.crc32(_bytes(kind)))


def _bytes(text: str | bytes) -> bytes:
    return text.encode(errors="surrogateescape") if isinstance(text, str) else text


def connected(db: sqlite3.Connection) -> sqlite3.Connection:
    """The connection, reading text whatever its bytes are: the checksum finds damage, not SQLite's decoder."""
    db.text_factory = lambda raw: raw.decode(errors="surrogateescape")
    return db


def storable(of: object) -> object:
    """A value of a row as it can be written back: text that is not UTF-8 as bytes."""
    if isinstance(of, str) and not of.isascii():
        try:
            of.encode()
        except UnicodeEncodeError:
            return _bytes(of)
    return of


@contextmanager
def as_journal_error(path: Path) -> Iterator[None]:
    """Turns what SQLite or damaged values raise into a JournalError that says what to do."""
    try:
        yield
    except sqlite3.Error as e:
        code = getattr(e, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise JournalError(f"{path}: the disk is full; free some space in {path.parent}, then start again") from e
        if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise JournalError(
                f"{path}: cannot be used ({e}); see to the disk of {path.parent}, then start again"
            ) from e
        raise JournalError(f"{path}: is damaged ({e}); see `isonomy journal check` and its --repair") from e
    except (*BAD, OverflowError) as e:
        raise JournalError(f"{path}: is damaged ({e}); see `isonomy journal check` and its --repair") from e
    except OSError as e:
        raise JournalError(f"{path}: cannot be used: {e.strerror or e}") from e


def row_of(fact: Fact) -> tuple[str, str | bytes, int]:
    """(kind, data, checksum) of a fact."""
    kind = type(fact).__name__
    values = to_json(fact)
    if isinstance(fact, RoundHeld):
        values["receipt"] = in_runs(values["receipt"])
    data = packed(_ENCODER.encode(values))
    return kind, data, checksum(kind, data)


def _plain(of: object) -> object:
    if isinstance(of, Mapping):
        return dict(of)
    if isinstance(of, set | frozenset):
        return sorted(of)
    if dataclasses.is_dataclass(of) and not isinstance(of, type):
        return dataclasses.asdict(of)
    raise TypeError(f"a fact holds a {type(of).__name__}, which JSON does not know")


_ENCODER = json.JSONEncoder(default=_plain, ensure_ascii=False, separators=(",", ":"))


def fact_of(row: Row) -> Fact:
    """The fact in a row; raises RowError."""
    try:
        if row.crc is not None and row.crc != checksum(row.kind, row.data):
            raise RowError(row.seq, row.kind, "is damaged: its checksum is wrong")
        if row.kind not in FACTS:
            raise RowError(row.seq, row.kind, "is of a kind that this version does not know")
        return from_json(row.kind, json.loads(unpacked(row.data)))
    except BAD as e:
        raise RowError(row.seq, str(row.kind), f"cannot be understood: {e}") from e


def snapshot_data(state: Durable) -> bytes:
    """A snapshot in its stored form: deflated lines of JSON, one for each app and lease.

    It is encoded line by line because one call for the whole state would hold the interpreter lock too long.
    """
    deflate, parts = zlib.compressobj(1), []
    for line in state.dump_lines():
        parts.append(deflate.compress((json.dumps(line, ensure_ascii=False) + "\n").encode()))
    return b"".join([*parts, deflate.flush()])


def state_of(data: object, crc: int | None) -> Durable:
    """The state in a stored snapshot of either version; raises one of BAD if it is damaged."""
    if isinstance(data, str):
        if crc is not None and crc != checksum("", data):
            raise ValueError("its checksum is wrong")
        return Durable.load(json.loads(data))
    if not isinstance(data, bytes) or crc != checksum("", data):
        raise ValueError("its checksum is wrong")
    return Durable.load_lines(json.loads(line) for line in _inflated_lines(data))


def _inflated_lines(data: bytes) -> Iterator[bytes]:
    inflate, rest = zlib.decompressobj(), b""
    for at in range(0, len(data), 1 << 16):
        *lines, rest = (rest + inflate.decompress(data[at : at + (1 << 16)])).split(b"\n")
        yield from lines
    yield from filter(None, (rest + inflate.flush()).split(b"\n"))
    if not inflate.eof:
        raise ValueError("is cut off")


def version_of(db: sqlite3.Connection, path: Path) -> int:
    """The version of a journal's file, 0 if it is empty; raises JournalError if it is no journal, or a newer one."""
    try:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return 0
        known = db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone() if "meta" in tables else None
        version = int(known[0]) if known else 0
    except (sqlite3.DatabaseError, ValueError) as e:
        raise JournalError(f"{path}: not a journal ({e}); see `isonomy journal check --repair`, or move it away") from e
    if not known and tables - {"meta", "facts", "snapshots"}:
        raise JournalError(f"{path}: not a journal (it has tables of something else); move it away to start again")
    if version > VERSION:
        raise JournalError(
            f"{path}: written by version {version} of the journal, this one reads up to {VERSION}:"
            " start the newer isonomy again, or move the file away to start again"
        )
    return version


def rows_of(db: sqlite3.Connection, since_seq: int, version: int, *, whole: bool = True) -> Iterator[Row]:
    """The rows after a sequence number, in order; raises RowError at a gap that quarantine does not explain.

    `whole`: the row `since_seq + 1` must exist too, unless `since_seq` is 0.
    """
    crc, set_aside = "NULL", dict[float, float]()
    if version >= CHECKED_SINCE:
        crc = "crc"
        query = "SELECT seq, epoch, kind, problem FROM quarantine WHERE seq > ?"
        for seq, until, kind, problem in db.execute(query, (since_seq,)):
            missing = kind == "" and problem == MISSING  # marks a gap, whose end older versions did not write
            set_aside[seq] = (until or math.inf) if missing else seq
    expected: float | None = since_seq + 1 if whole and since_seq else None
    query = f"SELECT seq, epoch, time_s, kind, data, {crc} FROM facts WHERE seq > ? ORDER BY seq"
    for values in db.execute(query, (since_seq,)):
        row = Row(*values)
        while expected is not None and expected < row.seq and expected in set_aside:
            expected = set_aside[expected] + 1
        if expected is not None and expected < row.seq:
            raise RowError(int(expected), "", MISSING)
        expected = row.seq + 1
        yield row


def snapshots_of(db: sqlite3.Connection, version: int) -> list[tuple[int, float, object, int | None]]:
    """(sequence number of its last fact, time, data, checksum) of each snapshot, newest first."""
    crc = "crc" if version >= CHECKED_SINCE else "NULL"
    return list(db.execute(f"SELECT seq, time_s, data, {crc} FROM snapshots ORDER BY seq DESC"))


def base_of(db: sqlite3.Connection, version: int, problems: list[str]) -> tuple[Durable, int]:
    """The newest readable snapshot's state and the number of its last fact; (empty state, 0) without a snapshot.

    Problems with newer snapshots are appended to `problems`. Raises JournalError if no snapshot is readable and the
    facts before it are gone.
    """
    found = snapshots_of(db, version)
    first = db.execute("SELECT MIN(seq) FROM facts").fetchone()[0]
    for seq, _, data, crc in found:
        try:
            return state_of(data, crc), seq
        except BAD as e:
            problems.append(f"the snapshot at {seq} cannot be understood: {e}")
    if found and (first is None or first > 1):
        raise JournalError(f"{problems[0]}, and the facts before it are gone")
    return Durable(), 0


def fold(
    state: Durable, rows: Iterable[Row], on_bad: Callable[[Row, RowError], None], used: gpu_time.Usage | None = None
) -> int:
    """Apply the facts of these rows to `state`, and to `used`; returns the number of rows read.

    Calls `on_bad` for each bad row; the row is skipped unless `on_bad` raises.
    """
    count = 0
    for row in rows:
        try:
            fact = fact_of(row)
            try:
                if used is not None:
                    used.take(row.time_s, fact)
                state.apply(fact)
            except BAD as e:
                raise RowError(row.seq, row.kind, f"does not fit the rows before it: {e!r}") from e
        except RowError as error:
            on_bad(row, error)
        count += 1
    return count


Sorted = tuple[list[tuple[Row, RowError]], RowError | None]
"""(harmless bad rows, the first other error)."""


def raise_unless_harmless(row: Row, error: RowError) -> None:
    """Raise `error` unless the row is of a harmless kind, one that does not say who has which GPU."""
    if row.kind not in HARMLESS:
        raise error


def sort_out(db: sqlite3.Connection, state: Durable, base: int, version: int = VERSION) -> Sorted:
    """Applies the rows after a snapshot to `state`, up to the first bad one that is not harmless."""
    bad: list[tuple[Row, RowError]] = []

    def on_bad(row: Row, error: RowError) -> None:
        raise_unless_harmless(row, error)
        bad.append((row, error))

    try:
        fold(state, rows_of(db, base, version), on_bad)
    except RowError as error:
        return bad, error
    return bad, None


def write_snapshot(db: sqlite3.Connection, seq: int, now_s: float, data: bytes) -> None:
    """Stores `snapshot_data` of the state after the fact `seq`; the caller holds a transaction."""
    row = (seq, now_s, data, checksum("", data))
    db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", row)


def journal_size(db: sqlite3.Connection, path: Path) -> JournalSize:
    """The size of an open journal."""
    files = (path, path.with_name(path.name + "-wal"))
    first = db.execute("SELECT seq, time_s FROM facts ORDER BY seq LIMIT 1").fetchone()
    newest = newest_seq(db)
    return JournalSize(
        sum(f.stat().st_size for f in files if f.exists()),
        newest - first[0] + 1 if first else 0,
        newest - snapshot_seqs(db)[0],
        first[1] if first else None,
    )


def newest_seq(db: sqlite3.Connection) -> int:
    """The sequence number of the last fact, stored or in a snapshot; 0 if there is none."""
    last = db.execute("SELECT MAX(seq) FROM facts").fetchone()[0]
    return max(int(last or 0), snapshot_seqs(db)[0])


def snapshot_seqs(db: sqlite3.Connection) -> tuple[int, int]:
    """Sequence numbers of the newest snapshot and the one before it; 0 for a missing one."""
    seqs = [int(s) for (s,) in db.execute("SELECT seq FROM snapshots ORDER BY seq DESC LIMIT 2")]
    return (*seqs, 0, 0)[0], (*seqs, 0, 0)[1]
