"""Token storage files as Hadoop 3.5.0's Credentials.writeTokenStorageFile wrote them (data/*.hdts)."""

from pathlib import Path

import pytest

from submarine_patch.worker.credentials import CredentialsError, read_credentials, read_secret

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize("name", ["writable.hdts", "protobuf.hdts"])
def test_reads_both_formats(name: str) -> None:
    found = read_credentials(DATA / name)
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


def test_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="has no secret 'other'"):
        read_secret("other", DATA / "writable.hdts")
    with pytest.raises(CredentialsError, match="cannot be read: No such file"):
        read_secret("x", tmp_path / "none")
    for content, why in [(b"PK..", "begin with HDTS"), (b"HDTS\x07", "version 7"), (b"HDTS", "cut short")]:
        (tmp_path / "f").write_bytes(content)
        with pytest.raises(CredentialsError, match=why):
            read_secret("x", tmp_path / "f")


@pytest.mark.parametrize("name", ["writable.hdts", "protobuf.hdts"])
def test_every_cut_is_noticed(name: str, tmp_path: Path) -> None:
    whole = (DATA / name).read_bytes()
    for length in range(4, len(whole)):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(CredentialsError):
            read_credentials(tmp_path / "cut")
