"""`python -m submarine_patch.agent`: the Agent, started by the AM shell in the AM's container."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pycontrol.web.poster import Poster
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent import board
from submarine_patch.agent.agent_core import AgentCore
from submarine_patch.agent.edges import ArbiterSession, Shell, SpeedStore, StateStore
from submarine_patch.agent.messages import (
    Command,
    CommandRefused,
    End,
    Event,
    HasToken,
    KeepSpeeds,
    LinkLost,
    NotifyWebhook,
    Publish,
    Published,
)
from submarine_patch.agent.schedulers.port import SchedulerError
from submarine_patch.agent.spec import FILE, AppSpec
from submarine_patch.agent.speeds import file_of
from submarine_patch.worker.checkpoints import Files, copy_model, patiently, sweep
from submarine_patch.worker.credentials import CredentialsError, read_secret
from submarine_patch.worker.kept import copy_kept
from submarine_patch.worker.own_hdfs_token import HdfsToken, of_container

TICK_S = 0.5
INBOX = 10_000
CLOSE_S = 5.0
DONE_S = 60.0
"""How long the end of an app waits for a control plane that is away, which would not know its result otherwise."""
PATIENCE_S = 1800.0
"""How long to wait for HDFS when it is away: at a restart, because a failed attempt costs the app one of few, and after
the training, because the model would be lost. The AM's JVM sends heartbeats to YARN meanwhile."""
TOKEN_LOOK_S = 60.0
SHELL_GONE = 70
QUIET = {"progress", "rho"}
log = logging.getLogger("isonomy.agent")


class Agent:
    """Runs the AgentCore between its edges, on one thread."""

    def __init__(self, spec: AppSpec, shell: Shell, attempt: int, token: str, files: Files | None = None) -> None:
        self.spec, self.shell = spec, shell
        self.inbox: queue.Queue[Event] = queue.Queue(INBOX)
        staging = f"{spec.staging.rstrip('/')}/agent"
        self.store = StateStore(files or spec.files_at(staging), attempt)
        saved = patiently(self.store.load, PATIENCE_S, log.warning) if attempt > 1 else None
        self.core = AgentCore(spec, attempt, saved)
        self._hdfs_token = of_container()
        if self._hdfs_token is not None:
            self.core.has_token(self._hdfs_token.issued_s, self._hdfs_token.ends_s)
        where = f"/user/{spec.hdfs_user}/.isonomy/speeds" if spec.webhdfs else f"{spec.staging}/speeds"
        self.speeds = SpeedStore(spec.files_at(where))
        if saved:
            self.core.restarted(time.time())
            log.info("attempt %d continues with %d jobs", attempt, len(self.core.jobs))
        else:
            self._recall_speeds()
        self.poster = Poster(spec.notify)
        self.board = board.Board(Path(board.FOLDER), spec.metric) if spec.tensorboard else None
        self._lock = threading.Lock()
        self.session = ArbiterSession(
            spec.arbiter,
            token,
            spec.ca.encode() or None,
            self._register,
            self._deliver,
            lambda: self.inbox.put(LinkLost()),
        )

    def _recall_speeds(self) -> None:
        """Load what earlier apps of the job type measured."""
        known = self.speeds.load(file_of(self.spec.job_type))
        if known is None:
            return
        try:
            self.core.recall(known)
            log.info("speeds known of job type %s: %s", self.spec.job_type, known["times"])
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            log.warning("the kept speeds of job type %s are malformed: %s", self.spec.job_type, e)

    def _register(self) -> pb.AgentMessage:
        with self._lock:
            return self.core.register()

    def _deliver(self, message: pb.ArbiterMessage) -> None:
        kind = message.WhichOneof("kind")
        if kind == "from_worker":
            kind = message.from_worker.WhichOneof("kind")
        if kind not in ("progress", "heartbeat", "ask_rho"):
            log.info("from the Arbiter: %s", _short(message))
        self.inbox.put(message)

    def run(self) -> int:
        """Run until the app has ended; returns the exit code.

        The first poll of the shell comes before the Arbiter's stream, so that earlier attempts' containers are known.
        """
        self.store.start()
        self.shell.start(lambda command, error: self.inbox.put(CommandRefused(command, error)))
        self._take(self.shell.poll())
        threading.Thread(target=self._poll_shell, name="shell", daemon=True).start()
        self.session.start()
        if self._hdfs_token is not None:
            watched = (self._hdfs_token, self.inbox.put)
            threading.Thread(target=watch_token, args=watched, name="token", daemon=True).start()
        if self.spec.notify:
            self.poster.start()
        if self.board is not None:
            board.serve(sys.executable, Path(board.FOLDER), self.inbox.put)
        while True:
            try:
                event: Event = self.inbox.get(timeout=TICK_S)
            except queue.Empty:
                event = None
            with self._lock:
                commands = self.core.handle(event, time.time())
                state = self.core.dump() if self.core.changed else None
                self.core.changed = False
                self._show()
            if state is not None:
                self.store.save(state)
            for command in commands:
                if isinstance(command, End):
                    self.shell.drain(CLOSE_S)
                    self.session.close(CLOSE_S)
                    self.poster.drain(CLOSE_S)
                    return command.code
                self._carry_out(command)

    def _show(self) -> None:
        """What jobs say goes to TensorBoard, if it is to run; a problem costs its curves, not the app."""
        if self.board is None:
            return
        try:
            self.board.take(self.core.jobs.values(), time.time())
        except (ImportError, OSError) as e:
            log.warning("TensorBoard's files cannot be written: %s", e)
            self.board = None

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, pb.AgentMessage | am.AmCommand) and command.WhichOneof("kind") not in QUIET:
            log.info("to %s: %s", "YARN" if isinstance(command, am.AmCommand) else "the Arbiter", _short(command))
        if isinstance(command, pb.AgentMessage):
            self.session.send(command)
        elif isinstance(command, am.AmCommand):
            if command.HasField("finish"):  # the Arbiter must receive Done before YARN reports the app's end
                self.session.close(DONE_S)
                self.store.flush(CLOSE_S)
            self.shell.send(command)
        elif isinstance(command, KeepSpeeds):
            log.info("speeds of job type %s: %s", self.spec.job_type, dict(self.core.speeds.vector()))
            self.speeds.save(command.file, command.speeds)
        elif isinstance(command, NotifyWebhook):
            self.poster.put(dict(command.event))
        elif isinstance(command, Publish):
            threading.Thread(target=self._publish, args=(command,), name="publish", daemon=True).start()

    def _publish(self, p: Publish) -> None:
        results = self._write_results(p)
        published = Published(results)
        if p.from_dir:
            try:
                published = Published(patiently(lambda: self._copied(p), PATIENCE_S, log.warning))
            except FileNotFoundError as e:
                published = Published(results, problem=str(e), missing=True)
            except Exception as e:  # whatever HDFS or the way to it raises
                log.warning("the model could not be copied: %s: %s", type(e).__name__, e)
                published = Published(results, problem=f"{type(e).__name__}: {e}")
            try:  # a worker that was killed while it saved may have left gigabytes
                sweep(self.spec.files_at(p.from_dir.rpartition("/")[0]))
            except Exception as e:  # whatever HDFS or the way to it raises
                log.warning("half-written checkpoints may be left: %s", e)
        self.inbox.put(published)

    def _copied(self, p: Publish) -> str:
        """Where the model is now: the newest checkpoint of a session, else the script's own folder."""
        source, target = self.spec.files_at(p.from_dir), self.spec.files_at(p.to_dir)
        try:
            name = copy_model(source, target)
        except FileNotFoundError as e:
            if not self.spec.keep_folder:
                raise FileNotFoundError(f"{e} in {p.from_dir}") from e
            name = copy_kept(source, target, self.spec.keep_folder)
        return f"{p.to_dir.rstrip('/')}/{name}"

    def _write_results(self, p: Publish) -> str:
        """Write the result files; returns their folder. An error is only logged, and the folder is then empty."""
        folder = f"results-{self.spec.app_id}"
        try:
            files = self.spec.files_at(p.to_dir)
            for name, text in p.results.items():
                files.write(f"{folder}/{name}", text.encode())
        except Exception as e:  # whatever HDFS or the way to it raises
            log.warning("the results could not be written to %s: %s", p.to_dir, e)
            return ""
        return f"{p.to_dir.rstrip('/')}/{folder}"

    def _poll_shell(self) -> None:
        """Poll the shell for events; exit immediately if it is gone."""
        try:
            while True:
                self._take(self.shell.poll())
        except Exception as e:
            log.error("the AM shell is gone: %s", e)
            os._exit(SHELL_GONE)

    def _take(self, events: list[am.AmEvent]) -> None:
        for event in events:
            log.info("from YARN: %s", _short(event))
            self.inbox.put(event)


