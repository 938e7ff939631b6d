"""What the kernel costs beside what it cost before: the rows of its goals, each measured in both trees alternately.

The baseline is built as a git worktree in a temporary folder. Each sample runs in a process of its own, first of one
tree, then of the other, so that both see the same machine; a row gives the least of its samples and their ratio.
This file is run in both trees, so it uses only what both have.
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import gzip
import importlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BASELINE = "2f9acda"
PHILLY = Path("philly") / "philly_jobs_reconstructed.csv.gz"
PHILLY_JOBS, PHILLY_SLICE, PHILLY_MACHINES = 109_570, 2_000, 311
MACHINES = (32, 1250)
USERS, TENANTS = 40, 11
LEASE_S = 1200.0
GANGS = (6, 7, 8, 8)
"""Each within one machine of eight GPUs: about a tenth of the GPUs are free, and no waiting gang fits there."""
GENERATED = ("_pb2.py", "_pb2_grpc.py", "_solver.so")
IGNORED_FILES = ("pycontrol/wire/v1", "pycontrol/auction")


# ---- in one tree


MOVED = (
    ("arbiter.supply.cell_supply", "arbiter.cells"),
    ("arbiter.views.settings", "arbiter.settings"),
    ("cells.cells_file", "cells.config"),
    ("lab", "simulation"),
    ("lab.clusters", "simulation.clusters"),
    ("simulation.simulation_settings", "simulation.settings"),
    ("simulation.trace_apps", "simulation.apps"),
)
"""(module, its name in the baseline): what this file names and was moved since."""


def give_present_names() -> None:
    """Where this runs in the baseline, its modules have the names of today, too."""
    for now, before in MOVED:
        try:
            importlib.import_module(f"pycontrol.{now}")
        except ModuleNotFoundError:
            sys.modules[f"pycontrol.{now}"] = importlib.import_module(f"pycontrol.{before}")


class Warm(Exception):
    """The measured part of a simulation is over."""


def _owned(policy: str, machines: int) -> tuple[Any, Any]:
    """The policy, and the virtual clusters of the tenants if it is "cells": isonomy in eleven virtual clusters."""
    from pycontrol.arbiter.supply.cell_supply import CellSupply
    from pycontrol.cells.cells_file import CellsFile, layout
    from pycontrol.lab.clusters import uniform
    from pycontrol.policies.by_vc import ByVirtualCluster
    from pycontrol.policies.registry import make

    if policy != "cells":
        return make(policy), None
    file = CellsFile.model_validate(
        {
            "levels": {"node": 8},
            "hosts": sorted(uniform(machines, 8).machines),
            "virtual_clusters": {f"root.t{k}": {"node": machines // TENANTS} for k in range(TENANTS)},
        }
    )
    return ByVirtualCluster(make("isonomy")), CellSupply(layout(file))


def calm(policy: str, machines: int, apps: int, open_leases: bool) -> dict[str, float]:
    """An event where each app finds room at once: single jobs of an hour, 32 machines' worth of load a machine.

    `open_leases`: renewals that nobody contests are no events.
    """
    from pycontrol.lab.clusters import uniform
    from pycontrol.simulation.engine import Simulator
    from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
    from pycontrol.simulation.trace_apps import TraceApp, Workload

    rng, at_s, load = random.Random(7), 0.0, []
    for i in range(apps):
        at_s += rng.expovariate(machines / (60.0 * 32))
        gang, queue = rng.choice([1, 1, 1, 2, 4, 8]), f"root.t{i % TENANTS}" if policy == "cells" else "root.default"
        load.append(TraceApp(f"j{i}", at_s, gang, ((rng.expovariate(1 / 3600) * gang,),), queue))
    settings = SimulationSettings(arbiter=dataclasses.replace(ARBITER, open_leases=open_leases))
    chosen, supply = _owned(policy, machines)
    sim = Simulator(Workload("jobs", tuple(load)), uniform(machines, 8), chosen, settings, supply=supply)
    begin_s = time.process_time()
    c = sim.run().counters
    cpu_s = time.process_time() - begin_s
    return {"us": 1e6 * cpu_s / (c.events + c.steps), "ms_an_app": 1e3 * cpu_s / apps, "rounds": c.rounds}


def contended(policy: str, machines: int, window_s: float) -> dict[str, float]:
    """An event while twice the GPUs are wanted, by 40 users, and nine tenths are held.

    An app that ends is followed by another. Measured is a window around the first common end of leases.
    """
    from pycontrol.lab.clusters import uniform
    from pycontrol.model.topology import Scope
    from pycontrol.simulation.engine import Simulator
    from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
    from pycontrol.simulation.trace_apps import TraceApp, Workload

    rng, count = random.Random(7), itertools.count()

    def app(at_s: float) -> TraceApp:
        gang, k = rng.choice(GANGS), next(count)
        work = (rng.expovariate(128 / (3600.0 * machines)) * gang,)  # as many ends a second in any cluster
        queue, user = f"root.t{k % TENANTS}", f"u{k % USERS}"
        return TraceApp(f"j{k}", at_s, gang, (work,), queue, user, scope=Scope.MACHINE)

    chosen, supply = _owned(policy, machines)
    settings = SimulationSettings(arbiter=dataclasses.replace(ARBITER, lease_s=LEASE_S))
    load = Workload("two", tuple(app(0.0) for _ in range(2 * machines)))
    sim = Simulator(load, uniform(machines, 8), chosen, settings, supply=supply)
    begun: list[float] = []
    ended: set[str] = set()

    def spent() -> list[float]:
        return [time.process_time(), sim.events + sim.steps, sim.rounds]

    def watch(facts: Iterable[Any]) -> None:
        for fact in facts:
            if type(fact).__name__ == "AppEnded" and fact.app_id not in ended:
                ended.add(fact.app_id)
                sim.at(sim.now + 1.0, sim.arrive, app(sim.now + 1.0))
        if not begun and sim.now > LEASE_S - 0.75 * window_s:
            begun.extend(spent())
        elif begun and sim.now > LEASE_S + 0.25 * window_s:
            raise Warm

    sim.watchers.append(watch)
    with suppress(Warm):
        sim.run()
    cpu_s, events, rounds = (now - then for now, then in zip(spent(), begun, strict=True))
    held = len(sim.arbiter.durable.leases) / (machines * 8)
    waiting = len(sim.arbiter.agents.unmet)
    return {"us": 1e6 * cpu_s / events, "events": events, "rounds": rounds, "held": held, "waiting": waiting}


def a_round(apps: int, tenants: int, machines: int) -> dict[str, float]:
    """One round on a free cluster: to one app of 10,000 GPUs, to 2,000 apps of 40 users, or over eleven tenants."""
    from pycontrol.arbiter.core import Arbiter
    from pycontrol.arbiter.supply.cell_supply import CellSupply
    from pycontrol.arbiter.views.settings import Settings
    from pycontrol.cells.cells_file import CellsFile, layout
    from pycontrol.model import events as ev
    from pycontrol.model.auction import Demand
    from pycontrol.model.cluster import Node, YarnApp
    from pycontrol.policies.by_vc import ByVirtualCluster
    from pycontrol.policies.isonomy import Isonomy

    hosts = [f"h{i:05d}" for i in range(machines)]
    supply, policy = None, ByVirtualCluster(Isonomy())
    if tenants:
        file = CellsFile.model_validate(
            {
                "levels": {"switch": 2, "socket": 2, "node": 2},
                "hosts": hosts,
                "virtual_clusters": {f"root.t{k}": {"node": machines // tenants} for k in range(tenants)},
            }
        )
        supply = CellSupply(layout(file))
    settings = Settings(recovery_s=0.0, round_retry_s=1e6)
    arbiter = Arbiter(settings, policy, supply=supply)
    arbiter.handle(ev.ClusterSnapshot(True, tuple(Node(f"{h}:1", h, "r", 8) for h in hosts), (), (), ()), 0.0)
    arbiter.handle(ev.Tick(), 1.0)
    rng = random.Random(7)
    for k in range(apps):
        gang, gangs = (8, 1250) if apps == 1 else (8, 4) if tenants else (rng.choice((1, 1, 2, 4, 8)), 3)
        name, queue = f"a{k}", f"root.t{k % (tenants or 1)}"
        app = YarnApp(name, f"u{k % USERS}", queue, name, "SUBMARINE", 1.0, frozenset({"isonomy"}), f"{name}_1")
        arbiter.handle(ev.AppAdded(app), 1.0)
        arbiter.handle(ev.AgentUp(name, app.attempt_id, "single", Demand(gang, gangs, gang, 1e6, 1e6)), 1.0)
    begin_s, policy_s = time.process_time(), 0.0
    waiting = arbiter.handle(ev.Tick(), 5.0)
    while waiting:
        effect = waiting.pop()
        if isinstance(effect, ev.Solve):
            before_s = time.process_time()
            plan = policy.decide(effect.snapshot, effect.bids, random.Random(effect.seed))
            policy_s += time.process_time() - before_s
            waiting += arbiter.handle(ev.Decided(effect.snapshot.round_id, plan), 5.0)
    total_s = time.process_time() - begin_s
    granted = len(arbiter.durable.leases)
    return {"s": total_s, "decided_s": policy_s, "committed_s": total_s - policy_s, "granted": granted}


def philly() -> dict[str, float]:
    """CPU seconds of the first jobs of the trace under tiresias, and the bytes of their facts in a journal."""
    from pycontrol.lab.clusters import uniform
    from pycontrol.policies.registry import make
    from pycontrol.runtime.journal import SqliteJournal
    from pycontrol.simulation.engine import Simulator
    from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
    from pycontrol.simulation.trace_apps import TraceApp, Workload

    with gzip.open(Path(os.environ["ISONOMY_DATA"]) / PHILLY, "rt") as file:
        rows = [(float(r["submit_elapsed_s"]), r) for r in csv.DictReader(file) if float(r["gpu_seconds"]) > 0]
    rows.sort(key=lambda item: item[0])
    load = [
        TraceApp(r["job_id"], at_s - rows[0][0], int(r["num_gpus"]), ((float(r["gpu_seconds"]),),), r["vc"])
        for at_s, r in rows[:PHILLY_SLICE]
    ]
    settings = SimulationSettings(arbiter=dataclasses.replace(ARBITER, open_leases=True))
    sim = Simulator(Workload("philly", tuple(load)), uniform(PHILLY_MACHINES, 8), make("tiresias"), settings)
    facts: list[Any] = []
    sim.watchers.append(facts.extend)
    begin_s = time.process_time()
    sim.run()
    cpu_s = time.process_time() - begin_s
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "journal.sqlite"
        journal = SqliteJournal(file)
        for k in range(0, len(facts), 2_000):
            journal.append(facts[k : k + 2_000], 0.0)
        journal.close()
        size = file.stat().st_size  # without its WAL, which is as long in any month
    factor = PHILLY_JOBS / PHILLY_SLICE
    return {"s": cpu_s, "month_s": factor * cpu_s, "factor": factor, "facts": len(facts), "journal_bytes": size}


def lines() -> dict[str, float]:
    """Lines of what `pycontrol.arbiter` and `pycontrol.policies` import, all together, without generated code."""
    import pycontrol

    root = Path(pycontrol.__file__).parent
    names = {_name(root, p): p for p in root.rglob("*.py") if not p.name.endswith(GENERATED)}
    todo = [n for n in names if n.startswith(("pycontrol.arbiter", "pycontrol.policies"))]
    seen = set(todo)
    while todo:
        for name in _imports(names[todo.pop()], names):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    of = {n: len(names[n].read_text(encoding="utf-8").splitlines()) for n in seen}
    return {
        "lines": sum(of.values()),
        "files": len(of),
        "arbiter_lines": sum(n for name, n in of.items() if name.startswith("pycontrol.arbiter")),
        "arbiter_files": sum(name.startswith("pycontrol.arbiter.") for name in of),
    }


def _name(root: Path, path: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, names: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in found:
            parts = name.split(".")
            yield from (p for k in range(len(parts)) if (p := ".".join(parts[: k + 1])) in names)


Row = tuple[str, str, Callable[[], dict[str, float]]]
"""(name, the figure that is compared, how one sample is measured)."""


def rows() -> list[Row]:
    """All rows."""
    found: list[Row] = []
    for policy, n in itertools.product(("tiresias", "isonomy", "cells"), MACHINES):
        for name, is_open in (("", True), (", renewals are events", False)):
            found.append(
                (f"event calm {policy} {n}{name}", "us", lambda p=policy, n=n, o=is_open: calm(p, n, 600, o))  # type: ignore[misc]
            )
    for policy in ("tiresias", "isonomy", "themis", "cells"):
        for n in MACHINES:
            window_s = LEASE_S if n == MACHINES[0] else LEASE_S / 3
            found.append(
                (f"event 2x {policy} {n}", "us", lambda p=policy, n=n, w=window_s: contended(p, n, w))  # type: ignore[misc]
            )
    found += [
        ("round 10,000 GPUs to one app", "s", lambda: a_round(1, 0, 1250)),
        ("round 10,000 GPUs to 2,000 apps", "s", lambda: a_round(2000, 0, 1250)),
        ("round 65,536 GPUs, 11 virtual clusters", "s", lambda: a_round(44, TENANTS, 8192)),
        ("philly slice, CPU", "s", philly),
        ("philly slice, journal", "journal_bytes", philly),
        ("lines", "lines", lines),
    ]
    return found


# ---- both trees


@contextmanager
def baseline() -> Iterator[Path]:
    """The tree of BASELINE, with the generated files of this one."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--force", str(tree), BASELINE], check=True, capture_output=True)
        try:
            for made in (f for name in IGNORED_FILES for f in (ROOT / name).iterdir() if f.name.endswith(GENERATED)):
                (tree / made.relative_to(ROOT)).write_bytes(made.read_bytes())
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=False, capture_output=True)


