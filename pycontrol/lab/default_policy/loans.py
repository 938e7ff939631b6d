"""Loans among virtual clusters: the work lost when they end, by cause, and whether hiding checkpoints pays."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from pycontrol.arbiter.ledger.facts import Fact, LeaseRevoking
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.cells.layout import Layout
from pycontrol.lab.default_policy.victims import HIDES
from pycontrol.lab.hived.simulated import NODE_GPUS, machines
from pycontrol.lab.kit import Claim, Findings, Setup, Table, shown
from pycontrol.lab.runs import paired_ratio
from pycontrol.model.reasons import EndReason
from pycontrol.model.topology import Scope
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.registry import make
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.simulation_settings import SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

NODES, OWNED = 8, 2
BORROWER, OWNERS = "research", ("east", "north", "west")
USERS = tuple(f"user{k}" for k in range(4))
"""Of the borrower."""
LOAD, BURSTS, BURST_S, PAUSE_S = 2.2, 1.25, 3600.0, 5400.0
"""The borrower always wants this multiple of its own GPUs, an owner that of its own in bursts, of this mean length."""
HOURS, FIRST = 10.0, 11
"""Seeds from `FIRST` on were not used while the rules were made."""
CAUSES = (EndReason.GUARANTEE, EndReason.MOVED, EndReason.BORROWED_SHARE, EndReason.LOST_ROUND)


@dataclass(frozen=True)
class Case:
    """One simulation. `liar`: a user who hides the checkpoints of all apps, or nobody."""

    seed: int
    policy: str = "isonomy"
    every_min: float = 60.0
    liar: str = ""
    hours: float = HOURS


@dataclass(frozen=True)
class Loans:
    """GPU-hours that borrowed gangs lost, by cause; all lost ones; all; completion by user, s."""

    by_cause: dict[EndReason, float]
    lost_gpu_h: float
    gpu_h: float
    mean_s: dict[str, float]


def cells() -> Layout:
    """Each virtual cluster owns two of eight machines."""
    vcs = {vc: {"cells": {"node": OWNED}} for vc in (BORROWER, *OWNERS)}
    hosts = list(machines([NODE_GPUS] * NODES).machines)
    levels = {"switch": 2, "socket": 2, "node": 2}
    return layout(CellsFile.model_validate({"levels": levels, "hosts": hosts, "virtual_clusters": vcs}))


def load(seed: int, hours: float = HOURS) -> Workload:
    """Jobs of 1 to 8 GPUs and 10 min to 8 h: the borrower's all the time, the owners' in bursts."""
    rng, own_gpus, apps = random.Random(f"loans {seed}"), OWNED * NODE_GPUS, list[tuple[float, int, float, str, str]]()

    def jobs(vc: str, users: tuple[str, ...], from_s: float, for_s: float, work_gpu_s: float) -> None:
        while work_gpu_s > 0:
            gpus, run_s = rng.choice((1, 1, 2, 2, 4, 4, 8)), rng.lognormvariate(math.log(5400.0), 1.0)
            run_s = min(28_800.0, max(600.0, run_s))
            apps.append((from_s + rng.random() * for_s, gpus, run_s, vc, rng.choice(users)))
            work_gpu_s -= gpus * run_s

    for vc in OWNERS:
        at_s, busy = -10_800.0 * rng.random(), rng.random() < 0.4
        while at_s < hours * 3600:
            for_s = rng.expovariate(1 / (BURST_S if busy else PAUSE_S))
            if busy:
                jobs(vc, (vc,), at_s, for_s, BURSTS * own_gpus * for_s)
            at_s, busy = at_s + for_s, not busy
    jobs(BORROWER, USERS, 0.0, hours * 3600, LOAD * own_gpus * hours * 3600)
    found = (
        TraceApp(f"app{k:04d}", at_s, gpus, ((gpus * run_s,),), vc, user, slowdown=(1.0,) * 3, scope=Scope.MACHINE)
        for k, (at_s, gpus, run_s, vc, user) in enumerate(sorted(x for x in apps if 0 <= x[0] < hours * 3600))
    )
    return Workload(f"loans {seed}", tuple(found))


def run(case: Case) -> Loans:
    """One simulation; jobs do not save when they are warned."""
    jobs, policy = load(case.seed, case.hours), make(case.policy)
    lies = {a.app_id: HIDES for a in jobs.apps if a.user == case.liar}
    settings = SimulationSettings(saves=False, checkpoint_every_s=60.0 * case.every_min, lies=lies)
    topology, supply = machines([NODE_GPUS] * NODES), CellSupply(cells())
    sim = Simulator(jobs, topology, ByVirtualCluster(policy, {}), settings, case.seed, supply=supply)
    by_cause, known, s = dict.fromkeys(CAUSES, 0.0), dict[str, float](), sim.arbiter.holdings
    sim.tells_saved = True

    def watch(facts: Iterable[Fact]) -> None:
        for f in facts:
            held = s.durable.leases.parts(f.gpus) if isinstance(f, LeaseRevoking) else ()
            for x in held:
                lost_gpu_s = sim.apps[x.app_id].lost if x.app_id in sim.apps else 0.0  # its job has stopped already
                if not x.guaranteed and x.cause in by_cause:
                    by_cause[x.cause] += max(0.0, lost_gpu_s - known.get(x.app_id, 0.0)) / 3600
                known[x.app_id] = lost_gpu_s

    sim.watchers.append(watch)
    apps = sim.run().apps
    ends: dict[str, list[float]] = {}
    for a in apps:
        ends.setdefault(a.user, []).append(a.completion_s)
    mean_s = {user: sum(times) / len(times) for user, times in ends.items()}
    return Loans(by_cause, sum(a.lost_gpu_s for a in apps) / 3600, sum(a.gpu_s for a in apps) / 3600, mean_s)


def loans(setup: Setup) -> Findings:
    """Loans among virtual clusters: the work lost when they end, by cause, and what hiding checkpoints gains."""
    seeds, hours = [FIRST + k for k in setup.seeds_of(5, 1)], 4.0 if setup.quick else HOURS
    liars = USERS[:1] if setup.quick else USERS
    kinds = {("yarn_cs", 60.0): (), ("isonomy", 60.0): (), ("isonomy", 5.0): liars}
    cases = [
        Case(seed, policy, every_min, liar, hours)
        for (policy, every_min), hiding in kinds.items()
        for seed in seeds
        for liar in ("", *hiding)
    ]
    found = dict(zip(cases, setup.each(run, cases), strict=True))
    rows, claims = list[tuple[object, ...]](), list[Claim]()
    for policy, every_min in kinds:
        mine = {c: x for c, x in found.items() if (c.policy, c.every_min) == (policy, every_min)}
        honest, lies = {c.seed: x for c, x in mine.items() if not c.liar}, [c for c in mine if c.liar]
        hides = paired_ratio([mine[c].mean_s[c.liar] for c in lies], [honest[c.seed].mean_s[c.liar] for c in lies])
        means = [sum(x.by_cause[cause] for x in honest.values()) / len(seeds) for cause in CAUSES]
        used = sum(x.gpu_h for x in honest.values()) / len(seeds)
        lost = sum(x.lost_gpu_h for x in honest.values()) / len(seeds)
        says = shown(hides) if lies else "-"
        rows.append((policy, every_min, f"{used:.0f}", f"{lost:.1f}", *(f"{x:.1f}" for x in means), says))
        if lies:
            text = f"Who hides checkpoints each {every_min:g} min ends no earlier."
            claims.append(Claim(text, "target: >= 0.99", f"{says} x, {hides.n} users", hides.mean >= 0.99))
    columns = ("policy", "checkpoints each, min", "GPU-h", "lost", *(f"loans: {c}" for c in CAUSES), "hiding / telling")
    title = "GPU-hours, those lost, and those of loans by what ended them"
    how = "four virtual clusters of 16 GPUs: one always wants 2.2 times that, the others want GPUs in bursts"
    return Findings(tuple(claims), (Table(title, columns, tuple(rows)),), (), (how,), len(seeds))
