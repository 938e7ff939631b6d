"""The jobs, tenants and cells that HiveD's experiments share, and the three ways to run them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pycontrol.lab.hived import simulated
from pycontrol.lab.hived.simulated import LEASE_S, NODE_GPUS, Ran
from pycontrol.lab.hived.trace_case import LEVELS, WIDTHS, TraceCase
from pycontrol.lab.kit import Setup
from pycontrol.lab.workloads import load
from pycontrol.simulation.trace_apps import TraceApp

DAY_S = 86400.0
WINDOW_S = 12 * 3600.0
DAYS = 62.0
"""Length of the trace in days."""
LOAD = 1.0
"""GPU time over that of 2,232 GPUs: regular jobs then use about 70 % of 279 and 80 % of 200 nodes, as in Figure 7."""
LOWER_LOAD = 0.70
"""The load if the paper's 70 % meant all jobs."""
NODES = {
    "res-a": 1,
    "res-b": 2,
    "res-c": 2,
    "res-d": 4,
    "res-e": 5,
    "res-f": 78,
    "prod-a": 24,
    "prod-b": 29,
    "prod-c": 31,
    "prod-d": 43,
    "prod-e": 54,
}
"""8-GPU nodes by tenant. Table 1's percentages are exactly these over 273; six of the 279 nodes have no owner."""
CLUSTER_NODES = 279
PHILLY_FROM_DAY = 12.0
"""The day of Philly's trace, with faster arrivals, on which jobs want more than its cluster has."""
FROM_DAY = 20.0
"""The day on which a part of the trace begins. Jobs that would run then, if there were room for all, are present from
the start with their remaining work, because an empty cluster takes weeks to fill."""

CONVENTIONS = (
    "the trace is generated to the paper's tables (its original is not public), at a load of 1.0 of 2,232 GPUs, so that"
    " regular jobs use about as much as in Figure 7",
    "every schedule is the Arbiter's, by the policies that are shipped, in the simulator",
    f"leases of {LEASE_S:g} s; who gives way keeps its progress and loses no time; an excess delay counts from a lease"
    " and a minute on, which is what a policy that decides when leases end may take",
    "a job's delay is all the time that it waits until a day after the last arrival, also after a preemption; some"
    " tenants of the trace ask for several times what they own, and would wait for months",
    "jobs larger than their tenant's own share are left out, since its private cluster could never run them",
)


SHORT_DAYS = 2.0
"""At all nodes (`--full`), too: the cost grows with the square of the days, because more and more jobs wait."""


@dataclass(frozen=True)
class TraceSize:
    """The part of the trace to run: one in `part` nodes and jobs, for `days` days, with `seeds` seeds."""

    part: int
    days: float
    seeds: int

    def __str__(self) -> str:
        nodes = "" if self.part == 1 else f"1/{self.part} of the nodes and jobs, "
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{nodes}{self.days:g} of {DAYS:g} days, from day {FROM_DAY:g} on, {seeds}"


def size(setup: Setup) -> TraceSize:
    """Small with five seeds, all nodes with one (`--full`), or smaller still (`--quick`)."""
    if setup.full:
        return TraceSize(1, SHORT_DAYS, setup.seeds or 1)
    return TraceSize(16, 0.5, setup.seeds or 1) if setup.quick else TraceSize(16, SHORT_DAYS, setup.seeds or 5)


