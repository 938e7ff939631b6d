"""Parses progress from a training program's log: step, loss, accuracy, time per step, and any metric.

Pure: takes lines and their times. It knows the lines of submarine_patch.worker.session, those of tf.estimator and Slim
(`loss = 0.23, step = 100 (1.234 sec)`, `global_step/sec: 8.1`), the bars of Keras, tqdm and Lightning, Hugging Face's
dicts, JSON lines, `Epoch 3/10`, `Step [100/600]`, `Epoch: [0][10/391]`, and `iter 500: loss`.
A step is the program's own unit; if it names none, its batches, examples or epochs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LINE_MAX_CHARS = 2048
"""Longer lines are cut; progress lines are shorter."""
STEP_MAX = 10**15
"""Lines with a larger step are ignored, as no training counts that far."""
ITERATION_MAX_S = 1e7

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x08|\x00")
_NUMBER = r"([-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf))"
_IS = r"[\"']?\s*[=:]?\s*[\"']?"
_TRAIN = r"(?:train(?:ing)?[_/. ]?)?"
_ACCURACY = rf"{_TRAIN}(?:(?:sparse_|binary_)?(?:categorical_)?accuracy|acc)(?:_step)?"
_OF_OTHERS = "".join(rf"(?<!{kind}{gap})" for kind in ("val", "test", "eval", "valid", "validation") for gap in "[ /.]")
_EPOCH_BEGINS = re.compile(r"^\s*Epoch (\d+)/\d+\s*$")
_EPOCH = re.compile(r"\bepoch(?:\(train\))?[\"']?\s*[=:#]?\s*\[?\s*(\d+)\b(?!\.\d)(?:/(\d+))?", re.IGNORECASE)
_KERAS = re.compile(r"^\s*(\d+)/(\d+)\s(.*(?:/step|\bETA:|- loss:).*)")
_BAR = re.compile(r"\b(\d+)/(\d+)\s*\[\d+:\d\d(?::\d\d)?<[^\]]*(?:it/s|s/it)?")
_INSIDE = re.compile(
    r"(?:\b(?:step|iter|iteration|batch)[\"']?\s*[=:]?\s*\[|\bepoch(?:\(train\))?:?\s*\[?\d+\]?:?\s*\[)\s*(\d+)/\s*(\d+)",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"\b(?:(?:global[_ ])?steps?|iter|iteration|num_updates)[\"']?\s*(?:[=:#]\s*)?\[?[\"']?(\d+)\b", re.IGNORECASE
)
_LOSS = re.compile(rf"(?<![\w/-]){_OF_OTHERS}{_TRAIN}loss(?:_step)?{_IS}{_NUMBER}(?![\w])", re.IGNORECASE)
_LOSS_AT_STEP = re.compile(rf"\bloss\b.*\bat step (\d+):\s*{_NUMBER}", re.IGNORECASE)
_METRIC_ACCURACY = re.compile(rf"(?<![\w/-]){_OF_OTHERS}{_ACCURACY}{_IS}{_NUMBER}\b", re.IGNORECASE)
_ELAPSED = re.compile(r"\((\d+(?:\.\d*)?) sec\)")
_PER_STEP = re.compile(r"(?<![\d.])(\d+(?:\.\d*)?)\s*(us|ms|s|sec|min)/(?:step|it)\b")
_PER_S = re.compile(r"(?<![\d.])(\d+(?:\.\d*)?)\s*it/s\b")
_STEPS_PER_S = re.compile(rf"global_step/sec: {_NUMBER}")
_CHECKPOINT = re.compile(r"Saved checkpoint for (\d+) into (\S+)")
_CHECKPOINT_FAILED = re.compile(r"^WARNING:isonomy:a checkpoint failed by step (\d+): (.*)")
_SESSION = re.compile(
    r"^INFO:\w+:(?:Restored checkpoint for \d+ from |Saving dict for global step \d+|(?:loss = \S+ )?step = \d+ \()"
)
_FINISHED = re.compile(r"^INFO:\w+:Finished at step \d+")
_PACED = re.compile(r"\bpaced\b")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0}


@dataclass(frozen=True)
class Progress:
    """The newest known values; None for those that no line has shown yet."""

    step: int
    loss: float | None = None
    accuracy: float | None = None
    iter_time_s: float | None = None
    paced: bool = False
    metric: float | None = None
    """The app's metric, if it is neither accuracy nor loss."""


@dataclass(frozen=True)
class CheckpointLine:
    """A checkpoint was completed, or `problem` says why it could not be written."""

    step: int
    path: str
    problem: str = ""


