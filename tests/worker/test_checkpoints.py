"""The newest complete checkpoint wins; WebHDFS calls are retried and then fail with one clear line."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from hdfs.util import HdfsError

from submarine_patch.worker import checkpoints
from submarine_patch.worker.checkpoints import (
    KEEP,
    MANIFEST,
    HdfsFiles,
    LocalFiles,
    StoreError,
    copy_model,
    files_at,
    hdfs_path,
    listed,
    newest,
    save,
)


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "job")


def test_an_empty_folder_has_no_checkpoint(files: LocalFiles) -> None:
    assert newest(files) is None


def test_highest_step_wins_and_three_are_kept(files: LocalFiles) -> None:
    for step in (10, 30, 20, 40, 9):
        save(files, step, {"state.npz": b"%d" % step})
    found = newest(files)
    assert found is not None
    assert (found[0].step, found[1]) == (40, {"state.npz": b"40"})
    assert [c.step for c in listed(files)] == [40, 30, 9]
    assert len(files.names("")) == KEEP


def test_what_is_saved_after_damaged_checkpoints_of_higher_steps_is_kept(files: LocalFiles) -> None:
    for step in (800, 900, 1000):
        (files.root / save(files, step, {"state.npz": b"lost"}).name / "state.npz").unlink()
    time.sleep(0.002)  # names tell milliseconds apart
    for step in (50, 100, 150):
        saved = save(files, step, {"state.npz": b"%d" % step})
        assert newest(files) == (saved, {"state.npz": b"%d" % step})
        assert len(files.names("")) == KEEP
    (files.root / saved.name / "state.npz").unlink()
    found = newest(files)
    assert found is not None
    assert found[0].step == 100


def test_of_two_checkpoints_of_a_step_the_later_wins(files: LocalFiles) -> None:
    save(files, 5, {"state.npz": b"first"})
    time.sleep(0.002)  # names tell milliseconds apart
    save(files, 5, {"state.npz": b"second"})
    found = newest(files)
    assert found is not None
    assert found[1]["state.npz"] == b"second"


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "no manifest", "bad manifest"])
def test_incomplete_checkpoints_are_skipped(files: LocalFiles, damage: str) -> None:
    save(files, 10, {"state.npz": b"good"})
    name = save(files, 20, {"state.npz": b"bad"}).name
    state, manifest = files.root / name / "state.npz", files.root / name / MANIFEST
    if damage == "cut":
        state.write_bytes(b"ba")
    elif damage == "changed":
        state.write_bytes(b"bed")
    elif damage == "gone":
        state.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_bytes(b'{"parts": [')
    found = newest(files)
    assert found is not None
    assert found[1] == {"state.npz": b"good"}


def test_an_interrupted_write_leaves_no_checkpoint(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    save(files, 10, {"state.npz": b"good"})

    def broken(old: str, new: str) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as m:
        m.setattr(files, "rename", broken)
        with pytest.raises(OSError, match="disk full"):
            save(files, 20, {"state.npz": b"half"})
    assert [c.step for c in listed(files)] == [10]
    assert len(files.names("")) == 2  # the temporary one may still have a writer
    ahead_s = time.time() + checkpoints.ABANDONED_S + 1
    with monkeypatch.context() as m:
        m.setattr(time, "time", lambda: ahead_s)
        save(files, 30, {"state.npz": b"good"})
    assert len(files.names("")) == 3, "by the store's clock it is new: another writer's is only slow"
    left = next(n for n in files.names("") if n.startswith("_"))
    long_ago_s = time.time() - checkpoints.ABANDONED_S - 1
    os.utime(files.root / left, (long_ago_s, long_ago_s))
    save(files, 40, {"state.npz": b"good"})
    assert [n[:5] for n in files.names("")] == ["ckpt-", "ckpt-", "ckpt-"]


def test_another_writer_may_delete_what_is_looked_at(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, begun = Path.stat, files.root / "_ckpt-1-0123456789abcdef"
    begun.mkdir(parents=True)

    def last(path: Path, **how: bool) -> os.stat_result:
        found = stat(path, **how)
        if path == begun:
            begun.rmdir()
        return found

    monkeypatch.setattr(Path, "stat", last)
    assert files.modified_s(begun.name) is not None
    assert files.modified_s(begun.name) is None


@pytest.mark.parametrize("path", ["run#1", "run?lr=1", "a;b", "a%20b", "a b", "x:y"])
@pytest.mark.parametrize(
    "scheme", ["hdfs://nn:8020/user/ann/", "hdfs:///user/ann/", "/user/ann/", "viewfs://c/user/ann/"]
)
def test_paths_that_differ_in_one_character_are_different(scheme: str, path: str) -> None:
    assert hdfs_path(f"{scheme}{path}/application_1_0001/j0") == f"/user/ann/{path}/application_1_0001/j0"


@pytest.mark.parametrize("path", ["run#1", "run?lr=1"])
def test_jobs_under_an_odd_path_do_not_share_checkpoints(tmp_path: Path, path: str) -> None:
    first, second = (files_at(f"file:{tmp_path}/{path}/application_1_0001/{job}") for job in ("j0", "j1"))
    save(first, 500, {"state.npz": b"j0"})
    assert newest(second) is None
    assert newest(first) is not None


def test_copy_model_may_be_repeated(tmp_path: Path) -> None:
    source, target = LocalFiles(tmp_path / "from"), LocalFiles(tmp_path / "to")
    save(source, 10, {"state.npz": b"old"})
    save(source, 20, {"state.npz": b"new", "model.keras": b"model"})
    path = target.root / copy_model(source, target)
    assert copy_model(source, target) == path.name
    assert (path / "model.keras").read_bytes() == b"model"
    assert json.loads((path / MANIFEST).read_text())["step"] == 20
    (target.root / f"_{path.name}-0a1b2c").mkdir()  # as of an Agent that was killed while it copied
    assert copy_model(source, target) == path.name
    assert os.listdir(target.root) == [path.name]
    with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
        copy_model(LocalFiles(tmp_path / "empty"), target)


def test_a_model_is_copied_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHUNK_BYTES", 4)
    source, target = LocalFiles(tmp_path / "from"), LocalFiles(tmp_path / "to")
    save(source, 20, {"state.npz": b"more than one chunk"})
    monkeypatch.setattr(LocalFiles, "read", lambda self, path: _only_manifests(self, path))
    path = target.root / copy_model(source, target)
    assert (path / "state.npz").read_bytes() == b"more than one chunk"


def _only_manifests(files: LocalFiles, path: str) -> bytes:
    assert path.endswith(MANIFEST), f"{path} was read whole"
    return (files.root / path).read_bytes()


@pytest.mark.parametrize("damage", ["changed", "gone", "bad manifest"])
def test_a_damaged_model_is_not_published(tmp_path: Path, damage: str) -> None:
    source, target = LocalFiles(tmp_path / "from"), LocalFiles(tmp_path / "to")
    save(source, 10, {"state.npz": b"good"})
    name = save(source, 20, {"state.npz": b"bad"}).name
    if damage == "changed":
        source.write(f"{name}/state.npz", b"bed")
    elif damage == "gone":
        (source.root / name / "state.npz").unlink()
    else:
        source.write(f"{name}/{MANIFEST}", b"[]")
    path = target.root / copy_model(source, target)
    assert (path / "state.npz").read_bytes() == b"good"
    assert target.names("") == [path.name]  # nothing of the damaged one is left


def test_each_try_sends_the_whole_file_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's timeout applies to one chunk; a model of gigabytes sent as one would always exceed it."""
    monkeypatch.setattr(checkpoints.time, "sleep", lambda _: None)
    monkeypatch.setattr(checkpoints, "CHUNK_BYTES", 4)
    files, tries = HdfsFiles("http://127.0.0.1:1", "me", "/jobs/a"), list[list[bytes]]()

    class Client:
        def write(self, path: str, data: Iterator[bytes], overwrite: bool) -> None:
            tries.append([next(data)] if len(tries) == 1 else list(data))
            if len(tries) < 3:
                raise requests.ConnectionError("reset by peer")

    files.client = Client()
    files.write("x", memoryview(b"0123456789"))
    assert tries == [[b"0123", b"4567", b"89"], [b"0123"], [b"0123", b"4567", b"89"]]


