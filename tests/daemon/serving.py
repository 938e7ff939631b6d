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
def serving(config: Path, broken: str = "") -> Iterator[subprocess.Popen[str]]:
    """`broken`: Python that is run first, instead of validation after each event."""
    environment = {**os.environ, "ISONOMY_VALIDATE": "" if broken else "1"}
    command = [*COMMAND[:2], f"{broken}; {COMMAND[2]}".removeprefix("; "), *COMMAND[3:]]
    process = subprocess.Popen(
        [*command, str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready: "), process.communicate(timeout=LIMIT_S)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)
