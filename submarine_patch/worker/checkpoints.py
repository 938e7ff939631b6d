"""Checkpoints on HDFS or in a local directory: uniquely named, only complete ones, the newest is used.

A checkpoint is a directory `ckpt-STEP-NONCE` with the state's file, what the script adds, and a MANIFEST of sizes and
digests. It is written under a temporary name and renamed when complete, so a reader never sees half of one. The nonce
begins with the time, so that of two checkpoints at the same step the later one is newer.
"""

from __future__ import annotations

import getpass
import hashlib
import io
import json
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from submarine_patch.worker.webhdfs import CA_VARIABLE, first_line
from submarine_patch.worker.webhdfs import client as webhdfs_client

KEEP = 3
MANIFEST = "MANIFEST.json"
ABANDONED_S = 3600.0
"""A temporary directory older than this has no writer left."""
TRIES = 3
PAUSE_MAX_S = 5.0
WRITERS = 4
"""Parts that are written concurrently."""
CHUNK_BYTES = 1 << 20
"""Size of a transfer, so that a connection's timeout applies to a chunk and not to gigabytes."""
_LOCATION = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")
_NAME = re.compile(r"^(_?)ckpt-(\d+)-([0-9a-f]{16})$")

REFUSED_S = 120.0
"""The longest time to retry after a refusal, in case someone grants the permission or the quota."""
_QUOTAS = {"NSQuotaExceededException", "DSQuotaExceededException"}
_WRONG_PATHS = {"ParentNotDirectoryException", "InvalidPathException", "IllegalArgumentException"}
_REFUSALS = {"AccessControlException"} | _QUOTAS | _WRONG_PATHS
_AWAY = {"SafeModeException", "RetriableException", "StandbyException"}
"""Exceptions of a NameNode that is starting or in standby."""

T = TypeVar("T")
Data = bytes | memoryview | Callable[[], Iterator[bytes]]
"""Data to write: the bytes, or a function that returns their chunks from the start, called for each attempt."""


class StoreError(Exception):
    """The checkpoint directory cannot be reached or used; the message names it."""


class StoreRefusal(StoreError):
    """The store refuses for lack of permission or quota; long retries would not help."""


class Damaged(Exception):
    """A file differs from the manifest, or the manifest is malformed."""


class Files(Protocol):
    """The few file operations that checkpoints need; paths are relative to one directory."""

    def names(self, path: str) -> list[str]:
        """Entries of a directory, [] if it does not exist."""

    def read(self, path: str) -> bytes:
        """A file's content; raises FileNotFoundError if it does not exist or its data is lost."""

    def chunks(self, path: str) -> Iterator[bytes]:
        """A file's content in chunks, for files that may not fit into memory."""

    def write(self, path: str, data: Data) -> None:
        """Write a file, and create its directory if needed."""

    def rename(self, old: str, new: str) -> None:
        """Rename a directory; `new` must not exist."""

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its content."""

    def modified_s(self, path: str) -> float | None:
        """Unix time at which the directory's entries last changed, by the store's clock; None if it does not exist."""


class LocalFiles(Files):
    """A local directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self, path: str) -> list[str]:
        folder = self.root / path
        return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def chunks(self, path: str) -> Iterator[bytes]:
        with (self.root / path).open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def write(self, path: str, data: Data) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            file.writelines(_chunked(data))

    def rename(self, old: str, new: str) -> None:
        (self.root / old).rename(self.root / new)

    def delete(self, path: str) -> None:
        target = self.root / path
        if target.is_file():
            target.unlink(missing_ok=True)
        else:
            shutil.rmtree(target, ignore_errors=True)

    def modified_s(self, path: str) -> float | None:
        with suppress(FileNotFoundError):  # another writer may delete it at any time
            return (self.root / path).stat().st_mtime
        return None


