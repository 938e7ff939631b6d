"""TensorBoard next to the Agent: event files that TensorFlow reads, its reported state, and a server on loopback."""

from __future__ import annotations

import queue
import re
import sys
import time
import types
import urllib.request
from pathlib import Path

import pytest

from submarine_patch.agent import board
from submarine_patch.agent.board import Board, event, masked_crc, record
from submarine_patch.agent.jobs import Job
from submarine_patch.agent.messages import HasBoard, ToShell
from tests.agent.world import A, World, spec_of, started


def test_the_crc_is_castagnolis() -> None:
    """RFC 3720, B.4: 32 bytes of zeros, and of ones; masked as in TensorFlow's crc32c.h."""
    for data, crc in ((bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)):
        assert masked_crc(data) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def job(step: int, **values: float) -> Job:
    return Job("job000", {}, step=step, first_step_s=1.0, **values)  # type: ignore[arg-type]


@pytest.fixture
def written(tmp_path: Path) -> Path:
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


def test_records_are_whole(written: Path) -> None:
    first = b"\x09" + b"\x00\x00\x00\x00\x00H\x8f@" + b"\x1a\x0dbrain.Event:2"
    assert written.read_bytes().startswith(record(first)[:12])
    assert event(1.0, 300, {})[9:] == b"\x10\xac\x02" + b"\x2a\x00"


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
    told = world.tell(HasBoard(port=6006))
    world.pass_time(2)
    said = {link.label: link.url for link in world.messages("progress")[-1].links}
    assert said["TensorBoard"] == f"/proxy/{world.core.spec.app_id}/tensorboard/"
    assert [c.command.board.port for c in told if isinstance(c, ToShell)] == [6006]


def test_why_it_does_not_run_is_told() -> None:
    world = started(World(spec_of(tensorboard=True)), *A[:2])
    world.train(world.gang("job000")[0], 3)
    world.tell(HasBoard(problem="No module named tensorboard"))
    world.pass_time(2)
    assert "No module named tensorboard" in world.messages("progress")[-1].jobs[0].note


def test_a_python_without_it_says_so(tmp_path: Path) -> None:
    told: queue.Queue[str] = queue.Queue()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named tensorboard' >&2\nexit 1\n")
    python.chmod(0o755)
    board.serve(str(python), tmp_path / "logs", lambda port: told.put(f"port {port}"), told.put)
    assert told.get(timeout=20) == "No module named tensorboard"


def test_it_serves_the_curves_below_its_prefix(written: Path) -> None:
    pytest.importorskip("tensorboard")
    told: queue.Queue[object] = queue.Queue()
    board.serve(sys.executable, written.parent.parent, told.put, told.put)
    port = told.get(timeout=120)
    assert isinstance(port, int), port
    end_s, text = time.monotonic() + 60, ""
    while "f1" not in text and time.monotonic() < end_s:
        time.sleep(0.5)
        url = f"http://127.0.0.1:{port}{board.PREFIX}/data/plugin/scalars/tags"
        with urllib.request.urlopen(url, timeout=20) as answer:
            text = answer.read().decode()
    assert re.search(r'"job000".*"f1"', text), text
