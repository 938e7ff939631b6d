"""Tokens prove only an application; the key stays private."""

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycontrol.rpc.tokens import (
    ForgedToken,
    MalformedToken,
    TokenClaims,
    TokenError,
    Tokens,
)
from pycontrol.secretfile import SecretFileError

APP = "application_1_0001"


@given(st.text(max_size=60), st.text(max_size=60), st.floats(1, 1e9), st.floats(0, 2e9))
def test_an_issued_token_verifies(app_id: str, user: str, ttl_s: float, now_s: float) -> None:
    tokens = Tokens(b"k" * 32)
    claims = tokens.verify(tokens.issue(app_id, user, ttl_s, now_s))
    assert claims == TokenClaims(app_id, user, now_s + ttl_s)


@given(st.integers(min_value=0), st.integers(1, 255))
def test_any_changed_byte_is_refused(position: int, change: int) -> None:
    tokens = Tokens(b"k" * 32)
    raw = bytearray(tokens.issue(APP, "ann", 10, now_s=0).encode())
    raw[position % len(raw)] ^= change
    token = raw.decode("latin-1")
    try:
        claims = tokens.verify(token)
    except TokenError:
        return
    assert claims == TokenClaims(APP, "ann", 10)  # only spare bits of the last base64 character differ


def test_another_key_and_nonsense_are_refused() -> None:
    token = Tokens(b"k" * 32).issue(APP, "ann", 10, now_s=0)
    with pytest.raises(ForgedToken):
        Tokens(b"x" * 32).verify(token)
    for nonsense in ("", "x", "a.b.c", "é.é", "." * 5000):
        with pytest.raises(MalformedToken):
            Tokens(b"k" * 32).verify(nonsense)


def test_the_key_file_is_created_private_and_reused(tmp_path) -> None:
    path = tmp_path / "state" / "tokens.key"
    token = Tokens.of_file(path).issue(APP, "ann", 10, now_s=0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Tokens.of_file(path).verify(token).user == "ann"
    assert [p.name for p in path.parent.iterdir()] == ["tokens.key"]


def test_key_file_that_others_read_or_that_is_short_is_refused(tmp_path) -> None:
    path = tmp_path / "tokens.key"
    path.write_bytes(b"k" * 32)
    path.chmod(0o640)
    with pytest.raises(SecretFileError, match="chmod 600"):
        Tokens.of_file(path)
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(SecretFileError, match="holds 5 bytes"):
        Tokens.of_file(path)
