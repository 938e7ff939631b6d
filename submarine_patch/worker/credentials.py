"""Secrets from a container's token file, as YARN hands it over (Hadoop's Credentials, Writable format)."""

from __future__ import annotations

import os
from pathlib import Path

MAGIC = b"HDTS"
WRITABLE = 0


class CredentialsError(Exception):
    """The token file cannot be read, or the secret is not in it."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, n: int) -> bytes:
        if n < 0 or self.at + n > len(self.data):
            raise CredentialsError("the token file is cut short")
        self.at += n
        return self.data[self.at - n : self.at]

    def vint(self) -> int:
        """Hadoop's variable-length integer (WritableUtils.readVLong)."""
        first = int.from_bytes(self.take(1), "big", signed=True)
        if first >= -112:
            return first
        negative = first < -120
        size = -(first + 120) if negative else -(first + 112)
        value = int.from_bytes(self.take(size), "big")
        return ~value if negative else value

    def block(self) -> bytes:
        return self.take(self.vint())


def parse(data: bytes) -> dict[str, bytes]:
    """The secret keys by alias; delegation tokens are skipped."""
    reader = _Reader(data)
    if reader.take(4) != MAGIC:
        raise CredentialsError("not a Hadoop token file")
    version = reader.take(1)[0]
    if version != WRITABLE:
        raise CredentialsError(f"token file format {version} is not supported, only {WRITABLE} (Writable)")
    for _ in range(reader.vint()):
        for _part in ("alias", "identifier", "password", "kind", "service"):
            reader.block()
    return {reader.block().decode(): reader.block() for _ in range(reader.vint())}


def read_secret(alias: str, path: str | Path | None = None) -> bytes:
    """The secret of this alias from `path` (default: what HADOOP_TOKEN_FILE_LOCATION names)."""
    where = path or os.environ.get("HADOOP_TOKEN_FILE_LOCATION")
    if not where:
        raise CredentialsError("HADOOP_TOKEN_FILE_LOCATION is not set: not started by YARN")
    try:
        secrets = parse(Path(where).read_bytes())
    except OSError as e:
        raise CredentialsError(f"{where}: {e.strerror}") from e
    except CredentialsError as e:
        raise CredentialsError(f"{where}: {e}") from e
    if alias not in secrets:
        raise CredentialsError(f"{where}: no secret {alias!r} in it")
    return secrets[alias]
