"""Runs the user's program in its own process group, which ends with the program or with the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

_CHUNK_BYTES = 1 << 16
_LINE_MAX_BYTES = 8192
_DRAIN_S = 5.0
# YARN kills only the container's process group, which is not the program's. So a guard in the program's group waits
# for the end of a pipe that only the supervisor holds open, and then kills the group.
_GUARDED = """trap '' TERM INT HUP; ( read -r _ <&3; kill -KILL 0 ) </dev/null >/dev/null 2>&1 &
trap - TERM INT HUP; exec 3<&-; exec "$@" """


class Child:
    """A running program. Its output passes through unchanged; `on_line` also gets each line."""

    def __init__(
        self, process: asyncio.subprocess.Process, alive: int, outputs: Sequence[int], on_line: Callable[[str], None]
    ) -> None:
        self._process, self._alive = process, alive
        sinks = (sys.stdout.fileno(), sys.stderr.fileno())
        self._pumps = asyncio.gather(*(_pump(s, sink, on_line) for s, sink in zip(outputs, sinks, strict=True)))

    @staticmethod
    async def start(argv: Sequence[str], env: Mapping[str, str], on_line: Callable[[str], None]) -> Child:
        """Start the program; raises OSError."""
        watched, alive = os.pipe()
        # pipes of our own, since asyncio's wait() also waits for the end of its pipes, which a daemon may hold open
        pipes = [os.pipe(), os.pipe()]
        try:
            process = await asyncio.create_subprocess_exec(
                "/bin/bash",
                "-c",
                f"exec 3<&{watched} {watched}<&-; {_GUARDED}",
                "isonomy-worker",
                *argv,
                env=dict(env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipes[0][1],
                stderr=pipes[1][1],
                pass_fds=(watched,),
                process_group=0,
            )
        except BaseException:
            for held in (alive, pipes[0][0], pipes[1][0]):
                os.close(held)
            raise
        finally:
            for given in (watched, pipes[0][1], pipes[1][1]):
                os.close(given)
        return Child(process, alive, [pipes[0][0], pipes[1][0]], on_line)

    def signal(self, number: signal.Signals) -> None:
        """Send the signal to the program's whole process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    @property
    def ended(self) -> bool:
        """Whether the program has ended."""
        return self._process.returncode is not None

    async def wait(self) -> int:
        """Wait for the program, kill its group, and drain its output; returns its exit code (-n: ended by signal n)."""
        code = await self._process.wait()
        self.signal(signal.SIGKILL)
        os.close(self._alive)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pumps, _DRAIN_S)
        return code


async def _pump(pipe: int, sink: int, on_line: Callable[[str], None]) -> None:
    """Copy bytes as they arrive; a line ends with a newline or, as in progress bars, a carriage return."""
    pending = b""
    source = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(source), os.fdopen(pipe, "rb", 0)
    )
    try:
        while chunk := await source.read(_CHUNK_BYTES):
            _write_all(sink, chunk)
            *lines, pending = (pending + chunk).replace(b"\r", b"\n").split(b"\n")
            for line in lines:
                if line:
                    _show(line[:_LINE_MAX_BYTES], on_line)
            pending = pending[:_LINE_MAX_BYTES]
        if pending:
            _show(pending, on_line)
    finally:
        transport.close()


def _show(line: bytes, on_line: Callable[[str], None]) -> None:
    """Pass a line to `on_line`; an exception only skips the line, because a full pipe would block the program."""
    try:
        on_line(line.decode("utf-8", "replace"))
    except Exception as e:
        _write_all(sys.stderr.fileno(), f"isonomy worker: a line of the log was passed over: {e!r}\n".encode())


def _write_all(sink: int, data: bytes) -> None:
    """Write to a file of the container's logs; ignores errors, as a full disk must not end the training."""
    try:
        while data:
            data = data[os.write(sink, data) :]
    except OSError:
        return
