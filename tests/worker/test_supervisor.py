"""`python -m submarine_patch.worker` as a process, against a real gRPC server and small programs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.worker.again import script_of
from submarine_patch.worker.checkpoints import LocalFiles
from submarine_patch.worker.kept import KeptFolder
from submarine_patch.worker.supervisor import command_line
from tests.worker.arbiter import FakeArbiter
from tests.worker.fake_webhdfs import FakeHdfs

DATA = Path(__file__).parent / "data"
REPO = str(Path(__file__).parents[2])
WORKER = "job-1/1/0"
Run = Callable[..., "subprocess.Popen[str]"]

TRAINING = """
import os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
for step in range(1, int(os.environ["ISONOMY_UNTIL_STEP"]) + 1):
    print(f"INFO:tensorflow:loss = {1 / step}, step = {step}, accuracy = 0.5, 0.02 sec/step, paced", flush=True)
    time.sleep(0.02)
    if stop:
        print(f"INFO:tensorflow:Saved checkpoint for {step} into /ckpt/x (0.0 sec)", flush=True)
        sys.exit(75)
"""
LOADERS = """
import multiprocessing, os, signal, sys, time
from submarine_patch.worker.session import stop_request
stop_request.take_over()
stop_request.arm()
open("/proc/self/comm", "wb").write(b"\\xff\\x0b")
fork = multiprocessing.get_context("fork")
armed = fork.Process(target=stop_request.arm)
armed.start()
armed.join(60)
assert armed.exitcode == 0
ended, kept = (fork.Process(target=time.sleep, args=(3600,)) for _ in range(2))
ended.start()
kept.start()
ended.terminate()
ended.join(60)
assert ended.exitcode == -signal.SIGTERM, ended.exitcode
print("step 1 loss 0.5", flush=True)
assert not stop_request.wait(0.5)
print("step 2 loss 0.5", flush=True)
assert stop_request.wait(60)
assert not kept.join(0.5) and kept.is_alive()
print("INFO:x:Saved checkpoint for 3 into /c (0.1 sec)", flush=True)
os._exit(75)
"""
LAUNCHER = """
import os, signal, subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: os.killpg(rank.pid, signal.SIGTERM))
sys.exit(rank.wait() and 1)
"""
"""As torchrun: what it gets it passes on to all processes of its ranks, which are in sessions of their own."""


@pytest.fixture
def arbiter() -> Iterator[FakeArbiter]:
    fake = FakeArbiter()
    yield fake
    fake.stop()


@pytest.fixture
def run(arbiter: FakeArbiter, tmp_path: Path) -> Iterator[Run]:
    """Starts a worker with this command."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *command: str, python: Sequence[str] = (sys.executable, "-m", "submarine_patch.worker"), **env: str
    ) -> subprocess.Popen[str]:
        worker_env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("ISONOMY_", "TF_CONFIG"))},
            "ISONOMY_ARBITER": f"127.0.0.1:{arbiter.port}",
            "ISONOMY_WORKER_ID": WORKER,
            "HADOOP_TOKEN_FILE_LOCATION": str(DATA / "writable.hdts"),
            "NM_HOST": "127.0.1.3",
            "CONTAINER_ID": "container_1_0001_01_000002",
            "CUDA_VISIBLE_DEVICES": "0,2",
            **env,
        }
        process = subprocess.Popen(
            [*python, "--", *command],
            env=worker_env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _program(source: str) -> str:
    return f"exec {shlex.quote(sys.executable)} -c {shlex.quote(source)}"


def _group_is_gone(pid: int) -> bool:
    until_s = time.monotonic() + 10.0
    while time.monotonic() < until_s:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


def test_a_worker_from_its_start_to_its_end(arbiter: FakeArbiter, run: Run) -> None:
    worker = run(
        "echo to-out; echo to-err >&2; env > $DUMP; echo 'loss = 0.5, step = 9'; exit 3",
        DUMP=(dump := "/tmp/isonomy-test-env-" + str(os.getpid())),
    )
    ready = arbiter.wait_for("ready")
    assert (ready.host, ready.cuda_visible_devices) == ("127.0.1.3", "0,2")
    assert ready.container_id == "container_1_0001_01_000002"
    assert 20_000 <= ready.port < 65_536
    tf_config = json.dumps({"cluster": {"worker": ["127.0.1.3:2222"]}, "task": {"type": "worker", "index": 0}})
    start = pb.Start(
        tf_config=tf_config,
        until_step=40,
        checkpoint_dir="/jobs/1",
        configuration={"learning_rate": "0.1"},
        pacing='{"serial_iter_s": 1, "gpus": 2}',
    )
    arbiter.send(WORKER, start=start)
    out, err = worker.communicate(timeout=30)
    told = dict(line.split("=", 1) for line in Path(dump).read_text().splitlines() if "=" in line)
    Path(dump).unlink()
    assert told["TF_CONFIG"] == tf_config
    assert told["ISONOMY_UNTIL_STEP"] == "40"
    assert told["ISONOMY_CHECKPOINT_DIR"] == "/jobs/1"
    assert told["ISONOMY_CONFIGURATION"] == '{"learning_rate": "0.1"}'
    assert told["ISONOMY_PACING"] == '{"serial_iter_s": 1, "gpus": 2}'
    assert told["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert out == "to-out\nloss = 0.5, step = 9\n"
    assert err == "to-err\nisonomy worker: failed with 3\n"
    ended = arbiter.wait_for("exit")
    assert (ended.code, ended.step, worker.returncode) == (3, 9, 3)
    assert "exit code 3" in ended.message
    assert arbiter.wait_for("progress").step == 9
    assert [m.WhichOneof("kind") for m in arbiter.messages] == ["ready", "progress", "exit"]


TRIAL = """
import helper, os, sys
from submarine_patch.worker import session
from submarine_patch.worker.rank import Agreement, Rank
class Plain(session.Session):
    state_part = "state"
    def _join(self, threads): return Agreement(Rank())
    def _declare(self, owners, named): pass
    def _captured(self): return lambda: b""
    def _assign(self, name, state): pass
s = Plain()
for step in s.steps(): s.report(loss=1.0, f1=step)
print("ran", os.getpid(), sys.argv[1:], os.environ["ISONOMY_JOB_ID"], len(helper.seen), flush=True)
helper.seen.append(1)
if "bad" in sys.argv: raise ValueError("it cannot run twice")
s.finish()
"""


QUEUED = """
import time
from types import SimpleNamespace
now = [0.0]
session.time = SimpleNamespace(monotonic=lambda: now[0])
class Queued:  # a tensor of a GPU that still computes its steps
    def __float__(self):
        now[0] += 0.5
        return 1.0
s = Plain()
for step in s.steps(): s.report(loss=Queued())
"""


def test_a_steps_time_has_what_the_gpu_still_computes_when_its_code_returns(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRIAL[: TRIAL.index("s = Plain")].replace("helper, ", "") + QUEUED)
    env = {**os.environ, "PYTHONPATH": REPO, "ISONOMY_UNTIL_STEP": "20"}
    words = [sys.executable, str(tmp_path / "train.py")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert [line.rpartition(", ")[2] for line in done.stderr.splitlines() if "loss" in line] == ["0.0500 sec/step"] * 2


@pytest.mark.parametrize("second", ["--lr 0.2", "bad"])
def test_another_trial_runs_in_the_same_process_as_if_it_were_new(
    arbiter: FakeArbiter, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRIAL)
    Path("helper.py").write_text("seen = []")
    worker = run("python train.py --lr 0.1", ISONOMY_JOB_ID="job-1", PYTHONPATH=REPO)
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(until_step=30, again=True))
    first = arbiter.wait_for("exit")
    assert (first.code, first.step, first.waits) == (0, 30, True)
    told = len(arbiter.messages)
    following = pb.Next(worker_id="job-2/1/0", job_id="job-2", command=f"python train.py {second}")
    arbiter.send(WORKER, next=following)
    assert arbiter.wait_for("ready", since=told).container_id == "container_1_0001_01_000002"
    arbiter.send("job-2/1/0", start=pb.Start(until_step=40, again=True))
    ended = arbiter.wait_for("exit", since=told)
    assert (ended.code, ended.waits) == ((1, False) if second == "bad" else (0, True))
    assert ended.step == 40
    if second != "bad":
        arbiter.send("job-2/1/0", stop=pb.Stop(reason="no job goes on with it"))
    out, err = worker.communicate(timeout=30)
    (_, pid, *one), (_, again, *two) = (line.split() for line in out.splitlines())
    assert pid == again
    assert "".join(one) == "['--lr','0.1']job-10"
    assert "".join(two) == f"{second.split()}job-20".replace(" ", ""), "the script's own modules are new"
    assert "isonomy worker: goes on as job-2/1/0\n" in err
    assert worker.returncode == (1 if second == "bad" else 76)


def test_a_program_that_no_trial_goes_on_with_ends_by_itself(
    arbiter: FakeArbiter, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(f"import atexit; atexit.register(lambda: print('over', flush=True))\n{TRIAL}")
    Path("helper.py").write_text("seen = []")
    worker = run("python train.py", ISONOMY_JOB_ID="job-1", PYTHONPATH=REPO)
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(until_step=30, again=True))
    arbiter.wait_for("exit", lambda e: e.waits)
    worker.terminate()
    assert worker.communicate(timeout=30)[0].endswith("over\n")


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --lr 0.1", ["train.py", "--lr", "0.1"]),
        ("python3 -m a.b 'x y'", ["-m", "a.b", "x y"]),
        ("python -m", []),
        ("python", []),
        ("python -u train.py", []),
        ("python train.py && python post.py", []),
        ("python train.py --out $HOME", []),
        ("LR=1 python train.py", []),
        ("torchrun train.py", []),
        ("bash run.sh", []),
    ],
)
def test_only_a_plain_call_of_python_is_run_again(command: str, script: list[str]) -> None:
    assert script_of(command) == script


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("(exit 3) 2>&1 | tee /dev/null", 3),
        ("cd / && (exit 3) |& tee -a /dev/null || exit 4", 4),
        ("(exit 0) | tee /dev/null", 0),
        ("yes | head -1 && (exit 0) | tee /dev/null", 0),
        ("(exit 3) | cat", 0),
    ],
)
def test_a_failure_is_not_hidden_by_tee(command: str, code: int) -> None:
    assert subprocess.run(command_line([command]), capture_output=True, timeout=10).returncode == code


