"""Reads Hadoop's token storage file, in which YARN passes Credentials to a container.

Its format (org.apache.hadoop.security.Credentials): the magic `HDTS`, a version byte, then Writables. NodeManagers
write version 0; there is another one, of protobuf messages, which only `dtutil` can write.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from pathlib import Path

FILE_VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"
HDFS_KIND = "HDFS_DELEGATION_TOKEN"
_MAGIC = b"HDTS"


class CredentialsError(Exception):
    """The file cannot be read or lacks the secret; the message names the file."""


@dataclass(frozen=True)
class Token:
    """A delegation token as stored in the file."""

    identifier: bytes = field(repr=False)
    password: bytes = field(repr=False)
    kind: str
    service: str


@dataclass(frozen=True)
class Credentials:
    """Tokens and secret keys by alias."""

    tokens: dict[str, Token]
    secrets: dict[str, bytes] = field(repr=False)


def read_secret(alias: str, path: str | os.PathLike[str] | None = None) -> bytes:
    """The secret with this alias in the file, by default YARN's for this container; raises CredentialsError."""
    where = path if path is not None else os.environ.get(FILE_VARIABLE, "")
    if not where:
        raise CredentialsError(f"{FILE_VARIABLE} is not set: this must run in a YARN container")
    secrets = read_credentials(where).secrets
    if alias not in secrets:
        raise CredentialsError(f"{where}: has no secret {alias!r}; was the app submitted by Isonomy's client?")
    return secrets[alias]


def hdfs_token(path: str | os.PathLike[str] | None = None) -> Token | None:
    """This container's HDFS delegation token; None without security or outside YARN."""
    where = path if path is not None else os.environ.get(FILE_VARIABLE, "")
    if not where or not Path(where).exists():
        return None
    return next((t for t in read_credentials(where).tokens.values() if t.kind == HDFS_KIND), None)


def url_string(token: Token) -> str:
    """The token in WebHDFS's form (Token.encodeToUrlString): the Writable in URL-safe base64 without padding."""
    parts = (token.identifier, token.password, token.kind.encode(), token.service.encode())
    return base64.urlsafe_b64encode(b"".join(_vint(len(p)) + p for p in parts)).rstrip(b"=").decode()


def validity_s(token: Token) -> tuple[float, float] | None:
    """(issue time, end of renewals) in Unix seconds; None if the identifier is not a delegation token's.

    AbstractDelegationTokenIdentifier.write: version 0; owner, renewer and real user as Text; issue and end in ms.
    """
    r = _TokenReader(token.identifier)
    try:
        if r.take(1) != b"\0":
            return None
        for _ in range(3):
            r.text()
        return r.vint() / 1000.0, r.vint() / 1000.0
    except (EOFError, UnicodeDecodeError):
        return None


def read_credentials(path: str | os.PathLike[str]) -> Credentials:
    """All tokens and secrets in the file; raises CredentialsError."""
    try:
        data = Path(path).read_bytes()
    except OSError as e:
        raise CredentialsError(f"{path}: cannot be read: {e.strerror}") from e
    if data[:4] != _MAGIC:
        raise CredentialsError(f"{path}: is not a Hadoop token storage file (it does not begin with HDTS)")
    try:
        if data[4] == 0:
            r, tokens = _TokenReader(data, 5), dict[str, Token]()
            for _ in range(r.vint()):
                alias = r.text()
                tokens[alias] = Token(r.blob(), r.blob(), r.text(), r.text())
            return Credentials(tokens, {r.text(): r.blob() for _ in range(r.vint())})
    except (EOFError, IndexError, UnicodeDecodeError) as e:
        raise CredentialsError(f"{path}: is cut short or damaged") from e
    raise CredentialsError(f"{path}: has version {data[4]} of the format; NodeManagers write 0")


class _TokenReader:
    """A position in bytes of Writables."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data, self._at = data, at

    def take(self, n: int) -> bytes:
        if not 0 <= n <= len(self._data) - self._at:
            raise EOFError
        self._at += n
        return self._data[self._at - n : self._at]

    def vint(self) -> int:
        """WritableUtils.readVInt: one byte if -112..127, else a byte of length and sign, then big-endian."""
        first = int.from_bytes(self.take(1), "big", signed=True)
        if first >= -112:
            return first
        negative = first < -120
        value = int.from_bytes(self.take(-120 - first if negative else -112 - first), "big")
        return ~value if negative else value

    def blob(self) -> bytes:
        return self.take(self.vint())

    def text(self) -> str:
        return self.blob().decode()


def _vint(length: int) -> bytes:
    """WritableUtils.writeVInt of a length."""
    if length <= 127:
        return bytes([length])
    size = (length.bit_length() + 7) // 8
    return bytes([256 - 112 - size]) + length.to_bytes(size, "big")
