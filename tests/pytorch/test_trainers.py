"""The callbacks of Hugging Face's Trainer and of Lightning: stopped and resumed, they end as if undisturbed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from submarine_patch.worker import EXIT_STOPPED, huggingface, lightning, session
from tests.worker.gangs import DISTURBED_STEP_S, Job

HUGGINGFACE = """
import isonomy, torch
from transformers import Trainer, TrainingArguments, set_seed
set_seed(1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.drop = torch.nn.Linear(8, 1), torch.nn.Dropout(0.2)
    def forward(self, x, labels=None):
        loss = (self.line(self.drop(x)).squeeze(-1) - labels).pow(2).mean()
        return {"loss": loss}
x = torch.randn(160, 8, generator=torch.Generator().manual_seed(3))
data = [{"x": row, "labels": row.sum()} for row in x]
args = TrainingArguments("ckpt", max_steps=60, per_device_train_batch_size=8, learning_rate=0.05, save_steps=25,
                         save_total_limit=2, logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True)
trainer = Trainer(Net(), args, train_dataset=data, callbacks=[isonomy.huggingface.callback()])
trainer.train(resume_from_checkpoint=isonomy.huggingface.checkpoint("ckpt"))
print("FINAL", sum(p.double().sum().item() for p in trainer.model.parameters()), flush=True)
"""
LIGHTNING = """
import isonomy, torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
seed_everything(1)
class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 1)
    def training_step(self, batch, at):
        loss = (self.line(batch[0]).squeeze(-1) - batch[1]).pow(2).mean()
        self.log("train_loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.05)
x = torch.randn(160, 8, generator=torch.Generator().manual_seed(3))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), batch_size=160)
net = Net()
trainer = Trainer(max_steps=60, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                  callbacks=[isonomy.lightning.callback("ckpt", every_steps=25)])
trainer.fit(net, loader, ckpt_path=isonomy.lightning.checkpoint("ckpt"))
print("FINAL", sum(p.double().sum().item() for p in net.parameters()), flush=True)
"""


def final(text: str) -> float:
    return float(text.split("FINAL ")[1].split()[0])


SCRIPTS = {"transformers": HUGGINGFACE, "lightning": LIGHTNING}
REAL, LONG = pytest.mark.adapters, pytest.mark.timeout(1800)
BOTH = pytest.mark.parametrize(("package", "script"), SCRIPTS.items(), ids=SCRIPTS)


@REAL
@LONG
@BOTH
def test_a_killed_training_ends_as_if_undisturbed(tmp_path: Path, package: str, script: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed: make torch-test")
    (tmp_path / "train.py").write_text(script)
    alone, job = (Job(tmp_path / n, f"python {tmp_path}/train.py", ISONOMY_KEEP_FOLDER="ckpt") for n in ("a", "b"))
    try:
        whole = alone.launch()
        assert whole.codes() == [0], whole.text()[-3000:]
        first = job.launch(step_s=DISTURBED_STEP_S)
        first.at_step(30)  # past the trainer's first checkpoint
        first.processes[0].kill()
        assert first.codes() == [-9]
        last = job.launch()
        assert last.codes() == [0], last.text()[-3000:]
        assert final(last.text()) == pytest.approx(final(whole.text()), rel=1e-6)
    finally:
        alone.end()
        job.end()


OF_TWO = {
    # the others' random numbers are not in the first worker's folder, which is the one that is kept
    "transformers": (("use_cpu=True", "use_cpu=True, ddp_backend='gloo'"), ("Dropout(0.2)", "Dropout(0.0)")),
    "lightning": (
        ('accelerator="cpu"', 'accelerator="cpu", strategy="ddp", devices=1, num_nodes=int(os.environ["NNODES"])'),
        ("import isonomy", "import os, isonomy"),
        ("batch_size=160", "batch_size=80"),
    ),
}
"""What a script needs to train on two workers."""


@REAL
@LONG
@pytest.mark.parametrize("workers", [1, 2])
@BOTH
def test_a_stopped_training_resumes_at_its_step_and_ends_as_if_undisturbed(
    tmp_path: Path, package: str, script: str, workers: int
) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed: make torch-test")
    for old, new in OF_TWO[package] if workers == 2 else ():
        assert old in script
        script = script.replace(old, new)
    (tmp_path / "train.py").write_text(script)
    alone = Job(tmp_path / "alone", f"python {tmp_path}/train.py", ISONOMY_KEEP_FOLDER="ckpt")
    job = Job(tmp_path / "job", f"python {tmp_path}/train.py", step_s=DISTURBED_STEP_S, ISONOMY_KEEP_FOLDER="ckpt")
    try:
        whole = alone.launch(workers)
        assert whole.codes() == [0] * workers, whole.text()[-3000:]
        first = job.launch(workers)
        at = first.at_step(10)
        first.stop()
        assert first.codes() == [75] * workers, first.text()[-3000:]
        assert "FINAL" not in first.text()
        steps = [json.loads(line)["step"] for line in first.text().splitlines() if line.startswith('{"step"')]
        assert at <= steps[-1] < 60
        for left in (job.folder / "ckpt").rglob("*"):  # the next launch is on another machine
            if left.is_file():
                left.unlink()
        last = job.launch(workers)
        assert last.codes() == [0] * workers, last.text()[-3000:]
        again = [json.loads(line)["step"] for line in last.text().splitlines() if line.startswith('{"step"')]
        assert steps[-1] <= min(again) <= steps[-1] + 10, "it continued, it did not start again"
        assert final(last.text()) == pytest.approx(final(whole.text()), rel=1e-6)
    finally:
        alone.end()
        job.end()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Whether a stop was asked for; the packages are there as far as the callbacks use them."""
    alone = SimpleNamespace(is_available=lambda: False)
    packages = {
        "torch": SimpleNamespace(distributed=alone),
        "torch.distributed": alone,
        "lightning.pytorch": SimpleNamespace(Callback=object),
        "transformers": SimpleNamespace(TrainerCallback=object),
    }
    for name, package in packages.items():
        monkeypatch.setitem(sys.modules, name, package)
    request = SimpleNamespace(asked=False, wait=None, take_over=lambda: None, arm=lambda: None)
    monkeypatch.setattr(session, "stop_request", request)
    return request


