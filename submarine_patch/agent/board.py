"""TensorBoard beside the Agent: what the jobs report as event files on this machine, and a server on loopback.

The AM's page passes on what is asked of `/tensorboard/` (AppPage.java); nobody else can reach it from elsewhere, and
other users of the machine do not know the secret path below which it answers.
TensorBoard is loaded by an app that asks for it, and without TensorFlow, for which an application master has no memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from submarine_patch.agent.jobs import Job
from submarine_patch.agent.messages import HasBoard

log = logging.getLogger("isonomy.agent")
FOLDER = "tensorboard"
PREFIX = "/tensorboard"
RELOAD_S = 5
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Board:
    """The event files of an app's jobs, a folder for each."""

    def __init__(self, root: Path, metric: str) -> None:
        self._root, self._metric = root, metric
        self._files: dict[str, Any] = {}
        self._steps: dict[str, int] = {}

    def take(self, jobs: Iterable[Job], now_s: float) -> None:
        """Writes what is new; a job that starts again writes over its old steps. Raises OSError, and ImportError."""
        for job in jobs:
            if job.first_step_s and job.step and job.step != self._steps.get(job.job_id):
                self._steps[job.job_id] = job.step
                self._write(job, now_s)

    def _write(self, job: Job, now_s: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        values = {"loss": job.loss, "accuracy": job.accuracy}
        values = {name: value for name, value in values.items() if value}
        if job.metric is not None:
            values[self._metric] = job.metric
        if not values:
            return
        records = self._files.get(job.job_id)
        if records is None:
            folder = self._root / job.job_id
            folder.mkdir(parents=True, exist_ok=True)
            records = self._files[job.job_id] = RecordWriter(
                (folder / f"events.out.tfevents.{now_s:.0f}.isonomy").open("ab")
            )
            records.write(Event(wall_time=now_s, file_version="brain.Event:2").SerializeToString())
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        records.write(Event(wall_time=now_s, step=job.step, summary=summary).SerializeToString())
        records.flush()


def serve(python: str, root: Path, tell: Callable[[HasBoard], None]) -> None:
    """Runs TensorBoard in the background, until the Agent's end; `tell` has its port, or why there is none."""
    root.mkdir(parents=True, exist_ok=True)
    where = ["--logdir", str(root), "--host", "127.0.0.1", "--port", "0"]
    pace = ["--reload_interval", str(RELOAD_S), "--load_fast", "false"]
    command = [python, "-m", "submarine_patch.agent.board", *where, *pace]
    threading.Thread(target=_run, args=(command, tell), name="tensorboard", daemon=True).start()


def _die_with_parent() -> None:
    """Linux: PR_SET_PDEATHSIG, before the program is there. The thread that starts it lives as long as it runs."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _run(command: list[str], tell: Callable[[HasBoard], None]) -> None:
    began_s, last, port, below = time.monotonic(), "", 0, f"/{secrets.token_hex(32)}"
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=_die_with_parent,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # its last line says why it ended
                stdin.write(below + PREFIX)
            for line in process.stdout:
                last = line.strip() or last
                found = _ADDRESS.search(line)
                if found and not port:
                    port = int(found[1])
                    tell(HasBoard(port, below))
    except OSError as e:
        last = str(e)
    log.warning("TensorBoard ended after %.0f s: %s", time.monotonic() - began_s, last)
    if not port:
        tell(HasBoard(problem=last[-200:]))


def main() -> None:
    """TensorBoard's own command, without TensorFlow; standard input has the path below which it answers."""
    os.umask(0o077)  # it notes its path in a file below /tmp
    sys.argv += ["--path_prefix", sys.stdin.read()]
    notf = "tensorboard.compat.notf"  # what its builds without it have
    sys.modules[notf] = types.ModuleType(notf)
    try:
        from tensorboard import main as tensorboard
    except ImportError as e:
        sys.exit(f"{e} (pip install tensorboard, for the NodeManagers' Python)")
    tensorboard.run_main()


if __name__ == "__main__":
    main()