def test_progress_then_stop(arbiter: FakeArbiter, run: Run) -> None:
    worker = run(_program(TRAINING))
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(until_step=10_000))
    seen = arbiter.wait_for("progress", lambda p: p.step > 30)
    assert (seen.accuracy, seen.iter_time_s, seen.paced) == (0.5, 0.02, True)
    assert sum(m.HasField("progress") for m in arbiter.messages) < 20
    arbiter.send(WORKER, stop=pb.Stop(deadline_s=time.time() + 20, reason="lease over"))
    ended = arbiter.wait_for("exit")
    assert worker.wait(10) == ended.code == 75
    assert "lease over" in ended.message
    assert ended.step == arbiter.wait_for("checkpoint").step


@pytest.mark.parametrize("command", ["{}; echo done", "{} 2>&1 | tee /dev/null", "({})", "bash -c {quoted}; exit $?"])
def test_a_program_in_a_shell_saves_on_a_stop(arbiter: FakeArbiter, run: Run, command: str) -> None:
    program = shlex.join([sys.executable, "-c", TRAINING])
    worker = run(command.format(program, quoted=shlex.quote(f"{program}; exit $?")))
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(until_step=10_000))
    arbiter.wait_for("progress")
    arbiter.send(WORKER, stop=pb.Stop(deadline_s=time.time() + 20, reason="lease over"))
    ended = arbiter.wait_for("exit")
    assert worker.wait(10) == ended.code == 75
    assert not ended.unsaved, ended.message
    assert ended.step == arbiter.wait_for("checkpoint").step