@pytest.mark.usefixtures("asked")
def test_lightning_tells_what_a_validation_found_at_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISONOMY_UNTIL_STEP", "20")
    callback, found = lightning.callback(tmp_path), {"val_loss": 9.0}
    trainer = SimpleNamespace(is_global_zero=True, callback_metrics=found, sanity_checking=True, should_stop=False)
    trainer.estimated_stepping_batches, trainer.global_step = 100, 0
    trainer.save_checkpoint, trainer.strategy = Path.touch, SimpleNamespace(barrier=lambda: None)
    callback.on_validation_end(trainer, None)
    trainer.sanity_checking = False
    callback.on_train_start(trainer, None)
    for step in range(1, 21):
        trainer.global_step = step
        callback.on_train_batch_end(trainer, None)
        if step % 10 == 0:
            found["val_loss"] = 1 / step
            callback.on_validation_end(trainer, None)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(x["step"], x["val_loss"]) for x in said] == [(10, 9.0), (10, 0.1), (20, 0.1), (20, 0.05)]
    assert {x["max_steps"] for x in said} == {100}
    assert trainer.should_stop


def test_a_stopped_trainer_of_hugging_face_leaves_once_it_has_saved(asked: SimpleNamespace) -> None:
    callback = huggingface.callback()
    state, control = SimpleNamespace(global_step=1), SimpleNamespace(should_save=False, should_training_stop=False)
    callback.on_train_begin(None, state, control)
    callback.on_step_end(None, state, control)
    callback.on_save(None, state, control)
    assert not control.should_training_stop
    asked.asked = True
    callback.on_step_end(None, state, control)
    assert control.should_save
    with pytest.raises(SystemExit) as left:
        callback.on_save(None, state, control)
    assert left.value.code == EXIT_STOPPED
