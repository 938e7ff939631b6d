"""A worker's supervisor with its stream and its program; checkpoints are numbers on HDFS."""

from __future__ import annotations

import json
import math
from typing import Any

from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.worker import EXIT_REFUSED, EXIT_STOPPED
from tests.faults.clock import Life, Sim, Stream
from tests.faults.nodes import Run

BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
HEARTBEAT_S = 3.0
READY_S = (0.2, 1.5)
START_S = (0.2, 1.0)
CHECKPOINT_S = (0.05, 1.0)
REPORT_S = 10.0
STUCK = -1.0
"""In place of a checkpoint's seconds: the process ignores everything but SIGKILL."""
SAVE_EVERY = 3
"""Steps between checkpoints."""
_ORDER = ("ready", "progress", "checkpoint", "exit")


def quality(job: str, step: int) -> tuple[float, float]:
    """(loss, accuracy) of a job after a number of steps: training is deterministic."""
    skill = 0.5 + (sum(map(ord, job)) * 37 % 101) / 202
    return 1.0 / (1 + skill * step), 1.0 - 1.0 / (2 + skill * step)


class Worker:
    """The process in a worker's container."""

    def __init__(self, world: Any, run: Run, env: dict[str, str], node_id: str) -> None:
        self.world, self.run, self.env = world, run, env
        self.sim: Sim = world.sim
        self.host = node_id.split(":")[0]
        self.life = Life()
        self.worker_id, self.app_id = env["ISONOMY_WORKER_ID"], env["ISONOMY_APP_ID"]
        self.dir = env["ISONOMY_CHECKPOINT_DIR"]
        self.name = f"worker {self.worker_id} of {self.app_id}"
        self.start_message: pb.Start | None = None
        self._newest: dict[str, pb.WorkerMessage] = {}
        self.stream: Stream | None = None
        self._failures = 0
        self.links, self.linked_s = 0, None
        """Streams that it has begun, and since when there is the present one."""
        self.peer = ""
        """The control plane of its newest stream."""
        self.kill_at_s = math.inf
        self.stopping = False
        self.training = False
        self.step = 0
        self._code: int | None = None
        self.checkpoint_s = world.checkpoint_s(self.app_id)
        world.workers[run.container_id] = self
        ready = pb.WorkerReady(host=self.host, port=2000 + world.rng_port(), container_id=run.container_id)
        self.sim.at(self.sim.rng.uniform(*READY_S), lambda: self._put(ready=ready), self.life)
        self.sim.at(self.sim.rng.uniform(*READY_S), self._connect, self.life)
        self.sim.every(HEARTBEAT_S, self._beat, self.life)

    def end(self) -> None:
        """Ends the process."""
        self.life.dead = True
        self.world.workers.pop(self.run.container_id, None)
        if self.stream is not None:
            self.stream.cut("the worker died")

    # ---- the link

    def _put(self, **kind: Any) -> None:
        message = pb.WorkerMessage(worker_id=self.worker_id, **kind)
        self._newest[str(message.WhichOneof("kind"))] = message
        self._write(message)

    def _write(self, message: pb.WorkerMessage) -> None:
        if self.stream is not None:
            self.stream.send(0, pb.WorkerMessage.FromString(message.SerializeToString()))

    def _beat(self) -> None:
        self._write(pb.WorkerMessage(worker_id=self.worker_id, heartbeat=pb.Heartbeat(time_s=self.sim.now)))

    def _connect(self) -> None:
        net, plane = self.world.net, self.world.plane
        stream = Stream(net, self.name, plane.name)
        stream.on_message[0], stream.on_end[0] = self._command, lambda why: self._lost(stream, why)
        token = self.world.token(self.app_id, "")
        if not self._newest or not net.open(self.name, plane.name) or not plane.connect(stream, "worker", token):
            self._again()
            return
        self.stream, self.links, self.linked_s, stream.app_id = stream, self.links + 1, self.sim.now, self.app_id
        self.peer = plane.name
        for kind in _ORDER:
            if kind in self._newest:
                self._write(self._newest[kind])

    def _again(self) -> None:
        self._failures += 1
        self.sim.at(BACKOFF_S[min(self._failures, len(BACKOFF_S)) - 1], self._connect, self.life)

    def _lost(self, stream: Stream, why: str) -> None:
        if stream is not self.stream:
            return
        self.stream = self.linked_s = None
        if why.startswith(("UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT")) and not self.training:
            self.sim.tell(self.name, f"is refused: {why}")
            self._exit(EXIT_REFUSED, why)
            return
        self._again()

    # ---- commands

    def _command(self, command: pb.WorkerCommand) -> None:
        self._failures = 0
        self.world.relay.heard(self.app_id, self.worker_id, command)
        if command.HasField("start") and self.start_message is None:
            self.start_message = command.start
            if not self.stopping:
                self.sim.at(self.sim.rng.uniform(*START_S), self._train, self.life)
        elif command.HasField("stop"):
            self._stop(command.stop.deadline_s - self.sim.now)

    def _stop(self, left_s: float) -> None:
        if self.checkpoint_s == STUCK:
            return
        kill_in_s = max(0.0, left_s - min(1.0, left_s / 4)) if left_s > 0 else 0.0
        if self.sim.now + kill_in_s < self.kill_at_s:
            self.kill_at_s = self.sim.now + kill_in_s
            self.sim.at(kill_in_s, lambda: self._exit(EXIT_STOPPED, "killed at its deadline"), self.life)
        if self.stopping:
            return
        self.stopping = True
        took_s = (self.checkpoint_s or self.sim.rng.uniform(*CHECKPOINT_S)) if self.training else 0.0
        self.sim.at(took_s, self._stopped, self.life)

    def _stopped(self) -> None:
        if self.training and self._whole():
            self._save()
        self._exit(EXIT_STOPPED, "stopped")

    # ---- training

    def _peers(self) -> list[Worker]:
        """The training workers of its gang, including itself."""
        job = self.worker_id.rpartition("/")[0]
        return [
            w
            for w in self.world.workers.values()
            if w.app_id == self.app_id and w.training and w.worker_id.rpartition("/")[0] == job
        ]

    def _whole(self) -> bool:
        start = self.start_message
        assert start is not None
        size = len(json.loads(start.tf_config)["cluster"]["worker"]) if start.tf_config else 1
        return len(self._peers()) == size

    @property
    def chief(self) -> bool:
        """The first of its gang."""
        return self.worker_id.endswith("/0")

    def _train(self) -> None:
        if self.stopping:
            return
        self.training = True
        self.step = int(self.world.hdfs.files.get(self.dir) or 0)
        self.world.oracles.resumed(self, self.step)
        self.sim.at(self._step_s(), self._next, self.life)

    def _step_s(self) -> float:
        return float(self.world.step_s(self.app_id))

    def _next(self) -> None:
        """One step, when all of the gang are there; the chief tells."""
        if self.stopping:
            return
        if self._whole():
            self.step += 1
            start = self.start_message
            assert start is not None
            if self.chief:
                loss, accuracy = quality(self.dir, self.step)
                self._put(
                    progress=pb.WorkerProgress(
                        step=self.step, loss=loss, accuracy=accuracy, iter_time_s=self._step_s(), time_s=self.sim.now
                    )
                )
                if self.step % SAVE_EVERY == 0:
                    self._save()
            if self.step >= start.until_step:
                self._save()
                self._exit(0, "")
                for peer in self._peers():
                    peer.step = self.step
                    peer._exit(0, "")
                return
        self.sim.at(self._step_s(), self._next, self.life)

    def _save(self) -> None:
        if not self.world.hdfs.away:
            files = self.world.hdfs.files
            step = max(p.step for p in self._peers()) if self.training else self.step
            files[self.dir] = max(int(files.get(self.dir) or 0), step)

    def _exit(self, code: int, message: str) -> None:
        if self._code is not None:
            return
        self._code, self.training = code, False
        self._put(exit=pb.WorkerExit(code=code, message=message, step=self.step))
        late_s = 0.1 if self.stream is not None else min(REPORT_S, 2.0)
        self.sim.at(late_s, lambda: self.world.nms[self.host].exited(self.run, code), self.life)
