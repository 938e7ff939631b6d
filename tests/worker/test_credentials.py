"""Token storage files as Hadoop 3.5.0's Credentials.writeTokenStorageFile wrote them (data/*.hdts)."""

import base64
from pathlib import Path

import pytest

from submarine_patch.worker.credentials import (
    CredentialsError,
    Token,
    hdfs_token,
    read_credentials,
    read_secret,
    url_string,
    validity_s,
)

DATA = Path(__file__).parent / "data"


def test_reads_what_a_node_manager_writes() -> None:
    found = read_credentials(DATA / "writable.hdts")
    token = found.tokens["hdfs"]
    assert (token.identifier, token.password) == (bytes(range(200)), b"pw")
    assert (token.kind, token.service) == ("HDFS_DELEGATION_TOKEN", "127.0.0.1:8020")
    assert found.secrets == {"isonomy.token": b"abc.def", "größer": b"x" * 300}
    assert "abc.def" not in repr(found)


def test_the_environment_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(DATA / "writable.hdts"))
    assert read_secret("isonomy.token") == b"abc.def"
    monkeypatch.delenv("HADOOP_TOKEN_FILE_LOCATION")
    with pytest.raises(CredentialsError, match="HADOOP_TOKEN_FILE_LOCATION is not set"):
        read_secret("isonomy.token")


def test_damaged_or_missing_credentials_are_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="has no secret 'other'"):
        read_secret("other", DATA / "writable.hdts")
    with pytest.raises(CredentialsError, match="cannot be read: No such file"):
        read_secret("x", tmp_path / "none")
    for content, why in [(b"PK..", "begin with HDTS"), (b"HDTS\x01", "version 1"), (b"HDTS", "cut short")]:
        (tmp_path / "f").write_bytes(content)
        with pytest.raises(CredentialsError, match=why):
            read_secret("x", tmp_path / "f")


def test_every_truncation_is_detected(tmp_path: Path) -> None:
    whole = (DATA / "writable.hdts").read_bytes()
    for length in range(4, len(whole)):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(CredentialsError):
            read_credentials(tmp_path / "cut")


def writable(n: int) -> bytes:
    """WritableUtils.writeVLong of a number of milliseconds."""
    return bytes([256 - 112 - 6]) + n.to_bytes(6, "big")


def test_the_token_is_encoded_as_webhdfs_expects(tmp_path: Path) -> None:
    token = hdfs_token(DATA / "writable.hdts")
    assert token is not None
    padded = base64.urlsafe_b64decode(url_string(token) + "=" * (-len(url_string(token)) % 4))
    parts = [bytes(range(200)), b"pw", b"HDFS_DELEGATION_TOKEN", b"127.0.0.1:8020"]
    # 200 does not fit into one byte of Hadoop's vint: -113 says that one byte of it follows
    assert padded == b"".join((b"\x8f\xc8" if len(p) == 200 else bytes([len(p)])) + p for p in parts)
    assert hdfs_token(tmp_path / "none") is None


def test_a_short_token_in_url_safe_letters() -> None:
    """Token.encodeToUrlString of identifier fb ff, password ff, kind and service of one letter."""
    assert url_string(Token(b"\xfb\xff", b"\xff", "k", "s")) == "Avv_Af8BawFz"


def test_when_a_token_ends() -> None:
    names = b"\x05alice\x04yarn\x00"
    identifier = b"\0" + names + writable(1_700_000_000_000) + writable(1_700_604_800_000) + b"\x05\x02"
    assert validity_s(Token(identifier, b"", "HDFS_DELEGATION_TOKEN", "")) == (1_700_000_000.0, 1_700_604_800.0)
    for damaged in (b"", b"\x07" + identifier[1:], identifier[:20]):
        assert validity_s(Token(damaged, b"", "HDFS_DELEGATION_TOKEN", "")) is None