def sample(tree: Path, name: str) -> dict[str, float]:
    """One sample of a row, in a process of its own."""
    data = os.environ.get("ISONOMY_DATA", str(ROOT.parent / "shared" / "data"))
    env = {**os.environ, "PYTHONPATH": str(tree), "ISONOMY_DATA": data, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-P", str(Path(__file__)), "--sample", name]
    done = subprocess.run(command, cwd=tree, env=env, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name} in {tree}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(quick: bool, wanted: Iterable[str] = ()) -> dict[str, Any]:
    """Each row: the least of its samples before and now, their ratio, and the other figures of the newest sample."""
    result: dict[str, Any] = {"baseline": BASELINE}
    chosen = list(wanted)
    with baseline() as before:
        for name, key, _ in rows():
            if chosen and not any(part in name for part in chosen):
                continue
            times = 1 if quick or key not in ("us", "s") else 3
            pairs = [(sample(before, name), sample(ROOT, name)) for _ in range(times)]
            old, new = (min(found[key] for found in side) for side in zip(*pairs, strict=True))
            result[name] = {"before": old, "now": new, "ratio": new / old, "more": pairs[-1][1]}
            print(f"{name}: {old:.6g} -> {new:.6g} {key}, ratio {new / old:.3f}", file=sys.stderr, flush=True)
    return result


def main() -> None:
    """`--sample NAME`: one sample here. Otherwise the rows with names that contain one of the arguments, or all."""
    args = sys.argv[1:]
    if args[:1] == ["--sample"]:
        give_present_names()
        print(json.dumps(next(measure for name, _, measure in rows() if name == args[1])()))
    else:
        print(json.dumps(run("--quick" in args, [a for a in args if not a.startswith("-")]), indent=2))


if __name__ == "__main__":
    main()
