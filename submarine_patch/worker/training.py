"""For training scripts: resume, stop, pace and checkpoint in a few lines.

    session = training.session()
    model, optimizer = ...
    session.restore(model=model.variables, optimizer=optimizer.variables)
    for step in session.steps():
        loss, accuracy = train_step(...)      # session.strategy, session.shard, session.mean help
        session.report(loss, accuracy)
    session.finish()

Outside Isonomy the same script trains alone, with checkpoints in a local directory.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

from submarine_patch.worker import checkpoints

STOPPED = 75
STATE = "state.npz"
METRICS = "metrics.json"


@dataclass(frozen=True, slots=True)
class Pacing:
    """Virtual GPUs do not compute: each step takes serial_iter_s x slowdown / gpus, at least."""

    serial_iter_s: float
    slowdown: float
    gpus: int

    @property
    def step_s(self) -> float:
        """Seconds of one step."""
        return self.serial_iter_s * self.slowdown / max(1, self.gpus)

    @classmethod
    def from_json(cls, text: str) -> Pacing | None:
        """From ISONOMY_PACING; None where it is empty: real GPUs are never paced."""
        return cls(**json.loads(text)) if text else None


class Session:
    """One launch of a training script, alone or as a worker of a gang."""

    def __init__(self, until_step: int, checkpoint_every: int, stop_check_every: int = 1) -> None:
        env = os.environ
        self.until_step = int(env.get("ISONOMY_UNTIL_STEP") or 0) or until_step
        self.checkpoint_every, self.stop_check_every = checkpoint_every, max(1, stop_check_every)
        self.pacing = Pacing.from_json(env.get("ISONOMY_PACING", ""))
        task = json.loads(env.get("TF_CONFIG") or "{}")
        self.workers = len(task.get("cluster", {}).get("worker", [])) or 1
        self.chief = int(task.get("task", {}).get("index", 0)) == 0
        where = env.get("ISONOMY_CHECKPOINT_DIR", "")
        user = env.get("HADOOP_USER_NAME", "")
        self.files = (
            checkpoints.files_at(where, env.get("ISONOMY_WEBHDFS", ""), user) if where else checkpoints.scratch()
        )
        self.step = 0
        self.loss = self.accuracy = 0.0
        self._stop = False
        self._saved_step = -1
        self._variables: dict[str, list[Any]] = {}
        self._extra: Callable[[], dict[str, bytes]] = dict
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self.strategy = self._make_strategy()
        self._agree = self._make_agreement()

    # ---- the gang

    def _make_strategy(self) -> Any:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        if self.workers > 1:
            return tf.distribute.MultiWorkerMirroredStrategy()
        return (
            tf.distribute.MirroredStrategy()
            if tf.config.list_physical_devices("GPU")
            else tf.distribute.get_strategy()
        )

    def _make_agreement(self) -> Callable[[bool], bool]:
        """All workers of a gang leave at the same step, or one would wait for the others for ever."""
        if self.workers == 1:
            return lambda stop: stop
        import tensorflow as tf

        @tf.function
        def any_stops(flag: Any) -> Any:
            def in_replica(value: Any) -> Any:
                own = tf.identity(value)  # on this replica's device, as the reduction needs it
                return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)

            return self.strategy.run(in_replica, args=(flag,))

        def agree(stop: bool) -> bool:
            total = self.strategy.experimental_local_results(any_stops(tf.constant(float(stop))))[0]
            return bool(total.numpy() > 0)

        return agree

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """In a replica: the mean of each tensor over all replicas of the gang."""
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return list(tensors)
        reduced: list[Any] = context.all_reduce(tf.distribute.ReduceOp.MEAN, list(tensors))
        return reduced

    def shard(self, *arrays: Any) -> tuple[Any, ...]:
        """A global batch cut into one part a replica, for strategy.run."""
        import tensorflow as tf

        n = self.strategy.num_replicas_in_sync
        if n == 1:
            return tuple(tf.constant(a) for a in arrays)

        def part(array: Any) -> Any:
            def of(context: Any) -> Any:
                return tf.constant(array[context.replica_id_in_sync_group :: n])

            return self.strategy.experimental_distribute_values_from_function(of)

        return tuple(part(a) for a in arrays)

    # ---- state

    def restore(self, extra: Callable[[], dict[str, bytes]] = dict, **variables: Any) -> int:
        """Names the variables that make up the state, and sets them from the newest complete checkpoint.

        `extra` gives further files for each checkpoint (a saved model, say). Returns the global step.
        """
        self._variables = {name: list(vs) for name, vs in variables.items()}
        self._extra = extra
        found = checkpoints.newest(self.files)
        if found is not None:
            with np.load(io.BytesIO(found[1][STATE]), allow_pickle=False) as state:
                for name, vs in self._variables.items():
                    for i, v in enumerate(vs):
                        v.assign(state[f"{name}.{i}"])
            self.step = self._saved_step = found[0].step
            metrics = json.loads(found[1].get(METRICS, b"{}"))
            self.loss, self.accuracy = metrics.get("loss", 0.0), metrics.get("accuracy", 0.0)
            print(f"INFO:isonomy:restored {found[0].name}, global step {self.step}", flush=True)
        return self.step

    def save(self) -> None:
        """Writes a checkpoint (the chief does)."""
        if not self.chief or self._saved_step == self.step:
            return
        started_s = time.monotonic()
        buffer = io.BytesIO()
        values = {f"{n}.{i}": np.asarray(v) for n, vs in self._variables.items() for i, v in enumerate(vs)}
        np.savez(buffer, **values)
        metrics = {"step": self.step, "loss": self.loss, "accuracy": self.accuracy}
        parts = {STATE: buffer.getvalue(), METRICS: json.dumps(metrics).encode(), **self._extra()}
        saved = checkpoints.save(self.files, self.step, parts)
        self._saved_step = self.step
        print(f"INFO:isonomy:saved {saved.name} in {time.monotonic() - started_s:.3f} sec", flush=True)

    # ---- the loop

    def _on_sigterm(self, *_: object) -> None:
        self._stop = True

    def steps(self) -> Iterator[int]:
        """Global steps from where the newest checkpoint ends to `until_step`; ends the script on a stop."""
        while self.step < self.until_step:
            if self.step % self.stop_check_every == 0 and self._agree(self._stop):
                self.save()
                print(f"INFO:isonomy:stopped on request at global step {self.step}", flush=True)
                sys.stdout.flush()
                os._exit(STOPPED)  # TensorFlow's cluster threads would wait for the other workers
            started_s = time.monotonic()
            self.step += 1
            yield self.step
            self._pace(started_s)
            taken_s = time.monotonic() - started_s
            note = " paced" if self.pacing else ""
            if self.chief:
                print(
                    f"INFO:tensorflow:loss = {self.loss:.6g}, step = {self.step} ({taken_s:.3f} sec),"
                    f" accuracy = {self.accuracy:.4f}{note}",
                    flush=True,
                )
            if self.step % self.checkpoint_every == 0 and self.step < self.until_step:
                self.save()

    def _pace(self, started_s: float) -> None:
        if self.pacing:
            left_s = self.pacing.step_s - (time.monotonic() - started_s)
            if left_s > 0:
                time.sleep(left_s)  # this wait is the virtual GPU at work

    def report(self, loss: Any, accuracy: Any = None) -> None:
        """The step's loss and accuracy, for the log and for the app's scheduler."""
        self.loss = float(loss)
        if accuracy is not None:
            self.accuracy = float(accuracy)

    def finish(self) -> None:
        """The last checkpoint, and a clean end of the process."""
        self.save()
        print(f"INFO:isonomy:done at global step {self.step}, accuracy = {self.accuracy:.4f}", flush=True)
        if self.workers > 1:
            sys.stdout.flush()
            os._exit(0)  # as above


def session(until_step: int = 100, checkpoint_every: int = 20, stop_check_every: int = 1) -> Session:
    """The session of this process; under Isonomy `until_step` is the Agent's."""
    return Session(until_step, checkpoint_every, stop_check_every)
