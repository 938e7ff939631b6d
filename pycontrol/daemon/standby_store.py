"""The state that survives a control plane's machine: apps and fairness clocks in a folder on HDFS (WebHDFS).

Each snapshot is one file, written under a temporary name and renamed when complete. The newest readable snapshot is
the one of the latest epoch, not of the latest time: the clocks of two machines may differ, and a control plane may
still write before it learns of a takeover. Leases are not stored: after a failover they come from the containers' tags.
"""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import requests
import structlog
from hdfs import HdfsError, InsecureClient

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.config import Standby, WebHdfs
from pycontrol.negotiate import session

TIMEOUT_S = (3.0, 10.0)
"""Timeouts for connecting, and for each answer."""
VERSION = 2
KEEP = 3
log = structlog.get_logger("isonomy.kept")
_NAME = re.compile(r"^clocks-(?:(\d{10})-)?(\d{15})\.json$")
"""Epoch and milliseconds; earlier versions wrote no epoch."""


class StandbyStoreError(Exception):
    """HDFS does not answer, or it refuses; the message names the folder."""


@dataclass(frozen=True, slots=True)
class StandbySnapshot:
    """One snapshot of a control plane's apps and clocks."""

    by: str
    """The id of the control plane's journal; empty: nobody's."""
    epoch: int
    """The journal's epoch; a control plane that takes over uses a later one, so that no id is issued twice."""
    state: Mapping[str, Any]
    cells: str = ""
    """The text of the cells file in force; empty: there is none, or the version that wrote this did not tell."""


class StandbyStore:
    """The snapshots in one folder."""

    def __init__(self, at: Standby) -> None:
        self.folder = at.folder.rstrip("/")
        self._where = f"{at.webhdfs}{self.folder}"
        self._hdfs = InsecureClient(
            at.webhdfs, user=at.user or getpass.getuser(), timeout=TIMEOUT_S, session=session_of(at)
        )  # a secure cluster authenticates by ticket and ignores the name

    def put(self, kept: StandbySnapshot, now_s: float) -> None:
        """Write a snapshot and delete all but the newest KEEP; raises StandbyStoreError."""
        name = f"clocks-{kept.epoch:010d}-{round(now_s * 1000):015d}.json"
        try:
            text = json.dumps({"version": VERSION, "at_s": now_s, **asdict(kept)})
            self._hdfs.write(f"{self.folder}/_{name}", data=text.encode(), overwrite=True, permission="600")
            self._hdfs.rename(f"{self.folder}/_{name}", f"{self.folder}/{name}")
            for old in self._names()[KEEP:]:
                self._hdfs.delete(f"{self.folder}/{old}")
        except (HdfsError, requests.RequestException) as e:
            raise StandbyStoreError(f"{self._where}: {e}") from e

    def newest(self) -> StandbySnapshot | None:
        """The newest readable snapshot, None if there is none; raises StandbyStoreError."""
        try:
            for name in self._names():
                with self._hdfs.read(f"{self.folder}/{name}") as reader:
                    text = reader.read()
                found = state_in(text)
                if found is not None:
                    return found
                log.warning("a file of saved apps and clocks cannot be read", file=f"{self._where}/{name}")
        except (HdfsError, requests.RequestException) as e:
            raise StandbyStoreError(f"{self._where}: {e}") from e
        return None

    def _names(self) -> list[str]:
        """Names of complete snapshots, newest first."""
        if self._hdfs.status(self.folder, strict=False) is None:
            return []
        found = [m for n in self._hdfs.list(self.folder) if (m := _NAME.match(n))]
        return [m[0] for m in sorted(found, key=lambda m: (int(m[1] or 0), int(m[2])), reverse=True)]


def session_of(at: WebHdfs) -> requests.Session:
    """The control plane's session with WebHDFS."""
    return session(at.principal or "", str(at.keytab or ""), at.ca)


def state_in(text: bytes) -> StandbySnapshot | None:
    """The snapshot in a file's text; None if it is damaged, of another version, or no snapshot."""
    try:
        found = json.loads(text)
        by, epoch, state = found["by"], found["epoch"], found["state"]
        if found["version"] != VERSION or not (isinstance(by, str) and type(epoch) is int):
            return None
        Durable.load(state)  # a state that fails to load would end the control plane at every start
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None
    return StandbySnapshot(by, epoch, state, str(found.get("cells", "")))
