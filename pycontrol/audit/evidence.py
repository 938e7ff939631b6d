"""Reads the NodeManagers' evidence files and the ResourceManager's audit log."""

from __future__ import annotations

import glob
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+)_(\d+)_\d+_\d+")
LOG_TIME = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})")
LOG_PAIR = re.compile(r"\b([A-Z]+)=([^\t\n]*)")
LOG_GPUS = re.compile(r"yarn\.io/gpu: (\d+)")
FINISHED = "Application Finished - "
GZIP = b"\x1f\x8b"


class EvidenceError(Exception):
    """Evidence cannot be read; the message names the file."""


@dataclass(slots=True)
class ContainerInterval:
    """A container on a machine, as its NodeManager's executor recorded it; times in Unix seconds."""

    container_id: str
    host: str
    gpu_ids: tuple[int, ...]
    lease: str
    start_s: float
    end_s: float | None = None
    end_by: str = ""
    """Who reported its end: NodeManager or ResourceManager."""

    @property
    def app_id(self) -> str:
        """The application of the container."""
        return app_of(self.container_id)


@dataclass(slots=True)
class Evidence:
    """All evidence files together."""

    files: list[str] = field(default_factory=list)
    stays: dict[str, ContainerInterval] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)
    """By container: the file with its end may be read before that with its start."""
    hosts: set[str] = field(default_factory=set)
    bad_lines: list[str] = field(default_factory=list)


@dataclass(slots=True)
class YarnRecords:
    """The contents of the ResourceManager's audit log."""

    files: list[str] = field(default_factory=list)
    from_s: float | None = None
    """Time of the first allocation, Unix seconds: a standby's log may begin long before what is kept of the others."""
    allocated: dict[str, int | None] = field(default_factory=dict)
    """GPUs by container; None if the log does not say."""
    released_s: dict[str, float] = field(default_factory=dict)
    finished_s: dict[str, float] = field(default_factory=dict)
    """By application."""


def app_of(container_id: str) -> str:
    """The application of a container; empty if the id is not YARN's."""
    match = CONTAINER.fullmatch(container_id)
    return f"application_{match[1]}_{match[2]}" if match else ""


def read_evidence(patterns: Iterable[str]) -> Evidence:
    """Read the evidence files that match, gzipped or not; a last line cut off by a crash is no error."""
    evidence = Evidence()
    for name, number, line in _lines(patterns, evidence.files, "strict"):
        if line.strip() and not _take(evidence, line) and line.endswith("\n"):
            evidence.bad_lines.append(f"{name}, line {number}")
    return evidence


def _lines(patterns: Iterable[str], files: list[str], errors: str) -> Iterator[tuple[str, int, str]]:
    """(file, number, line) of the files that match, gzipped or not, which are added to `files`."""
    for pattern in patterns:
        for name in sorted(glob.glob(pattern, recursive=True)):
            files.append(name)
            try:
                with Path(name).open("rb") as file:
                    way = gzip.open if file.read(len(GZIP)) == GZIP else open
                with way(name, "rt", encoding="utf-8", errors=errors, newline="\n") as text:
                    yield from ((name, number, line) for number, line in enumerate(text, 1))
            except (OSError, EOFError, zlib.error, UnicodeDecodeError) as e:
                raise EvidenceError(f"{name}: cannot be read: {e}") from e


def _take(evidence: Evidence, line: str) -> bool:
    try:
        data = json.loads(line)
        add_event(evidence, data)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def add_event(evidence: Evidence, data: dict[str, Any]) -> None:
    """Add an executor's record: {"event": "start" or "end", "container", "node", "gpu_ids", "lease", "time_ms"}."""
    container_id, time_s = str(data["container"]), float(data["time_ms"]) / 1000.0
    host = str(data["node"]).rpartition(":")[0] or str(data["node"])
    evidence.hosts.add(host)
    known = evidence.stays.get(container_id)
    if data["event"] == "start":
        if known is None:
            known = ContainerInterval(container_id, host, _ids(data["gpu_ids"]), str(data.get("lease") or ""), time_s)
            evidence.stays[container_id] = known
        elif known.gpu_ids != _ids(data["gpu_ids"]):
            raise ValueError(f"{container_id} starts twice with different GPUs")
    elif data["event"] == "end":
        evidence.ended_s[container_id] = time_s
    else:
        raise ValueError(f"unknown event {data['event']}")
    if known is not None and container_id in evidence.ended_s:
        known.end_s, known.end_by = evidence.ended_s[container_id], "NodeManager"


def _ids(value: Any) -> tuple[int, ...]:
    parts = value.split(",") if isinstance(value, str) else list(value or ())
    return tuple(sorted(int(p) for p in parts if str(p).strip()))


def read_rm_log(patterns: Iterable[str]) -> YarnRecords:
    """Read allocations, releases and ends of applications from the ResourceManager's audit log (local time zone), in
    files that are gzipped or not."""
    records = YarnRecords()
    for _, _, line in _lines(patterns, records.files, "replace"):
        if "OPERATION=" in line and (stamp := LOG_TIME.match(line)):
            _take_log(records, line, stamp)
    return records


def _take_log(records: YarnRecords, line: str, stamp: re.Match[str]) -> None:
    pairs = dict(LOG_PAIR.findall(line))
    operation, container_id = pairs.get("OPERATION", ""), pairs.get("CONTAINERID", "")
    if operation == "AM Allocated Container":
        gpus = LOG_GPUS.search(pairs.get("RESOURCE", ""))
        records.allocated[container_id] = int(gpus[1]) if gpus else None
        records.from_s = min(_seconds(stamp), records.from_s or math.inf)  # a rotated file comes after the newest
    elif operation == "AM Released Container":
        records.released_s[container_id] = _seconds(stamp)
    elif operation.startswith(FINISHED):
        records.finished_s[pairs.get("APPID", "")] = _seconds(stamp)


def _seconds(stamp: re.Match[str]) -> float:
    return datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S").timestamp() + int(stamp[2]) / 1000.0
