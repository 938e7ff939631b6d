"""Real TensorFlow: two workers of a gang stop at the same step, and one worker resumes their training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from submarine_patch.worker import checkpoints, ports
from submarine_patch.worker.checkpoints import LocalFiles
from submarine_patch.worker.logparse import CheckpointLine, LogParser, Progress

pytest.importorskip("tensorflow")
UNTIL_STEP = 60
BFLOAT16 = """
import sys, ml_dtypes, numpy as np
from submarine_patch.worker.rank import Agreement, Rank
from submarine_patch.worker.training import OfVariables
class Session(OfVariables):
    _join = lambda self, threads: Agreement(Rank.parse(""))
class Variable:
    shape = (2,)
    def __init__(self, *numbers): self.assign(np.array(numbers))
    def numpy(self): return self.value
    def assign(self, value): self.value = value.astype(ml_dtypes.bfloat16)
for variable in (Variable(1, 2), Variable(0, 0)):
    session = Session(checkpoint_dir=sys.argv[1])
    session.restore(variable)
    session.save()
print(*variable.value)
"""
DIVERGED = """
import sys, numpy as np
from submarine_patch.worker.rank import Agreement, Rank
from submarine_patch.worker.training import OfVariables
class Session(OfVariables):
    _join = lambda self, threads: Agreement(Rank.parse(""))
class Variable:
    numpy = lambda self: np.zeros(2)
session = Session(steps=1, checkpoint_dir=sys.argv[1])
session.restore([Variable()])
for _ in session.steps(): session.report(f1=0.9)
session.finish(lambda: {"f1": float("nan")})
"""


class Worker:
    """The digits example as one worker of a gang."""

    def __init__(self, ckpt: Path, index: int, addresses: list[str], serial_iter_s: float) -> None:
        cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        pacing = {"serial_iter_s": serial_iter_s, "slowdown": 1.0, "gpus": len(addresses)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "submarine_patch.examples.digits", "--checkpoint-steps", "1000"],
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("ISONOMY_")},
                "ISONOMY_CHECKPOINT_DIR": str(ckpt),
                "ISONOMY_UNTIL_STEP": str(UNTIL_STEP),
                "ISONOMY_PACING": json.dumps(pacing),
                "TF_CONFIG": json.dumps(cluster) if len(addresses) > 1 else "",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.parser = LogParser()
        self.lines: list[str] = []

    def said(self) -> Iterator[Progress | CheckpointLine]:
        """The progress in its log, as it arrives."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            found = self.parser.feed(line, 0.0)
            if found is not None:
                yield found

    def end(self) -> int:
        """Waits for the worker's end and returns its exit code."""
        for _ in self.said():
            pass
        return self.process.wait(20)

    def text(self) -> str:
        """Everything that it logged."""
        return "".join(self.lines)


@pytest.fixture
def started() -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    yield workers
    for worker in workers:
        worker.process.kill()
        worker.process.wait()


@pytest.mark.timeout(120)
def test_a_gang_stops_at_the_same_step_and_its_training_continues(tmp_path: Path, started: list[Worker]) -> None:
    with closing(ports.reserve()) as a, closing(ports.reserve()) as b:
        addresses = [f"127.0.0.1:{a.number}", f"127.0.0.1:{b.number}"]
        a.hand_over()
        b.hand_over()
        started += [Worker(tmp_path, i, addresses, 0.4) for i in (0, 1)]
        first = next(started[0].said())
        for worker in started:
            worker.process.send_signal(signal.SIGTERM)
        assert [w.end() for w in started] == [75, 75], started[0].text() + started[1].text()
    assert isinstance(first, Progress)
    assert first.paced
    found = checkpoints.newest(LocalFiles(tmp_path))
    assert found is not None
    step = found[0].step
    assert first.step <= step < UNTIL_STEP
    assert all(f"Stopped on request at step {step}, paced" in w.text() for w in started)

    started.append(Worker(tmp_path, 0, ["alone"], 0.01))
    assert started[2].end() == 0, started[2].text()
    assert f"Restored checkpoint for {step} from" in started[2].text()
    found = checkpoints.newest(LocalFiles(tmp_path))
    assert found is not None
    metrics = json.loads(found[1]["metrics.json"])
    assert metrics["step"] == found[0].step == UNTIL_STEP
    assert metrics["accuracy"] > 0.85
    assert "model.keras" in found[1]


def test_variables_of_bfloat16_are_restored(tmp_path: Path) -> None:
    """NumPy's files keep their bytes, not their type."""
    done = subprocess.run([sys.executable, "-c", BFLOAT16, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "1 2\n", done.stderr[-3000:]


def test_a_last_value_that_diverged_is_told_but_is_in_no_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DIVERGED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    parser = LogParser("f1")
    for line in done.stderr.splitlines():
        parser.feed(line, 0.0)
    assert parser.last is not None
    assert str(parser.last.metric) == "nan"
    found = checkpoints.newest(LocalFiles(tmp_path))
    assert found is not None
    assert "f1" not in json.loads(found[1]["metrics.json"])
