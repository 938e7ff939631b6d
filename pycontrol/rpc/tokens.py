"""Isonomy tokens, with which an Agent or worker proves which application it belongs to.

A token is `<claims>.<mac>`, both base64url: the claims are JSON [application id, user, expiry in Unix
seconds], the MAC is HMAC-SHA256 over them. The key never leaves the control plane.

The expiry is the time by which the application must have been submitted. If it was, the token is valid for the
application's whole life (`admission`), because a later attempt of its AM has only the submission's token.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

from pycontrol.secretfile import SecretFileError, read_or_make

KEY_BYTES = 32
TOKEN_MAX_CHARS = 4096
_PURPOSE = b"isonomy-token-1\0"
"""Domain separator, so that a MAC of this key is valid for no other purpose."""


class TokenError(Exception):
    """An invalid token."""


class MalformedToken(TokenError):
    """The text does not have the form of a token."""


class ForgedToken(TokenError):
    """The token was not made with this control plane's key."""


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """The claims of a valid token. `expires_s` (Unix seconds): by when the application must have been submitted."""

    app_id: str
    user: str
    expires_s: float


class Tokens:
    """Issues tokens and verifies them."""

    def __init__(self, key: bytes) -> None:
        if len(key) < KEY_BYTES:
            raise ValueError(f"the key of tokens must have at least {KEY_BYTES} bytes (got {len(key)})")
        self._key = key

    @classmethod
    def of_file(cls, path: Path) -> Tokens:
        """Tokens with the key in `path`, which is created if it does not exist; raises SecretFileError."""
        return cls(read_or_make_key(path))

    def issue(self, app_id: str, user: str, ttl_s: float, now_s: float) -> str:
        """A token for this user's application, valid if that is submitted within `ttl_s` seconds."""
        claims = json.dumps([app_id, user, now_s + ttl_s], separators=(",", ":")).encode()
        return f"{_encode(claims)}.{_encode(self._mac(claims))}"

    def verify(self, token: str) -> TokenClaims:
        """The token's claims, expired or not; raises MalformedToken or ForgedToken."""
        if len(token) > TOKEN_MAX_CHARS:
            raise MalformedToken("the token is too long")
        encoded, dot, mac = token.partition(".")
        if not dot:
            raise MalformedToken("the token has no MAC")
        claims = _decode(encoded)
        if not hmac.compare_digest(self._mac(claims), _decode(mac)):
            raise ForgedToken("the token was not made by this control plane; fetch a new one")
        return _claims(claims)

    def _mac(self, claims: bytes) -> bytes:
        return hmac.digest(self._key, _PURPOSE + claims, "sha256")


def _claims(data: bytes) -> TokenClaims:
    try:
        app_id, user, expires_s = json.loads(data)
        claims = TokenClaims(str(app_id), str(user), float(expires_s))
    except (ValueError, TypeError, OverflowError, RecursionError) as e:
        raise MalformedToken("the token's claims cannot be read") from e
    if not math.isfinite(claims.expires_s):
        raise MalformedToken("the token has no expiry")
    return claims


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    try:
        raw = text.encode("ascii")
        return base64.b64decode(raw + b"=" * (-len(raw) % 4), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error) as e:
        raise MalformedToken("the token is not base64url") from e


def read_or_make_key(path: Path) -> bytes:
    """The key in `path`; creates the file with random bytes and mode 0600 if needed. Raises SecretFileError."""
    key = read_or_make(path, lambda: os.urandom(KEY_BYTES))
    if len(key) < KEY_BYTES:
        raise SecretFileError(f"{path}: holds {len(key)} bytes, a key has {KEY_BYTES}; remove it to get a new one")
    return key
