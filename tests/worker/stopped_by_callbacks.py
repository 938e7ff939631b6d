"""Trains with each of Keras' callbacks that stop or adapt a training, undisturbed and with a crash, and prints ends.

A LearningRateScheduler is beside each.

python -m tests.worker.stopped_by_callbacks FOLDER
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import isonomy

keras: Any = importlib.import_module("keras")
CRASHES = (30, 80)
"""In mid-epoch; an epoch has 11 steps, the last one with 10 examples."""
RUNGS = {"EarlyStopping": 29, "ReduceLROnPlateau": 41}


class Crash(Exception):
    """In place of a killed process."""


class Crashing(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the training before one step is counted."""

    def __init__(self, session: Any, at_step: int) -> None:
        super().__init__()
        self.session, self.at_step = session, at_step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.session.step + 1 == self.at_step:
            raise Crash


def made(name: str, folder: Path) -> Any:
    """The callback."""
    return {
        "EarlyStopping": lambda: keras.callbacks.EarlyStopping(
            monitor="val_loss", patience=2, min_delta=0.1, restore_best_weights=True
        ),
        "ReduceLROnPlateau": lambda: keras.callbacks.ReduceLROnPlateau(
            monitor="val_loss", patience=1, factor=0.5, min_delta=0.03
        ),
        "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint(
            str(folder / "best.keras"), monitor="val_loss", save_best_only=True
        ),
        "TerminateOnNaN": keras.callbacks.TerminateOnNaN,
    }[name]()


def launch(name: str, folder: Path, crash_at: int = 0, until_step: int = 0) -> dict[str, Any] | None:
    """One launch of the script; None if it crashed."""
    os.environ["ISONOMY_UNTIL_STEP"] = str(until_step or "")
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x = rng.random((650, 8)).astype("float32")
    y = (x.sum(1) > 4).astype("int64")
    if name == "TerminateOnNaN":
        x[600] = np.nan
    hidden = "linear" if name == "TerminateOnNaN" else "relu"  # relu(NaN) is 0
    session = isonomy.keras.session(checkpoint_steps=7, checkpoint_dir=str(folder))
    with session.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, hidden), keras.layers.Dense(2, "softmax")])
        model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
    callback, decay = made(name, folder), keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.95 * rate)
    try:
        history = session.fit(
            model,
            x,
            y,
            batch_size=64,
            epochs=12,
            validation_data=(x, y),
            verbose=0,
            callbacks=[callback, decay, Crashing(session, crash_at)],
        )
    except Crash:
        return None
    if until_step:
        session.save()
    return {
        "step": session.step,
        "epochs": len(history.epoch),
        "val_loss": history.history.get("val_loss"),
        "weights": sum(float(abs(w).sum()) for w in model.get_weights()),
        "lr": float(model.optimizer.learning_rate),
        "best": getattr(callback, "best", None),
        "keys": sorted(history.history),
    }


def main() -> None:
    """Prints, by callback, the end of the undisturbed training and of the disturbed one."""
    found: dict[str, Any] = {}
    for name in ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint", "TerminateOnNaN"):
        calm, rough = (Path(sys.argv[1]) / f"{name}-{kind}" for kind in ("calm", "rough"))
        crashed = [launch(name, rough, at) for at in CRASHES]
        found[name] = {"calm": launch(name, calm), "crashes": crashed.count(None), "rough": launch(name, rough)}
    for name, rung in RUNGS.items():
        folder = Path(sys.argv[1]) / f"{name}-rungs"
        found[name]["rungs"] = [launch(name, folder, until_step=at) for at in (rung, 0)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
