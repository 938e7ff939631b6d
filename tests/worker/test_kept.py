"""A program's own checkpoints survive its launches: the newest complete copy is restored."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from submarine_patch.worker import kept as kept_module
from submarine_patch.worker.checkpoints import Data, LocalFiles, StoreError
from submarine_patch.worker.kept import LISTS, KeptFolder, copy_kept
from tests.worker.gangs import Job


@pytest.fixture
def store(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "hdfs")


def folder(tmp_path: Path, name: str, **texts: str) -> Path:
    made = tmp_path / name
    for path, text in texts.items():
        (made / path).parent.mkdir(parents=True, exist_ok=True)
        (made / path).write_text(text)
    return made


def held(root: Path) -> dict[str, str]:
    return {p.relative_to(root).as_posix(): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}


def test_a_folder_is_restored_as_last_copied(tmp_path: Path, store: LocalFiles) -> None:
    one = folder(tmp_path, "one", a="1", b="2")
    kept = KeptFolder(store, one, 1)
    assert KeptFolder(store, tmp_path / "none").bring() == 0
    assert kept.keep()
    (one / "sub").mkdir()
    (one / "sub/c").write_text("3")
    (one / "a").unlink()
    assert kept.keep()
    (one / "b").write_text("never taken")
    assert KeptFolder(store, tmp_path / "two").bring() == 2
    assert held(tmp_path / "two") == {"b": "2", "sub/c": "3"}


def test_a_folder_counts_as_saved_only_if_it_was_written_to(tmp_path: Path, store: LocalFiles) -> None:
    first = KeptFolder(store, folder(tmp_path, "one", a="1"), 1)
    assert [first.keep(), first.keep()] == [True, False]
    second = KeptFolder(store, tmp_path / "two", 2)
    second.bring()
    assert not second.keep()
    os.utime(tmp_path / "two/a", (1, 1))  # saved again, with equal content
    assert [second.keep(), second.keep()] == [True, False]
    assert sum(n.endswith(".json") for n in store.names("kept")) == 1


def test_only_changed_files_are_written_and_unneeded_ones_are_deleted(tmp_path: Path, store: LocalFiles) -> None:
    one = folder(tmp_path, "one", big="x" * 1000)
    kept = KeptFolder(store, one, 1)
    for step in range(6):
        (one / "step").write_text(f"{step}")
        assert kept.keep()
    names = store.names("kept")
    assert sum(n.endswith(".json") for n in names) == LISTS
    assert sum(not n.endswith(".json") for n in names) == 1 + LISTS
    assert KeptFolder(store, one, 2).bring() == 2


def test_files_of_any_name_are_restored(tmp_path: Path, store: LocalFiles) -> None:
    names = ["x", ".x.part", "größe ä", "two\nlines", "\udcff", "ü" * 127]
    one = folder(tmp_path, "one", **{name: f"{n}" for n, name in enumerate(names)})
    os.utime(one / "x")  # the newest
    assert KeptFolder(store, one, 1).keep()
    assert KeptFolder(store, tmp_path / "two").bring() == len(names)
    assert held(tmp_path / "two") == held(one)


class Busy(LocalFiles):
    """A store during each of whose writes the program writes to one of its files."""

    def __init__(self, root: Path, program: Callable[[], object]) -> None:
        super().__init__(root)
        self.program, self.written = program, 0

    def write(self, path: str, data: Data) -> None:
        super().write(path, data)
        self.written += (self.root / path).stat().st_size
        self.program()


def appends(at: Path, text: str) -> Callable[[], object]:
    def append() -> None:
        with at.open("a") as file:
            file.write(text)

    return append


def test_a_log_that_grows_all_the_time_is_kept_as_far_as_it_was_and_the_rest_is_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "PAUSE_S", 0.0)
    one = folder(tmp_path, "one", model="x" * 100_000, log="line\n")
    store = Busy(tmp_path / "hdfs", appends(one / "log", "line\n"))
    kept = KeptFolder(store, one, 1)
    assert [kept.keep(), kept.keep()] == [True, True]
    assert store.written < 110_000
    KeptFolder(store, tmp_path / "two").bring()
    two = held(tmp_path / "two")
    assert two["model"] == "x" * 100_000
    assert (one / "log").read_text().startswith(two["log"] + "line\n")


def test_no_half_checkpoint_is_kept_and_the_rest_is_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "PAUSE_S", 0.0)
    one = folder(tmp_path, "one", epoch1="x" * 100_000, state="1", epoch2="y")
    for program in (appends(one / "epoch2", "y" * 100_000), lambda: (one / "state").write_text(f"{time.time_ns()}")):
        store = Busy(tmp_path / "hdfs", program)
        kept = KeptFolder(store, one, 1)
        with pytest.raises(StoreError, match=r"^(epoch2|state) is written to all the time"):
            kept.keep()
        assert KeptFolder(store, tmp_path / "two").bring() == 0
        store.program, store.written = lambda: None, 0
        (one / "epoch2").write_text("whole")
        assert kept.keep()
        assert 0 < store.written < 1_000
        assert KeptFolder(store, tmp_path / "two").bring() == 3
        shutil.rmtree(tmp_path / "hdfs")


def test_the_newest_restored_file_is_the_one_written_last(tmp_path: Path, store: LocalFiles) -> None:
    one = folder(tmp_path, "one", **{f"{n}/pt": f"{n}" for n in (8, 9, 10, 11, 12)})
    for n in (8, 9, 10, 11, 12):
        os.utime(one / f"{n}/pt", (2e9 + n, 2e9 + n))  # by a clock that is ahead
    assert KeptFolder(store, one, 1).keep()
    kept = KeptFolder(store, two := tmp_path / "two", 2)
    assert kept.bring() == 5
    assert not kept.keep()
    (two / "13").mkdir()
    (two / "13/pt").touch()
    for paths in (two.glob("*/pt"), two.glob("*")):
        newest = sorted(paths, key=os.path.getmtime)
        assert [p.relative_to(two).parts[0] for p in newest] == ["8", "9", "10", "11", "12", "13"]
    os.utime(two / "8/pt")
    assert kept.keep()
    KeptFolder(store, three := tmp_path / "three").bring()
    assert max(three.glob("*/pt"), key=os.path.getmtime) == three / "8/pt"


def test_links_within_the_folder_are_restored(
    tmp_path: Path, store: LocalFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    one = folder(tmp_path, "one", **{"11/pt": "11", "12/pt": "12"})
    (one / "latest.pt").symlink_to("12/pt")
    (one / "12/all").symlink_to(one)
    (one / "data").symlink_to(tmp_path)
    kept = KeptFolder(store, one, 1)
    assert [kept.keep(), kept.keep()] == [True, False]
    assert capsys.readouterr().err.count("data leads out of the folder: it is not kept") == 1
    kept = KeptFolder(store, two := tmp_path / "two", 2)
    assert kept.bring() == 2
    assert not kept.keep()
    assert (two / "latest.pt").readlink() == Path("12/pt")
    assert (two / "12/all").resolve() == two
    assert not (two / "data").is_symlink()
    for target in ("11/pt", "12/pt", "11"):
        (two / "latest.pt").unlink()
        (two / "latest.pt").symlink_to(target)
        assert kept.keep()
    KeptFolder(store, three := tmp_path / "three").bring()
    assert (three / "latest.pt").readlink() == Path("11")
    assert sum(name.endswith("-links.json") for name in store.names("kept")) == LISTS


@pytest.mark.parametrize("damage", ["gone", "cut", "no list"])
def test_a_damaged_copy_is_skipped(tmp_path: Path, store: LocalFiles, damage: str) -> None:
    one = folder(tmp_path, "one", a="first")
    kept = KeptFolder(store, one, 1)
    kept.keep()
    before = set(store.names("kept"))
    (one / "a").write_text("second")
    (one / "2").mkdir()
    (one / "2/part").write_text("first")  # the same digest as before, so that it is restored
    os.utime(one / "2/part", (1, 1))
    kept.keep()
    for name in set(store.names("kept")) - before:
        at = store.root / "kept" / name
        if name.endswith(".json") == (damage == "no list"):
            at.unlink() if damage == "gone" else at.write_text("{")
    two = KeptFolder(store, tmp_path / "two")
    assert two.bring() == two.bring() == 1
    assert held(tmp_path / "two") == {"a": "first"}
    assert not (tmp_path / "two/2").exists(), "also when it is tried again, as the store was away"


def test_an_old_launch_that_lingers_does_not_win(tmp_path: Path, store: LocalFiles) -> None:
    old, new = folder(tmp_path, "old", a="old"), folder(tmp_path, "new", a="new")
    lingering, present = KeptFolder(store, old, 1), KeptFolder(store, new, 2)
    lingering.keep()
    present.keep()
    (old / "a").write_text("older, but written later")
    lingering.keep()
    KeptFolder(store, tmp_path / "two").bring()
    assert held(tmp_path / "two") == {"a": "new"}


def test_a_launch_wins_though_its_clock_is_behind(tmp_path: Path, store: LocalFiles) -> None:
    before = KeptFolder(store, folder(tmp_path, "one", a="1"), 9)
    assert before.keep()
    (tmp_path / "one/a").write_text("2")
    assert before.keep()
    present = KeptFolder(store, tmp_path / "two", 5)
    present.bring()
    (tmp_path / "two/a").write_text("3")
    assert present.keep()
    KeptFolder(store, tmp_path / "three").bring()
    assert held(tmp_path / "three") == {"a": "3"}


def test_a_file_that_an_old_launch_deleted_is_kept_again(tmp_path: Path, store: LocalFiles) -> None:
    old = folder(tmp_path, "old", a="1", b="1")
    lingering, present = KeptFolder(store, old, 1), KeptFolder(store, tmp_path / "new", 2)
    lingering.keep()
    assert present.bring() == 2
    (old / "a").unlink()
    for text in "23":
        (old / "b").write_text(text)
        lingering.keep()
    (tmp_path / "new/b").write_text("4")
    assert present.keep()
    assert KeptFolder(store, tmp_path / "two").bring() == 2
    assert held(tmp_path / "two") == {"a": "1", "b": "4"}


def test_paths_cannot_leave_the_folder(tmp_path: Path, store: LocalFiles) -> None:
    store.write("kept/0000000000001-000001.json", b'{"../../evil": "00"}')
    assert KeptFolder(store, tmp_path / "two").bring() == 0


SCRIPT = """
import json, os, signal, sys, time
os.makedirs("ckpt", exist_ok=True)
state = json.load(open("ckpt/state.json")) if os.path.exists("ckpt/state.json") else {"step": 0, "sum": 0}
print("began at", state["step"], flush=True)
def save():
    json.dump(state, open("ckpt/part", "w")); os.replace("ckpt/part", "ckpt/state.json")
