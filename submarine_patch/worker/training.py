"""Makes a TensorFlow training script resume, stop, keep pace and checkpoint, in about ten lines:

    import isonomy                                        # before tensorflow
    session = isonomy.tensorflow.session(steps=1000)
    with session.scope():
        model, optimizer = ...
    session.restore(model, optimizer)                     # the newest complete checkpoint, if any
    batches = session.batches((x, y), batch_size=64)
    train = session.replicated(train_step)                # train_step(x, y) -> {"loss": ..., ...}
    for step in session.steps():                          # global steps, from where the checkpoint ends
        session.report(**train(*batches[step]))
    session.finish(evaluate, export=model)                # evaluate() -> {"loss": ..., "accuracy": ...}

See session.py for what a session does. Keras 3 optimizers that update inside `train_step` sum gradients over the
replicas, so the loss to differentiate is the mean over this replica's examples divided by `session.replicas`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from submarine_patch.worker import checkpoints
from submarine_patch.worker import session as base
from submarine_patch.worker.coordinator import joined
from submarine_patch.worker.gang import Gang
from submarine_patch.worker.rank import Rank
from submarine_patch.worker.session import SessionError

STATE = "state.npz"
MODEL = "model.keras"


class Variables:
    """The state as a fixed sequence of variables with numpy() and assign(), for TensorFlow and Keras."""

    def __init__(self) -> None:
        self._variables: list[Any] = []

    def declare(self, owners: Sequence[Any]) -> None:
        """Collect the variables of models, optimizers, collections of variables, and variables; raises SessionError."""
        self._variables = [v for owner in owners for v in _variables_of(owner)]
        if not self._variables:
            raise SessionError("session.restore(...) was given nothing that has variables")

    def captured(self) -> Callable[[], memoryview]:
        """Copy the variables' values; returns a function that serialises them as npz."""
        arrays = {f"v{i}": np.array(v.numpy()) for i, v in enumerate(self._variables)}

        def serialised() -> memoryview:
            buffer = io.BytesIO()
            np.savez(buffer, **arrays)  # type: ignore[arg-type]
            return buffer.getbuffer()

        return serialised

    def assign(self, path: str, state: bytes) -> None:
        """Set the variables from npz bytes; raises SessionError if their shapes differ."""
        with np.load(io.BytesIO(state), allow_pickle=False) as found:
            values = [found[f"v{i}"] for i in range(len(found.files))]
        shapes, own = [v.shape for v in values], [tuple(v.shape) for v in self._variables]
        if shapes != own:
            raise SessionError(
                f"{path} has variables of shapes {shapes}, the script {own}: the model was changed;"
                " use another checkpoint path"
            )
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)


class OfVariables(base.Session):
    """A session with variables as its state; subclasses set `_state` in `_join`."""

    state_part = STATE
    _state: Variables

    def _declare(self, owners: Sequence[Any], named: Mapping[str, Any]) -> None:
        self._state.declare([*owners, *named.values()])

    def _captured(self) -> Callable[[], memoryview]:
        return self._state.captured()

    def _assign(self, name: str, state: bytes) -> None:
        self._state.assign(f"{self._where}/{name}", state)

    def _export(self, model: Any) -> dict[str, bytes]:
        return {MODEL: exported(model)}


class TensorFlowSession(OfVariables):
    """A session of TensorFlow."""

    log_name = "tensorflow"

    def _join(self, threads: int) -> Gang:
        self._state = Variables()
        told = os.environ.get("TF_CONFIG", "")
        return joined(told) or Gang(Rank.parse(told), threads)

    def steps(self) -> Iterator[int]:
        """Iterate over the global steps left to do; with parameter servers all of them are done at its end."""
        yield from super().steps()
        self.gang.settle()

    def _captured(self) -> Callable[[], memoryview]:
        self.gang.settle()
        return super()._captured()

    @property
    def strategy(self) -> Any:
        """TensorFlow's distribution strategy."""
        return self.gang.strategy

    def scope(self) -> Any:
        """The context in which to make the model and the optimizer; sets the seed, the same on all workers."""
        import tensorflow as tf

        tf.keras.utils.set_random_seed(self._seed)
        return self.gang.strategy.scope()

    def replicated(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`step` as a graph that runs on every replica; its results are averaged over the replicas."""
        run: Callable[..., Any] = self.gang.replicated(step)
        return run


def session(steps: int = 1000, **options: Any) -> TensorFlowSession:
    """The session of this process, see `session.Session`; under Isonomy the Agent's last step replaces `steps`."""
    try:
        return TensorFlowSession(steps, **options)
    except (ValueError, checkpoints.StoreError) as e:
        raise SessionError(str(e)) from e


def _variables_of(owner: Any) -> list[Any]:
    """The variables of a Keras model, optimizer or collection, or the variable itself."""
    if hasattr(owner, "variables"):
        return list(owner.variables)
    return [owner] if hasattr(owner, "assign") else list(owner)


def _plain(model: Any) -> Any:
    """A model that can be saved by one worker alone: tf_keras' metrics are distributed, so a clone without them."""
    if not type(model).__module__.startswith("tf_keras"):
        return model
    import tf_keras

    copy = tf_keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    return copy


def exported(model: Any) -> bytes:
    """A Keras model as a .keras file."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="isonomy-model-") as folder:
        path = os.path.join(folder, MODEL)
        _plain(model).save(path)
        with open(path, "rb") as f:
            return f.read()
