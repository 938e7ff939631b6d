"""The adapters for TensorFlow and Keras against the conformance suite, on real processes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from tests.worker.adapter_conformance import Conformance
from tests.worker.gangs import Job

pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.adapters, pytest.mark.timeout(1800)]


class TestTensorFlow(Conformance):
    """A hand-written training loop."""

    command = "python -m submarine_patch.examples.digits --checkpoint-steps 20"


KERAS = "python -m submarine_patch.examples.digits_keras --checkpoint-steps 20"


class TestKerasFit(Conformance):
    """Keras 3's `fit`, for one worker."""

    workers = 1
    command = f"{KERAS} --dropout 0.2"


class TestLegacyKeras(Conformance):
    """tf_keras' `fit`, for several workers."""

    command = KERAS
    env: ClassVar[dict[str, str]] = {"TF_USE_LEGACY_KERAS": "1"}

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        """Skips the tests without tf_keras, a separate package."""
        pytest.importorskip("tf_keras")


def test_keras_3_says_that_it_cannot_fit_over_two_workers(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", KERAS)
    try:
        launch = job.launch(2)
        assert all(code == 1 for code in launch.codes())
        assert "isonomy: Keras 3 cannot fit over several workers on TensorFlow: pip install" in launch.text()
    finally:
        job.end()
