"""`python -m tests.bench`: what things cost here, as JSON, each beside a baseline of the same run."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pycontrol.arbiter.ledger.facts import LeaseGranted
from pycontrol.model.topology import Gpu
from pycontrol.runtime.journal import SqliteJournal
from tests.bench import arbiter, auction, bids, cells, cells_round, hived, kernel, policies, shares, simulation


def spread(values: list[float]) -> dict[str, float]:
    """Median, p95 and number of samples, milliseconds."""
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return {"median_ms": 1e3 * statistics.median(ordered), "p95_ms": 1e3 * p95, "n": len(ordered)}


def timed(fn: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    begin_s = time.perf_counter()
    fn()
    return time.perf_counter() - begin_s


def journal() -> dict[str, Any]:
    """One durable transaction of eight facts (WAL, synchronous=FULL), and the bare fsync of the same disk."""
    with tempfile.TemporaryDirectory() as folder:
        log = SqliteJournal(Path(folder) / "journal.sqlite")
        facts = [LeaseGranted((Gpu("n1", i),), "app", "g", 0.0, 1.0) for i in range(8)]
        own = spread([timed(lambda: log.append(facts, 0.0)) for _ in range(100)])
        log.close()
        with (Path(folder) / "bare").open("wb") as f:

            def bare() -> None:
                f.write(b"x" * 1024)
                f.flush()
                os.fsync(f.fileno())

            floor = spread([timed(bare) for _ in range(100)])
    return {**own, "bare_fsync": floor, "ratio_to_fsync": own["median_ms"] / floor["median_ms"]}


def pictures() -> dict[str, Any]:
    """The cost of readers at 10,000 GPUs and 2,000 apps: a picture on the Arbiter's thread, views on their own."""
    from tests.bench import views

    return views.run()


def recovery_of(quick: bool) -> dict[str, Any]:
    """A start from a long journal."""
    from tests.bench import recovery

    return recovery.run(100_000, 10_000) if quick else recovery.run()


def bridge() -> dict[str, Any]:
    """A round trip to a Java peer."""
    from tests.bench import bridge as bench

    return bench.measure()


def hostile(quick: bool) -> dict[str, Any]:
    """What others notice of a hostile user."""
    from tests.bench import hostile as bench

    return bench.run(quick)


def why_not(quick: bool) -> dict[str, Any]:
    """Answers while a thousand apps wait, by policy."""
    from tests.bench import whynot

    return {policy: whynot.run(policy, 3 if quick else 20) for policy in ("isonomy", "themis")}


def parts(quick: bool) -> dict[str, Callable[[], Any]]:
    """All measurements, by name."""
    return {
        "auction": lambda: auction.run(quick),
        "auction types": lambda: auction.run_typed(quick),
        "journal": journal,
        "policies": lambda: policies.run(quick),
        "bids": lambda: bids.run(quick),
        "arbiter": lambda: arbiter.run(quick),
        "simulation": lambda: simulation.run(quick),
        "shares": lambda: shares.run(quick),
        "cells": lambda: cells.run(quick),
        "cells round": lambda: cells_round.run(quick),
        "kernel": lambda: kernel.run(quick),
        "hived trace": lambda: hived.run(quick),
        "pictures": pictures,
        "why not": lambda: why_not(quick),
        "recovery": lambda: recovery_of(quick),
        "bridge": bridge,
        "hostile": lambda: hostile(quick),
    }


def commit() -> str:
    """The commit of the measured checkout."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> int:
    """Measures each part, prints the JSON and keeps it as build/bench/TIME.json; 1 if a part could not be measured.

    `--quick` measures less; names of parts: only these. A part that cannot run says why, and loses no other.
    """
    quick, wanted = "--quick" in sys.argv[1:], [a for a in sys.argv[1:] if not a.startswith("-")]
    result: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.machine()},
        "commit": commit(),
        "load": os.getloadavg()[0],
        "at_s": time.time(),
        "quick": quick,
    }
    folder = Path("build/bench")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{time.strftime('%Y%m%dT%H%M%S')}.json"
    for name, measure in parts(quick).items():
        if wanted and name not in wanted:
            continue
        print(f"measuring {name} ...", file=sys.stderr)
        try:
            result[name] = measure()
        except Exception as e:
            traceback.print_exc()
            result[name] = {"failed": f"{type(e).__name__}: {e}"}
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    print(f"kept as {file}; compare two: python -m tests.bench.compare OLD NEW", file=sys.stderr)
    return int(any(isinstance(part, dict) and "failed" in part for part in result.values()))


if __name__ == "__main__":
    sys.exit(main())
