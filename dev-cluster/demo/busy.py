"""How busy the machine is with other things: what times on it must be multiplied by."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

STAT = Path("/proc/stat")
SAMPLES, SAMPLE_S = 20, 0.1
FACTOR_MAX = 4.0


def runnable(stat: Path = STAT) -> int:
    """Threads that run or want to, this one left out; 0 where the kernel does not say."""
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return 0
    counts = [int(line.split()[1]) for line in lines if line.startswith("procs_running ")]
    return max(0, counts[0] - 1) if counts else 0


def factor(others: Callable[[], int] = runnable, cores: int | None = None) -> float:
    """How much longer work takes than on a machine at rest, at most FACTOR_MAX: each core's share of what runs there
    already and of one thing more. Looks for two seconds."""
    cores = cores or os.cpu_count() or 1
    counts = []
    for _ in range(SAMPLES):
        counts.append(others())
        time.sleep(SAMPLE_S)
    slower = (statistics.fmean(counts) + cores) / cores
    return 1.0 if slower < 1.5 else min(FACTOR_MAX, slower)
