"""Checks and repairs journals.

Repair sets an unreadable row aside by itself if it does not say who has which GPU. At the first other unreadable row
it keeps the rows before and sets aside that row and all after it. The leases then come from the tags of the running
containers, as after a failover.
"""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.runtime import gpu_time
from pycontrol.runtime.journal import lock_journal, open_journal, quarantine, reading, transaction
from pycontrol.runtime.journal_rows import (
    BAD,
    CHECKED_SINCE,
    MISSING,
    SCHEMA,
    VERSION,
    JournalError,
    Row,
    RowError,
    as_journal_error,
    base_of,
    connected,
    journal_size,
    snapshot_data,
    snapshots_of,
    sort_out,
    state_of,
    storable,
    version_of,
    write_snapshot,
)

MAGIC = b"SQLite format 3\0"
FACT_COLUMNS = ("seq", "epoch", "time_s", "kind", "data")
SNAPSHOT_COLUMNS = ("seq", "time_s", "data")


def check_journal(path: Path) -> dict[str, Any]:
    """A journal's size and problems, as JSON values; safe while a control plane writes.

    `readable`: a control plane would start with it. Raises JournalError if the file is no journal, or a newer one.
    """
    with as_journal_error(path):
        return _checked(path)


def _checked(path: Path) -> dict[str, Any]:
    missing = _missing_bytes(path)
    if missing:
        return {
            "file": str(path),
            "version": None,
            "problems": [f"the file is cut off: {missing} bytes are missing"],
            "readable": False,
        }
    with closing(_reading(path)) as db:
        version = version_of(db, path)
        report: dict[str, Any] = {"file": str(path), "version": version, "problems": _file_problems(path)}
        if not version:
            return report | {"problems": ["it is empty"], "readable": True}
        readable = not report["problems"]
        try:
            size = journal_size(db, path)
            report |= {name: getattr(size, name) for name in ("bytes", "facts", "facts_after_snapshot", "first_s")}
            report["snapshots"] = len(snapshots_of(db, version))
            report["set_aside"] = _count(db, "quarantine") if version >= CHECKED_SINCE else 0
            bad, error = sort_out(db, *base_of(db, version, report["problems"]), version)
            report["problems"] += [str(e) for _, e in bad] + ([str(error)] if error else [])
            readable = readable and error is None
        except (JournalError, sqlite3.DatabaseError, *BAD) as e:
            report["problems"].append(str(e))
            readable = False
        return report | {"readable": readable}


