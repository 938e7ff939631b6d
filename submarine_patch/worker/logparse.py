"""Parses progress from a training program's log: step, loss, accuracy, time per step, and any metric.

Pure: takes lines and their times. It knows the lines of submarine_patch.worker.session, those of tf.estimator and Slim
(`loss = 0.23, step = 100 (1.234 sec)`, `global_step/sec: 8.1`), the bars of Keras, tqdm and Lightning, Hugging Face's
dicts, JSON lines, `Epoch 3/10`, `Step [100/600]`, `Epoch: [0][10/391]`, `iter 500: loss`, and what the tutorials of
TensorFlow and PyTorch print. A step is the program's own unit; if it names none, its batches, examples or epochs.
A line without a step counts for the last one, and only its whole keys do: `f1: 0.9`, not `sum of f1: 56`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

LINE_MAX_CHARS = 2048
"""Longer lines are cut; progress lines are shorter."""
STEP_MAX = 10**15
"""Lines with a larger step are ignored, as no training counts that far."""
ITERATION_MAX_S = 1e7

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x08|\x00")
_NUMBER = r"([-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?)))"
_GROUPED = re.compile(r"(?<![\w.,])(?<!\d:)(?!(?<=[\[(])[\d,]+[\])])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")
"""`12,345`, but neither a time such as 09:00:12,345, nor the pair [1,200], nor part of a list or of CSV."""
_IS = r"[\"']?\s*[=:]?\s*[\"']?"
_TRAIN = r"(?:train(?:ing)?[_/. ]?)?"
_ACCURACY = rf"{_TRAIN}(?:(?:sparse_|binary_)?(?:categorical_)?accuracy|acc(?:@?1)?)(?:_step)?"
_OTHER = r"(?:val|valid|validation|test|eval)(?:[_/. ]set)?[_/. ]?"
_OF_OTHERS = "".join(rf"(?<!{kind}{gap})" for kind in ("val", "test", "eval", "valid", "validation") for gap in "[ /.]")
_LEVEL = re.compile(r"\b(?:DEBUG|INFO|WARNING)\b")
_EPOCH_BEGINS = re.compile(r"^\s*(?:start of )?epoch:?\s+(\d+)(?:/(\d+))?:?\s*$", re.IGNORECASE)
_EPOCH = re.compile(r"\bepoch(?:\(train\))?[\"']?\s*[=:#]?\s*\[?\s*(\d+)\b(?!\.\d)(?:/(\d+))?", re.IGNORECASE)
_KERAS = re.compile(r"^\s*(\d+)/(\d+)\s(.*(?:/step|\bETA:|- loss:).*)")
_BAR = re.compile(r"\b(\d+)/(\d+)\s*\[\d+:\d\d(?::\d\d)?<[^\]]*(?:it/s|s/it)?")
_INSIDE = re.compile(
    r"(?:\b(?:step|iter|iteration|batch)[\"']?\s*[=:]?\s*\[|\bepoch(?:\(train\))?:?\s*\[?\d+\]?:?\s*\[)\s*(\d+)/\s*(\d+)",
    re.IGNORECASE,
)
_INSIDE_TOO = re.compile(r"\[\s*(\d+)/\s*(\d+)\]\s*$|\|\s*(\d+)/\s*(\d+) batches\b")
_EPOCH_AND_BATCH = re.compile(r"^\s*\[(\d+),\s*(\d+)\]")
_BATCH = re.compile(r"\bbatch[\s:#]*(\d+)\b(?![./])", re.IGNORECASE)
_STEP = re.compile(
    r"\b(?:(?:global[_ ])?steps?|iter|iteration|num_updates)[\"']?\s*(?:[=:#]\s*)?\[?[\"']?(\d+)\b(?:/(\d+)\b)?",
    re.IGNORECASE,
)
_UNTIL = re.compile(r"^INFO:\w+:Trains to step (\d+)$|\"max_steps\": (\d+)")
_LOSS = re.compile(rf"(?<![\w/-]){_OF_OTHERS}{_TRAIN}loss(?:_step)?{_IS}{_NUMBER}(?![\w])", re.IGNORECASE)
_LOSS_AT_STEP = re.compile(rf"\bloss\b.*\bat step (\d+):\s*{_NUMBER}", re.IGNORECASE)
_METRIC_ACCURACY = re.compile(rf"(?<![\w/-]){_OF_OTHERS}{_ACCURACY}(?![\w@]){_IS}{_NUMBER}(?:/(\d+))?\b", re.IGNORECASE)
_OTHER_ACCURACY = re.compile(rf"(?<![\w/-]){_OTHER}{_ACCURACY}(?![\w@]){_IS}{_NUMBER}(?:/(\d+))?\b", re.IGNORECASE)
_PAIR = re.compile(
    r"(?<![\w./@-])([A-Za-z][\w./@-]*+(?: [A-Za-z][\w./@-]*+){0,3}?)"
    rf"[\"']?\s*+[=:]?\s*+[\"']?{_NUMBER}(?:/(\d+))?(?![\w.])"
)
"""A key of up to four words, and its value."""
_LOSS_KEY = re.compile(rf"{_TRAIN}loss(?:_step)?|loss train", re.IGNORECASE)
_ACCURACY_KEY = re.compile(rf"{_ACCURACY}(?: over epoch)?", re.IGNORECASE)
_OTHER_ACCURACY_KEY = re.compile(rf"{_OTHER}{_ACCURACY}", re.IGNORECASE)
_ELAPSED = re.compile(r"\((\d+(?:\.\d*)?) sec\)")
_PER_STEP = re.compile(r"(?<![\d.])(\d+(?:\.\d*)?)\s*(us|ms|s|sec|min)/(?:step|it)\b")
_PER_S = re.compile(r"(?<![\d.])(\d+(?:\.\d*)?)\s*it/s\b")
_STEPS_PER_S = re.compile(rf"global_step/sec: {_NUMBER}")
_SAVED_AT = re.compile(r"\bSaved checkpoint for step (\d+)")
_CHECKPOINT = re.compile(r"Saved checkpoint for (\d+) into (\S+)")
_CHECKPOINT_FAILED = re.compile(r"^WARNING:isonomy:a checkpoint failed by step (\d+): (.*)")
_SESSION = re.compile(
    r"^INFO:\w+:(?:Trains to step \d+$|Restored checkpoint for \d+ from |Saving dict for global step \d+"
    r"|(?:loss = \S+ )?step = \d+ \()"
)
_LOGGED = re.compile(r"(?:INFO|WARNING):(?:isonomy|tensorflow):")
"""Begins a session's line; a bar that stands before it has no newline."""
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
    until_step: int = 0
    """The last step, as the log says; 0: it does not."""


