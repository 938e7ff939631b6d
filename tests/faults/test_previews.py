"""Each preview says who loses which GPUs when a configuration changes, and that is what then happens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_a_preview_says_then_happens() -> None:
    """Two of each kind of change; `make nightly` plays 50. In a process of its own: sets of names have one order."""
    command = [sys.executable, "-m", "tests.faults.previews", "1", "6"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "6 of 6 seeds: " in done.stdout
    assert " 0 by the change" not in done.stdout