def multiple(gpus: int) -> int:
    """A job's GPUs rounded up: to a power of two up to 8, or to whole nodes."""
    if gpus > NODE_GPUS:
        return -(-gpus // NODE_GPUS) * NODE_GPUS
    return next(width for width in WIDTHS if width >= gpus)


def apportioned(shares: Mapping[str, float], total: int, least: int = 1) -> dict[str, int]:
    """`total` nodes in proportion to `shares`, at least `least` each (largest remainders)."""
    wanted = {t: max(float(least), s * total / sum(shares.values())) for t, s in shares.items()}
    found = {t: max(least, int(w)) for t, w in wanted.items()}
    while sum(found.values()) > total:
        most = max((t for t in found if found[t] > least), key=lambda t: found[t] - wanted[t])
        found[most] -= 1
    while sum(found.values()) < total:
        short = max(found, key=lambda t: wanted[t] - found[t])
        found[short] += 1
    return found


def make(
    name: str, nodes: int, owned: Mapping[str, Mapping[str, int]], apps: Sequence[TraceApp], until_s: float
) -> TraceCase:
    """A case of these apps; jobs that no private cluster could run are left out."""
    most = {
        t: max(NODE_GPUS * cells.get("node", 0), *(WIDTHS[LEVELS.index(k)] for k, n in cells.items() if n))
        for t, cells in owned.items()
    }
    rows: list[tuple[str, int, int, float, float]] = []
    left_out = 0
    for app in apps:
        tenant, gpus = app.queue.removeprefix("root."), multiple(app.gang_gpus)
        if gpus > most.get(tenant, 0):
            left_out += 1
            continue
        rows.append((tenant, len(rows), gpus, app.submitted_s, app.work_gpu_s / app.gang_gpus))
    return TraceCase(name, nodes, owned, tuple(rows), left_out, until_s, until_s + DAY_S)


@functools.lru_cache(maxsize=4)
def _trace(share: float, load_: float, seed: int, days: float) -> tuple[TraceApp, ...]:
    return window(load("hived", seed=seed, share=share, load=load_).apps, days)


def window(apps: Sequence[TraceApp], days: float, from_day: float = FROM_DAY) -> tuple[TraceApp, ...]:
    """The jobs of `days` days from `from_day`, and the rest of those running then; all jobs for `DAYS`."""
    if days >= DAYS:
        return tuple(apps)
    from_s, until_s = from_day * DAY_S, (from_day + days) * DAY_S
    found = []
    for app in apps:
        left_s = app.submitted_s + app.work_gpu_s / app.gang_gpus - max(from_s, app.submitted_s)
        if app.submitted_s < until_s and left_s > 0:
            at_s = max(0.0, app.submitted_s - from_s)
            found.append(TraceApp(app.app_id, at_s, app.gang_gpus, ((app.gang_gpus * left_s,),), app.queue, app.user))
    return tuple(found)


def full(
    nodes: int = CLUSTER_NODES, part: int = 1, seed: int = 0, load_: float = LOAD, days: float = DAYS
) -> TraceCase:
    """The trace on the whole cluster or on 200 nodes; a `part` of 4 is a quarter of the nodes and of the jobs.

    Nodes are divided like the 273 of Table 1, at least one per tenant; six of the 279 have no owner.
    """
    spare = CLUSTER_NODES - sum(NODES.values()) if nodes == CLUSTER_NODES else 0
    here = -(-nodes // part)
    mine = apportioned(NODES, here - -(-spare // part))
    apps = _trace(1.0 / part, load_, seed, days)
    return make(f"{here} nodes", here, {t: {"node": n} for t, n in mine.items()}, apps, days * DAY_S)


def small(seed: int = 0, days: float = DAYS) -> TraceCase:
    """The cluster experiment: 96 GPUs and an equally large share of the jobs (section 5.2.1).

    The five tenants with a quota below one node own single GPUs of one node, the others whole nodes.
    """
    large = {t: n for t, n in NODES.items() if n > 20}
    owned: dict[str, dict[str, int]] = {t: {"node": n} for t, n in apportioned(large, 11).items()}
    few = apportioned({t: n for t, n in NODES.items() if t not in large}, NODE_GPUS)
    owned |= {t: {"gpu": n} for t, n in few.items()}
    apps = _trace(12 / CLUSTER_NODES, LOAD, seed, days)
    return make("96 GPUs", 12, {t: owned[t] for t in NODES}, apps, days * DAY_S)


def philly(path: Path, quotas: Path, target_load: float, days: float) -> tuple[TraceCase, float, float]:
    """Philly's jobs of `days` days from `PHILLY_FROM_DAY`, when its cluster is full, with quotas in nodes.

    Returns (case, original load of the whole trace, factor by which arrivals are faster).
    """
    lines = [line.split(",") for line in quotas.read_text(encoding="utf-8").splitlines()[1:] if line.strip()]
    nodes = {vc: int(n) for vc, n in lines}
    apps = [a for a in load(path).apps if a.queue.removeprefix("root.") in nodes]
    span_s = apps[-1].submitted_s - apps[0].submitted_s
    total = sum(nodes.values())
    as_is = sum(a.work_gpu_s for a in apps) / (total * NODE_GPUS * span_s)
    faster = target_load / as_is
    quick = window([_sooner(a, faster) for a in apps], days, PHILLY_FROM_DAY)
    case = make("philly", total, {vc: {"node": n} for vc, n in nodes.items()}, quick, days * DAY_S)
    return case, as_is, faster


def _sooner(app: TraceApp, faster: float) -> TraceApp:
    return TraceApp(app.app_id, app.submitted_s / faster, app.gang_gpus, app.phases, app.queue, app.user)


def by_level(case: TraceCase) -> TraceCase:
    """The case with cells of every level, divided like each tenant's GPU time among job sizes (section 5.3)."""
    time: dict[str, list[float]] = {t: [0.0] * len(WIDTHS) for t in case.owned}
    for tenant, _, gpus, _, run_s in case.spec:
        time[tenant][WIDTHS.index(min(gpus, NODE_GPUS))] += gpus * run_s
    owned: dict[str, dict[str, int]] = {}
    for tenant, parts in time.items():
        left = case.gpus(tenant)
        cells: dict[str, int] = {}
        total = sum(parts) or 1.0
        for k in range(len(WIDTHS) - 1, 0, -1):
            cells[LEVELS[k]] = int(min(left, parts[k] / total * case.gpus(tenant)) // WIDTHS[k])
            left -= cells[LEVELS[k]] * WIDTHS[k]
        cells[LEVELS[0]] = left
        largest = max((g for t, _, g, _, _ in case.spec if t == tenant), default=1)
        while cells["node"] * NODE_GPUS < largest >= NODE_GPUS and _merge(cells):
            pass
        owned[tenant] = {level: n for level, n in cells.items() if n}
    return dataclasses.replace(case, name=f"{case.name}, cells of every level", owned=owned)


def _merge(cells: dict[str, int]) -> bool:
    """Merge smaller cells into one more node cell; False if there are too few."""
    need = NODE_GPUS
    taken: dict[str, int] = {}
    for k in range(len(WIDTHS) - 2, -1, -1):
        taken[LEVELS[k]] = min(cells.get(LEVELS[k], 0), need // WIDTHS[k])
        need -= taken[LEVELS[k]] * WIDTHS[k]
    if need:
        return False
    for level, n in taken.items():
        cells[level] -= n
    cells["node"] += 1
    return True


class CaseRuns:
    """The runs of a case, each made at most once."""

    def __init__(self, case: TraceCase, policy: str = "yarn_cs", restart_s: float = 0.0) -> None:
        """`restart_s`: what a restart costs, but on private clusters."""
        self.case, self.policy, self.restart_s = case, policy, restart_s

    @functools.cached_property
    def private(self) -> Ran:
        """All tenants, each on its private cluster."""
        return simulated.private(self.case, self.policy)

    @functools.cached_property
    def quota(self) -> Ran:
        """All tenants on one cluster, by GPU quota."""
        return simulated.quota(self.case, self.policy)

    @functools.cached_property
    def hived(self) -> Ran:
        """All tenants on one cluster, by cells."""
        return simulated.hived(self.case, self.policy, restart_s=self.restart_s)

    @functools.cached_property
    def on_schedule(self) -> Ran:
        """By cells, with each virtual cluster's private schedule."""
        return simulated.hived(self.case, self.policy, private_schedule=True, restart_s=self.restart_s)

    @functools.cached_property
    def static(self) -> Ran:
        """By statically bound cells."""
        return simulated.hived(self.case, self.policy, static=True)

    @property
    def alone_s(self) -> Mapping[int, float]:
        """Each job's delay in its tenant's private cluster."""
        return self.private.delay_s

    def excess_s(self, shared: Ran, tenant: str | None = None, multi: bool = False) -> list[float]:
        """Each job's delay in a shared cluster minus that in the private one; `multi`: only jobs with several GPUs."""
        return [
            shared.delay_s[n] - self.alone_s[n]
            for t, n, gpus, _, _ in self.case.spec
            if tenant in (None, t) and (gpus > 1 or not multi)
        ]

    def windows(self, delay_s: Mapping[int, float], tenant: str) -> tuple[list[float], list[float]]:
        """(days, minutes): the mean delay of the jobs submitted in each period of 12 hours."""
        found: dict[int, list[float]] = {}
        for t, n, _, at_s, _ in self.case.spec:
            if t == tenant:
                found.setdefault(int(at_s // WINDOW_S), []).append(delay_s[n] / 60)
        return [k * WINDOW_S / DAY_S for k in sorted(found)], [sum(v) / len(v) for _, v in sorted(found.items())]


@dataclass(frozen=True)
class Wanted:
    """Runs to make: a case, and the names of properties of `CaseRuns`."""

    case: Callable[[], TraceCase]
    ways: tuple[str, ...]
    policy: str = "yarn_cs"
    restart_s: float = 0.0

    def __call__(self) -> CaseRuns:
        """Make the runs."""
        runs = CaseRuns(self.case(), self.policy, self.restart_s)
        for way in self.ways:
            getattr(runs, way)
        return runs


def made(setup: Setup, wanted: Sequence[Wanted]) -> list[CaseRuns]:
    """Make all these runs in parallel; runs of earlier experiments are reused."""
    kept: dict[str, CaseRuns] = setup.runs.setdefault(made, {})
    keys = [f"{w.case} {w.policy} {w.restart_s}" for w in wanted]
    todo = [(key, _missing(kept.get(key), w)) for key, w in zip(keys, wanted, strict=True)]
    todo = [(key, w) for key, w in todo if w.ways]
    for k, ((key, w), runs) in enumerate(zip(todo, _run(setup, [w for _, w in todo]), strict=True), 1):
        known = kept.setdefault(key, runs)
        for way in w.ways:
            known.__dict__[way] = runs.__dict__[way]
        setup.note(f"{runs.case.name}, {w.policy}: {k} of {len(todo)}")
    return [kept[key] for key in keys]


def _missing(known: CaseRuns | None, wanted: Wanted) -> Wanted:
    ways = tuple(way for way in wanted.ways if known is None or way not in known.__dict__)
    return dataclasses.replace(wanted, ways=ways)


def _run(setup: Setup, wanted: Sequence[Wanted]) -> Iterator[CaseRuns]:
    return setup.each(Wanted.__call__, wanted)


def on_nodes(nodes: int, size_: TraceSize, ways: tuple[str, ...], load_: float = LOAD) -> list[Wanted]:
    """The trace on 279 or 200 nodes, seed by seed."""
    return [
        Wanted(functools.partial(full, nodes, size_.part, seed, load_, size_.days), ways) for seed in range(size_.seeds)
    ]
