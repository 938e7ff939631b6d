"""HiveD's cells: dynamic and static binding (Figure 8), cells of many levels (Figure 9), what a request costs (5.3)."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pycontrol.cells.config import CellsFile, layout
from pycontrol.cells.core import Cells
from pycontrol.cells.values import OPPORTUNISTIC, GroupState, Outcome, Request
from pycontrol.experiments.hived.cases import (
    CLUSTER_NODES,
    CONVENTIONS,
    DAY_S,
    LOAD,
    LOWER_LOAD,
    WINDOW_S,
    by_level,
    hived,
    runs,
)
from pycontrol.experiments.hived.places import NODE_GPUS
from pycontrol.experiments.hived.replay import HOUR_S, Replayed
from pycontrol.experiments.kit import Claim, Figure, Findings, Series, Setup, Table

TENANTS = 11
MUCH = 0.25
"""Share of preempted GPUs that dynamic binding must save for the claim to hold."""


def fig8(setup: Setup) -> Findings:
    """HiveD Figure 8: GPUs preempted with dynamic and with static binding."""
    claims, rows, figures = [], [], []
    for load in (LOAD, LOWER_LOAD):
        setup.note(f"static binding, load {load:g}")
        run = runs(CLUSTER_NODES, setup.quick, load)
        both = (("dynamic", run.hived), ("static", hived(run.case, static=True)))
        gpus = {label: sum(g for _, g in replayed.preemptions) for label, replayed in both}
        saved = 1 - gpus["dynamic"] / gpus["static"] if gpus["static"] else 0.0
        used = {
            label: sum(r.series.all_gpus) / len(r.series.all_gpus) / NODE_GPUS / run.case.nodes for label, r in both
        }
        rows += [
            (load, label, len(r.preemptions), gpus[label], 100 * _bound(r, run.case.nodes), 100 * used[label])
            for label, r in both
        ]
        claims.append(Claim(
            f"Load {load:g}: dynamic binding preempts fewer GPUs than static.", "55 % fewer",
            f"{100 * saved:.0f} % fewer", saved >= MUCH,
            "" if saved >= MUCH else f"Jobs of any kind use {used['dynamic']:.0%} of the GPUs: few idle to choose.",
        ))  # fmt: skip
        lines = tuple(Series(label, *_by_window(r)) for label, r in both)
        figures.append(Figure(f"preempted-{load:g}", f"Preempted GPUs, load {load:g}", "day", "GPUs in 12 h", lines))
    columns = ("load", "binding", "jobs preempted", "GPUs preempted", "% of nodes with regular jobs", "% of GPUs used")
    how = (f"the claim counts as held from {100 * MUCH:.0f} % on",)
    table = Table("Preemptions", columns, tuple(rows))
    return Findings(tuple(claims), (table,), tuple(figures), CONVENTIONS + _scale(setup) + how)


def _scale(setup: Setup) -> tuple[str, ...]:
    return ("a quarter of the nodes and jobs",) if setup.quick else ()


def _bound(replayed: Replayed, nodes: int) -> float:
    broken = replayed.series.broken_nodes
    return sum(broken) / len(broken) / nodes


def _by_window(replayed: Replayed) -> tuple[list[float], list[float]]:
    found: dict[int, float] = {}
    for at_s, gpus in replayed.preemptions:
        if at_s < len(replayed.series.all_gpus) * HOUR_S:
            found[int(at_s // WINDOW_S)] = found.get(int(at_s // WINDOW_S), 0.0) + gpus
    windows = range(max(found, default=0) + 1)
    return [k * WINDOW_S / DAY_S for k in windows], [found.get(k, 0.0) for k in windows]


def fig9(setup: Setup) -> Findings:
    """HiveD Figure 9: fragmentation with cells of every level and with node cells only."""
    run = runs(CLUSTER_NODES, setup.quick)
    setup.note("cells of every level")
    case = by_level(run.case)
    both = (("node cells", run.hived), ("cells of every level", hived(case)))
    share = {label: [100 * b / case.nodes for b in r.series.broken_nodes] for label, r in both}
    single, multi = share["node cells"], share["cells of every level"]
    gaps = [a - b for a, b in zip(single, multi, strict=True)]
    mean = sum(gaps) / len(gaps)
    lower = sum(gap >= 0 for gap in gaps) / len(gaps)
    claims = (
        Claim("Cells of every level fragment the cluster less.", "by 10 to 20 points most of the time",
              f"by {mean:.1f} points in the mean, at most {max(gaps):.1f}", mean >= 10,
              "" if mean >= 10 else _why_fig9(run.hived, case.nodes)),
        Claim("The fragmentation is always lower.", "always", f"not higher in {lower:.0%} of the hours", lower == 1.0),
    )  # fmt: skip
    rows = tuple(
        (t, *(case.owned[t].get(level, 0) for level in ("node", "socket", "switch", "gpu"))) for t in case.owned
    )
    figure = Figure(
        "fragmentation", "Nodes not available for an 8-GPU regular job", "day", "%",
        tuple(Series(label, [k / 24 for k in range(len(values))], values) for label, values in share.items()),
    )  # fmt: skip
    table = Table("Cells by tenant where there is every level", ("tenant", "8 GPUs", "4", "2", "1"), rows)
    how = ("cells of each level as the tenant's GPU time is divided among job sizes; node cells for its largest gang",)
    return Findings(claims, (table,), (figure,), CONVENTIONS + _scale(setup) + how)


def _why_fig9(single: Replayed, nodes: int) -> str:
    s = single.series
    packed = sum(s.regular_gpus) / (NODE_GPUS * nodes) / len(s.regular_gpus)
    most = 100 * (_bound(single, nodes) - packed)
    return (
        f"Perfect packing of the same jobs could save {most:.0f} points in the mean: most GPU time is in jobs of 8 and"
        " more, and what a tenant uses beyond its small cells spills into its node cells."
    )


# ---- what a request costs


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


@dataclass(frozen=True)
class Costs:
    """What a run of requests cost; seconds."""

    gpus: int
    start_s: float
    peak_kb: int
    """Of the process, once the cells were made."""
    requests_s: Mapping[str, list[float]]
    """By kind: up to a node, or a pod."""
    releases_s: Sequence[float]
    outcomes: Mapping[str, int]


def costs(pods: int, nodes: int, requests: int, seed: int = 0) -> Costs:
    """Requests of random level, four in five of them followed by the release of a running group.

    Half the GPUs run opportunistic one-GPU groups. A request's time is all of choosing, binding, ending its victims
    at once and placing it.
    """
    rng = random.Random(seed)
    file = cluster(pods, nodes)
    begin_s = time.perf_counter()
    plan = layout(file)
    cells = Cells(plan)
    start_s = time.perf_counter() - begin_s
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(pods * nodes * NODE_GPUS // 2):
        cells.request(Request(f"o{number}", f"t{number % TENANTS}", OPPORTUNISTIC, ((1, 1),)))
    chain = plan.chains[0]
    levels = [k for k, name in enumerate(chain.names) if name]
    running: list[str] = []
    found: dict[str, list[float]] = {"up to a node": [], "pod": []}
    released: list[float] = []
    outcomes = {outcome.value: 0 for outcome in Outcome}
    for i in range(requests):
        level = rng.choice(levels)
        pod = chain.names[level] == "pod"
        members = ((nodes, NODE_GPUS),) if pod else ((1, chain.sizes[level]),)
        request = Request(f"g{i}", f"t{rng.randrange(TENANTS)}", 0, members, within="pod" if pod else None)
        begin_s = time.perf_counter()
        decision = cells.request(request)
        if decision.outcome is Outcome.PREEMPT:
            for victim in decision.victims:
                cells.release(victim)
            decision = cells.request(request)
        found["pod" if pod else "up to a node"].append(time.perf_counter() - begin_s)
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
    return Costs(len(chain.indices), start_s, peak_kb, found, released, outcomes)


def profile(setup: Setup) -> Findings:
    """HiveD section 5.3: what a request costs on 65,536 GPUs and on smaller clusters."""
    shapes = [(8, 32), (8, 256), (8, 1024)]
    rows, small = [], []
    for pods, nodes in shapes:
        setup.note(f"{pods} x {nodes} x 8 GPUs")
        cost = costs(pods, nodes, 1000 if setup.quick else 10_000)
        found = cost.requests_s
        every = [t for times in found.values() for t in times]
        rows.append((cost.gpus, cost.start_s, *_us(every), *_us(found["up to a node"]), *_us(found["pod"])))
        small.append(_us(found["up to a node"])[0])
    mean_ms = rows[-1][2] / 1000
    claims = (
        Claim("Mean time of a request on 65,536 GPUs.", "2.18 ms", f"{mean_ms:.3f} ms", mean_ms < 2.18),
        Claim("The cost does not grow with the cluster (requests up to a node).", "not given",
              f"{small[0]:.0f} us on {rows[0][0]} GPUs, {small[-1]:.0f} us on {rows[-1][0]}", small[-1] < 3 * small[0]),
    )  # fmt: skip
    columns = ("GPUs", "start-up s", "mean us", "p99 us", "up to a node: mean us", "p99 us", "pods: mean us", "p99 us")
    sizes = [r[0] for r in rows]
    figure = Figure(
        "cost", "A request's cost", "GPUs", "microseconds",
        (Series("up to a node", sizes, small), Series("pods", sizes, [r[6] for r in rows])), log_x=True, log_y=True,
    )  # fmt: skip
    how = (
        "8 pods of 1,024 nodes of 8 GPUs are 65,536 GPUs; the 8 x 256 x 8 that the paper prints are 16,384",
        "half the GPUs run opportunistic 1-GPU jobs; a pod's request ends thousands of them, which is in its time",
        "wall time on a machine that may run other work",
    )
    return Findings(claims, (Table("Requests of random level", columns, tuple(rows)),), (figure,), how)


def _us(values: Sequence[float]) -> tuple[float, float]:
    """Mean and p99, microseconds."""
    ordered = sorted(values)
    return 1e6 * sum(ordered) / len(ordered), 1e6 * ordered[int(0.99 * (len(ordered) - 1))]
