"""Lightning's Trainer under Isonomy: saves and exits on a stop, and resumes from its own checkpoints.

    import isonomy
    trainer = Trainer(callbacks=[isonomy.lightning.callback("ckpt", every_steps=500)])     # and --keep-folder ckpt
    trainer.fit(model, loader, ckpt_path=isonomy.lightning.checkpoint("ckpt"))

Only what Lightning's checkpoints contain is resumed: with a shuffling loader, the rest of the epoch has other examples
than without the stop.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from submarine_patch.worker.steering import Steering, newest

LOG_STEPS = 10


def callback(folder: str | os.PathLike[str], *, every_steps: int = 0) -> Any:
    """A callback for a Trainer; `every_steps`: how often to save besides at stops, 0: never."""
    from lightning.pytorch import Callback

    class Isonomy(Callback):  # type: ignore[misc]
        """Counts each optimizer step as a step of Isonomy."""

        def __init__(self) -> None:
            self._steering, self._step, self._max_steps = Steering(), 0, 0

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._steering.begin()
            self._step, self._max_steps = trainer.global_step, trainer.estimated_stepping_batches

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *more: Any) -> None:
            step = trainer.global_step
            if step == self._step:  # gradients are accumulated
                return
            self._step = step
            ends = self._steering.ends(step)
            if ends or step % LOG_STEPS == 0:
                self._report(trainer)
            if ends or (every_steps and step % every_steps == 0):
                trainer.save_checkpoint(Path(folder) / f"step-{step}.ckpt")
                trainer.strategy.barrier()
                self._forget(trainer, step)
            self._steering.leave()
            trainer.should_stop = trainer.should_stop or ends

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            self._report(trainer)

        def _report(self, trainer: Any) -> None:
            if trainer.is_global_zero and not trainer.sanity_checking:
                found = dict(trainer.callback_metrics)
                if "loss" not in found and "train_loss" in found:
                    found["loss"] = found["train_loss"]
                self._steering.report(self._step, {**found, "max_steps": self._max_steps})

        def _forget(self, trainer: Any, step: int) -> None:
            if trainer.is_global_zero:
                for old in Path(folder).glob("step-*.ckpt"):
                    if old.name != f"step-{step}.ckpt":
                        old.unlink(missing_ok=True)

    return Isonomy()


def checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The newest checkpoint in the folder, for `ckpt_path`; None if there is none."""
    return newest(folder, "step-*.ckpt")
