"""The supervisor of one worker: registers, waits for its gang, runs the user's command, passes on what it says.

It trains on while the Arbiter or the Agent is away. Exit codes: the command's own; 75 when it stopped on
request; 76 when its gang never came together.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.worker import logparse
from submarine_patch.worker.credentials import read_secret
from submarine_patch.worker.link import WorkerLink

STOPPED = 75
NO_GANG = 76
HEARTBEAT_S = 5.0
PROGRESS_S = 0.2
KILL_MARGIN_S = 1.0
PREEMPTED_S = 10.0
"""How long a SIGTERM of YARN leaves before SIGKILL, at most."""


class Supervisor:
    """Runs `command` once the Agent says Start."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] = os.environ) -> None:
        self.command = " ".join(command)
        self.env = dict(env)
        self.host = self.env.get("ISONOMY_HOST") or self.env.get("NM_HOST") or "127.0.0.1"
        self.started = threading.Event()
        self.start: pb.Start | None = None
        self.stop_deadline_s: float | None = None
        self.stop_reason = ""
        self.child: subprocess.Popen[str] | None = None
        self.last_step = 0
        self._lock = threading.Lock()
        self._sent_s = 0.0
        self.link = WorkerLink(
            self.env["ISONOMY_ARBITER"],
            read_secret("isonomy.token", self.env.get("HADOOP_TOKEN_FILE_LOCATION")).decode(),
            self.env["ISONOMY_WORKER_ID"],
            self._command,
            self.env.get("ISONOMY_ARBITER_CA"),
        )

    def run(self) -> int:
        """The whole life of the worker; returns its exit code."""
        signal.signal(signal.SIGTERM, lambda *_: self._stop(time.time() + PREEMPTED_S, "SIGTERM"))
        reservation, port = reserve_port()
        self.link.start()
        ready = pb.WorkerReady(
            host=self.host,
            port=port,
            cuda_visible_devices=self.env.get("CUDA_VISIBLE_DEVICES", ""),
            container_id=self.env.get("CONTAINER_ID", ""),
        )
        self.link.send(pb.WorkerMessage(ready=ready))
        code, why = self._wait_for_gang()
        if code is None:
            reservation.close()
            code, why = self._train(), self.stop_reason
        else:
            reservation.close()
        self.link.send(pb.WorkerMessage(exit=pb.WorkerExit(code=code, message=why, step=self.last_step)))
        self.link.close()
        return code

    def _wait_for_gang(self) -> tuple[int | None, str]:
        limit_s = float(self.env.get("ISONOMY_START_TIMEOUT_S", "120"))
        if not self.started.wait(limit_s):
            return NO_GANG, f"no Start within {limit_s:g} s"
        if self.start is None:
            return STOPPED, self.stop_reason
        return None, ""

    # ---- commands of the Agent

    def _command(self, command: pb.WorkerCommand) -> None:
        if command.WhichOneof("kind") == "start":
            with self._lock:
                if self.start is None:
                    self.start = command.start
            self.started.set()
        elif command.WhichOneof("kind") == "stop":
            self._stop(command.stop.deadline_s, command.stop.reason)

    def _stop(self, deadline_s: float, reason: str) -> None:
        """Asks the training to checkpoint and end; kills it just before the deadline."""
        first = self.stop_deadline_s is None
        self.stop_deadline_s, self.stop_reason = deadline_s, reason
        self.started.set()
        if self.child is not None and first:
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, number)

    # ---- the user's command

    def _train(self) -> int:
        assert self.start is not None
        env = {
            **self.env,
            "ISONOMY_UNTIL_STEP": str(self.start.until_step),
            "ISONOMY_CHECKPOINT_DIR": self.start.checkpoint_dir or self.env.get("ISONOMY_CHECKPOINT_DIR", ""),
            "ISONOMY_CONFIGURATION": json.dumps(dict(self.start.configuration)),
            "PYTHONUNBUFFERED": "1",
            # `python` in the command is the Python that runs this supervisor
            "PATH": f"{os.path.dirname(sys.executable)}:{self.env.get('PATH', os.defpath)}",
        }
        for name, value in (("TF_CONFIG", self.start.tf_config), ("ISONOMY_PACING", self.start.pacing)):
            env.pop(name, None)
            if value:
                env[name] = value
        self.child = subprocess.Popen(
            ["bash", "-c", self.command],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        if self.stop_deadline_s is not None:
            self._signal(signal.SIGTERM)
        reader = threading.Thread(target=self._read, name="output", daemon=True)
        reader.start()
        code = self._watch()
        reader.join(2.0)
        self._signal(signal.SIGKILL)  # what the command left behind in its group
        return code

    def _watch(self) -> int:
        assert self.child is not None
        while True:
            wait_s = HEARTBEAT_S
            if self.stop_deadline_s is not None:
                wait_s = min(wait_s, max(0.05, self.stop_deadline_s - KILL_MARGIN_S - time.time()))
            try:
                code = self.child.wait(min(wait_s, 0.5 if self.stop_deadline_s is None else wait_s))
                return code if code >= 0 else 128 - code
            except subprocess.TimeoutExpired:
                pass
            if self.stop_deadline_s is not None and time.time() >= self.stop_deadline_s - KILL_MARGIN_S:
                self._signal(signal.SIGKILL)
                self.child.wait()
                return STOPPED
            self._heartbeat()

    def _heartbeat(self) -> None:
        now_s = time.time()
        if now_s - self._sent_s >= HEARTBEAT_S:
            self._sent_s = now_s
            self.link.send(pb.WorkerMessage(heartbeat=pb.Heartbeat(time_s=now_s)))

    def _read(self) -> None:
        assert self.child is not None
        assert self.child.stdout is not None
        last_s, waiting = 0.0, None
        for line in self.child.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            step = logparse.parse(line)
            if step is None:
                continue
            self.last_step, waiting = step.step, step
            if time.monotonic() - last_s >= PROGRESS_S:
                last_s, waiting = time.monotonic(), None
                self._report(step)
        if waiting is not None:
            self._report(waiting)

    def _report(self, step: logparse.Step) -> None:
        self._sent_s = time.time()
        progress = pb.WorkerProgress(
            step=step.step,
            loss=step.loss if step.loss is not None else 0.0,
            accuracy=step.accuracy if step.accuracy is not None else 0.0,
            iter_time_s=step.iter_time_s or 0.0,
            paced=step.paced,
            time_s=self._sent_s,
        )
        self.link.send(pb.WorkerMessage(progress=progress))


def reserve_port() -> tuple[socket.socket, int]:
    """A free port, held until TensorFlow takes it over."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))  # TensorFlow listens on all addresses, so the port must be free on all
    return holder, holder.getsockname()[1]
