"""What Keras' callbacks know between two steps, as a file of a checkpoint: counters, best values and best weights.

A resumed `fit` is one training to its callbacks: they begin once, know what they knew at the checkpoint, and end once.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

CALLBACKS = "callbacks.npz"
_SCALARS = (bool, int, float, str, type(None))
_HOOKS = ("on_train_begin", "on_train_end", "on_epoch_end")
_OPTIONS = frozenset({"min_delta"})
"""Options that Keras' callbacks change when they begin: they would be changed twice."""


class KeptCallbacks:
    """The callbacks of one `fit`, over all its launches."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = list(callbacks)
        self._made = [dict(vars(c)) for c in self._callbacks]
        """Their attributes before the training: those that do not change are options, which a script may change."""
        self._known: list[dict[str, Any]] | None = None
        """By callback: what a checkpoint says of it, until the training has begun."""
        self._began = False
        self.stopped = False
        """Whether a callback has ended the training."""
        self.trained: list[np.ndarray[Any, Any]] = []
        """The weights at the end of a rung, where callbacks left the best ones in their place: a next rung begins with
        these."""
        self.epochs: list[int] = []
        self.history: dict[str, list[float]] = {}

    @contextmanager
    def one_training(self) -> Iterator[None]:
        """Makes the next call of `fit` a part of one training: it begins once, and `end` ends it."""
        own = [{name: vars(c)[name] for name in _HOOKS if name in vars(c)} for c in self._callbacks]
        for callback in self._callbacks:
            callback.on_train_end = _ignore
            if self._began:
                callback.on_train_begin = _ignore
        self._began = True
        try:
            yield
        finally:
            for callback, hooks in zip(self._callbacks, own, strict=True):
                for name in _HOOKS:
                    vars(callback).pop(name, None)
                vars(callback).update(hooks)  # of a LambdaCallback

    def begun(self) -> None:
        """All callbacks were told of the beginning, before the checkpoint too: sets what it says of them."""
        known, self._known = self._known, None
        for callback, state in zip(self._callbacks, known or (), strict=False):
            vars(callback).update(state)

    def epoch_goes_on(self) -> None:
        """Hides from the callbacks that this call of `fit` ends its epoch, which a later launch continues."""
        for callback in self._callbacks:
            callback.on_epoch_end = _ignore

    def end(self, model: Any) -> None:
        """Calls each callback's `on_train_end`, if the training began in this launch."""
        if self._began and any(getattr(c, "restore_best_weights", False) for c in self._callbacks):
            self.trained = [_known_to_numpy(np.asarray(w)) for w in model.get_weights()]
        for callback in self._callbacks if self._began else ():
            callback.on_train_end({})

    def epoch_ended(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Adds an epoch to the history."""
        self.epochs.append(epoch)
        for name, number in logs.items():
            self.history.setdefault(name, []).append(float(number))

    def dump(self) -> bytes:
        """The state of all callbacks, and the history."""
        arrays: dict[str, Any] = {}
        states = []
        for k, (callback, made) in enumerate(zip(self._callbacks, self._made, strict=True)):
            state, listed = {}, {}
            for name, of in vars(callback).items():
                if name in _OPTIONS or (name in made and made[name] is of):
                    continue
                if isinstance(of, _SCALARS) or (isinstance(of, np.generic) and of.ndim == 0):
                    state[name] = of.item() if isinstance(of, np.generic) else of
                elif isinstance(of, list) and of and all(isinstance(x, np.ndarray) for x in of):
                    listed[name] = len(of)
                    arrays |= {f"{k}/{name}/{i}": _known_to_numpy(x) for i, x in enumerate(of)}
            states.append({"kind": type(callback).__name__, "state": state, "arrays": listed})
        told = {"callbacks": states, "stopped": self.stopped, "epochs": self.epochs, "history": self.history}
        arrays |= {f"trained/{i}": x for i, x in enumerate(self.trained)}
        file = io.BytesIO()
        np.savez(file, told=np.frombuffer(json.dumps(told).encode(), np.uint8), **arrays)
        return file.getvalue()

    def load(self, data: bytes) -> None:
        """The inverse of `dump`; callbacks that are others now begin anew."""
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            told = json.loads(file["told"].tobytes())
            self.stopped, self.epochs, self.history = told["stopped"], told["epochs"], told["history"]
            self.trained = [file[f"trained/{i}"] for i in range(sum(n.startswith("trained/") for n in file.files))]
            self._known = []
            for k, (callback, of) in enumerate(zip(self._callbacks, told["callbacks"], strict=False)):
                arrays = {name: [file[f"{k}/{name}/{i}"] for i in range(n)] for name, n in of["arrays"].items()}
                same = of["kind"] == type(callback).__name__
                self._known.append({**of["state"], **arrays} if same else {})


def _known_to_numpy(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, or the same numbers in a type that NumPy's files know, unlike bfloat16; Keras converts them back."""
    return x.astype(np.float32) if x.dtype.kind == "V" else x


def _ignore(*told: Any) -> None:
    """In place of a hook that is called once for the whole training, or epoch."""
