"""TensorBoard beside the Agent: what the jobs report as event files on this machine, and a server on loopback.

The AM's page passes on what is asked of `/tensorboard/` (AppPage.java); nobody else can reach it from elsewhere. The
files are TFRecords of `Event` messages, written here without TensorFlow: a length, its masked CRC-32C, the message, and
its CRC (TensorFlow, record_writer.cc and event.proto).
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO

from submarine_patch.agent.jobs import Job

log = logging.getLogger("isonomy.agent")
FOLDER = "tensorboard"
PREFIX = "/tensorboard"
RELOAD_S = 5
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")
_POLYNOMIAL = 0x82F63B78


def _row(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_row(byte) for byte in range(256)]


def masked_crc(data: bytes) -> int:
    """CRC-32C as TFRecords have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(message: bytes) -> bytes:
    """One TFRecord."""
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked_crc(length)) + message + struct.pack("<I", masked_crc(message))


def event(at_s: float, step: int, values: Mapping[str, float]) -> bytes:
    """An Event: wall_time 1, step 2, summary 5 of values with tag 1 and simple_value 2."""
    rows = (_field(1, name.encode()) + b"\x15" + struct.pack("<f", value) for name, value in values.items())
    return b"\x09" + struct.pack("<d", at_s) + b"\x10" + _varint(step) + _field(5, b"".join(_field(1, r) for r in rows))


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


class Board:
    """The event files of an app's jobs, a folder for each."""

    def __init__(self, root: Path, metric: str) -> None:
        self._root, self._metric = root, metric
        self._files: dict[str, IO[bytes]] = {}
        self._steps: dict[str, int] = {}

    def take(self, jobs: Iterable[Job], now_s: float) -> None:
        """Writes what is new; a job that starts again writes over its old steps."""
        for job in jobs:
            if job.first_step_s and job.step and job.step != self._steps.get(job.job_id):
                self._steps[job.job_id] = job.step
                self._write(job, now_s)

    def _write(self, job: Job, now_s: float) -> None:
        values = {"loss": job.loss, "accuracy": job.accuracy}
        values = {name: value for name, value in values.items() if value}
        if job.metric is not None:
            values[self._metric] = job.metric
        if not values:
            return
        file = self._files.get(job.job_id)
        if file is None:
            folder = self._root / job.job_id
            folder.mkdir(parents=True, exist_ok=True)
            file = self._files[job.job_id] = (folder / f"events.out.tfevents.{now_s:.0f}.isonomy").open("ab")
            version = b"\x09" + struct.pack("<d", now_s) + _field(3, b"brain.Event:2")
            file.write(record(version))
        file.write(record(event(now_s, job.step, values)))
        file.flush()


def serve(python: str, root: Path, opened: Callable[[int], None], failed: Callable[[str], None]) -> None:
    """Runs TensorBoard in the background, until the Agent's end: `opened` has its port, `failed` why there is none."""
    root.mkdir(parents=True, exist_ok=True)
    command = [python, "-m", "submarine_patch.agent.board", "--logdir", str(root), "--host", "127.0.0.1", "--port", "0",
               "--path_prefix", PREFIX, "--reload_interval", str(RELOAD_S), "--load_fast", "false"]  # fmt: skip
    threading.Thread(target=_run, args=(command, opened, failed), name="tensorboard", daemon=True).start()


def _die_with_parent() -> None:
    """Linux: PR_SET_PDEATHSIG, before the program is there. The thread that starts it lives as long as it runs."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _run(command: list[str], opened: Callable[[int], None], failed: Callable[[str], None]) -> None:
    began_s, last, port = time.monotonic(), "", 0
    try:
        with subprocess.Popen(
            command,
            stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=_die_with_parent,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                last = line.strip() or last
                found = _ADDRESS.search(line)
                if found and not port:
                    port = int(found[1])
                    opened(port)
    except OSError as e:
        last = str(e)
    log.warning("TensorBoard ended after %.0f s: %s", time.monotonic() - began_s, last)
    if not port:
        failed(last[-200:])


def main() -> None:
    """TensorBoard's own command, without TensorFlow, for which an application master has no memory."""
    sys.modules["tensorboard.compat.notf"] = types.ModuleType(
        "tensorboard.compat.notf"
    )  # what its builds without it have
    try:
        from tensorboard import main as tensorboard
    except ImportError as e:
        sys.exit(f"{e} (pip install tensorboard, for the NodeManagers' Python)")
    tensorboard.run_main()


if __name__ == "__main__":
    main()
