"""Makes a TensorFlow training script resume, stop, keep pace and checkpoint, in about ten lines:

    from submarine_patch.worker import training          # before tensorflow
    session = training.session(steps=1000)
    with session.scope():
        model, optimizer = ...
    session.restore(model, optimizer)                     # the newest complete checkpoint, if any
    batches = session.batches((x, y), batch_size=64)
    train = session.replicated(train_step)                # train_step(x, y) -> {"loss": ..., ...}
    for step in session.steps():                          # global steps, from where the checkpoint ends
        session.report(**train(*batches[step]))
    session.finish(evaluate, export=model)                # evaluate() -> {"loss": ..., "accuracy": ...}

Under Isonomy the Agent says how far to train, where checkpoints lie, and who else is in the gang (environment:
TF_CONFIG and ISONOMY_*); alone, the same script trains by itself. On a stop all workers of the gang leave at the
same step, with a checkpoint and exit code 75. A script that Keras 3 optimizers update inside `train_step` needs
no more; they sum gradients over the replicas, so the loss to differentiate is the mean over this replica's
examples divided by `session.replicas`.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from submarine_patch.worker import EXIT_STOPPED, checkpoints
from submarine_patch.worker.batches import Array, Batches
from submarine_patch.worker.gang import Gang, Place
from submarine_patch.worker.pacing import Pacer, Pacing
from submarine_patch.worker.stopping import StopRequest

STATE = "state.npz"
METRICS = "metrics.json"
MODEL = "model.keras"
LOG_S = 1.0
"""Steps shorter than this share a log line."""
LINGER_S = 0.3
"""A worker that leaves waits so long for its last answers to reach its peers: TensorFlow does not."""

_stop = StopRequest()


class SessionError(SystemExit):
    """The script or its environment does not fit: ends the process with one line that says how."""

    def __init__(self, why: str) -> None:
        super().__init__(f"isonomy: {why}")


class Session:
    """One launch of a training script, alone or as a worker of a gang."""

    def __init__(
        self,
        steps: int = 1000,
        *,
        checkpoint_steps: int = 50,
        log_steps: int = 10,
        stop_check_steps: int = 1,
        checkpoint_dir: str = "",
        seed: int = 0,
    ) -> None:
        env = os.environ
        self.until_step = int(env.get("ISONOMY_UNTIL_STEP") or steps)
        self._checkpoint_steps, self._log_steps = max(1, checkpoint_steps), max(1, log_steps)
        self._stop_check_steps = max(1, stop_check_steps)
        self._seed = seed
        self.pacing = Pacing.parse(env)
        self._pacer = Pacer(self.pacing.step_s, _stop.wait) if self.pacing else None
        where = env.get("ISONOMY_CHECKPOINT_DIR") or checkpoint_dir
        self._files = (
            checkpoints.files_at(where, env.get("ISONOMY_WEBHDFS", ""), env.get("HADOOP_USER_NAME", ""))
            if where
            else None
        )
        self._where = where.rstrip("/")
        self.gang = Gang(Place.parse(env.get("TF_CONFIG", "")), _threads(env, self.pacing is not None))
        _stop.take_over()
        self.step = 0
        """Global steps done."""
        self._values: dict[str, Any] = {}
        self._variables: list[Any] = []
        self._saver = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future[None] | None = None
        self._steps_s = 0.0
        self._logged_step = 0

    # ---- the gang

    @property
    def strategy(self) -> Any:
        """TensorFlow's distribution strategy."""
        return self.gang.strategy

    @property
    def replicas(self) -> int:
        """Of all workers."""
        return self.gang.replicas

    @property
    def chief(self) -> bool:
        """Whether this worker writes what is written once."""
        return self.gang.place.chief

    def scope(self) -> Any:
        """Within it the model and the optimizer are made; sets the seed, for all workers begin alike."""
        import tensorflow as tf

        tf.keras.utils.set_random_seed(self._seed)
        return self.gang.strategy.scope()

    def replicated(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The training step as a graph on every replica; its results become means over the replicas."""
        return self.gang.replicated(step)

    def batches(self, arrays: tuple[Array, ...], batch_size: int) -> Batches:
        """Shuffled global batches by step, this worker's part of each."""
        place = self.gang.place
        return Batches(arrays, batch_size, self._seed, place.workers, place.index, self.replicas)

    # ---- state

    def restore(self, *owners: Any) -> int:
        """Declares models, optimizers and variables as the state; sets them from the newest checkpoint.

        All workers take the checkpoint that the chief found. Returns the global step.
        """
        self._variables = [v for owner in owners for v in _variables_of(owner)]
        if not self._variables:
            raise SessionError("session.restore(...) was given nothing that has variables")
        try:
            chosen, parts = self._choose()
        except (checkpoints.StoreError, OSError) as e:
            raise SessionError(f"the newest checkpoint cannot be read: {e}") from e
        if chosen is not None and parts is not None:
            self._assign(chosen.name, parts)
            self.step = chosen.step
            self._values = json.loads(parts.get(METRICS, b"{}"))
            _log(f"Restored checkpoint for {chosen.step} from {self._where}/{chosen.name}")
        self._logged_step = self.step
        return self.step

    def _choose(self) -> tuple[checkpoints.Checkpoint | None, dict[str, bytes] | None]:
        if self._files is None:
            return None, None
        found = checkpoints.newest(self._files) if self.chief else None
        told = [0.0] * 6
        if found is not None:
            nonce = found[0].nonce
            told = [1.0, float(found[0].step), *(float(int(nonce[i : i + 4], 16)) for i in range(0, 16, 4))]
        told = self.gang.from_chief(told)
        if not told[0]:
            return None, None
        chosen = checkpoints.Checkpoint.of(int(told[1]), "".join(f"{int(n):04x}" for n in told[2:]))
        parts = found[1] if found is not None else checkpoints.load(self._files, chosen)
        if parts is None:
            raise SessionError(f"{self._where}/{chosen.name}: the chief could read it, this worker cannot")
        return chosen, parts

    def _assign(self, name: str, parts: Mapping[str, bytes]) -> None:
        with np.load(io.BytesIO(parts[STATE]), allow_pickle=False) as state:
            values = [state[f"v{i}"] for i in range(len(state.files))]
        shapes, own = [v.shape for v in values], [tuple(v.shape) for v in self._variables]
        if shapes != own:
            raise SessionError(
                f"{self._where}/{name} has variables of shapes {shapes}, the script {own}: the model was changed;"
                " use another checkpoint path"
            )
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)

    def save(self, export: Any = None) -> None:
        """Writes a checkpoint. All workers call it, at the same step; the chief writes."""
        self._begin_save(export)
        self._end_save()

    def _begin_save(self, export: Any = None) -> None:
        """Takes the state as it is now; it is written while the training goes on."""
        self._end_save()
        arrays = {f"v{i}": np.asarray(v.numpy()) for i, v in enumerate(self._variables)}
        if not self.chief or self._files is None:
            return
        parts = {METRICS: json.dumps(self._metrics()).encode()}
        if export is not None:
            parts[MODEL] = _exported(export)
        self._saving = self._saver.submit(_write, self._files, self._where, self.step, arrays, parts)

    def _end_save(self) -> None:
        """Waits for the checkpoint that is being written; raises what its writing raised."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _metrics(self) -> dict[str, Any]:
        values = {k: float(v) for k, v in self._values.items() if k not in ("step", "paced")}
        return {
            "step": self.step,
            **{k: v for k, v in values.items() if math.isfinite(v)},
            "paced": self.pacing is not None,
        }

    # ---- the loop

    def steps(self) -> Iterator[int]:
        """The global steps still to do, from 0; ends the process if it was asked to stop."""
        _stop.arm()
        if self.pacing:
            _log(f"Virtual GPUs: steps are paced to {self.pacing}")
        while self.step < self.until_step:
            if self.step % self._stop_check_steps == 0 and self.gang.any(_stop.asked):
                self._leave_stopped()
            began_s = time.monotonic()
            if self._pacer:
                self._pacer.begin()
            yield self.step
            self.step += 1
            if self._pacer:
                self._pacer.end()
            self._steps_s += time.monotonic() - began_s
            self._log_steps_done()
            if self.step % self._checkpoint_steps == 0 and self.step < self.until_step:
                self._or_warn(self._end_save)
                self._begin_save()

    def report(self, **values: Any) -> None:
        """The step's loss, accuracy and so on; numbers or tensors, which are only read when they are logged."""
        self._values.update(values)

    def _log_steps_done(self) -> None:
        n = self.step - self._logged_step
        if n < self._log_steps and self._steps_s < LOG_S and self.step < self.until_step:
            return
        if "loss" in self._values:
            accuracy = self._values.get("accuracy")
            said = f", accuracy = {float(accuracy):.4f}" if accuracy is not None else ""
            _log(
                f"loss = {float(self._values['loss']):.6g}, step = {self.step} ({self._steps_s:.3f} sec){said},"
                f" {self._steps_s / n:.4f} sec/step{self._paced}"
            )
        self._logged_step, self._steps_s = self.step, 0.0

    @property
    def _paced(self) -> str:
        return ", paced" if self.pacing else ""

    def _or_warn(self, save: Callable[[], None]) -> None:
        """A checkpoint that fails costs only what the next one saves."""
        try:
            save()
        except (checkpoints.StoreError, OSError) as e:
            print(f"WARNING:isonomy:a checkpoint failed by step {self.step}: {e}", file=sys.stderr, flush=True)

    def _leave_stopped(self) -> NoReturn:
        self._or_warn(self._end_save)
        self._or_warn(self.save)
        _log(f"Stopped on request at step {self.step}{self._paced}")
        self._leave(EXIT_STOPPED)

    def finish(self, evaluate: Callable[[], Mapping[str, Any]] | None = None, *, export: Any = None) -> NoReturn:
        """Evaluates, writes the last checkpoint (with `export`, a Keras model, as model.keras) and ends."""
        if evaluate is not None:
            self._values.update(evaluate())
        told = ", ".join(f"{k} = {v:.6g}" for k, v in sorted(self._metrics().items()) if k not in ("step", "paced"))
        _log(f"Saving dict for global step {self.step}: {told}{self._paced}")
        self._or_warn(self._end_save)
        try:
            self.save(export)
        except (checkpoints.StoreError, OSError) as e:
            raise SessionError(f"the last checkpoint cannot be written: {e}") from e
        self._leave(0)

    def _leave(self, code: int) -> NoReturn:
        """Ends the process once every worker is ready to: whoever left earlier would break the others."""
        self.gang.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        if self.gang.place.workers > 1:
            time.sleep(LINGER_S)
            os._exit(code)  # TensorFlow's cluster threads do not end by themselves
        sys.exit(code)


