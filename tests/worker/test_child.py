"""The user's program continues with any output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

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
