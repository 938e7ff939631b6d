"""What a line of a TensorFlow program's log says of its progress: step, loss, accuracy, time of a step.

Pure: lines and their times in, sightings out. Known are the classic lines of tf.estimator and Slim
(`loss = 0.23, step = 100 (1.234 sec)`, `global_step/sec: 8.1`, `global step 5: loss = 0.2 (0.1 sec/step)`,
`Saving dict for global step 100: accuracy = ...`), Keras' progress (`12/100 ... 35ms/step - loss: 0.3`) and
the lines of submarine_patch.worker.training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LINE_MAX_CHARS = 2048
"""What is longer is cut: no progress line is."""
STEP_MAX = 10**15
"""A line that says more says nothing: whatever counts so, it is no training."""
ITERATION_MAX_S = 1e7

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x08|\x00")
_NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf))"
_ACCURACY = r"(?:(?:sparse_|binary_)?(?:categorical_)?accuracy|acc)"
_EPOCH = re.compile(r"^\s*Epoch (\d+)/\d+")
_KERAS = re.compile(r"^\s*(\d+)/(\d+)\s(.*(?:/step|\bETA:|- loss:).*)")
_STEP = re.compile(r"\b(?:global[_ ])?step\s*(?:[=:#]\s*)?(\d+)\b", re.IGNORECASE)
_LOSS = re.compile(rf"\bloss\s*[=:]?\s*{_NUMBER}\b", re.IGNORECASE)
_LOSS_AT_STEP = re.compile(rf"\bloss\b.*\bat step (\d+):\s*{_NUMBER}", re.IGNORECASE)
_METRIC_ACCURACY = re.compile(rf"(?<![\w-]){_ACCURACY}\s*[=:]?\s*{_NUMBER}\b", re.IGNORECASE)
_ELAPSED = re.compile(r"\((\d+\.?\d*) sec\)")
_PER_STEP = re.compile(r"(\d+\.?\d*)\s*(us|ms|s|sec|min)/step")
_STEPS_PER_S = re.compile(rf"global_step/sec: {_NUMBER}")
_CHECKPOINT = re.compile(r"Saved checkpoint for (\d+) into (\S+)")
_PACED = re.compile(r"\bpaced\b")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0}


@dataclass(frozen=True)
class Progress:
    """The newest known values; None where no line has told yet."""

    step: int
    loss: float | None = None
    accuracy: float | None = None
    iter_time_s: float | None = None
    paced: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint is complete."""

    step: int
    path: str


class LogParser:
    """Follows one program's log; remembers the last values, so that each Progress is whole."""

    def __init__(self) -> None:
        self.last: Progress | None = None
        self._at_s = 0.0
        self._steps_before_epoch = 0
        self._epoch_steps = 0

    def feed(self, line: str, time_s: float) -> Progress | Checkpoint | None:
        """What this line (without its end, read at `time_s` of any steady clock) says, if anything."""
        text = _ANSI.sub("", line[:LINE_MAX_CHARS])
        if epoch := _EPOCH.match(text):
            self._steps_before_epoch = (max(1, _whole(epoch[1]) or 1) - 1) * self._epoch_steps
            return None
        if saved := _CHECKPOINT.search(text):
            at = _whole(saved[1])
            return Checkpoint(at, saved[2]) if at is not None else None
        if rate := _STEPS_PER_S.search(text):
            return self._rate(float(rate[1]))
        if keras := _KERAS.match(text):
            self._epoch_steps = _whole(keras[2]) or 0
            within = _whole(keras[1])
            step = None if within is None else self._steps_before_epoch + within
            return self._progress(step, _find(_LOSS, text), text, time_s)
        if late := _LOSS_AT_STEP.search(text):
            return self._progress(_whole(late[1]), float(late[2]), text, time_s)
        found, loss = _STEP.search(text), _find(_LOSS, text)
        if found is None or (loss is None and not _METRIC_ACCURACY.search(text)):
            return None
        return self._progress(_whole(found[1]), loss, text, time_s)

    def _rate(self, steps_per_s: float) -> Progress | None:
        if self.last is None or not steps_per_s >= 1.0 / ITERATION_MAX_S:
            return None
        last = self.last
        self.last = Progress(last.step, last.loss, last.accuracy, 1.0 / steps_per_s, last.paced)
        return self.last

    def _progress(self, step: int | None, loss: float | None, text: str, time_s: float) -> Progress | None:
        if step is None or step > STEP_MAX:
            return None
        last = self.last
        accuracy = _find(_METRIC_ACCURACY, text)
        iter_time_s = self._iter_time_s(step, text, time_s)
        if last is not None:
            loss = last.loss if loss is None else loss
            accuracy = last.accuracy if accuracy is None else accuracy
            iter_time_s = last.iter_time_s if iter_time_s is None else iter_time_s
        if last is None or step != last.step:
            self._at_s = time_s
        self.last = Progress(step, loss, accuracy, iter_time_s, _PACED.search(text) is not None)
        return self.last

    def _iter_time_s(self, step: int, text: str, time_s: float) -> float | None:
        """Seconds of a step: as said, else from the seconds said or passed since the last step seen."""
        if said := _PER_STEP.search(text):
            said_s = float(said[1]) * _UNIT_S[said[2]]
            return said_s if said_s <= ITERATION_MAX_S else None
        if self.last is None or step <= self.last.step:
            return None
        elapsed_s = _find(_ELAPSED, text)
        if elapsed_s is None:
            elapsed_s = time_s - self._at_s
        each_s = elapsed_s / (step - self.last.step)
        return each_s if 0 < each_s <= ITERATION_MAX_S else None


def _whole(digits: str) -> int | None:
    """A count; None where it is more than any (int() refuses thousands of digits, a message more than 64 bits)."""
    return int(digits) if len(digits) <= len(str(STEP_MAX)) else None


def _find(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found[1]) if found else None
