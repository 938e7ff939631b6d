"""`model.fit` that reports, checkpoints, stops inside an epoch and resumes there; Keras 3 and tf_keras.

    import isonomy                                        # before keras
    session = isonomy.keras.session(checkpoint_steps=50)
    with session.scope():
        model = ...; model.compile(...)
    session.fit(model, x, y, batch_size=64, epochs=10)    # as model.fit
    session.finish(lambda: model.evaluate(tx, ty, return_dict=True), export=model)

The examples of a step depend only on the step, so a resumed run gives the same result as an uninterrupted one.
Several workers need tf_keras (TF_USE_LEGACY_KERAS=1) or JAX (KERAS_BACKEND=jax): Keras 3's `fit` does not support
them on TensorFlow 2.21.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from submarine_patch.worker import session as base
from submarine_patch.worker import training
from submarine_patch.worker.batches import Batches
from submarine_patch.worker.kept_callbacks import CALLBACKS, KeptCallbacks
from submarine_patch.worker.rank import Agreement, Rank
from submarine_patch.worker.session import SessionError

LEGACY = "TF_USE_LEGACY_KERAS"
DataFrom = Callable[[int], Any]
"""Maps a global step to the data for `fit` from that step on."""


class _Fits(base.Session):
    """`fit`, shared by both kinds of sessions."""

    def fit(
        self,
        model: Any,
        x: Any,
        y: Any = None,
        *,
        batch_size: int = 32,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        callbacks: Sequence[Any] = (),
        **options: Any,
    ) -> Any:
        """Train from the newest checkpoint on; `batch_size` counts all workers. Returns Keras' History, of all epochs.

        `x`: arrays (with `y`), a Sequence or PyDataset of batches, a tf.data.Dataset of one epoch, or a function that
        returns the data from a global step on. A function needs `steps_per_epoch`, and so does a dataset of unknown
        length. The Agent sets the last step; without it `epochs` does, else the session's steps. A callback that stops
        the training ends the job. Raises SessionError.
        """
        if getattr(model, "steps_per_execution", 1) not in (1, None):
            raise SessionError("compile(steps_per_execution=1): a stop must be possible between any two steps")
        data, per_epoch = self._data(x, y, batch_size, steps_per_epoch)
        if epochs is not None and not os.environ.get("ISONOMY_UNTIL_STEP"):
            self.until_step = epochs * per_epoch
        _build(model, data)
        self._kept = KeptCallbacks(callbacks)
        self.restore(model, model.optimizer)
        if self._kept.trained and self.step < self.until_step and not self._kept.stopped:
            model.set_weights(self._kept.trained)
            self._kept.trained = []
        mine = _callback(self, model, per_epoch)
        history = mine.history()
        while self.step < self.until_step and not mine.ended and not self._kept.stopped:
            epoch, inside = divmod(self.step, per_epoch)
            last = epoch + 1 if inside else -(-self.until_step // per_epoch)
            with self._kept.one_training():
                history = model.fit(
                    self._distributed(data, self.step),
                    initial_epoch=epoch,
                    epochs=last,
                    steps_per_epoch=per_epoch - inside,
                    callbacks=[*callbacks, mine],
                    **options,
                )
        self._kept.end(model)
        if self._kept.stopped:
            self.until_step = self.step
        history.history, history.epoch = self._kept.history, list(range(len(self._kept.epochs)))
        return history

    def _more(self) -> dict[str, bytes]:
        return {CALLBACKS: self._kept.dump()}

    def _restored(self, parts: Mapping[str, bytes]) -> None:
        if CALLBACKS in parts:  # a checkpoint of an older version has none
            self._kept.load(parts[CALLBACKS])

    def _data(self, x: Any, y: Any, batch_size: int, per_epoch: int | None) -> tuple[DataFrom, int]:
        if y is not None:
            batches = self.batches((x, y), batch_size, rest=True)
            return _forever(batches, batches.per_epoch), batches.per_epoch
        if callable(x) and not hasattr(x, "__getitem__"):
            if not per_epoch:
                raise SessionError("fit(data, steps_per_epoch=...): a function does not tell how long an epoch is")
            return x, per_epoch
        if self.gang.place.workers > 1:
            raise SessionError("fit: among several workers give arrays, or a function of the step for its data")
        if hasattr(x, "__getitem__"):
            return _forever(x, len(x)), len(x)
        return _skipping(x, per_epoch)

    def _distributed(self, data: DataFrom, step: int) -> Any:
        return data(step)


def _forever(batches: Any, per_epoch: int) -> DataFrom:
    """An endless generator of batches from a step on; `Batches` is indexed by step, other data by batch of an epoch."""
    by_step = isinstance(batches, Batches)

    def data(step: int) -> Iterator[Any]:
        return (batches[n if by_step else n % per_epoch] for n in count(step))

    return data


def _skipping(dataset: Any, per_epoch: int | None) -> tuple[DataFrom, int]:
    length = per_epoch or int(dataset.cardinality())
    if length <= 0:
        raise SessionError("fit(dataset, steps_per_epoch=...): the dataset does not tell how long it is")

    def data(step: int) -> Any:
        # repeat before skip: a shuffled dataset reshuffles in each repetition, from its seed
        return dataset.repeat().skip(step)

    return data, length


def _build(model: Any, data: DataFrom) -> None:
    """Create all variables of the model and its optimizer, so that they can be restored."""
    if not model.built:
        model(next(iter(data(0)))[0])
    model.optimizer.build(model.trainable_variables)


class _OnTensorFlow(_Fits, training.TensorFlowSession):
    """Keras 3 on TensorFlow with one worker, tf_keras with any number."""

    def fit(self, model: Any, x: Any, y: Any = None, **options: Any) -> Any:
        if self.gang.place.workers > 1 and not _legacy():
            raise SessionError(
                "Keras 3 cannot fit over several workers on TensorFlow: pip install tf_keras and set"
                f" {LEGACY}=1 (--env {LEGACY}=1), or use one worker with more GPUs"
            )
        return super().fit(model, x, y, **options)

    def _distributed(self, data: DataFrom, step: int) -> Any:
        """The data for `fit`; with several workers, only this worker's parts, which TensorFlow must not shard again."""
        parts = self.replicas // self.gang.place.workers
        if self.gang.place.workers == 1:
            return _dataset(data, step, 1) if _legacy() and not hasattr(data(step), "element_spec") else data(step)
        return self.strategy.distribute_datasets_from_function(lambda _: _dataset(data, step, parts))


