"""Compacts the journal: writes snapshots, prunes old facts and bounds the file's size.

It has its own thread and database connection. A snapshot is the previous snapshot plus the journal's rows since then,
so the Arbiter takes no part in it. Each transaction takes only milliseconds, because the Arbiter's appends wait for it.
"""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import structlog

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.runtime import gpu_time
from pycontrol.runtime.journal import open_journal, reading, transaction
from pycontrol.runtime.journal_rows import (
    BAD,
    VERSION,
    JournalError,
    RowError,
    base_of,
    fact_of,
    fold,
    newest_seq,
    raise_unless_harmless,
    rows_of,
    snapshot_data,
    snapshot_seqs,
    write_snapshot,
)

FACTS_PER_SNAPSHOT = 20_000
"""Bounds the facts that a start has to read: 20,000 take about 0.3 s."""
SNAPSHOT_EVERY_S = 3600.0
LOOK_EVERY_S = 2.0
RETRY_S = 60.0
FACTS_AT_ONCE = 500
ROWS_DROPPED_AT_ONCE = 1_000
PAGES_FREED_AT_ONCE = 500
REST_S = 0.01
"""Pause between two pieces of work, so that the Arbiter's thread goes first."""
log = structlog.get_logger("journal")


class JournalKeeper:
    """Writes snapshots, and drops facts that are older than the retention or that exceed the largest size."""

    def __init__(
        self,
        path: Path,
        retention_s: float,
        max_bytes: int,
        now_s: Callable[[], float] = time.time,
        rest_s: float = REST_S,
    ) -> None:
        self.path, self._retention_s, self._max_bytes = path, retention_s, max_bytes
        self._now_s, self._rest_s = now_s, rest_s
        self._stopped = threading.Event()
        self._runner = threading.Thread(target=self._run, name="isonomy-journal", daemon=True)
        self._kept_s = now_s()

    def start(self) -> None:
        """Start the keeper's thread."""
        self._runner.start()

    def stop(self) -> None:
        """Stop after the present piece of work."""
        self._stopped.set()
        self._runner.join(10.0)

    def _run(self) -> None:
        wait_s = LOOK_EVERY_S
        while not self._stopped.wait(wait_s):
            wait_s = LOOK_EVERY_S
            try:
                if self.due():
                    self.keep()
            except (sqlite3.Error, JournalError, RowError, OSError) as e:
                wait_s = RETRY_S
                log.error("the journal could not be shortened; it grows meanwhile", why=str(e), retry_s=RETRY_S)
            except Exception:
                wait_s = RETRY_S
                log.exception("the journal could not be shortened; it grows meanwhile", retry_s=RETRY_S)

    def due(self) -> bool:
        """Whether a snapshot is due: after FACTS_PER_SNAPSHOT facts, or SNAPSHOT_EVERY_S if there is any new fact."""
        with closing(reading(self.path)) as db:
            after = newest_seq(db) - snapshot_seqs(db)[0]
        return after >= FACTS_PER_SNAPSHOT or (after > 0 and self._now_s() - self._kept_s >= SNAPSHOT_EVERY_S)

    def keep(self) -> None:
        """Write a snapshot of all facts so far, prune old facts, and free their pages."""
        with closing(open_journal(self.path)) as db:
            self._snapshot(db)
            self._prune(db)
            self._free(db)
        self._kept_s = self._now_s()

    def _snapshot(self, db: sqlite3.Connection) -> None:
        problems: list[str] = []
        state, base = base_of(db, VERSION, problems)
        newest = newest_seq(db)
        if newest <= base:
            return
        if (used := self._counting(db, state, base)) is None:
            return
        rows = (row for row in rows_of(db, base, VERSION) if row.seq <= newest)
        while fold(state, islice(rows, FACTS_AT_ONCE), raise_unless_harmless, used):
            if self._stopped.wait(self._rest_s):
                return
        used.close(used.last_s)
        data = snapshot_data(state)
        with transaction(db):
            write_snapshot(db, newest, self._now_s(), data)
            gpu_time.add_totals(db, used)
            db.execute("DELETE FROM snapshots WHERE seq < (SELECT MAX(seq) FROM snapshots WHERE seq < ?)", (newest,))
        log.info("snapshot of the journal", facts=newest - base, bytes=len(data), problems=problems)

    def _counting(self, db: sqlite3.Connection, state: Durable, base: int) -> gpu_time.Usage | None:
        """The use since the totals were last added to, without any since the first fact; None if it was stopped."""
        known = gpu_time.counted(db)
        if known is not None:
            return gpu_time.Usage.going_on(db, state, known[1])
        used = gpu_time.Usage(0.0, math.inf)
        for row in rows_of(db, 0, VERSION, whole=False):
            if row.seq > base:
                break
            if row.seq % FACTS_AT_ONCE == 0 and self._stopped.wait(self._rest_s):
                return None
            with suppress(*BAD, RowError):
                used.take(row.time_s, fact_of(row))
        return used

    def _prune(self, db: sqlite3.Connection) -> None:
        """Drop the oldest facts, but none after the last but one snapshot, in case the last one is damaged."""
        last = snapshot_seqs(db)[1]
        oldest_s, dropped, most = self._now_s() - self._retention_s, 0, self._max_bytes
        while not self._stopped.is_set():
            pages = _pragma(db, "page_count") - _pragma(db, "freelist_count")
            too_large = pages * _pragma(db, "page_size") > most
            before_s = float("inf") if too_large else oldest_s
            rows = db.execute(
                "SELECT seq, time_s FROM facts WHERE seq <= ? ORDER BY seq LIMIT ?", (last, ROWS_DROPPED_AT_ONCE)
            ).fetchall()
            until = max((seq for seq, time_s in rows if time_s < before_s), default=0)
            if not until:
                break
            with transaction(db):
                db.execute("DELETE FROM facts WHERE seq <= ?", (until,))
                db.execute("DELETE FROM quarantine WHERE seq <= ?", (until,))
            dropped += len(rows) if too_large else 0
            self._stopped.wait(self._rest_s)
        if dropped:
            log.warning("the journal was too large: facts within its retention are gone", facts=dropped, max_bytes=most)

    def _free(self, db: sqlite3.Connection) -> None:
        """Return free pages to the file system; files created by version 1 do not support it."""
        while not self._stopped.is_set() and _pragma(db, "auto_vacuum") == 2 and _pragma(db, "freelist_count"):
            db.execute(f"PRAGMA incremental_vacuum({PAGES_FREED_AT_ONCE})").fetchall()
            self._stopped.wait(self._rest_s)
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])
