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
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from submarine_patch.worker import session as base
from submarine_patch.worker.coordinator import joined
from submarine_patch.worker.gang import Gang
from submarine_patch.worker.rank import Rank
from submarine_patch.worker.session import SessionError

STATE = "state.npz"
MODEL = "model.keras"


class OfVariables(base.Session):
    """A session whose state is a fixed sequence of variables with numpy() and assign(), for TensorFlow and Keras."""

    state_part = STATE
    _variables: Sequence[Any] = ()

    def _declare(self, owners: Sequence[Any], named: Mapping[str, Any]) -> None:
        self._variables = [v for owner in (*owners, *named.values()) for v in _variables_of(owner)]
        if not self._variables:
            raise SessionError("session.restore(...) was given nothing that has variables")

    def _captured(self) -> Callable[[], memoryview]:
        arrays = {f"v{i}": np.array(v.numpy()) for i, v in enumerate(self._variables)}

        def serialised() -> memoryview:
            buffer = io.BytesIO()
            np.savez(buffer, **arrays)  # type: ignore[arg-type]
            return buffer.getbuffer()

        return serialised

    def _assign(self, name: str, state: bytes) -> None:
        with np.load(io.BytesIO(state), allow_pickle=False) as found:
            values = [found[f"v{i}"] for i in range(len(found.files))]
        shapes, own = [v.shape for v in values], [tuple(v.shape) for v in self._variables]
        if shapes != own:
            raise SessionError(
                f"{self._where}/{name} has variables of shapes {shapes}, the script {own}: the model was changed;"
                " use another checkpoint path"
            )
        for variable, value in zip(self._variables, values, strict=True):
            own = variable.numpy().dtype if value.dtype.kind == "V" else value.dtype  # NumPy's files know no bfloat16
            variable.assign(value.view(own) if own.kind == "V" else value)

    def _export(self, model: Any) -> dict[str, bytes]:
        with tempfile.TemporaryDirectory(prefix="isonomy-model-") as folder:
            path = Path(folder, MODEL)
            _plain(model).save(path)
            return {MODEL: path.read_bytes()}


class TensorFlowSession(OfVariables):
    """A session of TensorFlow."""

    log_name = "tensorflow"
    gang: Gang

    def _join(self, threads: int) -> Gang:
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
        return self.gang.replicated(step)


session = TensorFlowSession.of


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
