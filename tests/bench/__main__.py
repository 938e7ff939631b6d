"""`python -m tests.bench`: what things cost here, as JSON, each beside a baseline of the same run."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulp

from pycontrol.arbiter.facts import LeaseGranted
from pycontrol.arbiter.journal import SqliteJournal
from pycontrol.model.auction import AppView, Bid, BidRow, Demand, Snapshot
from pycontrol.model.topology import Gpu, Machine, Scope, Topology
from pycontrol.policies.themis import Themis
from tests.bench import policies

SEEDS = 5


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


def market(seed: int, gpus: int, bidders: int) -> tuple[Snapshot, dict[str, Bid]]:
    """A round of synthetic bids on machines of four GPUs."""
    rng = random.Random(seed)
    machines = [Machine(f"n{i:03d}", f"rack{i // 8}", 4) for i in range(gpus // 4)]
    topology = Topology.of(machines)
    bids, views = {}, []
    for k in range(bidders):
        size, work = rng.choice([1, 2, 4]), rng.uniform(100, 5000)
        demand = Demand(size, 6, size)
        app_id = f"app{k:03d}"
        views.append(AppView(app_id, "root.q", 5.0, demand))
        rows = tuple(
            BidRow((50 + work / (q * size) * (1.0 if scope is Scope.MACHINE else 1.2)) / 100, (), q, size, scope)
            for q in range(1, 6)
            for scope in (Scope.MACHINE, Scope.CLUSTER)
        )
        bids[app_id] = Bid(app_id, (650 + work / size) / 100, rows)
    free = {m.host: m.gpus for m in machines}
    return Snapshot(f"bench{seed}", 0.0, topology, free, tuple(views), 0.0), bids


def auctions() -> dict[str, Any]:
    """A whole auction (winners, payments, leftovers), and the explicit knapsack by PuLP + CBC as a yardstick."""
    result: dict[str, Any] = {}
    for gpus, bidders in ((12, 4), (64, 20)):
        times, proved, baseline = [], 0, []
        for seed in range(SEEDS):
            snapshot, bids = market(seed, gpus, bidders)
            policy = Themis(budget_s=30.0)
            begin_s = time.perf_counter()
            plan = policy.decide(snapshot, bids, random.Random(seed))
            times.append(time.perf_counter() - begin_s)
            proved += plan.proved_optimal
            baseline.append(timed(lambda s=snapshot, b=bids: cbc(s, b)))  # type: ignore[misc]
        own, cbc_ms = spread(times), spread(baseline)
        result[f"{gpus} GPUs x {bidders} bidders"] = {
            **own, "proved_optimal": proved, "seeds": SEEDS, "one_cbc_knapsack": cbc_ms,
            "ratio_to_cbc": own["median_ms"] / cbc_ms["median_ms"],
        }  # fmt: skip
    return result


def cbc(snapshot: Snapshot, bids: dict[str, Bid]) -> None:
    """The winners by total GPUs alone, solved by PuLP + CBC."""
    import math

    lp = pulp.LpProblem("baseline", pulp.LpMaximize)
    use, value = [], []
    for bid in bids.values():
        x = [pulp.LpVariable(f"{bid.app_id}_{k}", cat="Binary") for k in range(len(bid.rows))]
        lp += pulp.lpSum(x) <= 1
        value += [(math.log(bid.rho_nothing) - math.log(r.rho)) * v for r, v in zip(bid.rows, x, strict=True)]
        use += [r.gpus * v for r, v in zip(bid.rows, x, strict=True)]
    lp += pulp.lpSum(value)
    lp += pulp.lpSum(use) <= sum(snapshot.free.values())
    lp.solve(pulp.PULP_CBC_CMD(msg=False))


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
    """Prints the JSON."""
    done = threading.Event()

    def progress() -> None:
        while not done.wait(5.0):
            print("measuring ...", file=sys.stderr)

    threading.Thread(target=progress, daemon=True).start()
    result: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.machine()},
        "auction": auctions(),
        "journal": journal(),
        "policies": policies.run(quick=False),
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
