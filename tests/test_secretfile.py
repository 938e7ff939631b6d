"""Secrets in files: complete, created once, and readable only by their owner."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from pycontrol import secretfile
from pycontrol.secretfile import SecretFileError, read_or_make


def test_a_secret_is_created_once_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "state" / "secret"
    assert read_or_make(path, lambda: b"first") == b"first"
    assert read_or_make(path, lambda: b"second") == b"first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_crash_while_it_is_written_leaves_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(secretfile.os, "fsync", crash)
    with pytest.raises(SecretFileError, match="secret: cannot be made: Input/output error"):
        read_or_make(tmp_path / "secret", lambda: b"first")
    assert list(tmp_path.iterdir()) == []


def test_concurrent_creators_read_the_same_secret(tmp_path: Path) -> None:
    barrier, read = threading.Barrier(8), []

    def make() -> bytes:
        barrier.wait(timeout=30)  # each has seen that there is no secret
        return os.urandom(32)

    def one() -> None:
        read.append(read_or_make(tmp_path / "secret", make))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read) == 8
    assert len(set(read)) == 1


def test_a_secret_that_others_may_read_or_that_is_a_link_is_refused(tmp_path: Path) -> None:
    path, link = tmp_path / "secret", tmp_path / "link"
    path.write_bytes(b"x")
    path.chmod(0o644)
    with pytest.raises(SecretFileError, match=rf"mode 0644 lets others read the secret; run chmod 600 {path}"):
        read_or_make(path, lambda: b"")
    path.chmod(0o600)
    link.symlink_to(path)
    with pytest.raises(SecretFileError, match="cannot be read"):
        read_or_make(link, lambda: b"")
    assert read_or_make(link, lambda: b"", follow_links=True) == b"x"


def test_an_unreadable_secret_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretFileError, match=f"{tmp_path}: cannot be read: Is a directory"):
        read_or_make(tmp_path, lambda: b"")
