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

STEPS = 400
MIB = 1 << 20


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
    first = job.launch()
    at, used = first.at_step(50), memory()
    assert used > before + 500, "the training is on the GPU"
    began_s = time.monotonic()
    first.stop()
    assert first.codes() == [75], first.text()[-3000:]
    took_s = time.monotonic() - began_s
    kept = checkpoints.listed(job.files)[0]
    assert at <= kept.step < STEPS
    assert checkpoints.load(job.files, kept) is not None, "the checkpoint is complete"
    after = freed(before + 100)
    assert after <= before + 100, "the GPU's memory is free again"
    last = job.launch()
    assert last.codes() == [0], last.text()[-3000:]
    assert f"Restored checkpoint for {kept.step} from" in last.text()
    assert job.result()["loss"] == pytest.approx(alone.result()["loss"], rel=1e-6)
    assert "paced" not in whole.text() + first.text() + last.text()
    size = sum(part.stat().st_size for part in (job.files.root / kept.name).iterdir())
    wrote = re.findall(rf"Saved checkpoint for {kept.step} .*\((.*) sec\)", first.text())
    seen(
        f"revoked after step {at}, saved at {kept.step}: {size / MIB:.0f} MiB written in {wrote[0]} s, "
        f"ended {took_s:.2f} s after the request"
    )
    seen(f"loss at step {STEPS}: {job.result()['loss']!r}, undisturbed {alone.result()['loss']!r}")
    seen(f"memory of the GPU, MiB: {before} before, {used} while it trained, {after} after the stop")


def test_the_told_time_of_a_step_is_the_gpus(jobs: list[Job], seen: Seen) -> None:
    """Kernels are only queued when a step's Python code returns; the GPU's time must be in what bids are made of."""
    launch = jobs[0].launch()
    assert launch.codes() == [0], launch.text()[-3000:]
    steps = told(launch)
    (step, when_s, _), (last_step, last_s, _) = steps[2], steps[-2]  # the last is told after the end
    real_s = (last_s - when_s) / (last_step - step)
    told_s = statistics.median(s for _, _, s in steps[2:-1])
    assert told_s == pytest.approx(real_s, rel=0.25)
    seen(f"seconds of a step: {told_s:.4f} told, {real_s:.4f} by the clock")


@BOTH
def test_a_trainers_callback_stops_and_resumes_on_a_gpu(tmp_path: Path, package: str, script: str, seen: Seen) -> None:
    pytest.importorskip(package)
    steps = 3000
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
