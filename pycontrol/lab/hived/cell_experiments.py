"""HiveD's cells: dynamic and static binding (Figure 8), multi-level cells (Figure 9), cost of a request (5.3)."""

from __future__ import annotations

import functools
import random
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.cells.values import OPPORTUNISTIC
from pycontrol.lab.hived.cases import (
    CLUSTER_NODES,
    CONVENTIONS,
    DAY_S,
    LOAD,
    LOWER_LOAD,
    WINDOW_S,
    CaseRuns,
    Wanted,
    by_level,
    full,
    made,
    on_nodes,
    size,
)
from pycontrol.lab.hived.groups import GroupCells
from pycontrol.lab.hived.preemption import PriorityRequest
from pycontrol.lab.hived.sharing_experiments import by_seed
from pycontrol.lab.hived.simulated import HOUR_S, NODE_GPUS, Ran
from pycontrol.lab.hived.states import GroupState, PlacementOutcome
from pycontrol.lab.hived.trace_case import TraceCase
from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table, shown
from pycontrol.lab.runs import interval

TENANTS = 11
MUCH = 0.25
"""Share of preempted GPUs that dynamic binding must save for the claim to hold."""


def fig8(setup: Setup) -> Findings:
    """HiveD Figure 8: GPUs preempted with dynamic and with static binding."""
    claims, rows, figures = [], [], []
    here = size(setup)
    for load in (LOAD, LOWER_LOAD):
        runs = made(setup, on_nodes(CLUSTER_NODES, here, ("hived", "static"), load))
        both = (("dynamic", [r.hived for r in runs]), ("static", [r.static for r in runs]))
        gpus = {label: [sum(g for _, g in ran.preemptions) for ran in found] for label, found in both}
        taken = {label: sum(found) for label, found in gpus.items()}
        saved = 1 - taken["dynamic"] / taken["static"] if taken["static"] else 0.0
        seeds = [100 * (1 - d / s) for d, s in zip(gpus["dynamic"], gpus["static"], strict=True) if s]
        nodes = runs[0].case.nodes
        used = {label: _mean_of(found, "all_gpus") / NODE_GPUS / nodes for label, found in both}
        rows += [
            (
                load,
                label,
                sum(len(r.preemptions) for r in found),
                taken[label],
                100 * _mean_of(found, "broken_nodes") / nodes,
                100 * used[label],
            )
            for label, found in both
        ]
        why = f"Jobs of any kind use {used['dynamic']:.0%} of the GPUs: few idle to choose."
        claims.append(
            Claim(
                f"Load {load:g}: dynamic binding preempts fewer GPUs than static.",
                "55 % fewer",
                f"{100 * saved:.0f} % fewer{by_seed([f'{x:.0f}' for x in seeds])}",
                saved >= MUCH if seeds else None,
                "Static binding preempted none." if not seeds else "" if saved >= MUCH else why,
            )
        )
        lines = tuple(Series(label, *_by_window(found[0])) for label, found in both)
        figures.append(Figure(f"preempted-{load:g}", f"Preempted GPUs, load {load:g}", "day", "GPUs in 12 h", lines))
    columns = ("load", "binding", "moments", "GPUs preempted", "% of nodes with regular jobs", "% of GPUs used")
    how = (f"the claim counts as held from {100 * MUCH:.0f} % on",)
    table = Table("Preemptions, all seeds", columns, tuple(rows))
    return Findings(tuple(claims), (table,), tuple(figures), CONVENTIONS + how, here.seeds, size=str(here))


def _mean_of(found: Sequence[Ran], name: str) -> float:
    """Mean of a series over all hours and seeds."""
    values: list[int] = [v for ran in found for v in getattr(ran.series, name)]
    return sum(values) / max(1, len(values))