class _Jax(Agreement):
    """The workers of a gang in JAX: data-parallel over all their devices, with agreement among them."""

    def __init__(self, place: Rank) -> None:
        import jax
        import keras

        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        keras.distribution.initialize(address, num_processes=place.workers, process_id=place.index)
        keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
        super().__init__(place)
        self._devices = int(jax.device_count())

    @property
    def replicas(self) -> int:
        return self._devices

    def sum(self, values: Sequence[float]) -> list[float]:
        from jax.experimental.multihost_utils import process_allgather

        own = np.array(values, np.float64)
        gathered = process_allgather(own.view(np.uint8))  # as bytes, for JAX would round them to 32 bits
        return [float(v) for v in np.asarray(gathered).view(np.float64).sum(axis=0)]


class _Elsewhere(_Fits, training.OfVariables):
    """Keras 3 on JAX, with any number of workers, or on PyTorch, with one."""

    def _join(self, threads: int) -> Agreement:
        place = Rank.of_ranks(os.environ)
        if place.workers == 1:
            return Agreement(place)
        if _backend() != "jax":
            raise ValueError(f"Keras on {_backend()} is for one worker here; use JAX, or tf_keras ({LEGACY}=1)")
        return _Jax(place)

    def _declare(self, owners: Sequence[Any], named: Mapping[str, Any]) -> None:
        super()._declare(owners, named)
        self._owners = owners

    def _captured(self) -> Callable[[], memoryview]:
        for owner in self._owners:  # while `fit` runs on JAX, it holds the variables' values
            getattr(owner, "jax_state_sync", lambda: None)()
        return super()._captured()

    def scope(self) -> Any:
        """Set the seed; returns an empty context, as there is nothing to distribute."""
        import keras

        keras.utils.set_random_seed(self._seed)
        return contextlib.nullcontext()


