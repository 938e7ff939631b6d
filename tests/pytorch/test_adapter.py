"""PyTorch against the conformance suite (make torch-test): DDP on gloo, scripts without a session, torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.adapter_conformance import Conformance
from tests.worker.gangs import DISTURBED_STEP_S, REPO, Job

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make torch-test")
pytestmark = [pytest.mark.adapters, pytest.mark.timeout(1800)]

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
SHARDED = """
import torch, isonomy
from torch.distributed.fsdp import fully_shard
session = isonomy.pytorch.session(checkpoint_steps=20)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
for layer in (model[0], model[3], model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 25, 0.5)
session.restore(model=model, optimizer=optimizer, schedule=schedule)
x = torch.randn(320, 8, generator=torch.Generator().manual_seed(3))
loader = session.loader(torch.utils.data.TensorDataset(x, x.sum(1)), 32)
error = lambda inputs, wanted: (model(inputs).squeeze(-1) - wanted).pow(2).mean()
for _ in session.steps():
    loss = error(*next(loader))
    optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step()
    session.report(loss=loss.detach())
model.eval()
with torch.no_grad():
    last = error(x, x.sum(1))
session.finish(lambda: {"loss": last}, export=model)
"""
LOADERS = """
import signal, sys, time, torch
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
data = torch.utils.data.TensorDataset(torch.ones(4000, 8))
for step, (rows,) in enumerate(torch.utils.data.DataLoader(data, 8, num_workers=2), 1):
    time.sleep(0.1)
    print(f"step {step} loss {rows.mean().item():.4f}", flush=True)
    if asked:
        print(f"INFO:x:Saved checkpoint for {step} into /c (0.1 sec)", flush=True)
        sys.exit(75)
"""
STATEFUL = """
import sys, isonomy, numpy as np
class Owner:
    state_dict = lambda self: {"value": VALUE}
    load_state_dict = lambda self, state: print("loaded a", type(state["value"]).__name__)
for _ in range(2):
    session = isonomy.pytorch.session(checkpoint_dir=sys.argv[1])
    session.restore(owner=Owner())
    session.save()
"""


class TestPyTorch(Conformance):
    """A model with dropout, so that random numbers matter, and a falling learning rate."""

    command = "python -m tests.pytorch.digits --checkpoint-steps 20 --dropout 0.3"


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
    command = "python -m torch.distributed.run -m tests.pytorch.digits --checkpoint-steps 20"
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


def test_a_sharded_model_resumes_with_the_same_loss(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHARDED)
    alone, job = (Job(tmp_path / name, f"python {tmp_path}/train.py") for name in ("alone", "job"))
    try:
        assert alone.launch(2).codes() == [0, 0], alone.launches[0].text()[-3000:]
        first = job.launch(2, step_s=DISTURBED_STEP_S)
        first.at_step(3)
        first.stop(1)
        assert first.codes() == [75, 75], first.text()[-3000:]
        last = job.launch(2)
        assert last.codes() == [0, 0], last.text()[-3000:]
        assert "Restored checkpoint for" in last.text()
        assert job.result()["loss"] == pytest.approx(alone.result()["loss"], rel=1e-5)
        model = torch.load(next(job.files.root.glob("ckpt-60-*/model.pt")), weights_only=True)
        assert {name: tuple(value.shape) for name, value in model.items()} == {
            "0.weight": (32, 8),
            "0.bias": (32,),
            "3.weight": (1, 32),
            "3.bias": (1,),
        }, "the exported model is whole"
    finally:
        alone.end()
        job.end()


def test_a_script_keeps_its_data_loaders_until_it_has_saved(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADERS)
    job = Job(tmp_path / "job", f"python {tmp_path}/train.py | tee log")
    try:
        launch = job.launch()
        launch.at_step(3)
        launch.stop()
        assert launch.codes() == [75], launch.text()[-3000:]
        assert launch.saved() > 3
        assert "Terminated" not in launch.text()
    finally:
        job.end()


def output_of(code: str, *arguments: str) -> str:
    """All that a script prints."""
    env = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO}/submarine_patch/api:{os.environ.get('PYTHONPATH', '')}"}
    words = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("value", "said"),
    [("np.sqrt(4.0)", "loaded a float"), ("np.ones(2)", "has other values than tensors, numbers and text")],
)
def test_numpys_numbers_are_kept_and_other_values_are_refused(tmp_path: Path, value: str, said: str) -> None:
    told = output_of(STATEFUL.replace("VALUE", value), str(tmp_path))
    assert said in told
    assert "Traceback" not in told


def test_nothing_but_the_own_framework_is_imported() -> None:
    code = "import isonomy, sys; isonomy.pytorch; print(sorted({'tensorflow', 'keras', 'jax'} & set(sys.modules)))"
    assert output_of(code) == "[]\n"
