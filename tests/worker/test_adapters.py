"""The adapters for TensorFlow and Keras against the conformance suite, on real processes."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.worker.conformance import Conformance

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.timeout(400)


class TestTensorFlow(Conformance):
    """A loop of one's own."""

    command = "python -m submarine_patch.examples.digits --checkpoint-steps 20"


class TestKerasFit(Conformance):
    """Keras 3's `fit` for one worker; tf_keras' for several."""

    command = "python -m submarine_patch.examples.digits_keras --checkpoint-steps 20 --dropout 0.2"

    def test_stop_of_one_worker_of_two(self) -> None:  # type: ignore[override]
        """See TestLegacyKeras: Keras 3 cannot."""

    def test_worker_killed(self) -> None:  # type: ignore[override]
        """See TestLegacyKeras: Keras 3 cannot."""


class TestLegacyKeras(Conformance):
    """tf_keras' `fit` over several workers; alone it is as Keras 3."""

    command = "python -m submarine_patch.examples.digits_keras --checkpoint-steps 20"
    env: ClassVar[dict[str, str]] = {"TF_USE_LEGACY_KERAS": "1"}

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        """tf_keras is a package of its own."""
        pytest.importorskip("tf_keras")