def watch_token(token: HdfsToken, tell: Callable[[Event], None]) -> None:
    """Renew the app's HDFS token in time even if the Agent writes nothing; `tell` receives HasToken."""
    while True:
        before_s = token.ends_s
        token.url()
        if token.ends_s != before_s:
            log.info("the app's HDFS token ends at %.0f now", token.ends_s)
            tell(HasToken(token.issued_s, token.ends_s))
        time.sleep(min(TOKEN_LOOK_S, max(TICK_S, (token.ends_s - time.time()) / 10.0)))


def _short(message: object) -> str:
    text = " ".join(str(message).split())
    return text if len(text) <= 300 else text[:297] + "..."


def _die_with_parent() -> None:
    """Have the kernel kill this process when the AM's JVM dies (Linux: PR_SET_PDEATHSIG)."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(SHELL_GONE)


def main() -> int:
    """Read the shell's port and token from standard input, then run; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    for noisy in ("py4j", "hdfs"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    _die_with_parent()
    try:
        greeting = json.loads(sys.stdin.readline())
        spec = AppSpec.load(Path(FILE))
        token = read_secret("isonomy.token").decode()
        # the code that renews HDFS tokens reads these, as in a worker
        os.environ.update({"ISONOMY_ARBITER": spec.arbiter, "ISONOMY_ARBITER_CA": spec.ca})
        shell = Shell(int(greeting["port"]), greeting["token"])
        attempt = int(greeting.get("attempt") or _attempt(os.environ.get("CONTAINER_ID", "")))
    except (OSError, KeyError, TypeError, ValueError, OverflowError, CredentialsError) as e:
        log.error("the Agent cannot start: %s: %s", type(e).__name__, e)
        return 2
    return serve(spec, shell, attempt, token)


def serve(spec: AppSpec, shell: Shell, attempt: int, token: str, files: Files | None = None) -> int:
    """Run the app to its end; returns the exit code."""
    try:
        agent = Agent(spec, shell, attempt, token, files)
    except SchedulerError as e:  # a retry would not help: end the app with this message
        log.error("the Agent cannot start: %s", e)
        shell.start(lambda _command, _error: None)
        shell.send(am.AmCommand(id=f"{attempt}/end", finish=am.AmFinish(succeeded=False, message=str(e))))
        shell.drain(CLOSE_S)
        return 0
    return agent.run()


def _attempt(container_id: str) -> int:
    """The attempt in a container id: 2 for container_e17_1700000000000_0001_02_000001."""
    parts = container_id.split("_")
    return int(parts[-2]) if len(parts) >= 5 else 1


if __name__ == "__main__":
    sys.exit(main())
