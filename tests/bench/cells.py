"""Cells: what a full request costs on large clusters, against the cluster's size."""

from __future__ import annotations

import random
import resource
import time
from typing import Any

from pycontrol.cells.config import CellsFile, layout
from pycontrol.cells.core import Cells
from pycontrol.cells.values import OPPORTUNISTIC, GroupState, Outcome, Request

TENANTS = 11


def cluster(pods: int, nodes: int) -> CellsFile:
    """Pods of nodes of 8 GPUs. Eleven tenants own nearly all of it: some pods, then nodes and parts of nodes."""
    owned: dict[str, dict[str, int]] = {f"t{i}": {} for i in range(TENANTS)}
    whole = pods // 2
    for i in range(whole):
        owned[f"t{i % TENANTS}"]["pod"] = owned[f"t{i % TENANTS}"].get("pod", 0) + 1
    share = (pods - whole) * nodes // TENANTS
    for mine in owned.values():
        parts = share // 5
        mine |= {"node": share - 3 * parts, "socket": 2 * parts, "switch": 4 * parts, "gpu": 8 * parts}
    return CellsFile.model_validate({
        "levels": {"switch": 2, "socket": 2, "node": 2, "pod": nodes},
        "hosts": [f"n{i}" for i in range(pods * nodes)],
        "virtual_clusters": owned,
    })  # fmt: skip


def drive(pods: int, nodes: int, requests: int, seed: int = 0) -> dict[str, Any]:
    """Requests of random level, four in five of them followed by the release of a running group.

    Half the GPUs run opportunistic one-GPU groups. A request's time is all of: choosing, binding, ending its victims
    at once and placing it.
    """
    rng = random.Random(seed)
    file = cluster(pods, nodes)
    begin_s = time.perf_counter()
    plan = layout(file)
    cells = Cells(plan)
    start_s = time.perf_counter() - begin_s
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(pods * nodes * 4):
        cells.request(Request(f"o{number}", f"t{number % TENANTS}", OPPORTUNISTIC, ((1, 1),)))
    chain = plan.chains[0]
    levels = [k for k, name in enumerate(chain.names) if name]
    sizes = {k: chain.sizes[k] for k in levels}
    running: list[str] = []
    times: dict[str, list[float]] = {"up to a node": [], "pod": []}
    released: list[float] = []
    outcomes = {outcome.value: 0 for outcome in Outcome}
    for i in range(requests):
        level = rng.choice(levels)
        name = chain.names[level]
        count, gpus = (1, sizes[level]) if level <= chain.node else (nodes, sizes[chain.node])
        within = name if name == "pod" else None
        request = Request(f"g{i}", f"t{rng.randrange(TENANTS)}", 0, ((count, gpus),), within=within)
        begin_s = time.perf_counter()
        decision = cells.request(request)
        if decision.outcome is Outcome.PREEMPT:
            for victim in decision.victims:
                cells.release(victim)
            decision = cells.request(request)
        times["pod" if name == "pod" else "up to a node"].append(time.perf_counter() - begin_s)
        outcomes[decision.outcome.value] += 1
        if decision.outcome is Outcome.PLACED:
            running.append(request.group)
        if running and rng.random() < 0.8:
            at = rng.randrange(len(running))
            running[at], running[-1] = running[-1], running[at]
            begin_s = time.perf_counter()
            cells.release(running.pop())
            released.append(time.perf_counter() - begin_s)
    assert all(g.state is GroupState.ALLOCATED for g in cells.groups.values())
    return {
        "gpus": len(chain.indices), "start_s": start_s, "memory_mb": before / 1024, "outcomes": outcomes,
        "request": {name: spread_us(some) for name, some in times.items()}, "release": spread_us(released),
    }  # fmt: skip


def spread_us(values: list[float]) -> dict[str, float]:
    """Mean, median, p99 and worst, microseconds."""
    ordered = sorted(values) or [0.0]
    return {
        "mean_us": 1e6 * sum(ordered) / len(ordered),
        "median_us": 1e6 * ordered[len(ordered) // 2],
        "p99_us": 1e6 * ordered[int(0.99 * (len(ordered) - 1))],
        "worst_us": 1e6 * ordered[-1],
        "n": len(ordered),
    }


def run(quick: bool) -> dict[str, Any]:
    """The two clusters of the profile, and smaller ones for the growth with size."""
    shapes = [(8, 32), (8, 256), (8, 1024)] if not quick else [(8, 32), (8, 64)]
    return {f"{pods} x {nodes} x 8": drive(pods, nodes, 10_000 if not quick else 1_000) for pods, nodes in shapes}
