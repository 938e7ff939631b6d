"""Keras 3's `fit` on JAX, alone and over several workers, and on PyTorch (make torch-test)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from tests.worker.adapter_conformance import Conformance, Undisturbed
from tests.worker.gangs import DISTURBED_STEP_S, Job

pytest.importorskip("jax", reason="JAX is not installed: make torch-test")
pytestmark = [pytest.mark.adapters, pytest.mark.timeout(1800)]
FIT = "python -m submarine_patch.examples.digits_keras --checkpoint-steps 20"


class TestKerasOnJax(Conformance):
    """Data-parallel among several workers."""

    command = FIT
    env: ClassVar[dict[str, str]] = {"KERAS_BACKEND": "jax"}

    def test_two_workers_learn_what_one_does(self, undisturbed: Undisturbed) -> None:
        assert undisturbed(2)["loss"] == pytest.approx(undisturbed(1)["loss"], rel=1e-3)


@pytest.mark.parametrize(("backend", "dropout"), [("jax", 0.2), ("torch", 0.0)])
def test_a_stop_changes_nothing(tmp_path: Path, backend: str, dropout: float) -> None:
    """On PyTorch Keras draws dropout from PyTorch's generator, which is not in the checkpoint."""
    pytest.importorskip(backend)
    command = f"{FIT} --dropout {dropout}"
    alone, job = (Job(tmp_path / name, command, KERAS_BACKEND=backend) for name in ("alone", "job"))
    try:
        assert alone.launch().codes() == [0], alone.launches[0].text()[-3000:]
        first = job.launch(step_s=DISTURBED_STEP_S)
        first.at_step(3)
        first.stop()
        assert first.codes() == [75], first.text()[-3000:]
        assert job.launch().codes() == [0], job.launches[1].text()[-3000:]
        assert job.result()["loss"] == pytest.approx(alone.result()["loss"], rel=1e-5)
    finally:
        alone.end()
        job.end()


def test_keras_on_pytorch_says_that_it_is_for_one_worker(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", FIT, KERAS_BACKEND="torch")
    try:
        launch = job.launch(2)
        assert all(code == 1 for code in launch.codes())
        assert "isonomy: Keras on torch is for one worker here; use JAX, or tf_keras" in launch.text()
    finally:
        job.end()