@pytest.mark.parametrize("command", [(LOADERS,), (LAUNCHER, LOADERS)], ids=["alone", "launcher"])
def test_a_stop_leaves_a_session_its_loaders_and_the_end_of_a_loader_is_no_stop(
    arbiter: FakeArbiter, run: Run, command: tuple[str, ...]
) -> None:
    worker = run(shlex.join(["exec", sys.executable, "-c", *command]))
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(until_step=10_000))
    arbiter.wait_for("progress", lambda p: p.step == 2)  # goes on beside the end of a loader
    arbiter.send(WORKER, stop=pb.Stop(deadline_s=time.time() + 20, reason="lease over"))
    ended = arbiter.wait_for("exit")
    assert ended.code == worker.wait(10) == 75
    assert not ended.unsaved, ended.message
    assert arbiter.wait_for("checkpoint").step == 3


def test_an_event_loop_of_the_script_hides_no_stop() -> None:
    script = """
import asyncio, os, signal
from submarine_patch.worker.session import stop_request
stop_request.arm()
async def train():
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, print)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.to_thread(stop_request.wait, 10)
asyncio.run(train())
"""
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": REPO}, timeout=60, check=True)


def test_a_launcher_is_asked_once_its_session_has_ended(arbiter: FakeArbiter, run: Run) -> None:
    launcher = "import subprocess, sys, signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
    launcher += "session = subprocess.Popen([sys.executable, '-c', sys.argv[1]])\nwhile True:\n    signal.pause()"
    worker = run(shlex.join(["exec", sys.executable, "-c", launcher, LOADERS]))
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(until_step=10_000))
    arbiter.wait_for("progress", lambda p: p.step == 2)
    arbiter.send(WORKER, stop=pb.Stop(deadline_s=time.time() + 60, reason="lease over"))
    ended = arbiter.wait_for("exit")
    assert ended.code == worker.wait(10) == 75
    assert "stopped with a checkpoint, by exit code 3" in ended.message


