"""Training on a GPU, without pacing: revoked, saved and resumed, it ends with the loss of the undisturbed run."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from submarine_patch.worker import checkpoints
from tests.gpu.conftest import Seen, smi
from tests.pytorch.test_trainers import BOTH, final
from tests.worker.gangs import Job, Launch

STEPS = 300


def memory() -> int:
    """Memory in use on GPU 0, MiB."""
    return int(smi("--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0")[0])


def freed(most: int) -> int:
    """What is in use within ten seconds of a process's end, MiB."""
    until_s = time.monotonic() + 10.0
    while (used := memory()) > most and time.monotonic() < until_s:
        time.sleep(0.2)
    return used


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[list[Job]]:
    """Two jobs with the same command: one is left alone."""
    command = "python -m tests.gpu.train"
    device = {"CUDA_VISIBLE_DEVICES": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    made = [Job(tmp_path / name, command, STEPS, 0.0, **device) for name in ("alone", "job")]
    yield made
    for job in made:
        job.end()


def told(launch: Launch) -> list[tuple[int, float, float]]:
    """(step, when, told seconds of a step) of each progress message."""
    found = [m.progress for m in launch.arbiter.messages if m.HasField("progress")]
    assert not any(p.paced for p in found)
    return [(p.step, p.time_s, p.iter_time_s) for p in found]


def test_a_revoked_training_resumes_with_the_same_loss(jobs: list[Job], seen: Seen) -> None:
    alone, job = jobs
    before = memory()
    whole = alone.launch()
    assert whole.codes() == [0], whole.text()[-3000:]
    told_s, real_s = seconds_of_a_step(whole)
    assert told_s == pytest.approx(real_s, rel=0.25), "a step's time is the GPU's, though its code only queues kernels"
    seen(f"a step: {told_s:.4f} s told, {real_s:.4f} s by the clock")
    first = job.launch()
    at, used = first.at_step(50), memory()
    assert used > before + 500, "the training is on the GPU"
    began_s = time.monotonic()
    first.stop()
    assert first.codes() == [75], first.text()[-3000:]
    took_s = time.monotonic() - began_s
    kept = checkpoints.listed(job.files)[0]
    assert at <= kept.step < STEPS
    parts = checkpoints.load(job.files, kept)
    assert parts is not None, "the checkpoint is complete"
    wrote_s = re.findall(rf"Saved checkpoint for {kept.step} .*\((.*) sec\)", first.text())[0]
    size = sum(map(len, parts.values())) / (1 << 20)
    seen(
        f"revoked after step {at}: {size:.0f} MiB of step {kept.step} saved in {wrote_s} s, ended after {took_s:.2f} s"
    )
    after = freed(before + 100)
    assert after <= before + 100, "the GPU's memory is free again"
    seen(f"memory of the GPU, MiB: {before} before, {used} while it trained, {after} after the stop")
    last = job.launch()
    assert last.codes() == [0], last.text()[-3000:]
    assert f"Restored checkpoint for {kept.step} from" in last.text()
    loss, undisturbed = job.result()["loss"], alone.result()["loss"]
    assert loss == pytest.approx(undisturbed, rel=1e-6)
    seen(f"loss at step {STEPS}: {loss!r}, undisturbed {undisturbed!r}")


def seconds_of_a_step(launch: Launch) -> tuple[float, float]:
    """As the worker told them, and by its messages' times."""
    steps = told(launch)[2:-1]  # the last is told after the end
    (step, when_s, _), (last, last_s, _) = steps[0], steps[-1]
    return statistics.median(s for _, _, s in steps), (last_s - when_s) / (last - step)


@BOTH
def test_a_trainers_callback_stops_and_resumes_on_a_gpu(tmp_path: Path, package: str, script: str, seen: Seen) -> None:
    pytest.importorskip(package)
    steps = 900
    for old, new in (
        (", use_cpu=True", ""),
        ('accelerator="cpu"', 'accelerator="gpu"'),
        ("max_steps=60", f"max_steps={steps}"),
    ):
        script = script.replace(old, new)
    assert "cpu" not in script
    (tmp_path / "train.py").write_text(script)
    device = {"CUDA_VISIBLE_DEVICES": "0", "ISONOMY_KEEP_FOLDER": "ckpt"}
    alone, job = (Job(tmp_path / n, f"python {tmp_path}/train.py", steps, 0.0, **device) for n in ("alone", "job"))
    try:
        whole = alone.launch()
        assert whole.codes() == [0], whole.text()[-3000:]
        first = job.launch()
        at = first.at_step(30)
        first.stop()
        assert first.codes() == [75], first.text()[-3000:]
        last = job.launch()
        assert last.codes() == [0], last.text()[-3000:]
        assert final(last.text()) == pytest.approx(final(whole.text()), rel=1e-5)
        assert min(step for step, _, _ in told(last)) >= at, "it continued, it did not start again"
        seen(
            f"stopped after step {at} of {steps}; parameters' sum {final(last.text())!r}, "
            f"undisturbed {final(whole.text())!r}"
        )
    finally:
        alone.end()
        job.end()
