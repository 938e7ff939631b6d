"""The cost of a round of each baseline: 2,000 apps on 10,000 GPUs, nearly full, half on offer, and all free."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from pycontrol.model.auction import AppView, Demand, Gang, Snapshot, gang_gpus
from pycontrol.model.cluster import Queue
from pycontrol.model.topology import Machine, Topology
from pycontrol.policies import registry
from pycontrol.policies.filling import Filling

MACHINES, APPS, GPUS_A_MACHINE = 1250, 2000, 8
OFFERED = {"nearly full": 0.002, "half ends": 0.5, "all free": 1.0}
"""The fraction of the GPUs on offer."""


def busy(seed: int, offered: float) -> Snapshot:
    """Some machines are free or their leases end, the others continue; every app wants more than it has."""
    rng = random.Random(seed)
    top = Topology.of(Machine(f"n{i:04d}", f"rack{i // 32}", GPUS_A_MACHINE) for i in range(MACHINES))
    hosts = sorted(top.machines)
    rng.shuffle(hosts)
    n = round(MACHINES * offered)
    size = {i: rng.choice([1, 1, 2, 4, 8]) for i in range(APPS)}
    gangs: dict[int, tuple[list[Gang], list[Gang]]] = {i: ([], []) for i in range(APPS)}
    for k, host in enumerate(hosts):
        ends, left = k < n, GPUS_A_MACHINE
        if ends and (offered == 1 or rng.random() < 0.3):
            continue
        while left:
            i = rng.randrange(APPS)
            if size[i] <= left:
                gangs[i][ends].append(((host, size[i]),))
                left -= size[i]
    views = tuple(_view(rng, i, size[i], *gangs[i]) for i in range(APPS))
    queues = {q: Queue(q, 0.25) for q in sorted({v.queue for v in views})}
    return Snapshot("bench", 0.0, top, dict.fromkeys(hosts[:n], GPUS_A_MACHINE), views, queues=queues)


def _view(rng: random.Random, i: int, size: int, kept: list[Gang], ending: list[Gang]) -> AppView:
    demand = Demand(
        size,
        len(kept) + len(ending) + rng.randint(1, 8),
        size,
        work_left_gpu_s=rng.expovariate(1e-5),
        loss_rate=rng.random(),
        slowdown=rng.choice([(1.0, 1.02, 1.05), (1.0, 1.1, 1.3), (1.0, 1.4, 2.0)]),
    )
    return AppView(
        f"app{i:04d}",
        f"root.q{i % 4}",
        rng.uniform(0.2, 3.0),
        demand,
        ending_gangs=tuple(ending),
        retained_gangs=tuple(kept),
        retained_gpus=sum(map(gang_gpus, kept)),
        submitted_s=rng.uniform(0, 1e5),
        attained_gpu_s=rng.uniform(0, 1e5),
    )


def run(quick: bool) -> dict[str, Any]:
    """Milliseconds of a decision by policy and by how much is on offer; gangs that it awards."""
    result: dict[str, Any] = {}
    for label, offered in OFFERED.items():
        rounds = [busy(seed, offered) for seed in range(2 if quick else 5)]
        for name in registry.names():
            policy = registry.make(name)
            if not isinstance(policy, Filling):
                continue
            times, awarded = [], 0
            for seed, snapshot in enumerate(rounds):
                begin_s = time.perf_counter()
                plan = policy.decide(snapshot, {}, random.Random(seed))
                times.append(1e3 * (time.perf_counter() - begin_s))
                awarded += sum(len(a.gangs) for a in plan.awards)
            result.setdefault(name, {})[label] = {
                "median_ms": statistics.median(times),
                "max_ms": max(times),
                "rounds": len(rounds),
                "gangs": awarded / len(rounds),
            }
    return result
