"""WebHDFS of a secure cluster: the app's delegation token, and TLS with a configured certificate."""

from __future__ import annotations

import shutil
import subprocess
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from requests.exceptions import RequestException

from submarine_patch.worker import checkpoints
from submarine_patch.worker.checkpoints import StoreError, copy_model, files_at, files_of_env, newest, save
from submarine_patch.worker.credentials import read_credentials, url_string
from submarine_patch.worker.webhdfs import CA_VARIABLE
from tests.worker.fake_webhdfs import FakeHdfs

TOKENS = Path(__file__).parent / "data" / "writable.hdts"
TOKEN = url_string(read_credentials(TOKENS).tokens["hdfs"])


@pytest.fixture
def hdfs(tmp_path: Path) -> Iterator[FakeHdfs]:
    """A fake HDFS that requires the token of TOKENS."""
    (tmp_path / "hdfs").mkdir()
    store = FakeHdfs(tmp_path / "hdfs", TOKEN)
    yield store
    store.go()


def test_checkpoints_and_models_use_the_delegation_token(hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(TOKENS))
    files = files_at("/jobs/a", hdfs.url, "alice")
    save(files, 7, {"state.npz": b"seven"})
    found = newest(files)
    assert found is not None
    assert found[1] == {"state.npz": b"seven"}
    assert copy_model(files, files_at("/models/a", hdfs.url, "alice")) == found[0].name


def test_a_missing_token_is_named(hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_TOKEN_FILE_LOCATION", raising=False)
    with pytest.raises(StoreError, match="cannot be listed: Authentication failure"):
        newest(files_at("/jobs/a", hdfs.url, "alice"))


def test_no_message_contains_the_token(hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library requests puts the whole URL into its message if nothing answers."""
    monkeypatch.setattr(checkpoints.time, "sleep", lambda _: None)
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(TOKENS))
    files = files_at("/jobs/a", hdfs.url, "alice")
    hdfs.go()
    calls = [lambda: files.names(""), lambda: files.write("x", b""), lambda: files.rename("x", "y")]
    for call in (*calls, lambda: list(files.chunks("x"))):
        with pytest.raises((StoreError, RequestException), match=r"=\.\.\.") as raised:
            call()
        assert TOKEN[:20] not in "".join(traceback.format_exception(raised.value))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of 127.0.0.1 with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{file}.key", "-out", f"{file}.crt"]
    subprocess.run(made, check=True, capture_output=True)
    file.write_text(Path(f"{file}.key").read_text() + Path(f"{file}.crt").read_text())
    return Path(f"{file}")


def test_https_with_our_own_certificate(certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints.time, "sleep", lambda _: None)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/etc/ssl/certs/ca-certificates.crt")  # ours takes precedence
    store = FakeHdfs(tmp_path, certificate=certificate)
    try:
        ca = Path(f"{certificate}.crt").read_text()
        env = {"ISONOMY_WEBHDFS": store.url, "HADOOP_USER_NAME": "alice", CA_VARIABLE: ca}
        save(files_of_env("/jobs/a", env), 7, {"state.npz": b"seven"})
        with pytest.raises(StoreError, match="certificate verify failed"):
            newest(files_of_env("/jobs/a", {**env, CA_VARIABLE: ""}))
    finally:
        store.go()
