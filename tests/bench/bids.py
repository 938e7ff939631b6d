"""An Agent's bid: 100 jobs, 256 offered GPUs (the paper's Agents: 29 ms median, 334 ms at the 95th percentile)."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from pycontrol.fairness.bidding import Bidder, OwnGang
from pycontrol.fairness.gangs import AppWork, Phase
from pycontrol.model.topology import Machine, Scope, Topology

PAPER_MS = {"median_ms": 29.0, "p95_ms": 334.0}


def bid_s(seed: int, jobs: int = 100, machines: int = 64) -> float:
    """Seconds of one bid of an app in mid-run, its work not seen before."""
    rng = random.Random(seed)
    topology = Topology.of(Machine(f"m{k:03}", f"r{k % 8}", 4) for k in range(machines))
    gang, held = rng.choice([1, 2, 4]), rng.randrange(12)
    now = Phase(tuple(rng.uniform(200.0, 20_000.0) for _ in range(jobs)))
    later = tuple(Phase((5000.0,) * (jobs >> k)) for k in range(1, 6))
    own = [OwnGang(((f"m{k:03}", gang),), 1.0) for k in range(held)]
    slowdowns = dict(zip(Scope, (1.0, 1.1, 1.3), strict=True))
    offered = dict.fromkeys(topology.machines, 4)
    begin_s = time.perf_counter()
    app = AppWork((now, *later), gang, 3600.0, 9000.0)
    Bidder(app, [1.0] * rng.randrange(5), own, offered, jobs, slowdowns, topology, 40.0, 600.0).bid("app")
    return time.perf_counter() - begin_s


def run(quick: bool = False) -> dict[str, Any]:
    """Median and 95th percentile over fresh apps."""
    times = sorted(1e3 * bid_s(seed) for seed in range(30 if quick else 200))
    own = {"median_ms": statistics.median(times), "p95_ms": times[int(0.95 * len(times))], "n": len(times)}
    return {"100 jobs, 256 GPUs": own, "paper (another machine)": PAPER_MS}