def test_an_unreachable_webhdfs_is_not_an_empty_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints.time, "sleep", lambda _: None)
    files = HdfsFiles("http://127.0.0.1:1", "me", "hdfs://nn:8020/jobs/a")
    with pytest.raises(StoreError, match=r"hdfs://nn:8020/jobs/a at http://127\.0\.0\.1:1 cannot be reached"):
        newest(files)
    with pytest.raises(StoreError, match="set ISONOMY_WEBHDFS"):
        files_at("hdfs://nn:8020/jobs/a")


def test_a_rename_whose_answer_was_lost_counts_as_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints.time, "sleep", lambda _: None)
    files = HdfsFiles("http://127.0.0.1:1", "me", "/jobs/a")
    there = {"/jobs/a/_x"}

    class Client:
        def list(self, path: str) -> list[str]:
            if path not in there:
                raise HdfsError(f"File {path} does not exist.", exception="FileNotFoundException")
            return ["state.npz"]

        def rename(self, old: str, new: str) -> None:
            if old not in there:
                raise HdfsError(f"{old} is not there")
            there.remove(old)
            there.add(new)
            raise requests.ConnectionError("reset by peer")

    files.client = Client()
    files.rename("_x", "x")
    assert there == {"/jobs/a/x"}
    with pytest.raises(StoreError, match="_y cannot be renamed"):
        files.rename("_y", "y")


class Hours:
    """A clock that advances only in sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(
    ("answer", "until_s"), [("SafeModeException", 1800), ("AccessControlException", 120), ("", 1800)]
)
def test_an_unreachable_store_is_retried_longer_than_one_that_refuses(
    answer: str, until_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Hours()
    monkeypatch.setattr(checkpoints, "time", clock)
    files, said = HdfsFiles("http://127.0.0.1:1", "me", "/jobs/a"), list[str]()

    class Client:
        def list(self, path: str) -> list[str]:
            raise HdfsError("no", exception=answer) if answer else requests.ConnectionError("reset by peer")

    files.client = Client()
    with pytest.raises(StoreError, match="/jobs/a"):
        checkpoints.patiently(lambda: files.names(""), 1800, said.append)
    assert until_s - 10 < clock.now_s <= until_s + 10
    assert said[0].endswith("; trying on")


def test_files_that_a_starting_namenode_does_not_list_yet_are_not_lost() -> None:
    files = HdfsFiles("http://127.0.0.1:1", "me", "/jobs/a")

    class Client:
        def read(self, path: str, **_: int) -> None:
            raise HdfsError("Name node is in safe mode", exception="SafeModeException")

    files.client = Client()
    with pytest.raises(StoreError, match="cannot be read"):
        files.read("ckpt/MANIFEST.json")