def _callback(session: Any, model: Any, per_epoch: int) -> Any:
    """A Keras callback that makes each batch of `fit` a step of the session.

    It is the last of the callbacks, and the step of an epoch's last batch is done once the epoch has ended: so a
    checkpoint between two steps has what all callbacks know by then.
    """
    callbacks, kept = _callbacks_of(model), session._kept

    class Steps(callbacks.Callback):  # type: ignore[misc,name-defined]
        """Advances `session.steps()`, which exits with 75 between two steps if a stop was requested."""

        def __init__(self) -> None:
            super().__init__()
            self._steps = session.steps()
            self._whole = self._goes_on = False
            scalars = [v for v in model.optimizer.variables if session.step % per_epoch and not len(v.shape)]
            self._of_epoch = [(v, np.array(v.numpy())) for v in scalars]
            """The learning rate and other numbers of the optimizer, if the first epoch began before the checkpoint."""
            self.ended = kept.stopped or next(self._steps, None) is None

        def history(self) -> Any:
            """A History without epochs."""
            return callbacks.History()

        def on_train_begin(self, logs: Any = None) -> None:
            if session.step % per_epoch == 0:
                kept.begun()

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            kept.begun()
            for variable, number in self._of_epoch:
                variable.assign(number)
            self._of_epoch = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if session.gang.place.workers == 1 or not _legacy():  # tf_keras sums the workers' values of a batch
                session.report(**dict(logs or {}))
            elif logs and "loss" in logs:
                session.report(loss=logs["loss"] / session.gang.place.workers)
            self._whole = (session.step + 1) % per_epoch == 0
            if not self._whole:
                self._advance()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            session.report(**dict(logs or {}))
            if not self._goes_on:
                kept.epoch_ended(epoch, dict(logs or {}))
            if self._whole:
                self._whole = False
                self._advance()

        def _advance(self) -> None:
            kept.stopped = session.gang.any(bool(self.model.stop_training))
            self.ended = next(self._steps, None) is None
            self.model.stop_training = self.ended or kept.stopped
            self._goes_on = self.ended and not kept.stopped and session.step % per_epoch != 0
            if self._goes_on:
                kept.epoch_goes_on()

    return Steps()


def _callbacks_of(model: Any) -> Any:
    """The module `callbacks` of the Keras that made the model."""
    legacy = type(model).__module__.startswith("tf_keras") or _legacy()
    return importlib.import_module(f"{'tf_keras' if legacy else 'keras'}.callbacks")


def _dataset(data: DataFrom, step: int, parts: int) -> Any:
    """Each batch split into `parts`, as a tf.data.Dataset that TensorFlow does not shard."""
    import tensorflow as tf

    first = next(iter(data(step)))
    kinds = tuple(tf.TensorSpec([None, *a.shape[1:]], a.dtype) for a in first)

    def split() -> Iterator[Any]:
        for batch in data(step):
            yield from zip(*(np.array_split(a, parts) for a in batch), strict=True)

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_generator(split, output_signature=kinds).with_options(options)


def _legacy() -> bool:
    return os.environ.get(LEGACY, "").lower() in ("1", "true")


def _backend() -> str:
    """The name of Keras's backend, found without importing Keras."""
    if _legacy():
        return "tensorflow"
    file = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / "keras.json"
    try:
        configured = str(json.loads(file.read_text())["backend"])
    except (OSError, ValueError, KeyError, TypeError):
        configured = "tensorflow"
    return os.environ.get("KERAS_BACKEND") or configured


def session(steps: int = 1000, **options: Any) -> Any:
    """The session of this process; under Isonomy the Agent's last step replaces `steps`."""
    return (_OnTensorFlow if _backend() == "tensorflow" else _Elsewhere).of(steps, **options)
