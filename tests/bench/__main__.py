"""`python -m tests.bench`: what things cost here, as JSON, each beside a baseline of the same run."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pycontrol.arbiter.facts import LeaseGranted
from pycontrol.arbiter.journal import SqliteJournal
from pycontrol.model.topology import Gpu
from tests.bench import arbiter, auction, bids, cells, hived, policies, shares, simulation


def spread(values: list[float]) -> dict[str, float]:
    """Median, p95 and number of samples, milliseconds."""
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return {"median_ms": 1e3 * statistics.median(ordered), "p95_ms": 1e3 * p95, "n": len(ordered)}


def timed(fn: Callable[[], Any]) -> float:
    """Seconds of one call."""
    begin_s = time.perf_counter()
    fn()
    return time.perf_counter() - begin_s


def journal() -> dict[str, Any]:
    """One durable transaction of eight facts (WAL, synchronous=FULL), and the bare fsync of the same disk."""
    with tempfile.TemporaryDirectory() as folder:
        log = SqliteJournal(Path(folder) / "journal.sqlite")
        facts = [LeaseGranted(Gpu("n1", i), "app", "g", 0.0, 1.0) for i in range(8)]
        own = spread([timed(lambda: log.append(facts, 0.0)) for _ in range(100)])
        log.close()
        with (Path(folder) / "bare").open("wb") as f:

            def bare() -> None:
                f.write(b"x" * 1024)
                f.flush()
                os.fsync(f.fileno())

            floor = spread([timed(bare) for _ in range(100)])
    return {**own, "bare_fsync": floor, "ratio_to_fsync": own["median_ms"] / floor["median_ms"]}


def main() -> int:
    """Prints the JSON; `--quick` measures less."""
    quick = "--quick" in sys.argv[1:]
    done = threading.Event()

    def progress() -> None:
        while not done.wait(5.0):
            print("measuring ...", file=sys.stderr)

    threading.Thread(target=progress, daemon=True).start()
    result: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.machine()},
        "auction": auction.run(quick),
        "journal": journal(),
        "policies": policies.run(quick),
        "bids": bids.run(quick),
        "arbiter": arbiter.run(quick),
        "simulation": simulation.run(quick),
        "shares": shares.run(quick),
        "cells": cells.run(quick),
        "hived trace": hived.run(quick),
    }
    try:
        from pycontrol.bridge import bench as bridge
    except ImportError:
        pass
    else:
        result["bridge"] = bridge.measure()
    done.set()
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
