"""Checkpoints on HDFS (or a local directory): unique names, complete ones only, the newest wins.

A checkpoint is a directory `ckpt-STEP-NONCE` with `state.npz` (and what the script adds) beside a
MANIFEST of sizes and digests. It is written under a temporary name and renamed when whole.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlparse

KEEP = 3
MANIFEST = "MANIFEST.json"
_NAME = re.compile(r"^ckpt-(\d+)-[0-9a-f]+$")


class Files(Protocol):
    """The few file operations that checkpoints need; paths are relative to one directory."""

    def names(self, path: str) -> list[str]:
        """Entries of a directory, [] if it does not exist."""

    def read(self, path: str) -> bytes:
        """A whole file."""

    def write(self, path: str, data: bytes) -> None:
        """A new file, its directory made as needed."""

    def rename(self, old: str, new: str) -> None:
        """Renames a directory; `new` does not exist."""

    def delete(self, path: str) -> None:
        """Deletes a directory with what is in it."""


class LocalFiles:
    """A local directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self, path: str) -> list[str]:
        """Entries of a directory."""
        folder = self.root / path
        return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []

    def read(self, path: str) -> bytes:
        """A whole file."""
        return (self.root / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        """A new file."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def rename(self, old: str, new: str) -> None:
        """Renames a directory."""
        (self.root / old).rename(self.root / new)

    def delete(self, path: str) -> None:
        """Deletes a directory."""
        shutil.rmtree(self.root / path, ignore_errors=True)


class HdfsFiles:
    """A directory on HDFS, over WebHDFS (package hdfs)."""

    def __init__(self, webhdfs: str, user: str, root: str) -> None:
        from hdfs import InsecureClient

        self.client = InsecureClient(webhdfs, user=user, timeout=(5, 60))
        self.root = hdfs_path(root)

    def _at(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def names(self, path: str) -> list[str]:
        """Entries of a directory."""
        if self.client.status(self._at(path), strict=False) is None:
            return []
        return sorted(self.client.list(self._at(path)))

    def read(self, path: str) -> bytes:
        """A whole file."""
        with self.client.read(self._at(path)) as stream:
            return bytes(stream.read())

    def write(self, path: str, data: bytes) -> None:
        """A new file."""
        self.client.write(self._at(path), data=data, overwrite=True)

    def rename(self, old: str, new: str) -> None:
        """Renames a directory."""
        self.client.rename(self._at(old), self._at(new))

    def delete(self, path: str) -> None:
        """Deletes a directory."""
        self.client.delete(self._at(path), recursive=True)


def hdfs_path(url: str) -> str:
    """The path of an hdfs:// URL, or the path itself."""
    return urlparse(url).path.rstrip("/") or "/"


def files_at(where: str, webhdfs: str = "", user: str = "") -> Files:
    """HDFS for hdfs:// URLs (and any path where `webhdfs` is given), else a local directory."""
    if webhdfs and not where.startswith("file:"):
        return HdfsFiles(webhdfs, user or "hadoop", where)
    return LocalFiles(Path(hdfs_path(where) if where.startswith("file:") else where))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    name: str
    step: int


def _listed(files: Files) -> list[Checkpoint]:
    found = [(int(m[1]), n) for n in files.names("") if (m := _NAME.match(n))]
    return [Checkpoint(n, step) for step, n in sorted(found, reverse=True)]


def save(files: Files, step: int, parts: Mapping[str, bytes]) -> Checkpoint:
    """Writes a checkpoint and drops all but the newest few."""
    name = f"ckpt-{step}-{uuid.uuid4().hex[:12]}"
    manifest = {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in parts.items()}
    for part, data in parts.items():
        files.write(f"_{name}/{part}", data)
    files.write(f"_{name}/{MANIFEST}", json.dumps({"step": step, "parts": manifest}).encode())
    files.rename(f"_{name}", name)
    for old in _listed(files)[KEEP:]:
        files.delete(old.name)
    return Checkpoint(name, step)


def load(files: Files, checkpoint: Checkpoint) -> dict[str, bytes] | None:
    """Its parts; None where it is not whole."""
    try:
        manifest = json.loads(files.read(f"{checkpoint.name}/{MANIFEST}"))["parts"]
        parts = {n: files.read(f"{checkpoint.name}/{n}") for n in manifest}
    except Exception:  # a part that cannot be read makes the checkpoint incomplete, whatever the store raised
        return None
    whole = all(hashlib.sha256(d).hexdigest() == manifest[n]["sha256"] for n, d in parts.items())
    return parts if whole else None


def newest(files: Files) -> tuple[Checkpoint, dict[str, bytes]] | None:
    """The newest complete checkpoint with its parts."""
    for checkpoint in _listed(files):
        parts = load(files, checkpoint)
        if parts is not None:
            return checkpoint, parts
    return None


def copy_model(webhdfs: str, user: str, from_dir: str, to_dir: str) -> str:
    """Publishes the newest complete checkpoint of `from_dir` at `to_dir`; returns its path there."""
    found = newest(files_at(from_dir, webhdfs, user))
    if found is None:
        raise FileNotFoundError(f"no complete checkpoint in {from_dir}")
    checkpoint, parts = found
    target = files_at(to_dir, webhdfs, user)
    if checkpoint.name not in target.names(""):
        staged = f"_{checkpoint.name}-{uuid.uuid4().hex[:6]}"
        manifest = {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in parts.items()}
        for part, data in parts.items():
            target.write(f"{staged}/{part}", data)
        target.write(f"{staged}/{MANIFEST}", json.dumps({"step": checkpoint.step, "parts": manifest}).encode())
        target.rename(staged, checkpoint.name)
    return f"{to_dir.rstrip('/')}/{checkpoint.name}"


def scratch() -> LocalFiles:
    """A directory of its own, for scripts run without Isonomy."""
    return LocalFiles(Path(tempfile.mkdtemp(prefix="isonomy-checkpoints-")))
