"""What an event costs in the simulator, around the whole Arbiter; and the Philly jobs, where the data is there."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from pycontrol.lab.clusters import uniform
from pycontrol.lab.runs import simulate
from pycontrol.simulation.result import Result
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

DATA = Path(os.environ.get("ISONOMY_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
PHILLY = DATA / "philly" / "philly_jobs_reconstructed.csv.gz"
COMPILED = Path(__file__).parents[2] / "build" / "compiled"
"""Where `make compiled` puts the copy with the compiled Arbiter."""
PHILLY_MACHINES = 311
"""Machines of eight GPUs: 2,488 GPUs, about as many as in the trace's cluster."""
SETTINGS = SimulationSettings(arbiter=dataclasses.replace(ARBITER, open_leases=True))
"""Uncontested renewals are not events."""


def jobs(count: int, gap_s: float) -> Workload:
    """Single jobs of an hour on average, one each `gap_s` seconds."""
    rng, at_s, apps = random.Random(7), 0.0, []
    for i in range(count):
        at_s += rng.expovariate(1 / gap_s)
        gang = rng.choice([1, 1, 1, 2, 4, 8])
        apps.append(TraceApp(f"j{i}", at_s, gang, ((rng.expovariate(1 / 3600) * gang,),)))
    return Workload("jobs", tuple(apps))


def philly(most: int) -> Workload:
    """The trace's first jobs."""
    with gzip.open(PHILLY, "rt") as file:
        rows = [(float(r["submit_elapsed_s"]), r) for r in csv.DictReader(file) if float(r["gpu_seconds"]) > 0]
    rows.sort(key=lambda item: item[0])
    begin_s = rows[0][0]
    apps = [
        TraceApp(r["job_id"], at - begin_s, int(r["num_gpus"]), ((float(r["gpu_seconds"]),),), r["vc"])
        for at, r in rows[:most]
    ]
    return Workload("philly", tuple(apps))


def cost(result: Result) -> dict[str, float]:
    """Events of the Arbiter and of the world, and their cost."""
    c = result.counters
    own_s = c.wall_s - c.policy_s - c.bids_s
    return {
        "apps": len(result.apps),
        "arbiter_events": c.events,
        "world_events": c.steps,
        "rounds": c.rounds,
        "wall_s": c.wall_s,
        "policy_s": c.policy_s,
        "events_per_s_without_policy": (c.events + c.steps) / own_s,
        "us_per_arbiter_event": 1e6 * own_s / c.events,
    }


def measured(quick: bool) -> dict[str, dict[str, float]]:
    """On one core, under tiresias: single jobs on 256 GPUs; the Philly jobs on 2,488."""
    count = 2_000 if quick else 20_000
    found = {"jobs_256_gpus": cost(simulate(jobs(count, 60.0), uniform(32, 8), "tiresias", SETTINGS))}
    if PHILLY.exists():
        load = philly(5_000 if quick else 1 << 30)
        found["philly_tiresias"] = cost(simulate(load, uniform(PHILLY_MACHINES, 8), "tiresias", SETTINGS))
    return found


def run(quick: bool) -> dict[str, Any]:
    """Interpreted, and compiled where `make compiled` built that, with the ratio of the two."""
    found: dict[str, Any] = {**measured(quick)}
    if (COMPILED / ".ready").exists():
        command = [sys.executable, "-m", "tests.bench.simulation", *(["--quick"] if quick else [])]
        env = {**os.environ, "PYTHONPATH": str(COMPILED), "ISONOMY_DATA": str(DATA)}
        done = subprocess.run(command, cwd=COMPILED, env=env, check=True, capture_output=True, text=True)
        found["compiled"] = json.loads(done.stdout)
        for name, theirs in found["compiled"].items():
            key = "events_per_s_without_policy"
            theirs["ratio_to_interpreted"] = theirs[key] / found[name][key]
    return found


if __name__ == "__main__":
    print(json.dumps(measured("--quick" in sys.argv[1:])))
