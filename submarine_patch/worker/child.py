"""Runs the user's program in its own process group, which ends with the program or with the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from submarine_patch.worker.stop_request import ARMED

_CHUNK_BYTES = 1 << 16
_LINE_MAX_BYTES = 8192
DRAIN_S = 5.0
_TERM = 1 << signal.SIGTERM - 1
_USER_SIGNALS = 1 << signal.SIGUSR1 - 1 | 1 << signal.SIGUSR2 - 1
_SHELLS = {b"bash", b"dash", b"ksh", b"sh", b"zsh"}
_LOADER = b"pt_data_worker"
"""How PyTorch names a process of a DataLoader, whose end by SIGTERM is an error of the whole program."""
_BY_LOADERS = _TERM | 1 << signal.SIGBUS - 1 | 1 << signal.SIGSEGV - 1 | 1 << signal.SIGFPE - 1
"""What it handles; where an older PyTorch does not name it, a fork that handles these is one."""
# YARN kills only the container's process group, which is not the program's. So a guard in the program's group waits
# for the end of a pipe that only the supervisor holds open, and then kills the group. It is no child of the program,
# which may wait for all its children.
_GUARDED = """( trap '' TERM INT HUP; ( read -r _ <&3; kill -KILL 0 ) & ) </dev/null >/dev/null 2>&1
exec 3<&-; exec "$@" """


class Child:
    """A running program. Its output passes through unchanged; `on_line` also gets each line."""

    def __init__(
        self, process: asyncio.subprocess.Process, alive: int, outputs: Sequence[int], on_line: Callable[[str], None]
    ) -> None:
        self._process, self._alive = process, alive
        self.on_line = on_line
        self._asked: set[int] | None = None
        """Whom the last call of `stop` asked; a negative number: the group."""
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.exit = asyncio.ensure_future(process.wait())
        """Its exit code (-n: ended by signal n)."""
        sinks = (sys.stdout.fileno(), sys.stderr.fileno())
        told = [_pump(s, sink, lambda text: self.on_line(text)) for s, sink in zip(outputs, sinks, strict=True)]
        self._pumps = asyncio.gather(*told)

    @staticmethod
    async def start(
        argv: Sequence[str], env: Mapping[str, str], on_line: Callable[[str], None], script: Sequence[str] = ()
    ) -> Child:
        """Start the program; raises OSError. A `script` is run by again.py instead, so that its process can go on."""
        if script:
            ours, theirs = socket.socketpair()
            with theirs:
                line = theirs.fileno()
                argv = [sys.executable, "-m", "submarine_patch.worker.again", str(line), *script]
                child = await Child._started(argv, env, on_line, (line,))
            child._line = await asyncio.open_connection(sock=ours)
            return child
        return await Child._started(argv, env, on_line)

    @staticmethod
    async def _started(
        argv: Sequence[str], env: Mapping[str, str], on_line: Callable[[str], None], more: Sequence[int] = ()
    ) -> Child:
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
                pass_fds=(watched, *more),
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

    def stop(self) -> None:
        """Ask the program to stop; call it until it has ended, as a launcher is asked only after its sessions."""
        group = self._process.pid
        if any(pid < 0 or _stat(pid) for pid in self._asked or ()):
            return
        self._asked = _answering(group) or ({-group} if self._asked is None else set())
        for pid in self._asked:
            _kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the program's whole process group."""
        _kill(-self._process.pid, signal.SIGKILL)

    def again(self, argv: Sequence[str], env: Mapping[str, str], on_line: Callable[[str], None]) -> None:
        """Run the script anew in the program, which waits for it."""
        assert self._line is not None
        self.on_line = on_line
        self._line[1].write(json.dumps([argv, env]).encode() + b"\n")

    async def waits(self) -> bool:
        """Wait until the program waits for another launch; False once it has ended, or closed its line."""
        if self._line is None:
            return False
        asked = asyncio.ensure_future(self._line[0].readline())
        await asyncio.wait({asked, self.exit}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return bool(asked.result())
        asked.cancel()
        return False

    async def end(self) -> None:
        """End a program that waits for another launch."""
        if self._line is not None:
            self._line[1].close()
        await asyncio.wait({self.exit}, timeout=DRAIN_S)
        self.kill()
        await self.wait()

    async def wait(self) -> int:
        """Wait for the program, kill its group, and drain its output; returns its exit code (-n: ended by signal n)."""
        code = await self.exit
        self.kill()
        os.close(self._alive)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pumps, DRAIN_S)
        return code


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _answering(program: int) -> set[int]:
    """Who answers a stop: the armed sessions among the program and what it started, else all that handle SIGTERM.

    A shell waits for its program, `tee` for its output, and a program keeps its data loaders until it has saved. A
    shell's trap runs only after its program, so it answers for a program only if that handles SIGUSR1 or SIGUSR2.
    """
    found = ((pid, _stat(pid)) for pid in map(int, filter(str.isdigit, os.listdir("/proc"))))
    parents = {pid: int(stat[1]) for pid, stat in found if stat}
    theirs = {program}
    while more := {pid for pid, parent in parents.items() if parent in theirs} - theirs:
        theirs |= more
    known = {pid: _names_and_caught(pid) for pid in theirs}
    handling = {
        p for p, (_, caught) in known.items() if caught & _TERM and not _is_loader(p, parents.get(p), *known[p])
    }
    shells = {pid for pid in handling if known[pid][0] & _SHELLS}
    if handling == shells and not any(caught & _USER_SIGNALS for _, caught in known.values()):
        return set()
    return {pid for pid in handling if _is_armed(pid)} or handling - shells or shells


def _read(path: str) -> bytes:
    """A file of /proc; empty if the process has ended."""
    with contextlib.suppress(OSError):
        return Path(path).read_bytes()
    return b""


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name, which need not be text; none if the process has ended."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields if fields and fields[0] not in b"ZX" else []


def _names_and_caught(pid: int) -> tuple[set[bytes], int]:
    """Its name, which for ./run.sh is the script's, and its program's; and the signals that it handles."""
    status = dict(line.split(b":\t", 1) for line in _read(f"/proc/{pid}/status").split(b"\n") if b":\t" in line)
    names = {status.get(b"Name", b"")}
    with contextlib.suppress(OSError):
        names.add(os.path.basename(os.readlink(b"/proc/%d/exe" % pid)))
    return names, int(status.get(b"SigCgt", b"0"), 16)


def _is_loader(pid: int, parent: int | None, names: set[bytes], caught: int) -> bool:
    if _LOADER in names or caught & _BY_LOADERS != _BY_LOADERS:
        return _LOADER in names
    return _read(f"/proc/{pid}/cmdline") == _read(f"/proc/{parent}/cmdline")


def _is_armed(pid: int) -> bool:
    return any(_read(f"{task}/comm").strip() == ARMED.encode() for task in Path(f"/proc/{pid}/task").glob("*"))


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
