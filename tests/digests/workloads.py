"""The fixed workloads whose decisions are kept: simulated clusters under load, and worlds in which much goes wrong."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator

from pycontrol.arbiter.ledger.facts import Fact
from pycontrol.lab.clusters import uniform
from pycontrol.lab.workloads import load
from pycontrol.model.topology import Machine, Scope, Topology
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.registry import make
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.scene import own_policies
from pycontrol.simulation.simulation_settings import ARBITER, Fault, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload
from tests.cells.files import supply_of
from tests.digests.record import Recorder
from tests.faults.clock import Violation
from tests.faults.schedule import draw
from tests.faults.world import World

LEASE_S = 600.0
WORLDS = (54, 63, 138, 159, 238, 355, 431, 510, 556, 591)
"""Seeds of tests/faults; each is played under every policy: restarts, bad GPUs, apps without Agents, lost machines."""
CELLS = """
cell_types:
  pair: {child: gpu, count: 2}
  quad: {child: pair, count: 2}
  box: {child: quad, count: 2, node_level: true}
  row: {child: box, count: 2}
physical_cells:
  - {type: row, hosts: [r00m00, r00m01]}
  - type: row
    children: [{type: box, hosts: [r00m02], pinned_id: kept}, {type: box, hosts: [r00m03]}]
virtual_clusters:
"""


@dataclasses.dataclass(frozen=True)
class Run:
    """One simulated workload, made anew for each policy."""

    workload: Callable[[], Workload]
    cluster: Topology
    cells: str = ""
    settings: SimulationSettings = dataclasses.field(default_factory=SimulationSettings)


def explorations(name: str, contention: float, apps: int) -> Workload:
    """Themis' workload of a name, small, with four users and two queues."""
    made = load(name, 3, {"count": apps, "contention": contention, "shorter": 6.0})
    mixed = (dataclasses.replace(a, user=f"u{k % 4}", queue=f"root.{'ab'[k % 2]}") for k, a in enumerate(made.apps))
    return dataclasses.replace(made, apps=tuple(mixed))


def jobs(seed: int, count: int, gap_s: float, gangs: Iterable[int] = (1, 1, 2, 4, 8), **more: object) -> Workload:
    """Apps of one to four jobs of about half an hour each."""
    rng, at_s, apps, sizes = random.Random(seed), 0.0, [], list(gangs)
    for k in range(count):
        at_s += rng.expovariate(1 / gap_s)
        gang = rng.choice(sizes)
        phase = tuple(rng.expovariate(1 / 1800) * gang for _ in range(rng.choice((1, 1, 2, 4))))
        queue, user = f"root.{rng.choice('aab')}", f"u{rng.randrange(3)}"
        fast = {"v100": rng.choice((1.2, 2.0, 3.5))} if more.get("typed") else {}
        widest = gang * 4 if more.get("elastic") and gang <= 2 else 0
        scope = rng.choice((Scope.MACHINE, Scope.RACK, Scope.CLUSTER)) if gang <= 4 else Scope.CLUSTER
        apps.append(
            TraceApp(f"j{k}", at_s, gang, (phase,), queue, user, scope=scope, speedups=fast, job_gpus_max=widest)
        )
    return Workload(f"jobs-{seed}", tuple(apps))


def _typed() -> Topology:
    kinds = ("k80", "k80", "v100", "v100")
    return Topology.of(Machine(f"m{i}", f"r{i // 2}", 4, kind) for i, kind in enumerate(kinds))


def _settings(**more: object) -> SimulationSettings:
    faults = more.pop("faults", ())
    arbiter = dataclasses.replace(ARBITER, lease_s=LEASE_S, **more)  # type: ignore[arg-type]
    return SimulationSettings(arbiter=arbiter, faults=tuple(faults))  # type: ignore[arg-type]


LOST = (
    Fault(4_000.0, "r00m00"),
    Fault(7_000.0, "r00m00", True),
    Fault(9_000.0, "r00m01"),
    Fault(12_000.0, "r00m01", True),
)
OWNERS = "  root.a: {box: 1, pair: 1, pinned: [kept]}\n  root.b: {quad: 1, pair: 1}\n  root.c: {pair: 1}\n"
RUNS: dict[str, Run] = {
    "w1": Run(lambda: explorations("w1", 1.0, 8), uniform(8, 4), settings=_settings(f=0.5)),
    "w1-4x": Run(lambda: explorations("w1", 4.0, 6), uniform(8, 4), settings=_settings(f=0.5)),
    "w2": Run(lambda: explorations("w2", 1.0, 8), uniform(8, 4), settings=_settings(f=0.8)),
    "w2-4x": Run(lambda: explorations("w2", 4.0, 8), uniform(8, 4), settings=_settings(f=0.8)),
    "open": Run(lambda: jobs(1, 60, 260.0), uniform(6, 4, 3), settings=_settings(open_leases=True)),
    "types": Run(lambda: jobs(2, 60, 400.0, (1, 1, 2, 4), typed=True), _typed(), settings=_settings()),
    "elastic": Run(lambda: jobs(3, 60, 500.0, elastic=True), uniform(4, 4, 2), settings=_settings()),
    "lost": Run(lambda: jobs(4, 80, 300.0), uniform(4, 8), settings=_settings(faults=LOST)),
    "cells": Run(lambda: jobs(5, 70, 180.0), uniform(4, 8), OWNERS, _settings()),
}


def play(name: str, policy: str, recorder: Recorder, validate: bool = False) -> None:
    """Plays one workload under one policy."""
    recorder.begins(f"{name} {policy}")
    if name.startswith("world-"):
        _world(int(name.removeprefix("world-")), policy, recorder, validate)
        return
    run = RUNS[name]
    arbiter = dataclasses.replace(run.settings.arbiter, validate=validate)
    settings = dataclasses.replace(run.settings, arbiter=arbiter)
    supply, chosen = None, make(policy)
    if run.cells:
        supply = supply_of(CELLS + run.cells)
        chosen = ByVirtualCluster(chosen, own_policies(supply, policy, {}))
    simulator = Simulator(run.workload(), run.cluster, chosen, settings, 1, supply=supply)
    recorder.restored(simulator.arbiter)
    simulator.watchers.append(lambda facts: recorder.note(facts, simulator.arbiter, simulator.now))
    simulator.run()


def _world(seed: int, policy: str, recorder: Recorder, validate: bool) -> None:
    schedule = draw(seed)
    schedule["policy"], schedule["vc_policies"] = policy, [policy, policy]
    schedule["settings"]["validate"] = validate
    world, lives = World(schedule), list[object]()
    journaled = world.oracles.journaled

    def note(plane: object, rows: list[Fact]) -> None:
        journaled(plane, rows)
        if plane is not world.plane:
            return
        if all(plane.arbiter is not known for known in lives):
            lives.append(plane.arbiter)
            recorder.begins(f"life {len(lives)}")
        recorder.note(rows, plane.arbiter, world.sim.now - world.sim.start_s)

    world.oracles.journaled = note  # type: ignore[method-assign, assignment]
    try:
        world.run()
    except Violation as found:
        recorder.begins(f"violation {found.kind}")


def names() -> Iterator[str]:
    """All workloads."""
    yield from RUNS
    yield from (f"world-{seed}" for seed in WORLDS)