def _by_window(ran: Ran) -> tuple[list[float], list[float]]:
    found: dict[int, float] = {}
    for at_s, gpus in ran.preemptions:
        if at_s < len(ran.series.all_gpus) * HOUR_S:
            found[int(at_s // WINDOW_S)] = found.get(int(at_s // WINDOW_S), 0.0) + gpus
    windows = range(max(found, default=0) + 1)
    return [k * WINDOW_S / DAY_S for k in windows], [found.get(k, 0.0) for k in windows]


def finer(nodes: int, part: int, seed: int, load_: float, days: float) -> TraceCase:
    """The trace with cells of every level."""
    return by_level(full(nodes, part, seed, load_, days))


def fig9(setup: Setup) -> Findings:
    """HiveD Figure 9: fragmentation with cells of every level and with node cells only."""
    here = size(setup)
    coarse = made(setup, on_nodes(CLUSTER_NODES, here, ("hived",)))
    fine = made(
        setup,
        [
            Wanted(functools.partial(finer, CLUSTER_NODES, here.part, seed, LOAD, here.days), ("hived",))
            for seed in range(here.seeds)
        ],
    )
    nodes = coarse[0].case.nodes
    gaps = [
        [a - b for a, b in zip(_share(c, nodes), _share(f, nodes), strict=True)]
        for c, f in zip(coarse, fine, strict=True)
    ]
    every = [gap for found in gaps for gap in found]
    mean = sum(every) / len(every)
    lower = sum(gap >= 0 for gap in every) / len(every)
    points = interval([sum(found) / len(found) for found in gaps])
    claims = (
        Claim(
            "Cells of every level fragment the cluster less.",
            "by 10 to 20 points most of the time",
            f"by {shown(points)} points in the mean, at most {max(every):.1f}",
            mean >= 10,
            "" if mean >= 10 else _why_fig9(coarse, nodes),
            points.n < 2 or not points.low < 10 < points.high,
        ),
        Claim("The fragmentation is always lower.", "always", f"not higher in {lower:.0%} of the hours", lower == 1.0),
    )
    owned = fine[0].case.owned
    rows = tuple((t, *(owned[t].get(level, 0) for level in ("node", "socket", "switch", "gpu"))) for t in owned)
    figure = Figure(
        "fragmentation",
        "Nodes not available for an 8-GPU regular job",
        "day",
        "%",
        tuple(
            Series(label, [k / 24 for k in range(len(_share(run, nodes)))], _share(run, nodes))
            for label, run in (("node cells", coarse[0]), ("cells of every level", fine[0]))
        ),
    )
    table = Table("Cells by tenant where there is every level", ("tenant", "8 GPUs", "4", "2", "1"), rows)
    how = ("cells of each level as the tenant's GPU time is divided among job sizes; node cells for its largest gang",)
    return Findings(claims, (table,), (figure,), CONVENTIONS + how, here.seeds, size=str(here))


def _share(run: CaseRuns, nodes: int) -> list[float]:
    """Percentage of unavailable nodes, by hour."""
    return [100 * b / nodes for b in run.hived.series.broken_nodes]


def _why_fig9(coarse: Sequence[CaseRuns], nodes: int) -> str:
    found = [run.hived for run in coarse]
    most = 100 * (_mean_of(found, "broken_nodes") / nodes - _mean_of(found, "regular_gpus") / NODE_GPUS / nodes)
    return (
        f"Perfect packing of the same jobs could save {most:.0f} points in the mean: most GPU time is in jobs of 8 and"
        " more, and what a tenant uses beyond its small cells spills into its node cells."
    )


# ---- the cost of a request


def cluster(pods: int, nodes: int) -> CellsFile:
    """A cluster of pods of 8-GPU nodes. Eleven tenants own nearly all: some pods, then nodes and parts of nodes."""
    owned: dict[str, dict[str, int]] = {f"t{i}": {} for i in range(TENANTS)}
    whole = pods // 2
    for i in range(whole):
        owned[f"t{i % TENANTS}"]["pod"] = owned[f"t{i % TENANTS}"].get("pod", 0) + 1
    share = (pods - whole) * nodes // TENANTS
    for mine in owned.values():
        parts = share // 5
        mine |= {"node": share - 3 * parts, "socket": 2 * parts, "switch": 4 * parts, "gpu": 8 * parts}
    return CellsFile.model_validate(
        {
            "levels": {"switch": 2, "socket": 2, "node": 2, "pod": nodes},
            "hosts": [f"n{i}" for i in range(pods * nodes)],
            "virtual_clusters": owned,
        }
    )


@dataclass(frozen=True)
class Costs:
    """The costs of a run of requests; times in seconds."""

    gpus: int
    start_s: float
    peak_kb: int
    """Peak memory of the process after the cells were made."""
    requests_s: Mapping[str, list[float]]
    """Times by kind of request: up to a node, or a pod."""
    releases_s: Sequence[float]
    outcomes: Mapping[str, int]


def costs(pods: int, nodes: int, requests: int, seed: int = 0) -> Costs:
    """Measure requests of random levels, four in five of them followed by the release of a running group.

    Half the GPUs run opportunistic one-GPU groups. A request's time includes choosing and binding cells, ending its
    victims immediately, and placing it.
    """
    rng = random.Random(seed)
    file = cluster(pods, nodes)
    begin_s = time.thread_time()
    plan = layout(file)
    cells = GroupCells(plan)
    start_s = time.thread_time() - begin_s
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(pods * nodes * NODE_GPUS // 2):
        cells.request(PriorityRequest(f"o{number}", f"t{number % TENANTS}", OPPORTUNISTIC, ((1, 1),)))
    chain = plan.chains[0]
    levels = [k for k, name in enumerate(chain.names) if name]
    running: list[str] = []
    found: dict[str, list[float]] = {"up to a node": [], "pod": []}
    released: list[float] = []
    outcomes = {outcome.value: 0 for outcome in PlacementOutcome}
    for i in range(requests):
        level = rng.choice(levels)
        pod = chain.names[level] == "pod"
        members = ((nodes, NODE_GPUS),) if pod else ((1, chain.sizes[level]),)
        request = PriorityRequest(f"g{i}", f"t{rng.randrange(TENANTS)}", 0, members, within="pod" if pod else None)
        begin_s = time.thread_time()
        decision = cells.request(request)
        if decision.outcome is PlacementOutcome.PREEMPT:
            for victim in decision.victims:
                cells.release(victim)
            decision = cells.request(request)
        found["pod" if pod else "up to a node"].append(time.thread_time() - begin_s)
        outcomes[decision.outcome.value] += 1
        if decision.outcome is PlacementOutcome.PLACED:
            running.append(request.group)
        if running and rng.random() < 0.8:
            at = rng.randrange(len(running))
            running[at], running[-1] = running[-1], running[at]
            begin_s = time.thread_time()
            cells.release(running.pop())
            released.append(time.thread_time() - begin_s)
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
        Claim(
            "The cost does not grow with the cluster (requests up to a node).",
            "not given",
            f"{small[0]:.0f} us on {rows[0][0]} GPUs, {small[-1]:.0f} us on {rows[-1][0]}",
            small[-1] < 3 * small[0],
        ),
    )
    columns = ("GPUs", "start-up s", "mean us", "p99 us", "up to a node: mean us", "p99 us", "pods: mean us", "p99 us")
    sizes = [r[0] for r in rows]
    figure = Figure(
        "cost",
        "A request's cost",
        "GPUs",
        "microseconds",
        (Series("up to a node", sizes, small), Series("pods", sizes, [r[6] for r in rows])),
        log_x=True,
        log_y=True,
    )
    how = (
        "8 pods of 1,024 nodes of 8 GPUs are 65,536 GPUs; the 8 x 256 x 8 that the paper prints are 16,384",
        "half the GPUs run opportunistic 1-GPU jobs; a pod's request ends thousands of them, which is in its time",
        "a request to the cells' library, as the paper measures its own; `make bench` has the Arbiter's whole round",
        "processor time: the machine may run other work",
    )
    return Findings(claims, (Table("Requests of random level", columns, tuple(rows)),), (figure,), how)


def _us(values: Sequence[float]) -> tuple[float, float]:
    """Mean and p99, microseconds."""
    ordered = sorted(values)
    return 1e6 * sum(ordered) / len(ordered), 1e6 * ordered[int(0.99 * (len(ordered) - 1))]