def leave(*_):
    save(); sys.exit(0)
signal.signal(signal.SIGTERM, leave)
while state["step"] < 40:
    state["step"] += 1; state["sum"] += state["step"]; time.sleep(0.05)
    print(f"step {state['step']} loss {1 / state['step']:.4f}", flush=True)
save()
print("sum", state["sum"], flush=True)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    script = tmp_path / "own.py"
    script.write_text(SCRIPT)
    where = tmp_path / "container"
    where.mkdir()
    command = f"rm -rf {where}/* && exec {shlex.quote(sys.executable)} {script}"
    made = Job(tmp_path / "job", command, until_step=0, ISONOMY_KEEP_FOLDER="ckpt")
    yield made
    made.end()


def test_a_script_unaware_of_isonomy_resumes(job: Job) -> None:
    first = job.launch()
    first.at_step(5)
    first.stop()
    assert first.codes() == [75]
    ended = next(m.exit for m in first.arbiter.messages if m.HasField("exit"))
    assert not ended.unsaved, ended.message
    for path in (job.folder / "ckpt").iterdir():
        path.unlink()  # the next container is another folder, on another machine
    second = job.launch()
    assert second.codes() == [0], second.text()
    assert "began at 0" not in second.text()
    assert "sum 820" in second.text()


def test_the_newest_whole_folder_is_published_once(tmp_path: Path, store: LocalFiles) -> None:
    target = LocalFiles(tmp_path / "model")
    with pytest.raises(FileNotFoundError, match="ckpt was never kept"):
        copy_kept(store, target, "out/ckpt")
    one = folder(tmp_path, "one", a="1")
    kept = KeptFolder(store, one, 1)
    assert kept.keep()
    assert copy_kept(store, target, "out/ckpt") == "ckpt-0000000000001-000001"
    (one / "sub").mkdir()
    (one / "sub/b").write_text("2")
    assert kept.keep()
    for _ in range(2):
        assert copy_kept(store, target, "out/ckpt") == "ckpt-0000000000001-000002"
    assert held(target.root / "ckpt-0000000000001-000002") == {"a": "1", "sub/b": "2"}
    newest = next(p for p in (store.root / "kept").iterdir() if p.name.endswith("2.json"))
    newest.write_text("{")
    assert copy_kept(store, target, "out/ckpt") == "ckpt-0000000000001-000001"
    assert not [n for n in target.names("") if n.startswith("_")]