class LogParser:
    """Follows one program's log and remembers the last values, so that each Progress is complete."""

    def __init__(self, metric: str = "") -> None:
        self.last: Progress | None = None
        self.finished = False
        """Whether a session logged that it finished."""
        self._session = False
        """Whether a session tells the steps, so that bars count nothing: resumed inside an epoch, they are shorter."""
        named = metric not in ("", "accuracy", "loss")
        self._metric = re.compile(rf"(?<![\w/-]){re.escape(metric)}{_IS}{_NUMBER}(?!\w)") if named else None
        self._at_s = 0.0
        self._epochs_from = 1
        """The number of the program's first epoch: 0 or 1."""
        self._epochs_before = 0
        self._epoch_steps = 0
        self._bar: int | None = None
        """The position of the last progress bar."""

    def feed(self, line: str, time_s: float) -> Progress | CheckpointLine | None:
        """Parse a line, without its newline, read at `time_s` of a monotonic clock; None if it shows no progress."""
        text = _ANSI.sub("", line[:LINE_MAX_CHARS])
        if _FINISHED.match(text):
            self.finished = True
            return None
        own = _SESSION.match(text) is not None
        self._session = self._session or own
        if begins := _EPOCH_BEGINS.match(text):
            self._epochs_before = max(1, _whole(begins[1]) or 1) - 1
            return None
        if saved := _CHECKPOINT.search(text):
            at = _whole(saved[1])
            return CheckpointLine(at, saved[2]) if at is not None else None
        if unsaved := _CHECKPOINT_FAILED.match(text):
            at = _whole(unsaved[1])
            return CheckpointLine(at, "", unsaved[2].strip() or "it does not say why") if at is not None else None
        if rate := _STEPS_PER_S.search(text):
            return self._rate(float(rate[1]))
        if late := _LOSS_AT_STEP.search(text):
            return self._progress(_whole(late[1]), float(late[2]), text, time_s)
        step, loss = self._step(text, own), _find(_LOSS, text)
        told = loss is not None or _METRIC_ACCURACY.search(text) or self._named(text) is not None
        return self._progress(step, loss, text, time_s) if told else None

    def _step(self, text: str, own: bool) -> int | None:
        """The step that a line is about; tries the most reliable patterns first."""
        if self._session and not own:
            return self.last.step if self.last else None
        if keras := _KERAS.match(text):
            return self._inside(keras[1], keras[2])
        epoch = _EPOCH.search(text)
        inside = _INSIDE.search(text)
        bar = None if inside else _BAR.search(text)
        if (inside or bar) and epoch and (number := _whole(epoch[1])) is not None:
            self._epochs_from = 0 if number == 0 else self._epochs_from
            self._epochs_before = number - self._epochs_from
        if inside:
            return self._inside(inside[1], inside[2])
        if bar:
            self._bar = self._inside(bar[1], bar[2]) if epoch else _whole(bar[1])
            return self._bar
        if found := _STEP.search(text):
            return _whole(found[1])
        if epoch and not text.lstrip().startswith("{"):
            number = _whole(epoch[1])
            return None if number is None else number * (self._epoch_steps or 1)
        return self._bar if self._bar is not None else self.last.step if self.last else None

    def _inside(self, done: str, of: str) -> int | None:
        within, self._epoch_steps = _whole(done), _whole(of) or 0
        return None if within is None else self._epochs_before * self._epoch_steps + within

    def _named(self, text: str) -> float | None:
        return _find(self._metric, text) if self._metric else None

    def _rate(self, steps_per_s: float) -> Progress | None:
        if self.last is None or not steps_per_s >= 1.0 / ITERATION_MAX_S:
            return None
        last = self.last
        self.last = Progress(last.step, last.loss, last.accuracy, 1.0 / steps_per_s, last.paced, last.metric)
        return self.last

    def _progress(self, step: int | None, loss: float | None, text: str, time_s: float) -> Progress | None:
        if step is None or step > STEP_MAX:
            return None
        last = self.last
        accuracy, metric = _find(_METRIC_ACCURACY, text), self._named(text)
        iter_time_s = self._iter_time_s(step, text, time_s)
        if last is not None:
            loss = last.loss if loss is None else loss
            accuracy = last.accuracy if accuracy is None else accuracy
            metric = last.metric if metric is None else metric
            iter_time_s = last.iter_time_s if iter_time_s is None else iter_time_s
        if last is None or step != last.step:
            self._at_s = time_s
        self.last = Progress(step, loss, accuracy, iter_time_s, _PACED.search(text) is not None, metric)
        return self.last

    def _iter_time_s(self, step: int, text: str, time_s: float) -> float | None:
        """Seconds per step: as the line says, else from the time, logged or measured, since the last step seen."""
        if said := _PER_STEP.search(text):
            said_s = float(said[1]) * _UNIT_S[said[2]]
            return said_s if said_s <= ITERATION_MAX_S else None
        if (rate := _find(_PER_S, text)) is not None:
            return 1.0 / rate if rate >= 1.0 / ITERATION_MAX_S else None
        if self.last is None or step <= self.last.step:
            return None
        elapsed_s = _find(_ELAPSED, text)
        if elapsed_s is None:
            elapsed_s = time_s - self._at_s
        each_s = elapsed_s / (step - self.last.step)
        return each_s if 0 < each_s <= ITERATION_MAX_S else None


def _whole(digits: str) -> int | None:
    """A count; None if it has too many digits: int() refuses thousands, and messages have 64 bits."""
    return int(digits) if len(digits) <= len(str(STEP_MAX)) else None


def _find(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found[1]) if found else None
