"""Makes a training script resume, stop, pace its steps and write checkpoints, with any framework.

A session handles steps, stops, checkpoints and reports. An adapter (training.py for TensorFlow, keras.py, pytorch.py)
defines the state and how the workers of a gang agree. Under Isonomy the Agent sets the last step, the checkpoints'
folder and the gang (environment: ISONOMY_*, TF_CONFIG, RANK); without it the same script trains on its own. On a stop
all workers of the gang exit at the same step, with a checkpoint and exit code 75.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, NoReturn, Self

from submarine_patch.worker import EXIT_STOPPED, checkpoints
from submarine_patch.worker.batches import Array, Batches
from submarine_patch.worker.checkpoints import patiently
from submarine_patch.worker.pacing import Pacer, Pacing
from submarine_patch.worker.rank import Agreement
from submarine_patch.worker.stop_request import StopRequest

METRICS = "metrics.json"
LOG_S = 1.0
"""Steps shorter than this share a log line."""
LINGER_S = 0.3
"""How long an exiting worker waits for its last messages to reach its peers, since the frameworks do not wait."""
PATIENCE_S = 120.0
"""How long to retry an unreachable store if the training cannot continue without it."""
STOP_PATIENCE_S = 30.0
"""How long to retry the last checkpoint of a stop, whose deadline may be sooner."""
NOT_METRICS = ("step", "paced")

stop_request = StopRequest()
finished = False
"""Whether a session of this process has finished (again.py)."""


class SessionError(SystemExit):
    """The script or its environment is wrong: ends the process with a one-line message."""

    def __init__(self, why: str) -> None:
        super().__init__(f"isonomy: {why}")


class Session(ABC):
    """One launch of a training script, alone or as a worker of a gang."""

    state_part: ClassVar[str]
    """Name of the file in a checkpoint that contains the state."""
    log_name: ClassVar[str] = "isonomy"

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
        self._pacer = Pacer(self.pacing, stop_request.wait)
        where = env.get("ISONOMY_CHECKPOINT_DIR") or checkpoint_dir
        self._files = checkpoints.files_of_env(where, env) if where else None
        self._where = where.rstrip("/")
        threads = int(env.get("ISONOMY_THREADS") or (1 if self.pacing else 0))  # virtual GPUs share the machine's cores
        self.gang = self._join(threads)
        stop_request.take_over()
        self.step = 0
        """Global steps done."""
        self._values: dict[str, Any] = {}
        self._saver = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future[None] | None = None
        self._steps_s = 0.0
        self._logged_step = 0

    @classmethod
    def of(cls, steps: int = 1000, **options: Any) -> Self:
        """The session of this process, see `__init__`; under Isonomy the Agent's last step replaces `steps`."""
        try:
            return cls(steps, **options)
        except (ValueError, RuntimeError, checkpoints.StoreError) as e:
            raise SessionError(str(e)) from e

    # ---- what an adapter says

    @abstractmethod
    def _join(self, threads: int) -> Agreement:
        """Join the other workers. `threads`: the framework's threads, 0: its default."""

    @abstractmethod
    def _declare(self, owners: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Take the arguments of `restore` as the state."""

    @abstractmethod
    def _captured(self) -> Callable[[], bytes | memoryview]:
        """Copy the present state; all workers call it. Returns a function that serialises the copy, on any thread."""

    @abstractmethod
    def _assign(self, name: str, state: bytes) -> None:
        """Set the state from a checkpoint's bytes; raises SessionError if they do not fit the script."""

    def _more(self) -> dict[str, bytes]:
        """Further files of a checkpoint, beside the state; of the chief alone."""
        return {}

    def _restored(self, parts: Mapping[str, bytes]) -> None:
        """Take back what `_more` wrote; every worker gets the chief's files."""
        return

    def _export(self, model: Any) -> dict[str, bytes]:
        """The files of a finished model."""
        raise SessionError(f"export: {type(self).__module__.rsplit('.', 1)[1]} has no export of its own")

    # ---- the gang

    @property
    def replicas(self) -> int:
        """The number of replicas on all workers."""
        return self.gang.replicas

    @property
    def chief(self) -> bool:
        """Whether this worker is the gang's chief, which writes checkpoints."""
        return self.gang.place.chief

    def batches(self, arrays: tuple[Array, ...], batch_size: int, rest: bool = False) -> Batches:
        """Shuffled batches, indexed by global step, with this worker's part of each. `rest`: as in `Batches`."""
        place = self.gang.place
        return Batches(arrays, batch_size, self._seed, place.workers, place.index, self.replicas, rest)

    # ---- state

    def restore(self, *owners: Any, **named: Any) -> int:
        """Declare the objects that have the state, and set it from the newest checkpoint, if any.

        All workers use the checkpoint that the chief found. Returns the global step; raises SessionError.
        """
        self._declare(owners, named)
        try:
            found = patiently(self._found, PATIENCE_S, _say)
            chosen, parts = self._choose(found)
        except (checkpoints.StoreError, OSError) as e:
            raise SessionError(f"the newest checkpoint cannot be read: {e}") from e
        if chosen is not None and parts is not None:
            if self.state_part not in parts:
                raise SessionError(
                    f"{self._where}/{chosen.name} has no {self.state_part}: it is another framework's; use another"
                    " checkpoint path"
                )
            self._assign(chosen.name, parts[self.state_part])
            self._restored(parts)
            self.step = chosen.step
            self._values = json.loads(parts.get(METRICS, b"{}"))
            self._log(f"Restored checkpoint for {chosen.step} from {self._where}/{chosen.name}")
        self._logged_step = self.step
        return self.step

    def _found(self) -> checkpoints.Found | None:
        return checkpoints.newest(self._files) if self.chief and self._files is not None else None

    def _choose(self, found: checkpoints.Found | None) -> tuple[checkpoints.Checkpoint | None, dict[str, bytes] | None]:
        if self._files is None:
            return None, None
        files, told = self._files, [0.0] * 6  # workers tell each other numbers
        if found is not None:
            nonce = found[0].name.rpartition("-")[2]
            told = [1.0, float(found[0].step), *(float(int(nonce[i : i + 4], 16)) for i in range(0, 16, 4))]
        told = self.gang.from_chief(told)
        if not told[0]:
            return None, None
        step, nonce = int(told[1]), "".join(f"{int(n):04x}" for n in told[2:])
        chosen = checkpoints.Checkpoint(f"ckpt-{step}-{nonce}", step)
        parts = found[1] if found is not None else patiently(lambda: checkpoints.load(files, chosen), PATIENCE_S, _say)
        if parts is None:
            raise SessionError(f"{self._where}/{chosen.name}: the chief could read it, this worker cannot")
        return chosen, parts

    def save(self, export: Any = None, for_s: float = 0.0) -> None:
        """Write a checkpoint; all workers call it at the same step, and the chief writes.

        It is tried again with the same copy of the state while the store is unreachable, for at most `for_s`.
        """
        self._end_save()
        write = self._writing(export)
        if write is not None:
            patiently(write, for_s, _say)

    def _begin_save(self) -> None:
        """Copy the present state, and write it in the background."""
        self._end_save()
        write = self._writing(None)
        if write is not None:
            self._saving = self._saver.submit(write)

    def _writing(self, export: Any) -> Callable[[], None] | None:
        """Copy the present state; all workers call it. Returns a function that writes it on the chief, else None."""
        serialised = self._captured()
        parts = {} if export is None else self._export(export)  # on all workers: the export may need collective reads
        if not self.chief or self._files is None:
            return None
        files, step = self._files, self.step
        parts |= self._more()
        parts[METRICS] = json.dumps(self._metrics()).encode()

        def write() -> None:
            began_s = time.monotonic()
            saved = checkpoints.save(files, step, {self.state_part: serialised(), **parts})
            took_s = time.monotonic() - began_s
            self._log(f"Saved checkpoint for {step} into {self._where}/{saved.name} ({took_s:.3f} sec)")

        return write

    def _end_save(self) -> None:
        """Wait for the checkpoint that is being written; raises its error."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _numbers(self) -> dict[str, float]:
        return {k: float(v) for k, v in sorted(self._values.items()) if k not in NOT_METRICS}

    def _metrics(self) -> dict[str, Any]:
        finite = {k: v for k, v in self._numbers().items() if math.isfinite(v)}
        return {"step": self.step, **finite, "paced": self.pacing is not None}

    # ---- the loop

    def steps(self) -> Iterator[int]:
        """Iterate over the global steps left to do, counted from 0; exits with 75 on a request to stop."""
        stop_request.arm()
        if self.pacing:
            self._log(f"Virtual GPUs: steps are paced to {self.pacing}")
        self._log(f"Trains to step {self.until_step}")
        while self.step < self.until_step:
            if self.step % self._stop_check_steps == 0 and self.gang.any(stop_request.asked):
                self._leave_stopped()
            began_s = time.monotonic()
            self._pacer.begin()
            yield self.step
            self.step += 1
            self._pacer.end()
            self._steps_s += time.monotonic() - began_s
            self._log_steps_done()
            if self.step % self._checkpoint_steps == 0 and self.step < self.until_step:
                self._or_warn(self._end_save)
                self._or_warn(self._begin_save)

    def report(self, **values: Any) -> None:
        """Report the step's loss, accuracy or other values; tensors are only read when a line is logged."""
        self._values.update(values)

    def _log_steps_done(self) -> None:
        n = self.step - self._logged_step
        if n < self._log_steps and self._steps_s < LOG_S and self.step < self.until_step:
            return
        began_s = time.monotonic()
        values = self._numbers()
        self._steps_s += time.monotonic() - began_s  # a GPU has only queued the steps until their values are read
        if values:
            loss = f"loss = {values.pop('loss'):.6g}, " if "loss" in values else ""
            said = "".join(f", {k} = {v:{'.4f' if k == 'accuracy' else '.6g'}}" for k, v in values.items())
            took = f"{self._steps_s / n:.4f} sec/step"
            self._log(f"{loss}step = {self.step} ({self._steps_s:.3f} sec){said}, {took}{self._paced}")
        self._logged_step, self._steps_s = self.step, 0.0

    @property
    def _paced(self) -> str:
        return ", paced" if self.pacing else ""

    def _or_warn(self, save: Callable[[], None]) -> None:
        """Run `save`; a failure is only a warning, because the next checkpoint makes up for it."""
        try:
            save()
        except (checkpoints.StoreError, OSError) as e:
            _say(f"a checkpoint failed by step {self.step}: {e}")

    def _leave_stopped(self) -> NoReturn:
        self._or_warn(self._end_save)
        self._or_warn(lambda: self.save(for_s=STOP_PATIENCE_S))
        self._log(f"Stopped on request at step {self.step}{self._paced}")
        self._leave(EXIT_STOPPED)

    def finish(self, evaluate: Callable[[], Mapping[str, Any]] | None = None, *, export: Any = None) -> NoReturn:
        """Evaluate, write the last checkpoint (with the model `export` as an extra file), and exit with 0."""
        if evaluate is not None:
            self._values.update(evaluate())
        told = ", ".join(f"{k} = {v:.6g}" for k, v in self._numbers().items())
        self._log(f"Saving dict for global step {self.step}: {told}{self._paced}")
        self._or_warn(self._end_save)
        try:
            self.save(export, PATIENCE_S)
        except (checkpoints.StoreError, OSError) as e:
            raise SessionError(f"the last checkpoint cannot be written: {e}") from e
        global finished
        finished = True
        self._log(f"Finished at step {self.step}")
        self._leave(0)

    def _leave(self, code: int) -> NoReturn:
        """Exit once every worker is ready to, because an early exit would break the others."""
        self.gang.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        self._saver.shutdown()
        if self.gang.place.workers > 1:
            time.sleep(LINGER_S)
            os._exit(code)  # the frameworks' cluster threads would keep the process alive
        sys.exit(code)

    def _log(self, text: str) -> None:
        """Log a line in the format of TensorFlow's estimators."""
        print(f"INFO:{self.log_name}:{text}", file=sys.stderr, flush=True)


def _say(problem: str) -> None:
    print(f"WARNING:isonomy:{problem}", file=sys.stderr, flush=True)


stop_request.take_over()