@dataclass(frozen=True)
class CheckpointLine:
    """A checkpoint was completed, or `problem` says why it could not be written."""

    step: int
    path: str
    problem: str = ""


class LogParser:
    """Follows one program's log and remembers the last values, so that each Progress is complete."""

    def __init__(self, metric: str = "", epochs: int = 0) -> None:
        """`epochs`: how many there are, where lines do not say it; 0: not known."""
        self.last: Progress | None = None
        self.finished = False
        """Whether a session logged that it finished."""
        self._session = False
        """Whether a session tells the steps, so that bars count nothing: resumed inside an epoch, they are shorter."""
        named = metric not in ("", "accuracy", "loss")
        self._metric = metric if named else ""
        self._at_s = 0.0
        self._epochs_from = 1
        """The number of the program's first epoch: 0 or 1."""
        self._epochs_before = 0
        self._epoch_steps = 0
        self._epoch: int | None = None
        """The number of the epoch that a line named last."""
        self._turned = False
        """Whether that epoch is a new one, of which no count was seen yet."""
        self._counts = False
        """Whether lines have a count of batches without their number in an epoch, or of steps."""
        self._count = self._counted_before = 0
        """The last such count, and the steps before it began anew."""
        self._trains_accuracy = False
        """Whether a line had the accuracy in training, so that those of other data are not it."""
        self._bar: int | None = None
        """The position of the last progress bar."""
        self._epochs, self._until_step = epochs, 0
        """Of all epochs the number, and the last step, as lines say; 0: not known."""

    def feed(self, line: str, time_s: float) -> Progress | CheckpointLine | None:
        """Parse a line, without its newline, read at `time_s` of a monotonic clock; None if it shows no progress."""
        text = _ANSI.sub("", line[:LINE_MAX_CHARS])
        if logged := _LOGGED.search(text):
            text = text[logged.start() :]
        elif "," in text:
            text = _GROUPED.sub(lambda number: number[0].replace(",", ""), text)
        if _FINISHED.match(text):
            self.finished = True
            return None
        own = _SESSION.match(text) is not None
        self._session = self._session or own
        if until := _UNTIL.search(text):
            self._until_step = _whole(until[1] or until[2]) or 0
        if begins := _EPOCH_BEGINS.match(text):
            self._in_epoch(_whole(begins[1]), begins[2])
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
            return self._progress(self._continued(_whole(late[1])), {"loss": float(late[2])}, text, time_s)
        if reached := _SAVED_AT.search(text):
            return self._progress(self._continued(_whole(reached[1])), {}, text, time_s)
        step = self._step(text, own)
        values = self._values(text, whole=step is None)
        if step is None:
            step = self._last_step()
        return self._progress(step, values, text, time_s) if values else None

    def _values(self, text: str, whole: bool) -> dict[str, float]:
        """The loss, the accuracy and the metric of a line; `whole`: only those whose key says nothing else."""
        pairs = {m[1]: _value(m[2], m[3]) for m in _PAIR.finditer(_LEVEL.sub("|", text))}
        if whole:
            loss = next((v for k, v in pairs.items() if _LOSS_KEY.fullmatch(k)), None)
            accuracy = next((v for k, v in pairs.items() if _ACCURACY_KEY.fullmatch(k)), None)
            other = next((v for k, v in pairs.items() if _OTHER_ACCURACY_KEY.fullmatch(k)), None)
        else:
            loss = _find(_LOSS, text)
            accuracy, other = (
                _value(m[1], m[2]) if (m := kind.search(text)) else None for kind in (_METRIC_ACCURACY, _OTHER_ACCURACY)
            )
        self._trains_accuracy = self._trains_accuracy or accuracy is not None
        accuracy = other if accuracy is None and not self._trains_accuracy else accuracy
        named = _normal(self._metric)
        metric = pairs.get(self._metric, next((v for k, v in pairs.items() if _normal(k) == named), None))
        found = {"loss": loss, "accuracy": accuracy, "metric": metric}
        return {name: value for name, value in found.items() if value is not None}

    def _step(self, text: str, own: bool) -> int | None:
        """The step that a line names; tries the most reliable patterns first. None if it names none."""
        if self._session and not own:
            return None
        if keras := _KERAS.match(text):
            return self._inside(keras[1], keras[2])
        epoch = _EPOCH.search(text)
        inside = _INSIDE.search(text) or _INSIDE_TOO.search(text)
        bar = None if inside else _BAR.search(text)
        if epoch and (number := _whole(epoch[1])) is not None:
            self._in_epoch(number, epoch[2])
        if inside:
            return self._inside(inside[1] or inside[3], inside[2] or inside[4])
        if bar:
            self._bar = self._inside(bar[1], bar[2]) if epoch else _whole(bar[1])
            return self._bar
        if both := _EPOCH_AND_BATCH.match(text):
            self._in_epoch(_whole(both[1]))
            return self._continued(_whole(both[2]))
        if found := _STEP.search(text):
            if found[2] and self._epoch is None:
                self._until_step = _whole(found[2]) or 0
            return self._continued(_whole(found[1]))
        if found := _BATCH.search(text):
            return self._continued(_whole(found[1]))
        if epoch and not text.lstrip().startswith("{"):
            return self._epoch_over(_whole(epoch[1]))
        return None

    def _in_epoch(self, number: int | None, of: str | None = None) -> None:
        self._epochs = (_whole(of) or 0) if of else self._epochs
        if number is None or number == self._epoch:
            return
        self._epoch, self._turned = number, True
        self._epochs_from = 0 if number == 0 else self._epochs_from
        self._epochs_before = max(0, number - self._epochs_from)

    def _continued(self, count: int | None) -> int | None:
        """The step of a line that counts: if the count began anew with an epoch, it goes on from the last step."""
        if count is None or count > STEP_MAX:
            return None
        if self._turned and count < self._count and self.last is not None:
            self._counted_before = self.last.step
        self._turned, self._counts, self._count = False, True, count
        return self._counted_before + count

    def _epoch_over(self, number: int | None) -> int | None:
        """The step of a line about a whole epoch."""
        if number is None or (self._counts and self.last is not None):
            return self.last.step if self.last else None
        return (number - self._epochs_from + 1) * self._epoch_steps if self._epoch_steps else number

    def _last_step(self) -> int | None:
        """The step of a line that names none; after a heading such as `Epoch 3`, that epoch."""
        if self._epoch is not None and not (self._session or self._counts or self._epoch_steps or self._bar):
            return self._epoch
        return self._bar if self._bar is not None else self.last.step if self.last else None

    def _inside(self, done: str, of: str) -> int | None:
        within, self._epoch_steps = _whole(done), _whole(of) or 0
        return None if within is None else self._epochs_before * self._epoch_steps + within

    def _rate(self, steps_per_s: float) -> Progress | None:
        if self.last is None or not steps_per_s >= 1.0 / ITERATION_MAX_S:
            return None
        self.last = replace(self.last, iter_time_s=1.0 / steps_per_s)
        return self.last

    def _progress(self, step: int | None, values: Mapping[str, float], text: str, time_s: float) -> Progress | None:
        if step is None or step > STEP_MAX:
            return None
        last, iter_time_s = self.last or Progress(-1), self._iter_time_s(step, text, time_s)
        if step != last.step:
            self._at_s = time_s
        loss, accuracy, metric = (values.get(k, getattr(last, k)) for k in ("loss", "accuracy", "metric"))
        iter_time_s = last.iter_time_s if iter_time_s is None else iter_time_s
        paced, until_step = _PACED.search(text) is not None, self._until(step)
        self.last = Progress(step, loss, accuracy, iter_time_s, paced, metric, until_step)
        return self.last

    def _until(self, step: int) -> int:
        """The last step: as a line says, else that of the last epoch; 0 where neither is known, or it is over."""
        number = None if self._epoch is None else self._epoch - self._epochs_from + 1
        each = self._epoch_steps or (1 if step == number and not self._counts else 0)
        until_step = self._until_step or (0 if self._session else self._epochs * each)
        return until_step if step <= until_step <= STEP_MAX else 0

    def _iter_time_s(self, step: int, text: str, time_s: float) -> float | None:
        """Seconds per step: as the line says, else from the time, logged or measured, since the last step seen."""
        if said := _PER_STEP.search(text):
            said_s = float(said[1]) * _UNIT_S[said[2]]
            return said_s if said_s <= ITERATION_MAX_S else None
        if (rate := _find(_PER_S, text)) is not None:
            return 1.0 / rate if rate >= 1.0 / ITERATION_MAX_S else None
        if self.last is None or step <= self.last.step:
            return None
        logged_s = _find(_ELAPSED, text)
        each_s = (time_s - self._at_s if logged_s is None else logged_s) / (step - self.last.step)
        return each_s if 0 < each_s <= ITERATION_MAX_S else None


def _whole(digits: str) -> int | None:
    """A count; None if it has too many digits: int() refuses thousands, and messages have 64 bits."""
    return int(digits) if len(digits) <= len(str(STEP_MAX)) else None


def _value(number: str, of: str | None) -> float:
    """A number, or the part that `9847/10000` says."""
    return float(number) / float(of) if of and float(of) else float(number)


def _normal(key: str) -> str:
    """A key in one form: `Val F1`, `val_f1` and `val/f1` are one, and so are `f1` and `train f1`."""
    return re.sub(r"[ _/.-]+", "_", key).lower().removeprefix("train_").removeprefix("training_")


def _find(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found[1]) if found else None
