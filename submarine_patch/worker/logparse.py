"""Iteration time, loss and accuracy from TensorFlow's log lines (Themis, section 5: the profiler)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)"
_HOOK = re.compile(rf"loss = {_NUMBER}, step = (\d+)(?: \({_NUMBER} sec\))?")
_ACCURACY = re.compile(rf"accuracy(?: =|:) {_NUMBER}")
_KERAS = re.compile(rf"(?:^|\r)\s*(\d+)/(\d+) .*?{_NUMBER}(ms|s|us)/step(?:.*? loss: {_NUMBER})?")
_UNIT_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


@dataclass(frozen=True, slots=True)
class Step:
    """A training step as a log line tells it; None where the line does not say."""

    step: int
    loss: float | None = None
    accuracy: float | None = None
    iter_time_s: float | None = None
    paced: bool = False


def parse(line: str) -> Step | None:
    """The step of one log line: `loss = 0.5, step = 10 (0.2 sec)` or Keras' `3/40 ... 35ms/step - loss: 0.5`."""
    hook = _HOOK.search(line)
    if hook:
        accuracy = _ACCURACY.search(line)
        return Step(
            int(hook[2]),
            float(hook[1]),
            float(accuracy[1]) if accuracy else None,
            float(hook[3]) if hook[3] else None,
            "paced" in line,
        )
    keras = _KERAS.search(line)
    if keras:
        accuracy = _ACCURACY.search(line)
        return Step(
            int(keras[1]),
            float(keras[5]) if keras[5] else None,
            float(accuracy[1]) if accuracy else None,
            float(keras[3]) * _UNIT_S[keras[4]],
        )
    return None
