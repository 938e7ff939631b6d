"""TensorBoard next to the Agent: event files that TensorFlow reads, its reported state, and a server on loopback."""

from __future__ import annotations

import queue
import re
import stat
import sys
import time
import types
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent import board
from submarine_patch.agent.__main__ import Agent
from submarine_patch.agent.board import Board
from submarine_patch.agent.jobs import Job
from submarine_patch.agent.messages import HasBoard
from tests.agent.world import A, World, spec_of, started


def job(step: int, **values: float) -> Job:
    return Job("job000", {}, step=step, first_step_s=1.0, **values)  # type: ignore[arg-type]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    pytest.importorskip("tensorboard")
    made = Board(tmp_path, "f1")
    for step in (1, 300, 300, 70_000):
        made.take([job(step, loss=1.0 / step, metric=0.5), Job("job001", {})], 1000.0 + step)
    (file,) = (tmp_path / "job000").iterdir()
    return file


def test_tensorboard_reads_the_files(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("notf"))
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reading.EventAccumulator(str(written.parent)).Reload()
    assert set(found.Tags()["scalars"]) == {"loss", "f1"}
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [
        (step, pytest.approx(1.0 / step)) for step in (1, 300, 70_000)
    ]
    assert [e.wall_time for e in found.Scalars("f1")] == [1001.0, 1300.0, 71_000.0]


@pytest.mark.parametrize("problem", ["no TensorBoard", "a full disk"])
def test_what_cannot_be_written_costs_the_curves_alone(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if problem == "no TensorBoard":
        monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    else:
        (tmp_path / "job000").write_text("no folder")
    jobs = {"job000": job(1, loss=1.0)}
    agent = types.SimpleNamespace(board=Board(tmp_path, "f1"), core=types.SimpleNamespace(jobs=jobs))
    Agent._show(agent)  # type: ignore[arg-type]
    assert agent.board is None


def test_what_is_said_of_it(tmp_path: Path) -> None:
    links = (
        ("UI", "http://", "worker-0", 8080),
        ("more", "https://", "other.example.com", 443),
        ("none", "http://", "worker-7", 1),
    )
    world = started(World(spec_of(tensorboard=True, quicklinks=links)), *A[:2])
    world.train(world.gang("job000")[0], 3)
    world.pass_time(2)
    said = {link.label: link.url for link in world.messages("progress")[-1].links}
    assert said == {"UI": "http://a1:8080", "more": "https://other.example.com:443"}
    told = world.tell(HasBoard(port=6006, below="/secret"))
    world.pass_time(2)
    said = {link.label: link.url for link in world.messages("progress")[-1].links}
    assert said["TensorBoard"] == f"/proxy/{world.core.spec.app_id}/tensorboard/"
    assert [c.board for c in told if isinstance(c, am.AmCommand)] == [am.AmBoard(port=6006, below="/secret")]


def test_why_it_does_not_run_is_told() -> None:
    world = started(World(spec_of(tensorboard=True)), *A[:2])
    world.train(world.gang("job000")[0], 3)
    world.tell(HasBoard(problem="No module named tensorboard"))
    world.pass_time(2)
    assert "No module named tensorboard" in world.messages("progress")[-1].jobs[0].note


def test_a_python_without_it_says_so(tmp_path: Path) -> None:
    told: queue.Queue[HasBoard] = queue.Queue()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named tensorboard' >&2\nexit 1\n")
    python.chmod(0o755)
    board.serve(str(python), tmp_path / "logs", told.put)
    assert told.get(timeout=20) == HasBoard(problem="No module named tensorboard")


def test_it_serves_the_curves_below_a_path_that_its_user_alone_can_know(
    written: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    notes = tmp_path_factory.mktemp("notes")
    monkeypatch.setenv("TMPDIR", str(notes))
    told: queue.Queue[HasBoard] = queue.Queue()
    board.serve(sys.executable, written.parent.parent, told.put)
    found = told.get(timeout=120)
    assert found.port, found.problem
    root, tags = f"http://127.0.0.1:{found.port}", f"{board.PREFIX}/data/plugin/scalars/tags"
    end_s, text = time.monotonic() + 60, ""
    while "f1" not in text and time.monotonic() < end_s:
        time.sleep(0.5)
        with urllib.request.urlopen(f"{root}{found.below}{tags}", timeout=20) as answer:
            text = answer.read().decode()
    assert re.search(r'"job000".*"f1"', text), text
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(root + tags, timeout=20)
    assert [stat.S_IMODE(x.stat().st_mode) for x in notes.rglob("*.info")] == [0o600]
    (command,) = (x for x in Path("/proc").glob("[0-9]*/cmdline") if str(written.parent.parent) in x.read_text())
    assert found.below not in command.read_text()
