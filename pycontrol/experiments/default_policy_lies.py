"""What an app gains by lying about itself, by search: alone and in pairs of lies, over its whole life."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pycontrol.experiments.kit import Setup
from pycontrol.experiments.themis_runs import Scene, Variant
from pycontrol.simulation.runs import Interval, Job, paired_ratio, run_many
from pycontrol.simulation.settings import HONEST, Misreport

SINGLE: Mapping[str, tuple[float, ...]] = {
    "slowdown": (0.5, 2.0),
    "work": (0.3, 0.7, 1.4, 3.0),
    "total": (0.1, 0.5, 0.8, 0.9, 1.1, 1.25, 2.0, 4.0),
    "elapsed": (0.3, 3.0),
    "loss": (0.3, 3.0),
    "rho": (0.5, 2.0),
}
"""Field of Misreport -> what the truth is multiplied by. `work` is the work left."""
IN_PAIRS: Mapping[str, tuple[float, ...]] = {
    "slowdown": (2.0,), "work": (0.5, 3.0), "total": (0.5, 2.0), "elapsed": (3.0,), "loss": (3.0,),
}  # fmt: skip


def lies(quick: bool) -> dict[str, Misreport]:
    """By name: each alone, and pairs of different kinds; fewer in quick runs."""
    single = {k: v[:: max(1, len(v) - 1)] for k, v in SINGLE.items()} if quick else SINGLE
    found = {f"{k} x {x:g}": replace(HONEST, **{k: x}) for k, values in single.items() for x in values}
    if quick:
        return found
    for a, b in itertools.combinations(IN_PAIRS, 2):
        for x, y in itertools.product(IN_PAIRS[a], IN_PAIRS[b]):
            found[f"{a} x {x:g}, {b} x {y:g}"] = replace(HONEST, **{a: x, b: y})
    return found


@dataclass(frozen=True)
class Gain:
    """The best lie against a policy: found on some apps of some seeds, confirmed on other seeds."""

    policy: str
    lie: str
    searched: Interval
    """Completion time of the liar / the same app's when it is honest, where the lie was searched for."""
    confirmed: Interval
    tried: int

    @property
    def percent(self) -> float:
        """Of completion time, on the fresh seeds; negative where the lie costs."""
        return 100 * (1 - self.confirmed.mean)

    @property
    def percent_most(self) -> float:
        """The same at the far end of its 95 % interval."""
        return 100 * (1 - self.confirmed.low)


def best_lie(setup: Setup, where: Scene, policy: Variant, seeds: Sequence[int], liars: int) -> Gain:
    """Searches on the first half of the seeds, confirms the best lie on the others."""
    half = max(1, len(seeds) // 2)
    all_lies = lies(setup.quick)
    setup.note(f"{where.label}: {len(all_lies)} lies under {policy.label}")
    found = _ratios(setup, where, policy, seeds[:half], all_lies, liars)
    best = min(found, key=lambda name: found[name].mean)
    setup.note(f"{where.label}: {best} under {policy.label}, on fresh seeds")
    again = _ratios(setup, where, policy, seeds[half:] or seeds, {best: all_lies[best]}, liars)
    return Gain(policy.label, best, found[best], again[best], len(all_lies))


def _ratios(
    setup: Setup, where: Scene, policy: Variant, seeds: Sequence[int], said: Mapping[str, Misreport], liars: int
) -> dict[str, Interval]:
    """Liar / honest of completion times, by lie; each of several apps lies alone, the largest and the smallest too."""
    jobs: list[Job] = []
    cases: list[tuple[int, str, str]] = []
    """Seed, lie and liar of each job; no lie in the honest run."""
    for seed in seeds:
        workload = where.load(seed)
        by_work = sorted(workload.apps, key=lambda a: a.work_gpu_s)
        chosen = {by_work[k * (len(by_work) - 1) // max(1, liars - 1)].app_id for k in range(liars)}
        cases.append((seed, "", ""))
        jobs.append(policy.job(workload, where, seed))
        for name, lie in said.items():
            for app_id in sorted(chosen):
                cases.append((seed, name, app_id))
                jobs.append(replace(policy, world=(("lies", {app_id: lie}),)).job(workload, where, seed))
    done: dict[tuple[int, str], list[tuple[str, float]]] = {}
    honest: dict[tuple[int, str], float] = {}
    for (seed, name, liar), result in zip(cases, run_many(jobs, setup.processes), strict=True):
        times = {a.app_id: a.completion_s for a in result.apps}
        if name:
            done.setdefault((seed, name), []).append((liar, times[liar]))
        else:
            honest |= {(seed, a): t for a, t in times.items()}
    ratios = {}
    for name in said:
        pairs = [(t, honest[seed, a]) for seed in seeds for a, t in done[seed, name]]
        ratios[name] = paired_ratio([t for t, _ in pairs], [t for _, t in pairs])
    return ratios