def _reading(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise JournalError(f"{path}: there is no such journal")
    return reading(path)


def _missing_bytes(path: Path) -> int:
    """Bytes by which the file is shorter than its header says (SQLite file format, section 1.3); 0 without a header.

    Also 0 where its WAL has them, as a checkpoint on a full disk could not write them.
    """
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        head = file.read(100)
    if len(head) < 100 or not head.startswith(MAGIC):
        return 0
    page, pages = int.from_bytes(head[16:18]), int.from_bytes(head[28:32])
    missing = max(0, (65536 if page == 1 else page) * pages - path.stat().st_size)
    return missing if missing and _file_problems(path) else 0


def _file_problems(path: Path) -> list[str]:
    with closing(_reading(path)) as db:
        try:
            found = [str(line) for (line,) in db.execute("PRAGMA quick_check(5)")]
        except sqlite3.DatabaseError as e:
            found = [str(e)]
    return [f"the file is damaged: {line}" for line in found if line != "ok"]


def _count(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


# ---- mending


def repair_journal(path: Path) -> list[str]:
    """Repair a journal that no control plane holds; returns one line per repair.

    Raises JournalError if it cannot be repaired, is newer than this version, or is in use.
    """
    if not path.is_file():
        raise JournalError(f"{path}: there is no such journal")
    with as_journal_error(path):
        return _repaired(path)


def _repaired(path: Path) -> list[str]:
    lock = lock_journal(path)
    try:
        done = _salvage(path) if _file_damaged(path) else []
        with closing(open_journal(path)) as db:
            return done + _mend(db, path)
    finally:
        os.close(lock)


def _file_damaged(path: Path) -> bool:
    if _missing_bytes(path):
        return True
    with closing(_reading(path)) as db:
        version_of(db, path)
    return bool(_file_problems(path))


def _mend(db: sqlite3.Connection, path: Path) -> list[str]:
    problems: list[str] = []
    try:
        state, base = base_of(db, VERSION, problems)
    except JournalError as e:
        raise JournalError(f"{path}: {e}: it cannot be mended; move it away to start again") from e
    bad, cut = sort_out(db, state, base)
    done = [f"{line}: dropped" for line in problems]
    done += [f"{error}: set aside" for _, error in bad]
    tail: list[tuple[Row, RowError]] = []
    if cut is not None:
        tail = [(row, cut) for row in _all_rows(db, cut.seq)]
        tail += [(gap, RowError(gap.seq, "", MISSING)) for gap in _gaps(cut.seq, [row.seq for row, _ in tail])]
        done.append(
            f"{cut}: it and all after it, {len(tail)} rows, are set aside;"
            " leases are taken from the containers that run"
        )
    with transaction(db):
        quarantine(db, [*bad, *tail])
        for seq, _, data, crc in snapshots_of(db, VERSION):
            if not _readable(data, crc) or (cut is not None and seq >= cut.seq):
                db.execute("DELETE FROM snapshots WHERE seq = ?", (seq,))
        if cut is not None:
            last = max([cut.seq, *(row.seq for row, _ in tail)])
            write_snapshot(db, last, time.time(), snapshot_data(Durable.load(state.kept_here())))
    return done


def _all_rows(db: sqlite3.Connection, from_seq: int) -> list[Row]:
    query = "SELECT seq, epoch, time_s, kind, data, crc FROM facts WHERE seq >= ? ORDER BY seq"
    return [Row(*values) for values in db.execute(query, (from_seq,))]


def _gaps(first: int, seqs: Iterable[int]) -> Iterator[Row]:
    """An empty row for each gap in the numbers from `first` on: `epoch` is the last number that is missing."""
    expected = first
    for seq in seqs:
        if seq > expected:
            yield Row(expected, seq - 1, 0.0, "", "", None)
        expected = seq + 1


def _readable(data: object, crc: int | None) -> bool:
    try:
        state_of(data, crc)
    except BAD:
        return False
    return True


def _salvage(path: Path) -> list[str]:
    """Copy all rows that SQLite can still read into a new file; the damaged file is kept under another name."""
    part, padded = (path.with_name(f".{path.name}.{kind}") for kind in ("part", "padded"))
    try:
        return _copied(path, part, padded)
    finally:
        for file in (part, padded):
            for suffix in ("", "-wal", "-shm"):
                file.with_name(file.name + suffix).unlink(missing_ok=True)


def _copied(path: Path, part: Path, padded: Path) -> list[str]:
    part.unlink(missing_ok=True)
    source = path
    if missing := _missing_bytes(path):  # SQLite refuses a file that is shorter than its header says
        source = padded
        shutil.copyfile(path, source)
        os.truncate(source, path.stat().st_size + missing)
        if (wal := path.with_name(path.name + "-wal")).is_file():
            shutil.copyfile(wal, source.with_name(source.name + "-wal"))
    with closing(_reading(source)) as old, closing(connected(sqlite3.connect(part, isolation_level=None))) as new:
        os.chmod(part, 0o600)
        version = version_of(old, path)
        crc: tuple[str, ...] = ("crc",) if version >= CHECKED_SINCE else ()
        new.execute("PRAGMA auto_vacuum=INCREMENTAL")
        new.executescript(SCHEMA)
        columns = {"meta": ("key", "value"), "snapshots": (*SNAPSHOT_COLUMNS, *crc), "facts": (*FACT_COLUMNS, *crc)}
        totals = gpu_time.tables_of(version)
        with transaction(new):
            gaps = {table: _copy(old, new, table, names) for table, names in (columns | totals).items()}
            if gap := gaps.get("totals"):
                gpu_time.uncover(new, *gap)
            new.execute("INSERT OR REPLACE INTO meta VALUES ('version', ?)", (str(VERSION),))
        found = {table: _count(new, table) for table in gaps}
    if not found["facts"] and not found["snapshots"]:
        raise JournalError(f"{path}: nothing in it can be read; move it away to start again")
    aside = path.with_name(f"{path.stem}-damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}{path.suffix}")
    for suffix in ("", "-wal", "-shm"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(aside.with_name(aside.name + suffix))
    part.rename(path)
    done = [
        f"the file was damaged: {found['facts']} facts and {found['snapshots']} snapshots of it could be read;"
        f" the damaged one is {aside.name}"
    ]
    if torn := [f"{found[table]} rows of `{table}`" for table in totals if gaps[table]]:
        done.append(f"of the GPU time by day, only {' and '.join(torn)} could be read: keep {aside.name} for the rest")
    return done


def _copy(
    old: sqlite3.Connection, new: sqlite3.Connection, table: str, columns: Sequence[str]
) -> tuple[float, float] | None:
    """Copy what can be read from the front, then from the back; returns the numbers between which rows are missing."""
    names, marks, ends = ", ".join(columns), ", ".join("?" * len(columns)), [-math.inf, math.inf]
    for number, order in enumerate(("ASC", "DESC")):
        try:
            for values in old.execute(f"SELECT {names} FROM {table} ORDER BY {columns[0]} {order}"):
                new.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", tuple(map(storable, values)))
                ends[number] = values[0] if isinstance(values[0], int) else ends[number]
        except sqlite3.DatabaseError:
            continue
        return None
    return ends[0], ends[1]