def test_a_program_that_does_not_stop_is_killed_before_the_deadline(arbiter: FakeArbiter, run: Run) -> None:
    worker = run("trap '' TERM; echo 'loss = 1, step = 1'; sleep 60 & wait; wait")
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(until_step=5))
    arbiter.wait_for("progress")
    deadline_s = time.time() + 3.0
    arbiter.send(WORKER, stop=pb.Stop(deadline_s=deadline_s, reason="lease over"))
    assert arbiter.wait_for("exit").code == worker.wait(10) == 75
    assert time.time() < deadline_s
    assert "killed at the deadline" in arbiter.wait_for("exit").message


def test_a_deadline_of_a_clock_that_is_behind_leaves_time_for_a_checkpoint(arbiter: FakeArbiter, run: Run) -> None:
    worker = run(_program(TRAINING))
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(until_step=10_000))
    arbiter.wait_for("progress", lambda p: p.step > 30)
    arbiter.send(WORKER, stop=pb.Stop(deadline_s=time.time() - 147 + 20, left_s=20.0, reason="lease over"))
    assert worker.wait(10) == 75
    assert arbiter.wait_for("exit").step == arbiter.wait_for("checkpoint").step
    assert "killed" not in arbiter.wait_for("exit").message


@pytest.mark.parametrize("saves", [False, True])
def test_a_kept_folder_is_a_checkpoint_when_the_program_writes_to_it(
    arbiter: FakeArbiter, run: Run, tmp_path: Path, saves: bool
) -> None:
    save = f"echo same >{tmp_path}/ckpt/state"
    program = f"mkdir {tmp_path}/ckpt; {save}; "
    program += f"trap '{save}; sleep 0.4; exit' TERM; " if saves else ""  # the next copy takes it before the end
    program += "for n in {1..9999}; do echo step $n loss 0.5; sleep 0.02; done"
    often = "import sys; from submarine_patch.worker import supervisor as s; s.KEEP_S = 0.1"
    often += "; sys.exit(s.main(sys.argv[1:]))"
    worker = run(program, python=(sys.executable, "-c", often), ISONOMY_KEEP_FOLDER=f"{tmp_path}/ckpt")
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(checkpoint_dir=f"{tmp_path}/hdfs"))
    at = arbiter.wait_for("checkpoint").step
    arbiter.wait_for("progress", lambda p: p.step > at + 10)
    arbiter.send(WORKER, stop=pb.Stop(deadline_s=time.time() + 20, reason="lease over"))
    assert worker.wait(10) == 75
    assert arbiter.wait_for("exit").unsaved is not saves
    assert sum(m.HasField("checkpoint") for m in arbiter.messages) == 1 + saves


