"""The user's program continues with any output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from submarine_patch.worker.child import Child

LINES = 300


def test_a_line_that_cannot_be_parsed_does_not_stop_the_program(capfd) -> None:
    seen: list[str] = []

    def on_line(line: str) -> None:
        seen.append(line)
        if line == "odd":
            raise ValueError("no such number")

    program = f"print('odd', flush=True)\nfor _ in range({LINES}): print('x' * 1000, flush=True)"

    async def run() -> int:
        child = await Child.start([sys.executable, "-c", program], dict(os.environ), on_line)
        return await asyncio.wait_for(child.wait(), 60)

    assert asyncio.run(run()) == 0
    assert len(seen) == LINES + 1
    assert "passed over: ValueError('no such number')" in capfd.readouterr().err


def test_a_daemon_that_holds_the_output_open_does_not_keep_the_program_from_ending(capfd) -> None:
    program = (
        "import subprocess\n"
        "daemon = subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
        "print('daemon', daemon.pid, flush=True)\n"
    )
    seen: list[str] = []

    async def run() -> int:
        child = await Child.start([sys.executable, "-c", program], dict(os.environ), seen.append)
        return await asyncio.wait_for(child.wait(), 60)

    try:
        assert asyncio.run(run()) == 0
        assert "daemon" in capfd.readouterr().out
    finally:
        os.kill(int(seen[0].split()[1]), signal.SIGKILL)


def test_a_program_may_wait_for_all_its_children() -> None:
    program = "import os\nos.fork() or os._exit(0)\nos.wait()\ntry: os.wait()\nexcept ChildProcessError: os._exit(7)"

    async def run() -> int:
        child = await Child.start([sys.executable, "-c", program], dict(os.environ), print)
        await asyncio.wait({child.exit}, timeout=10)
        child.kill()
        return await child.wait()

    assert asyncio.run(run()) == 7


OWN = """
import signal, sys, time
def save(*_):
    time.sleep(0.4)
    print("saved by the program", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""
NONE = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
LOADS = """
import os, signal, time
if not (loader := os.fork()):
    for number in (signal.SIGTERM, signal.SIGBUS, signal.SIGSEGV, signal.SIGFPE):
        signal.signal(number, lambda *_: os._exit(1))
    time.sleep(60)
def lost(*_):
    if os.waitpid(loader, os.WNOHANG)[0]:
        print("lost its loader", flush=True)
signal.signal(signal.SIGCHLD, lost)
"""
"""As an older PyTorch, which does not name its loaders."""


@pytest.mark.parametrize(
    ("script", "program", "said"),
    [
        ("{}; sleep 0.7; echo after", OWN, ["saved by the program", "after"]),
        ("trap 'rm -f x' EXIT; {}; exit $?", OWN, ["saved by the program"]),
        ("trap 'echo trapped; exit' TERM; {}; echo after", NONE, ["trapped"]),
        ("trap 'kill -USR1 $!; wait $!' TERM; {} & wait $!", OWN.replace("TERM", "USR1"), ["saved by the program"]),
        ("{}; exit $?", LOADS + OWN, ["saved by the program"]),
        ("{}; exit $?", NONE, []),
        ("#!/bin/bash\ntrap 'rm -f x' EXIT\n{} & wait $!", OWN, ["saved by the program"]),
    ],
    ids=["more commands", "exit trap", "trap saves", "trap tells", "loader", "nobody handles it", "a script's name"],
)
def test_a_stop_asks_who_answers_it(tmp_path: Path, script: str, program: str, said: list[str]) -> None:
    (tmp_path / "own.py").write_text(program)
    seen: list[str] = []
    ready = asyncio.Event()

    def on_line(line: str) -> None:
        seen.append(line)
        if line == "ready":
            ready.set()

    async def run() -> None:
        command = script.format(f"{sys.executable} {tmp_path}/own.py")
        if script.startswith("#!"):
            (tmp_path / "run.sh").write_text(command)
            (tmp_path / "run.sh").chmod(0o700)
            command = f"{tmp_path}/run.sh"
        child = await Child.start(["/bin/bash", "-c", command], dict(os.environ), on_line)
        await asyncio.wait_for(ready.wait(), 60)
        while not child.exit.done():
            child.stop()
            await asyncio.wait({child.exit}, timeout=0.25)
        await child.wait()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert [line for line in seen if line not in ("ready", "Terminated")] == said


def test_no_stop_is_lost_while_the_program_starts() -> None:
    async def run() -> None:
        for _ in range(10):
            child = await Child.start(["/bin/sleep", "60"], dict(os.environ), print)
            pid = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[-1]
            status = Path(f"/proc/{pid}/status")
            while (now := dict(line.split(":\t", 1) for line in status.read_text().splitlines()))["Name"] != "sleep":
                assert not int(now["SigIgn"], 16) >> signal.SIGTERM - 1 & 1
            child.stop()
            await asyncio.wait_for(child.wait(), 10)

    asyncio.run(run())
