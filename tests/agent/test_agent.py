"""The Agent with its edges: a gRPC Arbiter that breaks the stream, an AM shell in memory, its state on disk."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycontrol.model.topology import Gpu
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import agent_pb2_grpc
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent import __main__ as entry
from submarine_patch.agent.edges import ArbiterSession, StateStore
from submarine_patch.agent.messages import Publish, Published
from submarine_patch.agent.spec import AppSpec
from submarine_patch.worker.checkpoints import Files, LocalFiles, StoreError
from tests.agent.world import machines, spec_of

WAIT_S = 10.0


class Arbiter(agent_pb2_grpc.ArbiterServicer):
    """Passes received messages to the test; `say` sends on the present stream."""

    def __init__(self, at: str = "127.0.0.1:0") -> None:
        self.heard: queue.Queue[pb.AgentMessage] = queue.Queue()
        self.tokens: list[str] = []
        self._out: queue.Queue[pb.ArbiterMessage | None] = queue.Queue()
        self.fails = False
        """Whether the next stream to end ends with an error, as of a control plane that is killed."""
        self.server = grpc.server(futures.ThreadPoolExecutor(8))
        agent_pb2_grpc.add_ArbiterServicer_to_server(self, self.server)  # type: ignore[no-untyped-call]
        self.address = f"127.0.0.1:{self.server.add_insecure_port(at)}"
        self.server.start()

    def Session(self, requests: Iterator[pb.AgentMessage], context: Any) -> Iterator[pb.ArbiterMessage]:
        self.tokens += [v for k, v in context.invocation_metadata() if k == "isonomy-token"]
        out = self._out = queue.Queue()

        def read() -> None:
            try:
                for message in requests:
                    self.heard.put(message)
            except grpc.RpcError:
                pass
            out.put(None)

        threading.Thread(target=read, daemon=True).start()
        while (message := out.get(timeout=60)) is not None:
            yield message
        if self.fails:
            self.fails = False
            context.abort(grpc.StatusCode.UNAVAILABLE, "the control plane stops")

    def say(self, **kind: Any) -> None:
        self._out.put(pb.ArbiterMessage(**kind))

    def break_stream(self) -> None:
        self._out.put(None)

    def wait_for(self, kind: str) -> Any:
        while True:
            message = self.heard.get(timeout=WAIT_S)
            if message.WhichOneof("kind") == kind:
                return getattr(message, kind)


class Disk(LocalFiles):
    """A store that also deletes files, as HDFS does."""

    def delete(self, path: str) -> None:
        (self.root / path).unlink()


class MemoryShell:
    """The AM shell, in memory."""

    def __init__(self) -> None:
        self.events: queue.Queue[am.AmEvent] = queue.Queue()
        self.commands: queue.Queue[am.AmCommand] = queue.Queue()

    def start(self, refused: Callable[[am.AmCommand, str], None]) -> None: ...

    def poll(self) -> list[am.AmEvent]:
        try:
            return [self.events.get(timeout=0.05)]
        except queue.Empty:
            return []

    def send(self, command: am.AmCommand) -> None:
        self.commands.put(command)

    def drain(self, timeout_s: float) -> None: ...

    def wait_for(self, kind: str) -> Any:
        while True:
            command = self.commands.get(timeout=WAIT_S)
            if command.WhichOneof("kind") == kind:
                return getattr(command, kind)


@pytest.fixture
def arbiter() -> Iterator[Arbiter]:
    made = Arbiter()
    yield made
    made.server.stop(0)


def run(agent: entry.Agent) -> Callable[[], int]:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(agent.run()), daemon=True)
    thread.start()

    def join() -> int:
        thread.join(WAIT_S)
        return codes[0]

    return join


def spec_for(arbiter: Arbiter, root: Path) -> AppSpec:
    from submarine_patch.worker import checkpoints

    spec = spec_of(
        arbiter=arbiter.address,
        webhdfs="",
        checkpoint=str(root / "ck"),
        saved_model=str(root / "model"),
        staging=str(root),
    )
    directory = LocalFiles(root / "ck" / spec.app_id / "job000")
    checkpoints.save(directory, 9, {"state.npz": b"weights"})
    return spec


def test_an_app_trains_from_its_grant_to_its_end_over_a_broken_stream(arbiter: Arbiter, tmp_path: Path) -> None:
    spec, shell, files = spec_for(arbiter, tmp_path), MemoryShell(), LocalFiles(tmp_path / "agent")
    agent = entry.Agent(spec, shell, 1, "secret", files)  # type: ignore[arg-type]
    join = run(agent)
    register = arbiter.wait_for("register")
    assert register.attempt_id == "appattempt_1_0001_000001"
    assert arbiter.tokens == ["secret"]
    grant = pb.Grant(grant_id="g", gpus=machines([Gpu("h", 0), Gpu("h", 1)]))
    hosts = [pb.Host(host="h", rack="r", gpus=2)]
    contention = pb.Contention(cluster_gpus=2, n_avg=1, now_s=10, submitted_s=0, lease_s=60)
    arbiter.say(registered=pb.Registered(contention=contention, hosts=hosts, grants=[grant]))
    use = arbiter.wait_for("use")
    arbiter.say(use_reply=pb.UseReply(use_id=use.use_id, accepted=True))
    ask = shell.wait_for("ask")
    container = am.AmContainer(
        container_id="c", host="h", gpu_ids=[0, 1], allocation_request_id=ask.allocation_request_id
    )
    shell.events.put(am.AmEvent(allocated=container))
    launch = shell.wait_for("launch")
    assert launch.command == "python3 -m submarine_patch.worker -- train"
    assert not any("secret" in v for v in launch.env.values())

    arbiter.break_stream()
    arbiter.wait_for("register")
    arbiter.say(registered=pb.Registered(contention=contention, hosts=hosts, grants=[grant]))
    worker_id = use.workers[0].worker_id
    ready = pb.WorkerMessage(worker_id=worker_id, ready=pb.WorkerReady(host="h", port=1))
    arbiter.say(from_worker=ready)
    assert arbiter.wait_for("to_worker").start.until_step == 9, "not taken by the broken stream"
    progress = pb.WorkerProgress(step=9, accuracy=0.75, iter_time_s=0.1)
    arbiter.say(from_worker=pb.WorkerMessage(worker_id=worker_id, progress=progress))
    arbiter.say(from_worker=pb.WorkerMessage(worker_id=worker_id, exit=pb.WorkerExit(code=0, step=9)))
    shell.events.put(am.AmEvent(completed=am.AmCompleted(container_id="c")))
    done = arbiter.wait_for("done")
    assert (done.succeeded, done.best_accuracy) == (True, 0.75)
    assert Path(done.model_path, "state.npz").read_bytes() == b"weights"
    assert shell.wait_for("finish").succeeded
    assert join() == 0
    saved = StateStore(files).load()
    assert saved is not None
    assert saved["succeeded"]


def test_a_model_is_published_when_hdfs_is_back(
    arbiter: Arbiter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = entry.Agent(spec_for(arbiter, tmp_path), MemoryShell(), 1, "secret", LocalFiles(tmp_path / "agent"))  # type: ignore[arg-type]
    tries, copy = list[str](), entry.copy_model

    def away(source: Files, target: Files) -> str:
        tries.append("")
        if len(tries) < 8:
            raise StoreError("hdfs cannot be reached: connection refused")
        return copy(source, target)

    monkeypatch.setattr(entry, "copy_model", away)
    monkeypatch.setattr("submarine_patch.worker.checkpoints.time.sleep", lambda _: None)
    found = str(tmp_path / "ck" / agent.spec.app_id / "job000")
    killed = tmp_path / "ck" / agent.spec.app_id / "job001" / "_ckpt-9-0123456789abcdef"
    killed.mkdir(parents=True)
    agent._publish(Publish("job000", found, str(tmp_path / "model"), {"trials.csv": "job000"}))
    published = agent.inbox.get_nowait()
    assert isinstance(published, Published)
    assert published.problem == ""
    assert not killed.exists()
    assert Path(published.path, "state.npz").read_bytes() == b"weights"
    assert (tmp_path / "model" / f"results-{agent.spec.app_id}" / "trials.csv").read_text() == "job000"


def test_a_second_attempt_waits_for_an_unreachable_hdfs(
    arbiter: Arbiter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An attempt that ended immediately would use up one of the app's few attempts each time."""
    caplog.set_level("INFO", "isonomy.agent")
    monkeypatch.setattr("submarine_patch.worker.checkpoints.time.sleep", lambda _: None)

    class Away(LocalFiles):
        calls = 0

        def names(self, path: str) -> list[str]:
            self.calls += 1
            if self.calls < 8:
                raise StoreError("hdfs cannot be reached: connection refused")
            return super().names(path)

    spec, files = spec_for(arbiter, tmp_path), Away(tmp_path / "agent")
    first = entry.Agent(spec, MemoryShell(), 1, "secret", files)  # type: ignore[arg-type]
    files.write("state-000001-00000001.json", json.dumps(first.core.dump()).encode())
    entry.Agent(spec, MemoryShell(), 2, "secret", files)  # type: ignore[arg-type]
    assert "attempt 2 continues with 0 jobs" in caplog.text


