"""Runs a command under the checkout's own Python; imports nothing that is not in the standard library."""

import os
import sys
from pathlib import Path

from devcluster import REPO


def main(command: str) -> None:
    """Re-executes under .venv where that exists, then runs the command."""
    if sys.platform != "linux":
        sys.exit("dev-cluster: needs Linux (/proc, loopback addresses 127.x.y.z)")
    python = REPO / ".venv" / "bin" / "python"
    if python.exists() and Path(sys.prefix).resolve() != (REPO / ".venv").resolve():
        os.execv(python, [str(python), *sys.argv])
    try:
        import pycontrol.config  # noqa: F401
        from devcluster.commands import COMMANDS
    except ImportError as error:
        sys.exit(f"dev-cluster: Python package {error.name} is missing: run `make setup` in {REPO}")
    COMMANDS[command].main(prog_name=f"dev-cluster/{command}")
