"""Disks that crash: the journal's file, and files on HDFS."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hdfs import HdfsError

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import Fact, RoundHeld, from_json, to_json
from pycontrol.daemon.standby_store import StandbyStore
from pycontrol.model.receipt import Receipt
from pycontrol.runtime.journal import SqliteJournal
from pycontrol.runtime.journal_keeper import JournalKeeper

OLD = Path(__file__).parents[1] / "journals" / "0.1.0.sql"


class DiskFull(sqlite3.OperationalError):
    """As SQLite says it."""


class MemoryDisk:
    """The durable rows of a `MemoryJournal`, which survive all processes."""

    def __init__(self, name: str = "journal") -> None:
        self.name = name
        self.rows: list[tuple[int, float, str, str]] = []
        self.snapshot: tuple[int, str] | None = None
        self.epoch = 0
        self.number = 1
        """Of journals that were begun here."""
        self.full = False

    def open(self) -> MemoryJournal:
        """The journal in it."""
        if self.full:
            raise DiskFull("database or disk is full")
        return MemoryJournal(self)

    def keep(self, now_s: Callable[[], float]) -> None:
        """Makes a snapshot as the journal's keeper does; the next life begins from it."""
        if not self.full:
            self.snapshot = (len(self.rows), json.dumps(self.recovered().dump()))

    def recovered(self) -> Durable:
        """The state that the disk gives."""
        at, data = self.snapshot or (0, "")
        state = Durable.load(json.loads(data)) if data else Durable()
        for _, _, kind, row in self.rows[at:]:
            state.apply(from_json(kind, json.loads(row)))
        return state

    def lose(self) -> None:
        """An operator moves the journal away."""
        self.rows, self.snapshot, self.epoch, self.number = [], None, 0, self.number + 1

    def clean(self) -> None:
        """Nothing is left behind."""


class MemoryJournal:
    """SqliteJournal's contract, in memory: all facts of an append or none, JSON both ways."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        disk.epoch += 1
        self.epoch, self.id = disk.epoch, f"{disk.name}{disk.number}"
        self.path = Path("/nowhere")
        self.until_s = max((time_s for _, time_s, _, _ in disk.rows), default=0.0)

    def append(self, facts: Iterable[Fact], now_s: float) -> None:
        """Makes these facts durable."""
        rows = [(self.epoch, now_s, type(f).__name__, json.dumps(to_json(f))) for f in facts]
        if rows and self._disk.full:
            raise DiskFull("database or disk is full")
        self._disk.rows += rows

    def follow(self, epoch: int) -> int:
        """As SqliteJournal."""
        self.epoch = self._disk.epoch = max(self.epoch, epoch + 1)
        return self.epoch

    def recover(self) -> Durable:
        """The state from the disk."""
        return self._disk.recovered()

    def prune(self, state: Durable, now_s: float, retention_s: float) -> None:
        """Writes a snapshot; the rows are kept for the checks."""
        self._disk.snapshot = (len(self._disk.rows), json.dumps(state.dump()))

    def rounds(self, limit: int) -> list[Receipt]:
        """The newest receipts."""
        found = [
            Receipt.load(json.loads(row)["receipt"])
            for _, _, kind, row in self._disk.rows
            if kind == RoundHeld.__name__
        ]
        return found[::-1][:limit]

    def close(self, aside: str = "") -> None:
        """Gives it up."""


class SqliteDisk:
    """The disk of a real SqliteJournal. A power cut keeps a prefix of the last transaction's writes."""

    def __init__(self, draw: Callable[[float, float], float], old: bool = False) -> None:
        base = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="isonomy-faults-", dir=base))
        self.full = False
        self.draw = draw
        self._open: _TornJournal | None = None
        if old:  # as version 0.1.0 left it
            with contextlib.closing(sqlite3.connect(self.folder / "journal.db")) as db:
                db.executescript(OLD.read_text().replace("application_1_", "application_9_"))

    def open(self) -> SqliteJournal:
        """The journal in it; the last process is gone, and its file handles with it."""
        if self.full:
            raise DiskFull("database or disk is full")
        if self._open is not None:
            self._open.gone()
        self._open = _TornJournal(self)
        return self._open

    def lose(self) -> None:
        """An operator moves the journal away."""
        if self._open is not None:
            self._open.gone()
        for file in self.folder.iterdir():
            file.unlink()

    def keep(self, now_s: Callable[[], float]) -> None:
        """The journal's keeper shortens it: all but what the next start needs."""
        file = self.folder / "journal.db"
        if file.exists() and not self.full:
            JournalKeeper(file, 10.0, 32 << 10, now_s, rest_s=0.0).keep()

    def clean(self) -> None:
        """Nothing is left behind."""
        if self._open is not None:
            self._open.gone()
        shutil.rmtree(self.folder, ignore_errors=True)


class _TornJournal(SqliteJournal):
    def __init__(self, disk: SqliteDisk) -> None:
        self._disk, self._gone = disk, False
        super().__init__(disk.folder / "journal.db")

    def append(self, facts: Iterable[Fact], now_s: float) -> None:
        rows = list(facts)
        if rows and self._disk.full:
            raise DiskFull("database or disk is full")
        super().append(rows, now_s)

    def torn(self) -> None:
        """Cuts the power in the middle of a write: the log ends with a piece of a transaction."""
        wal = self.path.with_name(self.path.name + "-wal")
        whole = wal.read_bytes() if wal.exists() else b""
        main = self.path.read_bytes()
        self.gone()
        piece = whole[-int(self._disk.draw(1, 4096)) :]
        self.path.write_bytes(main)
        wal.write_bytes(whole + bytes(b ^ 0x5A for b in piece))
        self.path.with_name(self.path.name + "-shm").unlink(missing_ok=True)

    def gone(self) -> None:
        """Ends the process."""
        if not self._gone:
            self._gone = True
            self.close()


class KeptFiles(StandbyStore):
    """The state that control planes of a pair store for each other, on a simulated HDFS."""

    def __init__(self, hdfs: Hdfs) -> None:
        self.folder, self._where = "/kept", "simulated"
        self._hdfs = _Client(hdfs)


class _Client:
    """What `StandbyStore` needs of a WebHDFS client."""

    def __init__(self, hdfs: Hdfs) -> None:
        self._at = hdfs

    @property
    def _files(self) -> dict[str, Any]:
        if self._at.away:
            raise HdfsError("HDFS is away")
        return self._at.files

    def write(self, path: str, data: bytes, overwrite: bool, permission: str) -> None:
        assert permission == "600", "it tells what only VIEW_APP may see"
        self._files[path] = data

    def rename(self, path: str, to: str) -> None:
        self._files[to] = self._files.pop(path)

    def delete(self, path: str) -> None:
        self._files.pop(path, None)

    def status(self, folder: str, strict: bool) -> object:
        return self.list(folder) or None

    def list(self, folder: str) -> list[str]:
        return [p.removeprefix(f"{folder}/") for p in self._files if p.startswith(f"{folder}/")]

    def read(self, path: str) -> io.BytesIO:
        return io.BytesIO(self._files[path])


class Hdfs:
    """Files that are complete or absent; HDFS may be unreachable for a time."""

    def __init__(self) -> None:
        self.files: dict[str, Any] = {}
        self.away = False
        self.unkept = False
        """Whether it was away since the serving control plane last stored its state."""
        self.usurped = False
        """Whether the last to take over did so for a superseded ResourceManager: its states count as the newest."""
