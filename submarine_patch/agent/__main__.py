"""`python -m submarine_patch.agent`: the Agent, started by the AM shell in the AM's container."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from submarine_patch.agent.brain import Brain, End, Publish, ToArbiter, ToShell
from submarine_patch.agent.edges import ArbiterSession, Shell, StateStore
from submarine_patch.agent.spec import FILE, AppSpec
from submarine_patch.worker.checkpoints import copy_model, files_at
from submarine_patch.worker.credentials import CredentialsError, read_secret

TICK_S = 0.5
SHELL_GONE = 70
log = logging.getLogger("isonomy.agent")


class _Lost:
    """The stream to the Arbiter broke."""


class _Published:
    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem


class Agent:
    """Runs the brain between its edges, on one thread."""

    def __init__(self, spec: AppSpec, shell: Shell, attempt: int, token: str) -> None:
        self.spec, self.shell = spec, shell
        self.inbox: queue.Queue[object] = queue.Queue(10_000)
        self.store = StateStore(files_at(f"{spec.staging.rstrip('/')}/agent", spec.webhdfs, spec.hdfs_user))
        saved = self.store.load() if attempt > 1 else None
        attempt_id = f"{spec.app_id.replace('application', 'appattempt')}_{attempt:06d}"
        self.brain = Brain(spec, attempt_id, saved)
        if saved:
            self.brain.restored(time.time())
            log.info("state of an earlier attempt restored: %d jobs", len(self.brain.jobs))
        self._lock = threading.Lock()
        self.session = ArbiterSession(
            spec.arbiter, token, _ca_file(spec.ca), self._register, self.inbox.put, lambda: self.inbox.put(_Lost())
        )

    def _register(self):  # type: ignore[no-untyped-def]
        with self._lock:
            return self.brain.register()

    def run(self) -> int:
        """Until the app is finished."""
        threading.Thread(target=self._poll_shell, name="shell", daemon=True).start()
        self.session.start()
        while True:
            try:
                event = self.inbox.get(timeout=TICK_S)
            except queue.Empty:
                event = None
            with self._lock:
                commands = self._handle(event)
                changed, self.brain.changed = self.brain.changed, False
                state = self.brain.dump() if changed else None
            if state is not None:
                self.store.save(state)
            for command in commands:
                if isinstance(command, End):
                    self.session.close(5.0)
                    return 0
                self._carry_out(command)

    def _handle(self, event: object):  # type: ignore[no-untyped-def]
        now_s = time.time()
        if isinstance(event, _Lost):
            self.brain.registered = False
            return self.brain.handle(None, now_s)
        if isinstance(event, _Published):
            return self.brain.published_model(event.path, event.problem, now_s)
        return self.brain.handle(event, now_s)

    def _carry_out(self, command: object) -> None:
        if isinstance(command, ToArbiter):
            kind = command.message.WhichOneof("kind")
            if kind not in ("progress", "rho"):
                log.info("to the Arbiter: %s %s", kind, _short(getattr(command.message, kind)))
            self.session.send(command.message)
        elif isinstance(command, ToShell):
            kind = command.command.WhichOneof("kind")
            log.info("to YARN: %s %s", kind, _short(getattr(command.command, kind)))
            if kind == "finish":
                self.store.flush(5.0)
            reply = self.shell.call(command.command)
            if not reply.ok:
                log.error("YARN refused %s: %s", kind, reply.error)
        elif isinstance(command, Publish):
            threading.Thread(target=self._publish, args=(command,), name="publish", daemon=True).start()

    def _publish(self, p: Publish) -> None:
        try:
            path = copy_model(self.spec.webhdfs, self.spec.hdfs_user, p.from_dir, p.to_dir)
            self.inbox.put(_Published(path, ""))
        except Exception as e:
            self.inbox.put(_Published("", f"{type(e).__name__}: {e}"))

    def _poll_shell(self) -> None:
        """An Agent whose shell is gone ends at once."""
        try:
            while True:
                for event in self.shell.poll():
                    log.info("from YARN: %s", _short(event))
                    self.inbox.put(event)
        except Exception as e:
            log.error("the AM shell is gone: %s", e)
            os._exit(SHELL_GONE)


def _short(message: object) -> str:
    text = " ".join(str(message).split())
    return text if len(text) <= 300 else text[:297] + "..."


def _ca_file(pem: str) -> str | None:
    if not pem:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as f:
        f.write(pem)
    return f.name


def _die_with_parent() -> None:
    """kill -9 of the AM's JVM must not leave an Agent behind (Linux: PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main() -> int:
    """Reads where the shell listens from standard input, then runs."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    _die_with_parent()
    greeting = json.loads(sys.stdin.readline())
    try:
        spec = AppSpec.load(Path(FILE))
        token = read_secret("isonomy.token").decode()
    except (OSError, KeyError, ValueError, CredentialsError) as e:
        log.error("the Agent cannot start: %s: %s", type(e).__name__, e)
        return 2
    shell = Shell(int(greeting["port"]), greeting["token"])
    return Agent(spec, shell, int(greeting.get("attempt", 1)), token).run()


if __name__ == "__main__":
    sys.exit(main())
