"""`isonomy serve` as a process, for tests."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

COMMAND = [sys.executable, "-c", "from pycontrol.cli.serve import serve_command; serve_command()", "--config"]
LIMIT_S = 30.0


@contextlib.contextmanager
def serving(config: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*COMMAND, str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready: "), process.communicate(timeout=LIMIT_S)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)
