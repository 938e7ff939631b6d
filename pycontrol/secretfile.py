"""Files with a secret: created atomically, readable only by their owner, and refused if others may read them."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

MOST_BYTES = 4096


class SecretFileError(Exception):
    """The file cannot be used; the message names it and says what to do."""


def read_or_make(path: Path, make: Callable[[], bytes], follow_links: bool = False) -> bytes:
    """The file's content, at most `MOST_BYTES`; creates it with mode 0600 if needed. Raises SecretFileError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _make(path, make())
    except OSError as e:
        raise SecretFileError(f"{path}: cannot be made: {e.strerror}") from e
    return read(path, follow_links)


def token(path: Path) -> str:
    """A file's 64 hexadecimal characters, made on first use. Raises SecretFileError."""
    return token_in(path, read_or_make(path, lambda: f"{secrets.token_hex(32)}\n".encode(), follow_links=True))


def token_in(path: Path, held: bytes) -> str:
    """The 64 hexadecimal characters that a file holds. Raises SecretFileError."""
    text = held.decode("ascii", errors="replace").strip()
    if len(text) != 64 or any(c not in "0123456789abcdef" for c in text):
        raise SecretFileError(f"{path} does not hold 64 hexadecimal characters; remove it to have a new one made")
    return text


def _make(path: Path, secret: bytes) -> None:
    """Create the file atomically: a crash leaves no partial file, and of two processes only one creates it."""
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)


def read(path: Path, follow_links: bool = True) -> bytes:
    """The file's content, at most `MOST_BYTES`. Raises SecretFileError."""
    flags = os.O_RDONLY if follow_links else os.O_RDONLY | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(MOST_BYTES)
    except OSError as e:
        raise SecretFileError(f"{path}: cannot be read: {e.strerror}") from e
    if mode & 0o077:
        raise SecretFileError(f"{path}: mode {mode:04o} lets others read the secret; run chmod 600 {path}")
    return secret
