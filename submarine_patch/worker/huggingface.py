"""Hugging Face's Trainer under Isonomy: saves and exits on a stop, and resumes from its own checkpoints.

import isonomy
args = TrainingArguments("ckpt", save_steps=500, ...)             # and --keep-folder ckpt
trainer = Trainer(model, args, train_dataset=data, callbacks=[isonomy.huggingface.callback()])
trainer.train(resume_from_checkpoint=isonomy.huggingface.checkpoint("ckpt"))
"""

from __future__ import annotations

import os
from typing import Any

from submarine_patch.worker.steering import Steering, newest

STATE = "trainer_state.json"
"""The file that a Trainer writes last into a checkpoint."""


def callback() -> Any:
    """A callback for a Trainer."""
    from transformers import TrainerCallback

    class Isonomy(TrainerCallback):  # type: ignore[misc]
        """Counts each optimizer step as a step of Isonomy."""

        def __init__(self) -> None:
            self._steering = Steering()

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self._steering.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if self._steering.ends(state.global_step):
                control.should_save = control.should_training_stop = True

        def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self._steering.leave()

        on_train_end = on_save

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            if state.is_world_process_zero and "train_runtime" not in (logs or {}):  # that is the whole run's summary
                self._steering.report(state.global_step, {**(logs or {}), "max_steps": state.max_steps})

    return Isonomy()


def checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The newest complete checkpoint in a Trainer's output folder, for `resume_from_checkpoint`; None without any."""
    return newest(folder, "checkpoint-*", STATE)