@pytest.mark.parametrize("back", [True, False])
def test_a_program_has_finished_only_once_its_kept_folder_is_saved(
    arbiter: FakeArbiter, run: Run, tmp_path: Path, back: bool
) -> None:
    hdfs = FakeHdfs(tmp_path / "hdfs")
    hdfs.full = True
    patient = f"import sys; from submarine_patch.worker import supervisor as s; s.KEEP_PATIENCE_S = {60 * back}"
    patient += "; sys.exit(s.main(sys.argv[1:]))"
    program = f"mkdir {tmp_path}/ckpt; echo result >{tmp_path}/ckpt/state"
    env = {"ISONOMY_KEEP_FOLDER": f"{tmp_path}/ckpt", "ISONOMY_WEBHDFS": hdfs.url}
    worker = run(program, python=(sys.executable, "-c", patient), **env)
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(checkpoint_dir="/job"))
    if back:
        assert worker.stderr is not None
        assert any("trying on" in line for line in worker.stderr)
        hdfs.full = False
    assert arbiter.wait_for("exit").code == worker.wait(10) == (not back)
    assert bool(arbiter.wait_for("checkpoint").problem) is not back
    assert ("could not be kept" in arbiter.wait_for("exit").message) is not back
    hdfs.go()


def test_a_stop_does_not_wait_for_the_kept_folder_nor_start_the_program(arbiter: FakeArbiter, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        worker = run("echo started", ISONOMY_KEEP_FOLDER="ckpt", ISONOMY_WEBHDFS=url)
        arbiter.wait_for("ready")
        arbiter.send(WORKER, start=pb.Start(checkpoint_dir="/job"))
        with silent.accept()[0]:
            arbiter.send(WORKER, stop=pb.Stop(deadline_s=time.time() + 20, reason="lease over"))
            assert "stopped before its start: lease over" in arbiter.wait_for("exit").message
            assert worker.communicate(timeout=10)[0] == ""
    assert worker.returncode == 75


def test_a_kept_folder_that_cannot_be_written_here_fails_the_worker(
    arbiter: FakeArbiter, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "one/state").mkdir(parents=True)
    (tmp_path / "one/state/part").touch()
    assert KeptFolder(LocalFiles(tmp_path / "hdfs"), tmp_path / "one", 1).keep()
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt/state").touch()  # among the files of the workers
    worker = run("echo started", ISONOMY_KEEP_FOLDER=f"{tmp_path}/ckpt")
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(checkpoint_dir=f"{tmp_path}/hdfs"))
    assert "the kept folder cannot be restored: [Errno 17] File exists" in arbiter.wait_for("exit").message
    assert (worker.communicate(timeout=10)[0], worker.returncode) == ("", 1)


def test_sigterm_of_yarn_is_a_stop(arbiter: FakeArbiter, run: Run) -> None:
    worker = run(_program(TRAINING))
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(until_step=10_000))
    arbiter.wait_for("progress")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 75
    assert "SIGTERM" in arbiter.wait_for("exit").message
    assert arbiter.wait_for("checkpoint").path == "/ckpt/x"