class HdfsFiles(Files):
    """A directory on HDFS, over WebHDFS (package hdfs); calls without an answer are retried. Raises StoreError."""

    def __init__(self, webhdfs: str, user: str, root: str, ca: str = "") -> None:
        self.client: Any = webhdfs_client(webhdfs, user, ca)
        self.where = f"{root} at {webhdfs}"
        self.root = hdfs_path(root)

    def _done(self, call: Callable[[], T], what: str) -> T:
        """The call's result; raises StoreError or StoreRefusal, whose cause is HDFS's answer."""
        from hdfs.util import HdfsError

        try:
            return self._tried(call)
        except HdfsError as e:
            raise self._failed(e, what) from e

    def _failed(self, e: Any, what: str) -> StoreError:
        kind = StoreRefusal if e.exception in _REFUSALS else StoreError
        return kind(f"{self.where}{what}: {first_line(e)}")

    def names(self, path: str) -> list[str]:
        try:
            return self._done(lambda: sorted(self.client.list(self._at(path))), " cannot be listed")
        except StoreError as e:
            if getattr(e.__cause__, "exception", "") == "FileNotFoundException":
                return []
            raise

    def read(self, path: str) -> bytes:
        def call() -> bytes:
            whole = io.BytesIO()  # avoids the second copy that joining chunks would make
            whole.writelines(self.chunks(path))
            return whole.getvalue()

        return self._tried(call)

    def chunks(self, path: str) -> Iterator[bytes]:
        """A file's content in chunks; raises RequestException if the connection breaks."""
        from hdfs.util import HdfsError
        from requests.exceptions import RequestException

        try:
            with self.client.read(self._at(path), chunk_size=CHUNK_BYTES) as chunks:
                yield from chunks
        except HdfsError as e:
            if e.exception in _AWAY:
                raise self._failed(e, f": {path} cannot be read") from e
            raise FileNotFoundError(f"{path} of {self.where}: {first_line(e)}") from e
        except RequestException as e:
            raise RequestException(first_line(e)) from None  # its own text has the token

    def write(self, path: str, data: Data) -> None:
        write = self.client.write
        self._done(lambda: write(self._at(path), data=_chunked(data), overwrite=True), f": {path} cannot be written")

    def rename(self, old: str, new: str) -> None:
        try:
            self._done(lambda: self.client.rename(self._at(old), self._at(new)), f": {old} cannot be renamed")
        except StoreError:
            # an earlier attempt whose answer was lost may have done it
            if self.names(old) or not self.names(new):
                raise

    def delete(self, path: str) -> None:
        self._done(lambda: self.client.delete(self._at(path), recursive=True), f": {path} cannot be deleted")

    def modified_s(self, path: str) -> float | None:
        status = self._done(lambda: self.client.status(self._at(path), strict=False), f": {path} cannot be looked at")
        return None if status is None else float(status["modificationTime"]) / 1000.0

    def _at(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def _tried(self, call: Callable[[], T]) -> T:
        from requests.exceptions import RequestException

        for attempt in range(TRIES):
            try:
                return call()
            except RequestException as e:
                if attempt == TRIES - 1:
                    raise StoreError(f"{self.where} cannot be reached: {first_line(e)}") from None
                time.sleep(0.5 * 2.0**attempt)
        raise AssertionError("TRIES > 0")


def patiently(call: Callable[[], T], for_s: float, say: Callable[[str], None]) -> T:
    """The call's result; retries on StoreError for at most `for_s` seconds, then raises it."""
    begun_s, pause_s = time.monotonic(), 0.5
    while True:
        try:
            return call()
        except StoreError as e:
            limit_s = min(for_s, REFUSED_S) if isinstance(e, StoreRefusal) else for_s
            if time.monotonic() + pause_s > begun_s + limit_s:
                raise
            say(f"{e}; trying on")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def _chunked(data: Data) -> Iterator[bytes]:
    if callable(data):
        yield from data()
    else:
        view = memoryview(data)
        yield from (bytes(view[at : at + CHUNK_BYTES]) for at in range(0, len(view), CHUNK_BYTES))


def hdfs_path(url: str) -> str:
    """The path of an hdfs:// or file: URL, or the path itself; # and ? are kept, as HDFS allows them in names."""
    return _LOCATION.sub("", url, count=1).rstrip("/") or "/"


def files_at(where: str, webhdfs: str = "", user: str = "", ca: str = "") -> Files:
    """The files at a path: on HDFS if `webhdfs` is given and it is no file: URL, else local. Raises StoreError.

    `ca`: PEM text of the certificates that verify an https WebHDFS.
    """
    if webhdfs and not where.startswith("file:"):
        return HdfsFiles(webhdfs, user or getpass.getuser(), where, ca)
    if where.startswith("hdfs:"):
        raise StoreError(f"{where}: set ISONOMY_WEBHDFS to the NameNode's http://host:port to use HDFS")
    return LocalFiles(Path(hdfs_path(where) if where.startswith("file:") else where))


def files_of_env(where: str, env: Mapping[str, str]) -> Files:
    """`files_at` with the settings in a worker's environment."""
    return files_at(where, env.get("ISONOMY_WEBHDFS", ""), env.get("HADOOP_USER_NAME", ""), env.get(CA_VARIABLE, ""))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    name: str
    step: int


def listed(files: Files) -> list[Checkpoint]:
    """All complete checkpoints, newest first."""
    return _complete(files.names(""))


def _complete(names: Iterable[str]) -> list[Checkpoint]:
    """Those of the names that are of complete checkpoints, newest first."""
    found = [(int(m[2]), m[3], m[0]) for n in names if (m := _NAME.match(n)) and not m[1]]
    return [Checkpoint(name, step) for step, _, name in sorted(found, reverse=True)]


def save(files: Files, step: int, parts: Mapping[str, bytes | memoryview]) -> Checkpoint:
    """Write a checkpoint, then delete abandoned temporary directories, and all checkpoints but KEEP: this one, the one
    written before it, and those of the highest steps, which may be damaged."""
    now_ms = int(time.time() * 1000)
    checkpoint = Checkpoint(f"ckpt-{step}-{now_ms:011x}{secrets.token_hex(3)[:5]}", step)
    about = {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in parts.items()}
    manifest = json.dumps({"step": step, "parts": about}).encode()
    _write_whole(files, checkpoint.name, {**parts, MANIFEST: manifest}, f"_{checkpoint.name}")
    names = files.names("")
    others = [c for c in _complete(names) if c != checkpoint]
    before = max(others, key=lambda c: (c.name[-16:-5], c.step), default=None)  # by the time in its name
    for old in [c for c in others if c != before][KEEP - 2 :]:
        files.delete(old.name)
    staged = [n for n in names if n.startswith("_") and _NAME.match(n)]
    now_s = files.modified_s(checkpoint.name) if staged else None
    for name in staged:
        left_s = files.modified_s(name)
        if now_s is not None and left_s is not None and now_s - left_s > ABANDONED_S:
            files.delete(name)
    return checkpoint


def _write_whole(files: Files, name: str, parts: Mapping[str, Data], staged: str) -> None:
    with ThreadPoolExecutor(WRITERS) as writers:  # HDFS takes longer to close a file than to fill it
        written = [writers.submit(files.write, f"{staged}/{part}", data) for part, data in parts.items()]
    for done in written:
        done.result()
    files.rename(staged, name)


def _digests(files: Files, checkpoint: Checkpoint) -> tuple[bytes, dict[str, str]]:
    """The manifest, and the SHA-256 of each part according to it."""
    manifest = files.read(f"{checkpoint.name}/{MANIFEST}")
    try:
        return manifest, {name: str(told["sha256"]) for name, told in json.loads(manifest)["parts"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise Damaged(f"{checkpoint.name}/{MANIFEST}") from e


def as_told(files: Files, path: str, digest: str) -> Iterator[bytes]:
    """A file in chunks; raises Damaged at its end if its SHA-256 is another one."""
    seen = hashlib.sha256()
    for chunk in files.chunks(path):
        seen.update(chunk)
        yield chunk
    if seen.hexdigest() != digest:
        raise Damaged(path)


def load(files: Files, checkpoint: Checkpoint) -> dict[str, bytes] | None:
    """The checkpoint's parts by name; None if one is missing or differs from the manifest."""
    try:
        _, digests = _digests(files, checkpoint)
        parts = {n: files.read(f"{checkpoint.name}/{n}") for n in digests}
    except (FileNotFoundError, Damaged):
        return None
    return parts if all(hashlib.sha256(d).hexdigest() == digests[n] for n, d in parts.items()) else None


Found = tuple[Checkpoint, dict[str, bytes]]
"""A checkpoint with its parts."""


def newest(files: Files) -> Found | None:
    """The newest complete checkpoint with its parts; None if there is none. Raises StoreError."""
    for checkpoint in listed(files):
        parts = load(files, checkpoint)
        if parts is not None:
            return checkpoint, parts
        _pass_over(checkpoint)
    return None


def copy_model(source: Files, target: Files) -> str:
    """Copy the newest complete checkpoint in `source` to `target`; returns its name there.

    Copies in chunks, because a model may not fit into the AM's memory. Idempotent: a complete copy is left alone.
    Raises FileNotFoundError if there is no complete checkpoint.
    """
    there = target.names("")
    for checkpoint in listed(source):
        if checkpoint.name in there or _copied(source, checkpoint, target):
            for begun in (n for n in there if n.startswith(f"_{checkpoint.name}-")):  # left by an Agent that was killed
                target.delete(begun)
            return checkpoint.name
        _pass_over(checkpoint)
    raise FileNotFoundError("no complete checkpoint")


def sweep(files: Files) -> None:
    """Delete incomplete checkpoints in the subfolders; only once no worker writes there."""
    for folder in files.names(""):
        for name in files.names(folder):
            if name.startswith("_") and _NAME.match(name):
                files.delete(f"{folder}/{name}")


def _copied(source: Files, checkpoint: Checkpoint, target: Files) -> bool:
    """Copy a checkpoint; False if it is incomplete or damaged."""
    try:
        manifest, digests = _digests(source, checkpoint)
    except (FileNotFoundError, Damaged):
        return False
    parts: dict[str, Data] = {n: partial(as_told, source, f"{checkpoint.name}/{n}", of) for n, of in digests.items()}
    return copied(target, checkpoint.name, {**parts, MANIFEST: manifest})


def copied(target: Files, name: str, parts: Mapping[str, Data]) -> bool:
    """Write a directory; False, with nothing left of it, if one of its sources is missing or damaged."""
    staged = f"_{name}-{secrets.token_hex(3)}"
    try:
        _write_whole(target, name, parts, staged)
    except Exception as e:
        with suppress(StoreError):
            target.delete(staged)
        if isinstance(e, FileNotFoundError | Damaged):
            return False
        raise
    return True


def _pass_over(checkpoint: Checkpoint) -> None:
    print(f"WARNING:isonomy:{checkpoint.name} is incomplete or damaged: not used", file=sys.stderr)
