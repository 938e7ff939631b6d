"""Saves a second of CPU time in each start of TensorFlow.

Keras imports scikit-learn and matplotlib wherever they are installed, but needs them only for its scikit-learn
wrappers and its plots. A training script that uses neither can call `without_extras()` before TensorFlow is
imported; the script itself may still import them afterwards.
"""

from __future__ import annotations

import contextlib
import sys

EXTRAS = ("sklearn", "matplotlib", "pandas")


def without_extras() -> None:
    """Import TensorFlow as if Keras's optional packages were not installed."""
    hidden = [name for name in EXTRAS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: importing raises ImportError
    try:
        with contextlib.suppress(ImportError):  # training.session() reports a missing TensorFlow
            import tensorflow

            tensorflow.keras.Sequential  # noqa: B018  # the attribute access imports Keras
    finally:
        for name in hidden:
            del sys.modules[name]
