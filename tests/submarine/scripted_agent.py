"""Stands in for the Agent in the test of the AM shell: a fixed script over both attempts of an application.

First attempt: starts one worker and dies. Second attempt: adopts it, stops it, finishes the app.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from itertools import count
from pathlib import Path

from py4j.java_gateway import GatewayParameters, JavaGateway

from pycontrol.wire.v1 import am_pb2

DEADLINE_S = 60.0
WORKER = """echo "$GREETING" 'single "and" double' > "$OUT/greeting"
cp "$HADOOP_TOKEN_FILE_LOCATION" "$OUT/token"; touch "$OUT/running"; sleep 300"""


class Shell:
    """The AM shell, as the Agent sees it."""

    def __init__(self) -> None:
        greeting = json.loads(sys.stdin.readline())
        assert sys.stdin.read() == ""
        self.attempt: int = greeting["attempt"]
        parameters = GatewayParameters(port=greeting["port"], auth_token=greeting["token"])
        self._java = JavaGateway(gateway_parameters=parameters).entry_point
        self._ids = count()
        self._waiting: list[am_pb2.AmEvent] = []

    def call(self, **kind: object) -> None:
        """Sends a command twice; it must take effect once."""
        command = am_pb2.AmCommand(id=f"{self.attempt}-{next(self._ids)}", **kind).SerializeToString()
        for _ in range(2):
            reply = am_pb2.AmReply.FromString(bytes(self._java.call(command)))
            assert reply.ok, reply.error

    def next(self, kind: str) -> am_pb2.AmEvent:
        """The next event, which must be of this kind."""
        end = time.monotonic() + DEADLINE_S
        while not self._waiting:
            assert time.monotonic() < end, f"no event, {kind} was expected"
            self._waiting += am_pb2.AmEvents.FromString(bytes(self._java.poll(1000))).events
        event = self._waiting.pop(0)
        assert event.WhichOneof("kind") == kind, f"{event} instead of {kind}"
        return event


def first_attempt(shell: Shell, out: Path) -> None:
    """Starts a worker, then dies."""
    shell.call(ask=am_pb2.AmAsk(allocation_request_id=1, memory_mb=256, vcores=1, priority=1))
    container = shell.next("allocated").allocated
    assert container.allocation_request_id == 1
    spec = json.loads(Path("isonomy-app.json").read_text())
    resources = [am_pb2.AmResource(**r) for r in spec["resources"]]
    env = {"GREETING": 'say "hi"', "OUT": str(out)} | spec["worker"]["env"]
    shell.call(
        launch=am_pb2.AmLaunch(container_id=container.container_id, command=WORKER, env=env, resources=resources)
    )
    assert shell.next("started").started == container.container_id
    end = time.monotonic() + DEADLINE_S
    while not (out / "running").exists():
        assert time.monotonic() < end
        time.sleep(0.1)
    (out / "container").write_text(container.container_id)
    urllib.request.urlopen(f"{os.environ['SCRIPT_WEB']}/watched", timeout=DEADLINE_S + 5).close()
    sys.exit("the first attempt dies on purpose")


def second_attempt(shell: Shell, out: Path) -> None:
    """Adopts the worker, stops it, finishes."""
    adopted = shell.next("adopted").adopted
    assert adopted.container_id == (out / "container").read_text()
    shell.call(stop=am_pb2.AmStop(container_id=adopted.container_id))
    completed = shell.next("completed").completed
    assert completed.container_id == adopted.container_id
    (out / "exit_status").write_text(str(completed.exit_status))
    shell.call(progress=am_pb2.AmProgress(fraction=1.0))
    succeeded = json.loads(Path("isonomy-app.json").read_text())["seed"] is None
    shell.call(finish=am_pb2.AmFinish(succeeded=succeeded, message="adopted and finished"))


def main() -> None:
    """The script."""
    out = Path(os.environ["SCRIPT_OUT"])
    shell = Shell()
    (first_attempt if shell.attempt == 1 else second_attempt)(shell, out)


if __name__ == "__main__":
    main()