def test_when_a_stream_ends_the_other_address_of_a_pair_is_tried(arbiter: Arbiter, tmp_path: Path) -> None:
    other = Arbiter()
    spec = replace(spec_for(arbiter, tmp_path), arbiter=f"{arbiter.address},{other.address}")
    agent = entry.Agent(spec, MemoryShell(), 1, "secret", LocalFiles(tmp_path / "agent"))  # type: ignore[arg-type]
    run(agent)
    arbiter.wait_for("register")
    arbiter.break_stream()
    other.wait_for("register")
    other.break_stream()
    arbiter.wait_for("register")
    other.server.stop(0)


def session_at(arbiter: Arbiter, lost: Callable[[], None]) -> ArbiterSession:
    register = pb.AgentMessage(register=pb.Register(app_id="application_1_0001"))
    session = ArbiterSession(arbiter.address, "secret", None, lambda: register, lambda _: None, lost)
    session.start()
    return session


def test_the_result_of_an_app_that_ends_while_the_control_plane_restarts_reaches_it(arbiter: Arbiter) -> None:
    lost = threading.Event()
    arbiter.server.stop(0).wait()
    session = session_at(arbiter, lost.set)
    assert lost.wait(WAIT_S)
    session.send(pb.AgentMessage(done=pb.Done(succeeded=True)))
    closing = threading.Thread(target=session.close, args=(WAIT_S,))
    closing.start()
    restarted = Arbiter(arbiter.address)
    assert restarted.wait_for("done").succeeded
    closing.join(WAIT_S)
    assert not closing.is_alive()
    restarted.server.stop(0)


