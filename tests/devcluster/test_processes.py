"""Recognising the cluster's processes: real ones, without a Hadoop."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev-cluster"))

from devcluster import processes
from devcluster.folder import Layout

Spawn = Callable[..., int]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(tmp_path / "dc")
    (found.root / "run").mkdir(parents=True)
    return found


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts a process that waits, with these variables, in this folder; its pid.

    What speaks is what waits: /proc shows no environment while a process execs.
    """
    started: list[subprocess.Popen[str]] = []

    def one(cwd: Path | None = None, script: str = "echo; read _", **variables: str) -> int:
        process = subprocess.Popen(
            ["sh", "-c", script],
            cwd=cwd,
            env={"PATH": os.environ["PATH"], **variables},
            text=True,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        words = process.stdout.readline().split()
        return int(words[0]) if words else process.pid

    yield one
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def reap(pid: int) -> None:
    """Waits for a process, since only its parent can reap it."""
    deadline = time.monotonic() + 30
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_daemons_are_those_with_the_clusters_mark(layout: Layout, spawn: Spawn, tmp_path: Path) -> None:
    ours = spawn(**{processes.MARK: str(layout.root)})
    spawn(**{processes.MARK: str(tmp_path / "another")})
    spawn()
    assert processes.find_daemons(layout) == {ours}


def test_this_process_is_never_one_of_them(layout: Layout, spawn: Spawn) -> None:
    ours = spawn(
        script=f"'{sys.executable}' -c \"import sys; sys.path.insert(0, 'dev-cluster'); "
        "from pathlib import Path; from devcluster import processes; from devcluster.folder import Layout; "
        f"print(len(processes.find_daemons(Layout(Path('{layout.root}')))), flush=True)\"",
        cwd=Path(__file__).parents[2],
        **{processes.MARK: str(layout.root)},
    )
    assert ours == 0, "it and the shell above it have the mark"


def test_containers_are_known_by_environment_by_folder_and_by_session(layout: Layout, spawn: Spawn) -> None:
    local = layout.data / "nodemanager-0" / "local"
    there = local / "usercache/ann"
    there.mkdir(parents=True)
    by_environment = spawn(LOCAL_DIRS=str(local))
    by_folder = spawn(cwd=there)
    by_session = spawn(cwd=there, script="(cd / && exec env -i sleep 60) & echo $!; exec sleep 61")
    spawn(LOCAL_DIRS="/elsewhere")
    spawn(cwd=layout.root)
    found = processes.find_containers(layout)
    assert {by_environment, by_folder, by_session} <= found
    assert len(found) == 4, "the last one's shell, too"


def test_a_pid_file_matches_only_the_process_that_wrote_it(layout: Layout, spawn: Spawn) -> None:
    pid = spawn()
    assert processes.pid_of(layout, "nm-0") is None
    layout.pid_file("nm-0").write_text(f"{pid} {processes.start_ticks(pid)}\n")
    assert processes.pid_of(layout, "nm-0") == pid
    layout.pid_file("nm-0").write_text(f"{pid} 12345\n")
    assert processes.pid_of(layout, "nm-0") is None, "another had this number before"
    layout.pid_file("nm-0").write_text("nonsense")
    assert processes.pid_of(layout, "nm-0") is None


def test_a_killed_role_is_gone_and_its_pid_file_with_it(layout: Layout, spawn: Spawn) -> None:
    pid, other = spawn(), spawn()
    layout.pid_file("nm-0").write_text(f"{pid} {processes.start_ticks(pid)}\n")
    assert processes.kill(layout, "nm-0") == pid
    assert not layout.pid_file("nm-0").exists()
    assert processes.kill(layout, "nm-0") is None
    reap(pid)
    os.kill(other, 0)


def test_stopping_all_ends_daemons_and_containers_and_nothing_else(layout: Layout, spawn: Spawn) -> None:
    stubborn = "trap '' TERM; echo; while :; do sleep 1; done"
    daemon = spawn(script=stubborn, **{processes.MARK: str(layout.root)})
    container = spawn(LOCAL_DIRS=f"{layout.data}/nodemanager-0/local")
    other = spawn()
    assert processes.stop_all(layout) >= 2
    for pid in (daemon, container):
        reap(pid)
    os.kill(other, 0)
    assert processes.find_daemons(layout) | processes.find_containers(layout) == set()
