"""The gain of lies, by search: by one app or by two together, with one or two lies each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pycontrol.lab.kit import Setup
from pycontrol.lab.runs import Interval, SimulationRun, paired_ratio, run_many
from pycontrol.lab.themis.sweeps import Scene, Variant
from pycontrol.model.topology import Topology
from pycontrol.simulation.simulation_settings import HONEST, Misreport
from pycontrol.simulation.trace_apps import TraceApp, Workload

SINGLE: Mapping[str, tuple[float, ...]] = {
    "slowdown": (0.5, 2.0),
    "work": (0.3, 0.7, 1.4, 3.0),
    "total": (0.1, 0.5, 0.8, 0.9, 1.1, 1.25, 2.0, 4.0),
    "elapsed": (0.3, 3.0),
    "loss": (0.3, 3.0),
    "rho": (0.5, 2.0),
    "width": (0.5, 2.0),
}
"""{field of Misreport: factors of the truth}. `work` is the work left."""
AT_ONCE: Mapping[str, tuple[float, ...]] = {
    "slowdown": (2.0,),
    "work": (0.5, 3.0),
    "total": (0.5, 2.0),
    "elapsed": (3.0,),
    "loss": (3.0,),
}
"""Combinations of two lies by the same app."""
WITH_PADDING = (("width", 2.0), ("width", 0.5), ("total", 0.5), ("work", 0.3))
"""What a padded app also says."""
TOGETHER: Mapping[str, tuple[float, ...]] = {
    "slowdown": (2.0,),
    "work": (0.5, 3.0),
    "total": (0.5, 0.9, 1.25, 2.0),
    "elapsed": (3.0,),
    "loss": (3.0,),
}
"""Lies that two apps tell together."""


@dataclass(frozen=True)
class WorkLie:
    """The lies of one or two liars."""

    name: str
    said: Misreport = HONEST
    liars: int = 1
    padded: bool = False
    """Whether one-second jobs widen its first phase to the whole cluster."""
    agentless: bool = False
    """Whether it has no Agent, if its gangs fit on one machine."""

    def told(self, app: TraceApp, cluster: Topology) -> TraceApp:
        """The app as its user submits it."""
        more = max(0, cluster.gpus // app.gang_gpus - len(app.phases[0])) if self.padded else 0
        first = app.phases[0] + (float(app.gang_gpus),) * more
        agentless = self.agentless and app.gang_gpus <= cluster.largest_gpus
        return replace(app, phases=(first, *app.phases[1:]), agentless=agentless)


def lies(few: bool) -> list[WorkLie]:
    """Single lies, padding, no Agent, two at once, lies of two apps; if `few`, the extremes of single lies."""
    single = {k: (v[0], v[-1]) for k, v in SINGLE.items()} if few else SINGLE
    found = [WorkLie(f"{k} x {x:g}", replace(HONEST, **{k: x})) for k, values in single.items() for x in values]
    found += [WorkLie("padded with one-second jobs", padded=True), WorkLie("no Agent", agentless=True)]
    if few:
        return found
    for a, b in itertools.combinations(AT_ONCE, 2):
        for x, y in itertools.product(AT_ONCE[a], AT_ONCE[b]):
            found.append(WorkLie(f"{a} x {x:g}, {b} x {y:g}", replace(HONEST, **{a: x, b: y})))
    padded = [WorkLie(f"padded, {k} x {x:g}", replace(HONEST, **{k: x}), padded=True) for k, x in WITH_PADDING]
    found += [*padded, WorkLie("padded, no Agent", padded=True, agentless=True)]
    pairs = [(k, x) for k, values in TOGETHER.items() for x in values]
    return found + [WorkLie(f"{k} x {x:g} by two apps", replace(HONEST, **{k: x}), 2) for k, x in pairs]


@dataclass(frozen=True)
class Gain:
    """The best lie under a policy: found on some apps of some seeds, and measured on other seeds."""

    policy: str
    lie: str
    searched: Interval
    """Liar's (or two liars' mean) completion time relative to honesty, on the seeds of the search."""
    confirmed: Interval
    tried: int

    @property
    def percent(self) -> float:
        """The gain in completion time on the fresh seeds, percent; negative if the lie costs."""
        return 100 * (1 - self.confirmed.mean)

    @property
    def percent_most(self) -> float:
        """The gain at the far end of its 95 % interval, percent."""
        return 100 * (1 - self.confirmed.low)


def best_lie(setup: Setup, where: Scene, policy: Variant, seeds: Sequence[int], liars: int, few: bool) -> Gain:
    """Searches on the first quarter of the seeds, confirms the best lie on the others."""
    part = max(1, len(seeds) // 4)
    tried = lies(few)
    setup.note(f"{where.label}: {len(tried)} lies under {policy.label}")
    found = _ratios(setup, where, policy, seeds[:part], tried, liars)
    best = min(tried, key=lambda lie: found[lie.name].mean)
    setup.note(f"{where.label}: {best.name} under {policy.label}, on fresh seeds")
    again = _ratios(setup, where, policy, seeds[part:] or seeds, [best], liars)
    return Gain(policy.label, best.name, found[best.name], again[best.name], len(tried))


def _groups(workload: Workload, liars: int, size: int) -> list[tuple[str, ...]]:
    """Who lies: apps of all sizes, the largest and the smallest too; each alone, or with the next larger one."""
    ids = [a.app_id for a in sorted(workload.apps, key=lambda a: a.work_gpu_s)]
    last = len(ids) - size
    return [tuple(ids[i : i + size]) for i in sorted({k * last // max(1, liars - 1) for k in range(liars)})]


def _ratios(
    setup: Setup, where: Scene, policy: Variant, seeds: Sequence[int], tried: Sequence[WorkLie], liars: int
) -> dict[str, Interval]:
    """Lying / honest of completion times, by lie."""
    found = times(setup, where, policy, seeds, tried, liars)
    return {name: paired_ratio([t for t, _ in pairs], [t for _, t in pairs]) for name, pairs in found.items()}


def times(
    setup: Setup, where: Scene, policy: Variant, seeds: Sequence[int], tried: Sequence[WorkLie], liars: int
) -> dict[str, list[tuple[float, float]]]:
    """Completion times, (lying, honest), s, by lie; each of several liars, or pairs of them, by itself."""
    jobs: list[SimulationRun] = []
    cases: list[tuple[int, str, tuple[str, ...]]] = []
    """Seed, lie and liars of each job; no lie in the honest run."""
    for seed in seeds:
        workload = where.load(seed)
        cases.append((seed, "", ()))
        jobs.append(policy.job(workload, where, seed))
        for lie in tried:
            for group in _groups(workload, liars, lie.liars):
                cases.append((seed, lie.name, group))
                lying = replace(policy, world=(("lies", dict.fromkeys(group, lie.said)),))
                cluster = where.topology()
                apps = tuple(lie.told(a, cluster) if a.app_id in group else a for a in workload.apps)
                jobs.append(lying.job(replace(workload, apps=apps), where, seed))
    pairs: dict[str, list[tuple[float, float]]] = {lie.name: [] for lie in tried}
    honest: dict[str, float] = {}
    for (_, name, group), result in zip(cases, run_many(jobs, setup.processes), strict=True):
        took_s = {a.app_id: a.completion_s for a in result.apps}
        if name:
            pairs[name].append((sum(took_s[a] for a in group), sum(honest[a] for a in group)))
        else:
            honest = took_s
    return pairs