def test_a_result_whose_stream_broke_before_it_ended_is_sent_again(arbiter: Arbiter) -> None:
    session = session_at(arbiter, lambda: None)
    arbiter.wait_for("register")
    arbiter.fails = True
    session.send(pb.AgentMessage(done=pb.Done(succeeded=True)))
    session.close(WAIT_S)
    assert arbiter.wait_for("done").succeeded
    assert arbiter.wait_for("register").app_id == "application_1_0001"
    assert arbiter.wait_for("done").succeeded


def test_a_second_attempt_starts_from_the_newest_complete_state(tmp_path: Path) -> None:
    files = Disk(tmp_path)
    store = StateStore(files)
    store.start()
    for k in range(6):
        store.save({"k": k})
        store.flush(WAIT_S)
    assert len(files.names("")) == 3
    files.write("state-000001-00000099.json", b"{ half")
    again = StateStore(files)
    assert again.load() == {"k": 5}
    again.start()
    again.save({"k": 6})
    again.flush(WAIT_S)
    assert StateStore(files).load() == {"k": 6}


def test_a_state_that_could_not_be_saved_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever HDFS or the way to it raises, without another change of the state."""
    monkeypatch.setattr("submarine_patch.agent.edges.BACKOFF_S", (0.01,))
    failed: list[str] = []

    class Away(Disk):
        def write(self, name: str, data: bytes) -> None:
            if len(failed) < 3:
                failed.append(name)
                raise RuntimeError("HDFS is away")
            super().write(name, data)

    store = StateStore(Away(tmp_path))
    store.start()
    store.save({"k": 1})
    store.flush(WAIT_S)
    assert len(failed) == 3
    assert StateStore(Disk(tmp_path)).load() == {"k": 1}


def test_half_written_files_of_a_killed_attempt_are_deleted(tmp_path: Path) -> None:
    files = Disk(tmp_path)
    files.write(f"_{'0a' * 16}", b"{ half")
    store = StateStore(files, 2)
    store.start()
    for k in range(3):
        store.save({"k": k})
        store.flush(WAIT_S)
    assert [n for n in files.names("") if n.startswith("_")] == []
    assert StateStore(files, 3).load() == {"k": 2}


def test_the_spec_is_read_as_the_runtime_writes_it(tmp_path: Path) -> None:
    written = {
        "app_id": "application_1_0001",
        "name": "n",
        "queue": "q",
        "user": "ann",
        "app_scheduler": "single",
        "search_space": None,
        "gpus_per_job": 2,
        "max_iterations": None,
        "min_iterations": 1,
        "eta": 3,
        "jobs": None,
        "budget_iterations": None,
        "metric": "accuracy",
        "seed": 0,
        "max_retries": 0,
        "iteration_s": None,
        "slowdown": [1.0, 1.2, 1.4],
        "gpu_type": None,
        "worker": {"launch_cmd": "x", "memory_mb": 512, "vcores": 1, "gpus": 2, "count": 1, "env": {"A": "b"}},
        "paths": {"input": None, "checkpoint": None, "saved_model": None},
        "staging": "hdfs://h/s",
        "webhdfs": "http://h:1",
        "hdfs_user": "ann",
        "resources": [],
        "python": "/p",
        "arbiter": "h:1",
        "ca": "",
        "conf": {},
    }
    (tmp_path / "isonomy-app.json").write_text(json.dumps(written))
    spec = AppSpec.load(tmp_path / "isonomy-app.json")
    assert (spec.gang_gpus, spec.max_iterations, spec.max_retries, spec.slowdown) == (2, 0, 0, (1.0, 1.2, 1.4))
    assert spec.saved_model == "hdfs://h/s/saved_model"


def test_an_app_whose_scheduler_cannot_run_here_ends_and_says_why(tmp_path: Path) -> None:
    shell = MemoryShell()
    code = entry.serve(spec_of(app_scheduler="bohb"), shell, 1, "secret", LocalFiles(tmp_path))  # type: ignore[arg-type]
    finish = shell.wait_for("finish")
    assert (code, finish.succeeded) == (0, False)
    assert "isonomy.app_scheduler=bohb: must be one of single, hyperband" in finish.message


def test_keys_that_the_runtime_passes_on_are_read(tmp_path: Path) -> None:
    written = {
        "app_id": "application_1_0001",
        "name": "n",
        "gpus_per_job": 1,
        "gpu_type": "V100",
        "staging": "hdfs://h/s",
        "worker": {"launch_cmd": "x", "memory_mb": 512, "vcores": 1},
        "paths": {},
        "webhdfs": "http://h:1",
        "hdfs_user": "ann",
        "arbiter": "h:1",
        "app_scheduler": "curve",
        "conf": {
            "isonomy.target": "0.9",
            "isonomy.sampler": "gp",
            "isonomy.parallel": "7",
            "isonomy.speedups": "K80=1, V100=3.2",
        },
    }
    (tmp_path / "isonomy-app.json").write_text(json.dumps(written))
    spec = AppSpec.load(tmp_path / "isonomy-app.json")
    assert (spec.target, spec.sampler, spec.parallel, spec.gpu_type) == (0.9, "gp", 7, "V100")
    assert spec.speedups == {"K80": 1.0, "V100": 3.2}


def test_an_attempt_that_was_cut_off_does_not_overtake_the_next_one(tmp_path: Path) -> None:
    files = Disk(tmp_path)
    first, second = StateStore(files, 1), StateStore(files, 2)
    for k in range(5):
        first.write(json.dumps({"first": k}).encode())
    assert second.load() == {"first": 4}
    second.write(b'{"second": 0}')
    for k in range(5, 10):  # the old attempt does not know of it and continues
        first.write(json.dumps({"first": k}).encode())
    assert StateStore(files, 3).load() == {"second": 0}
    for k in range(1, 4):
        second.write(json.dumps({"second": k}).encode())
    assert StateStore(files, 3).load() == {"second": 3}
    assert not [n for n in files.names("") if n.startswith("state-000001")]