def test_sigkill_of_yarn_leaves_no_process(arbiter: FakeArbiter, run: Run) -> None:
    worker = run("trap '' TERM; sleep 300 & echo pids $$ $!; wait")
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(until_step=5))
    assert worker.stdout is not None
    pids = [int(pid) for pid in worker.stdout.readline().split()[1:]]
    worker.kill()
    assert all(_group_is_gone(pid) for pid in pids)


def test_training_continues_while_the_arbiter_is_away(arbiter: FakeArbiter, run: Run) -> None:
    worker = run(_program(TRAINING))
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(until_step=10_000))
    before = arbiter.wait_for("progress", lambda p: p.step > 5).step
    arbiter.stop()
    time.sleep(1.0)
    since = len(arbiter.messages)
    arbiter.start()
    arbiter.wait_for("ready", since=since)
    assert arbiter.wait_for("progress", since=since).step > before
    assert next(m.WhichOneof("kind") for m in arbiter.messages[since:]) == "ready"
    arbiter.send(WORKER, stop=pb.Stop(deadline_s=time.time() + 20, reason="enough"))
    assert worker.wait(10) == 75
    assert arbiter.streams == 2


def test_the_worker_tries_the_other_address_of_a_pair(arbiter: FakeArbiter, run: Run) -> None:
    other = FakeArbiter()
    worker = run(_program(TRAINING), ISONOMY_ARBITER=f"127.0.0.1:{arbiter.port},127.0.0.1:{other.port}")
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(until_step=10_000))
    before = arbiter.wait_for("progress", lambda p: p.step > 5).step
    arbiter.stop()
    assert other.wait_for("progress").step >= before
    assert next(m.WhichOneof("kind") for m in other.messages) == "ready"
    other.send(WORKER, stop=pb.Stop(deadline_s=time.time() + 20, reason="enough"))
    assert worker.wait(10) == 75
    other.stop()


def test_a_worker_without_a_start_in_time_exits_76(arbiter: FakeArbiter, run: Run) -> None:
    impatient = "import sys; from submarine_patch.worker import supervisor as s; s.START_S = 0.5"
    impatient += "; sys.exit(s.main(sys.argv[1:]))"
    worker = run("true", python=(sys.executable, "-c", impatient))
    _, err = worker.communicate(timeout=20)
    assert worker.returncode == arbiter.wait_for("exit").code == 76
    assert "no Start arrived within 0.5 s" in err


def test_stop_before_start(arbiter: FakeArbiter, run: Run) -> None:
    worker = run("echo never")
    arbiter.wait_for("ready")
    arbiter.send(WORKER, stop=pb.Stop(deadline_s=time.time() + 20, reason="lost the auction"))
    assert worker.communicate(timeout=20)[0] == ""
    assert worker.returncode == arbiter.wait_for("exit").code == 75


def test_a_refused_token_ends_the_worker(arbiter: FakeArbiter, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.worker.arbiter.TOKEN", "another")
    worker = run("echo never")
    out, err = worker.communicate(timeout=30)
    assert (worker.returncode, out) == (77, "")
    assert "the Arbiter refused this worker: the token has expired" in err
    assert "abc.def" not in err


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"ISONOMY_ARBITER": ""}, "ISONOMY_ARBITER is not set"),
        ({"ISONOMY_ARBITER": "host"}, "ISONOMY_ARBITER: 'host' is not host:port"),
        ({"ISONOMY_ARBITER_CA": "/no/ca.pem"}, "ISONOMY_ARBITER_CA: /no/ca.pem cannot be read"),
        ({"HADOOP_TOKEN_FILE_LOCATION": "/no/file"}, "/no/file: cannot be read"),
    ],
)
def test_a_wrong_environment_is_one_line(run: Run, env: dict[str, str], says: str) -> None:
    worker = run("true", **env)
    _, err = worker.communicate(timeout=20)
    assert worker.returncode == 78
    assert says in err
    assert len(err.splitlines()) == 1


