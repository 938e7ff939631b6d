"""PyTorch against the conformance suite (make torch-test): DDP on gloo, scripts without a session, torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.conformance import GangConformance
from tests.worker.gangs import REPO, Job

pytest.importorskip("torch", reason="PyTorch is not installed: make torch-test")
pytestmark = [pytest.mark.adapters, pytest.mark.timeout(600)]

STOCK = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(1, 6):
    loss = model(torch.ones(4, 8) * (dist.get_rank() + 1)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.5f}", flush=True)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


class TestPyTorch(GangConformance):
    """A model with dropout, so that random numbers matter, and a falling learning rate."""

    command = "python -m submarine_patch.examples.digits_torch --checkpoint-steps 20 --dropout 0.3"


@pytest.mark.parametrize("starter", ["python", "python -m torch.distributed.run"])
def test_a_stock_script_runs_over_two_workers(tmp_path: Path, starter: str) -> None:
    (tmp_path / "stock.py").write_text(STOCK)
    job = Job(tmp_path / "job", f"{starter} {tmp_path}/stock.py", until_step=0)
    try:
        launch = job.launch(2)
        assert launch.codes() == [0, 0], launch.text()[-3000:]
        assert "rank 0 of 2" in launch.text()
        assert "rank 1 of 2" in launch.text()
        assert launch.at_step(5) == 5
    finally:
        job.end()


def test_two_processes_of_one_worker_under_torchrun(tmp_path: Path) -> None:
    """A worker with two GPUs: torchrun without options starts two processes, which stop and resume as one gang."""
    command = "python -m torch.distributed.run -m submarine_patch.examples.digits_torch --checkpoint-steps 20"
    job = Job(tmp_path / "job", command, PET_NPROC_PER_NODE="2", OMP_NUM_THREADS="1")
    try:
        first = job.launch()
        first.at_step(3)
        first.stop()
        assert first.codes() == [75], first.text()[-3000:]
        last = job.launch()
        assert last.codes() == [0], last.text()[-3000:]
        assert "Restored checkpoint for" in last.text()
        assert job.result()["accuracy"] > 0.8
    finally:
        job.end()


def test_nothing_but_the_own_framework_is_imported() -> None:
    code = "import isonomy, sys; isonomy.pytorch; print(sorted({'tensorflow', 'keras', 'jax'} & set(sys.modules)))"
    env = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO}/submarine_patch/api:{os.environ.get('PYTHONPATH', '')}"}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
