"""Keras' callbacks that stop or adapt a training do so under Isonomy, through crashes too."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from submarine_patch.worker.kept_callbacks import KeptCallbacks

pytestmark = pytest.mark.adapters
STEPS_PER_EPOCH = 11
"""650 examples in batches of 64, the rest included."""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By callback: the ends of an undisturbed and of a disturbed training."""
    folder = tmp_path_factory.mktemp("callbacks")
    command = [sys.executable, "-m", "tests.worker.stopped_by_callbacks", str(folder)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", ["EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint"])
def test_a_crash_changes_nothing_for_a_callback(ends: dict[str, Any], name: str) -> None:
    assert ends[name]["crashes"] == (1 if name == "EarlyStopping" else 2)
    assert ends[name]["rough"] == ends[name]["calm"]


def test_the_end_of_a_rung_inside_an_epoch_is_no_end_of_the_epoch(ends: dict[str, Any]) -> None:
    rung, last = ends["ReduceLROnPlateau"]["rungs"]
    assert (rung["step"], rung["epochs"]) == (41, 3)
    assert last == ends["ReduceLROnPlateau"]["calm"]


def test_the_best_weights_of_a_rung_are_not_what_the_next_begins_with(ends: dict[str, Any]) -> None:
    assert ends["EarlyStopping"]["rungs"][1] == ends["EarlyStopping"]["calm"]


def test_early_stopping_ends_the_job_with_the_best_weights(ends: dict[str, Any]) -> None:
    calm = ends["EarlyStopping"]["calm"]
    assert calm["epochs"] < 12
    assert calm["step"] == calm["epochs"] * STEPS_PER_EPOCH
    assert calm["weights"] != ends["ModelCheckpoint"]["calm"]["weights"]


def test_a_plateau_reduces_the_learning_rate(ends: dict[str, Any]) -> None:
    assert ends["ReduceLROnPlateau"]["calm"]["lr"] < ends["ModelCheckpoint"]["calm"]["lr"]


def test_the_history_has_every_epoch_and_the_best_value_is_kept(ends: dict[str, Any]) -> None:
    calm = ends["ModelCheckpoint"]["calm"]
    assert (calm["step"], calm["epochs"]) == (12 * STEPS_PER_EPOCH, 12)
    assert len(calm["val_loss"]) == 12
    assert {"accuracy", "loss", "val_accuracy", "val_loss"} <= set(calm["keys"])
    assert calm["best"] == pytest.approx(min(calm["val_loss"]))


def test_a_loss_that_is_nan_ends_the_job(ends: dict[str, Any]) -> None:
    calm, rough = ends["TerminateOnNaN"]["calm"], ends["TerminateOnNaN"]["rough"]
    assert calm["step"] <= STEPS_PER_EPOCH
    assert ends["TerminateOnNaN"]["crashes"] == 0, "it ended before"
    assert rough["step"] == calm["step"]
    assert not math.isfinite(calm["weights"])


def test_best_weights_of_bfloat16_are_kept() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    before, after = SimpleNamespace(best_weights=None), SimpleNamespace(best_weights=None)
    kept, resumed = KeptCallbacks([before]), KeptCallbacks([after])
    before.best_weights = [np.array([1.5, 2], bfloat16)]
    resumed.load(kept.dump())
    resumed.begun()
    assert after.best_weights[0].astype(bfloat16).tolist() == [1.5, 2]


def test_a_callback_of_functions_keeps_them_over_all_calls_of_fit() -> None:
    told: list[str] = []
    callback = SimpleNamespace(on_epoch_end=lambda *a: told.append("epoch"), on_train_end=lambda *a: told.append("end"))
    kept = KeptCallbacks([callback])
    for whole in (False, True):
        with kept.one_training():
            if not whole:
                kept.epoch_goes_on()
            callback.on_epoch_end(0, {})
            callback.on_train_end({})
    kept.end(None)
    assert told == ["epoch", "end"]
