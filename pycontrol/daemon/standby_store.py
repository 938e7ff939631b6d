"""What survives the machine of a control plane: apps and fairness clocks in a folder on HDFS (WebHDFS).

Each snapshot is a file of its own, written under a temporary name and renamed when whole; the newest that can be
read counts: the one of the latest epoch, since the clocks of two machines may differ, and a control plane that does not
know yet that another one took over still writes. Leases are not in it: after a failover the containers' tags tell them.
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

from pycontrol.arbiter.durable import Durable
from pycontrol.config import Standby
from pycontrol.daemon.webhdfs import TIMEOUT_S, session_of

VERSION = 2
KEEP = 3
log = structlog.get_logger("isonomy.kept")
_NAME = re.compile(r"^clocks-(?:(\d{10})-)?(\d{15})\.json$")
"""Epoch and milliseconds; versions before this one wrote no epoch."""


class KeptError(Exception):
    """HDFS does not answer or refuses; the message names the folder."""


@dataclass(frozen=True, slots=True)
class StandbyStore:
    """What one control plane kept."""

    by: str
    """The id of its journal; empty: nobody's."""
    epoch: int
    """Its journal's; who continues from here has a later one, so that no id is given twice."""
    state: Mapping[str, Any]


class Kept:
    """Snapshots in one folder."""

    def __init__(self, at: Standby) -> None:
        self.folder = at.folder.rstrip("/")
        self._where = f"{at.webhdfs}{self.folder}"
        self._hdfs = InsecureClient(
            at.webhdfs, user=at.user or getpass.getuser(), timeout=TIMEOUT_S, session=session_of(at)
        )  # a secure cluster asks for a ticket, and looks at no name

    def put(self, kept: StandbyStore, now_s: float) -> None:
        """Keeps a state and drops all but the newest few."""
        name = f"clocks-{kept.epoch:010d}-{round(now_s * 1000):015d}.json"
        try:
            text = json.dumps({"version": VERSION, "at_s": now_s, **asdict(kept)})
            self._hdfs.write(f"{self.folder}/_{name}", data=text.encode(), overwrite=True)
            self._hdfs.rename(f"{self.folder}/_{name}", f"{self.folder}/{name}")
            for old in self._names()[KEEP:]:
                self._hdfs.delete(f"{self.folder}/{old}")
        except (HdfsError, requests.RequestException) as e:
            raise KeptError(f"{self._where}: {e}") from e

    def newest(self) -> StandbyStore | None:
        """The newest whole state, None where there is none."""
        try:
            for name in self._names():
                with self._hdfs.read(f"{self.folder}/{name}") as reader:
                    text = reader.read()
                found = _state_in(text)
                if found is not None:
                    return found
                log.warning("a file of kept apps and clocks is none", file=f"{self._where}/{name}")
        except (HdfsError, requests.RequestException) as e:
            raise KeptError(f"{self._where}: {e}") from e
        return None

    def _names(self) -> list[str]:
        """Whole snapshots, newest first."""
        if self._hdfs.status(self.folder, strict=False) is None:
            return []
        found = [m for n in self._hdfs.list(self.folder) if (m := _NAME.match(n))]
        return [m[0] for m in sorted(found, key=lambda m: (int(m[1] or 0), int(m[2])), reverse=True)]


def _state_in(text: bytes) -> StandbyStore | None:
    """None where it is damaged, of another version, or no such thing."""
    try:
        found = json.loads(text)
        by, epoch, state = found["by"], found["epoch"], found["state"]
        if found["version"] != VERSION or not (isinstance(by, str) and type(epoch) is int):
            return None
        Durable.load(state)  # whatever it would raise later would end the control plane, at each start
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None
    return StandbyStore(by, epoch, state)
