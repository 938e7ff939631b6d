"""The user's program continues with any output."""

from __future__ import annotations

import asyncio
import os
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
