"""Gangs of real workers for the tests: supervisors with a training script, the tests' Arbiter, a fake HDFS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.worker import checkpoints, servers
from tests.worker.arbiter import FakeArbiter
from tests.worker.fake_webhdfs import FakeHdfs

REPO = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"
WAIT_S = 600.0
DISTURBED_STEP_S = 0.15
"""Pace of a launch that a test disturbs: it must not end before, on a busy machine either."""


class Launch:
    """One launch of a job: a gang of workers."""

    def __init__(self, job: Job, number: int, workers: int, step_s: float) -> None:
        self.job = job
        self.ids = [f"job-1/{number}/{rank}" for rank in range(workers)]
        self.arbiter = FakeArbiter()
        self.logs = [job.folder / f"{number}-{rank}.log" for rank in range(workers)]
        sizes = [1] * workers
        self.processes = [self._start(rank, len(servers.tasks(rank, sizes, job.servers))) for rank in range(workers)]
        at = []
        for worker in self.ids:
            found = self._wait("ready", worker)
            at.append(f"{found.host}:{found.port}")
        for worker, config in zip(self.ids, servers.configurations(at, sizes, job.servers), strict=True):
            start = pb.Start(
                tf_config=config if workers > 1 or job.servers else "",
                until_step=job.until_step,
                checkpoint_dir="/job-1",
                pacing=json.dumps({"serial_iter_s": step_s, "slowdown": 1.0, "gpus": 1}) if step_s else "",
            )
            self.arbiter.send(worker, start=start)

    def _start(self, rank: int, ports: int) -> subprocess.Popen[bytes]:
        env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("ISONOMY_", "TF_CONFIG"))},
            "PYTHONPATH": os.pathsep.join(
                [str(REPO), str(REPO / "submarine_patch/api"), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "ISONOMY_ARBITER": f"127.0.0.1:{self.arbiter.port}",
            "ISONOMY_WORKER_ID": self.ids[rank],
            "ISONOMY_WEBHDFS": self.job.hdfs.url,
            "HADOOP_TOKEN_FILE_LOCATION": str(DATA / "writable.hdts"),
            "NM_HOST": "127.0.0.1",
            "CONTAINER_ID": f"container_1_0001_01_{rank:06d}",
            "CUDA_VISIBLE_DEVICES": "",
            **({servers.PORTS: str(ports)} if self.job.servers else {}),
            **self.job.env,
        }
        with self.logs[rank].open("wb") as log:
            words = [sys.executable, "-m", "submarine_patch.worker", "--", self.job.command]
            return subprocess.Popen(words, env=env, stdout=log, stderr=subprocess.STDOUT, cwd=self.job.folder)

    def _wait(self, kind: str, worker: str, check: Any = lambda _: True) -> Any:
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            for message in list(self.arbiter.messages):
                if message.worker_id == worker and message.HasField(kind) and check(getattr(message, kind)):
                    return getattr(message, kind)
            if all(p.poll() is not None for p in self.processes):
                break
            time.sleep(0.05)
        raise AssertionError(f"no such {kind} of {worker}:\n{self.text()[-3000:]}")

    def at_step(self, step: int) -> int:
        """Waits until the chief has trained this many steps."""
        return int(self._wait("progress", self.ids[0], lambda p: p.step >= step).step)

    def saved(self) -> int:
        """Waits for a checkpoint and returns its step."""
        return int(self._wait("checkpoint", self.ids[0]).step)

    def says(self, words: str) -> None:
        """Waits until a worker's output contains these words."""
        until_s = time.monotonic() + WAIT_S
        over = False
        while words not in self.text():
            assert not over, f"nobody said {words!r}:\n{self.text()[-3000:]}"
            over = time.monotonic() > until_s or all(p.poll() is not None for p in self.processes)
            time.sleep(0.05)

    def stop(self, *ranks: int, within_s: float = 300.0) -> None:
        """Tells these workers, or all, to stop."""
        for rank in ranks or range(len(self.ids)):
            stop = pb.Stop(deadline_s=time.time() + within_s, reason="its lease ended")
            self.arbiter.send(self.ids[rank], stop=stop)

    def end_of_the_coordinator(self) -> int:
        """The exit code of the first worker; then ends the others, as the Agent does through YARN."""
        code = self.processes[0].wait(WAIT_S)
        for process in self.processes[1:]:
            process.terminate()
        return code

    def codes(self) -> list[int]:
        """The exit codes of all workers, once they have ended."""
        found = [p.wait(WAIT_S) for p in self.processes]
        self.arbiter.stop()
        return found

    def text(self) -> str:
        """The output of all workers."""
        return "".join(log.read_text(errors="replace") for log in self.logs)


class Job:
    """One training job: its command, its folder on the fake HDFS, its launches, and its parameter servers."""

    servers = 0

    def __init__(self, folder: Path, command: str, until_step: int = 60, step_s: float = 0.03, **env: str) -> None:
        self.folder, self.command, self.until_step, self.step_s, self.env = folder, command, until_step, step_s, env
        folder.mkdir(parents=True, exist_ok=True)
        self.hdfs = FakeHdfs(folder / "hdfs")
        self.launches: list[Launch] = []

    def launch(self, workers: int = 1, step_s: float | None = None) -> Launch:
        """Starts a gang, from the newest checkpoint; `step_s`: another pace than the job's, 0: as on real GPUs."""
        self.launches.append(Launch(self, len(self.launches) + 1, workers, self.step_s if step_s is None else step_s))
        return self.launches[-1]

    def end(self) -> None:
        """Ends all launches and cleans up."""
        for launch in self.launches:
            for process in launch.processes:
                process.kill()
                process.wait()
            launch.arbiter.stop()
        self.hdfs.go()

    @property
    def files(self) -> checkpoints.LocalFiles:
        """The job's checkpoints."""
        return checkpoints.LocalFiles(self.hdfs.root / "job-1")

    def result(self) -> dict[str, Any]:
        """The metrics of the newest checkpoint, which must be the last step's."""
        found = checkpoints.newest(self.files)
        assert found is not None
        assert found[0].step == self.until_step, found[0]
        metrics: dict[str, Any] = json.loads(found[1]["metrics.json"])
        return metrics
