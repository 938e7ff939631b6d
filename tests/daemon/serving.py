"""`isonomy serve` as a process, which validates its state after each event."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

COMMAND = [sys.executable, "-c", "from pycontrol.cli.serve import serve_command; serve_command()", "--config"]
LIMIT_S = 30.0


@contextlib.contextmanager
def serving(config: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "ISONOMY_VALIDATE": "1"}
    process = subprocess.Popen(
        [*COMMAND, str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready: "), process.communicate(timeout=LIMIT_S)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)