def _told(arbiter: FakeArbiter, run: Run, tmp_path: Path, tf_config: str) -> dict[str, str]:
    worker = run(f"env > {tmp_path}/told", RANK="9")
    own = arbiter.wait_for("ready").port
    arbiter.send(WORKER, start=pb.Start(tf_config=tf_config))
    assert worker.wait(30) == 0
    told = dict(line.split("=", 1) for line in (tmp_path / "told").read_text().splitlines() if "=" in line)
    return {k: v.replace(str(own), "OWN") for k, v in told.items()}


def test_every_worker_gets_the_rendezvous_of_its_gang(arbiter: FakeArbiter, run: Run, tmp_path: Path) -> None:
    config = {"cluster": {"worker": ["h1:2222", "h2:3333", "h3:4444"]}, "task": {"type": "worker", "index": 2}}
    told = _told(arbiter, run, tmp_path, json.dumps(config))
    expected = {
        "MASTER_ADDR": "h1",
        "MASTER_PORT": "2222",
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": "2",
        "NNODES": "3",
        "PET_MASTER_ADDR": "h1",
        "PET_MASTER_PORT": "2222",
        "PET_NNODES": "3",
        "PET_NODE_RANK": "2",
        "PET_NPROC_PER_NODE": "2",
    }
    assert {k: told.get(k) for k in expected} == expected
    assert json.loads(told["TF_CONFIG"]) == config


def test_a_gang_of_one_has_itself_as_rendezvous(arbiter: FakeArbiter, run: Run, tmp_path: Path) -> None:
    told = _told(arbiter, run, tmp_path, "")
    assert [told[k] for k in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")] == ["127.0.0.1", "OWN", "0", "1"]
    assert "TF_CONFIG" not in told


@pytest.mark.parametrize(
    ("on_term", "until", "code", "unsaved"),
    [
        ("sys.exit(0)", 0, 75, True),
        ("sys.exit(0)", 1, 0, False),
        ("sys.exit(1)", 1, 75, True),
        ("print('INFO:x:Saved checkpoint for 1 into /c (0.1 sec)'); sys.exit(1)", 0, 75, False),
        ("print('INFO:x:Finished at step 1'); sys.exit(0)", 0, 0, False),
    ],
)
def test_any_exit_after_a_stop_counts_as_stopped(
    arbiter: FakeArbiter, run: Run, on_term: str, until: int, code: int, unsaved: bool
) -> None:
    source = "import signal, sys, time\n" + f"def leave(*_):\n    {on_term}\n"
    # short sleeps, as a signal that arrives just before one is handled after it
    source += "signal.signal(signal.SIGTERM, leave)\nprint('step 1 loss 0.5', flush=True)\n"
    source += "while True:\n    time.sleep(0.1)\n"
    worker = run(_program(source))
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start(until_step=until))
    arbiter.wait_for("progress")
    arbiter.send(WORKER, stop=pb.Stop(deadline_s=time.time() + 20, reason="lease over"))
    ended = arbiter.wait_for("exit")
    assert (ended.code, ended.unsaved) == (code, unsaved), ended.message
    assert worker.wait(10) == code


def test_a_failed_checkpoint_is_reported_and_does_not_count_as_saved(arbiter: FakeArbiter, run: Run) -> None:
    run("echo 'step 3 loss 0.5'; echo 'WARNING:isonomy:a checkpoint failed by step 3: HDFS is full'; sleep 60")
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start())
    told = arbiter.wait_for("checkpoint")
    assert (told.step, told.path, told.problem) == (3, "", "HDFS is full")
    arbiter.send(WORKER, stop=pb.Stop(deadline_s=time.time() + 20, reason="lease over"))
    assert arbiter.wait_for("exit").unsaved


def test_any_metric_is_reported_and_the_epochs_that_the_user_said(arbiter: FakeArbiter, run: Run) -> None:
    run("echo 'epoch 3 loss 0.5 val_f1: 0.83'", ISONOMY_METRIC="val_f1", ISONOMY_EPOCHS="30")
    arbiter.wait_for("ready")
    arbiter.send(WORKER, start=pb.Start())
    told = arbiter.wait_for("progress")
    assert (told.metric, told.step, told.until_step) == (0.83, 3, 30)