def session(steps: int = 1000, **options: Any) -> Session:
    """The session of this process; see Session. Under Isonomy the Agent's last step replaces `steps`."""
    try:
        return Session(steps, **options)
    except (ValueError, checkpoints.StoreError) as e:
        raise SessionError(str(e)) from e


def _threads(env: Mapping[str, str], paced: bool) -> int:
    """TensorFlow's threads: one on virtual GPUs, whose owners share the machine's cores; 0: TensorFlow's choice."""
    return int(env.get("ISONOMY_THREADS") or (1 if paced else 0))


def _variables_of(owner: Any) -> list[Any]:
    """Of a Keras model or optimizer, of a collection, or a variable itself."""
    if hasattr(owner, "variables"):
        return list(owner.variables)
    return [owner] if hasattr(owner, "assign") else list(owner)


def _write(
    files: checkpoints.Files, where: str, step: int, arrays: Mapping[str, Array], parts: Mapping[str, bytes]
) -> None:
    began_s = time.monotonic()
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    saved = checkpoints.save(files, step, {STATE: buffer.getbuffer(), **parts})
    _log(f"Saved checkpoint for {step} into {where}/{saved.name} ({time.monotonic() - began_s:.3f} sec)")


def _exported(model: Any) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="isonomy-model-") as folder:
        path = os.path.join(folder, MODEL)
        model.save(path)
        with open(path, "rb") as f:
            return f.read()


def _log(text: str) -> None:
    """A line as TensorFlow's estimators log it."""
    print(f"INFO:tensorflow:{text}", file=sys.stderr, flush=True)


_stop.install()
