"""Shared by Themis' sweeps: policies as variants, workloads on clusters as scenes, and runs by seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycontrol.lab import clusters
from pycontrol.lab.kit import Claim, Series, Setup, Table
from pycontrol.lab.kit import shown as with_interval
from pycontrol.lab.measures import cdf, run_until
from pycontrol.lab.paper_metrics import metrics
from pycontrol.lab.policies.variants import make
from pycontrol.lab.runs import Interval, SimulationRun, interval, metric_ratio
from pycontrol.lab.workloads import load
from pycontrol.model.topology import Topology
from pycontrol.simulation.result import Result
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import Workload

Items = tuple[tuple[str, Any], ...]

CONVENTIONS = (
    "Themis unless stated: f 0.8, leases of 600 s that all end together (aligned), leftovers at random among apps "
    "outside the auction, unbiased rounding to whole gangs, projected rho of an app with nothing, no cached tables",
    "every policy has the same leases, and an allocation change costs 5 s (checkpoint) and 35 s (restart)",
    "workloads drawn to the paper's marginals, all times divided by 10: 85 apps of 28 GPU-hours in the median (Table 5 "
    "shows apps of 1 and 10); on the 64 GPUs of the testbed unless stated",
    "baselines pack tightly and break ties first come first served, unless stated",
    "rho = T_sh / (T_cluster x N_avg); `path` is rho with T_cluster no shorter than the app's longest path",
)


# ---- policies


@dataclass(frozen=True)
class Variant:
    """A policy with its options, the Arbiter's settings and those of the simulation."""

    label: str
    policy: str = "themis"
    options: Items = ()
    arbiter: Items = ()
    world: Items = ()

    def job(self, workload: Workload, scene: Scene, seed: int) -> SimulationRun:
        """One simulation of this variant."""
        settings = SimulationSettings(arbiter=dataclasses.replace(ARBITER, **dict(self.arbiter)), **dict(self.world))
        return SimulationRun(workload, scene.topology(), self.policy, dict(self.options), settings, seed, make=make)

    def under(self, **arbiter: Any) -> Variant:
        """A copy with other settings of the Arbiter."""
        return dataclasses.replace(self, arbiter=(*self.arbiter, *arbiter.items()))


def variant(label: str, policy: str = "themis", arbiter: Mapping[str, Any] | None = None, **options: Any) -> Variant:
    """A variant with the policy's options as keywords."""
    return Variant(label, policy, tuple(options.items()), tuple((arbiter or {}).items()))


THEMIS = variant("themis")
OPEN_HANDED = variant("themis, leftovers worst first, bidders too", leftovers="worst_first", participants=True)
TWICE_WORST = variant("rho with nothing: twice the worst", rho_nothing="twice_worst")
"""Nearer to the paper's unbounded rho of an app with nothing; larger payments, and theorem 3.2 does not hold."""
WORST_FIRST = variant("worst_first", "worst_first")
BASELINES = ("gandiva", "tiresias", "optimus", "slaq", "srtf", "srsf", "drf")
PACKED = tuple(variant(name, name) for name in BASELINES)
RANDOM_TIES = tuple(variant(f"{name}, random ties", name, ties="random") for name in BASELINES)
UNPACKED = tuple(variant(f"{name}, unpacked", name, packing="random") for name in BASELINES)


# ---- workloads on clusters

APPS, DAYS = 85, 14.0
"""Number of apps, and length in days, of the paper's trace."""
SHORTER = 10.0
"""All times are divided by it, as for the paper's testbed: the median app takes about 28 GPU-hours."""
QUICK_APPS = 20


@dataclass(frozen=True)
class Scene:
    """A workload on a cluster.

    `apps`: the number of apps, at the density of the whole trace; `faster`, `smaller`: two ways to add contention.
    """

    workload: str
    cluster: str = "testbed-64"
    apps: int = APPS
    faster: float = 1.0
    smaller: float = 1.0
    network_share: float | None = None
    """Share of network-intensive apps, the others are compute-intensive; None: as in the workload."""

    def load(self, seed: int) -> Workload:
        """Its apps."""
        options = {"count": self.apps, "days": DAYS * self.apps / APPS, "shorter": SHORTER}
        share = {} if self.network_share is None else {"network_share": self.network_share}
        found = load(self.workload, seed, options | share)
        return clusters.denser(found, self.faster)

    def topology(self) -> Topology:
        """Its machines."""
        return clusters.shrunk(clusters.cluster(self.cluster), self.smaller)

    @property
    def label(self) -> str:
        """In words."""
        words = [self.workload.upper(), self.cluster]
        words += [f"{self.apps} apps"] if self.apps != APPS else []
        words += [f"arrivals x {self.faster:g}"] if self.faster != 1 else []
        words += [f"1/{self.smaller:g} of the machines"] if self.smaller != 1 else []
        words += [f"{self.network_share:.0%} network-intensive"] if self.network_share is not None else []
        return ", ".join(words)


def scene(setup: Setup, workload: str, **given: Any) -> Scene:
    """A scene of the size that the set-up allows."""
    return Scene(workload, apps=QUICK_APPS if setup.quick else APPS, **given)


# ---- runs


@dataclass(frozen=True)
class VariantRuns:
    """Results by the label of the variant, on the same seeds in the same order; the first is the reference."""

    scene: Scene
    results: Mapping[str, Sequence[Result]]

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(next(iter(self.results.values())))

    def values(self, label: str, metric: str) -> list[float]:
        """A metric, seed by seed."""
        return [metrics(r)[metric] for r in self.results[label]]

    def mean(self, label: str, metric: str = "rho_max") -> Interval:
        """The mean of a metric over the seeds."""
        return interval(self.values(label, metric))

    def ratio(self, label: str, to: str | None = None, metric: str = "rho_max") -> Interval:
        """Geometric mean of a metric's ratio to another variant's (default: the first's), paired by seed."""
        to = next(iter(self.results)) if to is None else to
        ours, theirs = ([metrics(r) for r in self.results[x]] for x in (label, to))
        return metric_ratio(ours, theirs, metric)

    def pooled(self, label: str, field: str) -> list[float]:
        """A figure of all finished apps of all seeds."""
        return [getattr(a, field) for r in self.results[label] for a in r.apps if a.finished_s is not None]

    def curve(self, label: str, field: str) -> Series:
        """The CDF of a figure over all finished apps."""
        x, share = cdf(self.pooled(label, field))
        keep = np.unique(np.linspace(0, len(x) - 1, min(200, len(x))).astype(int))
        return Series(label, [float(v) for v in x[keep]], [float(v) for v in share[keep]])


RECENT = 4
"""Runs that are kept for further figures."""


def measure(
    setup: Setup, where: Scene, variants: Sequence[Variant], usual: int, quick: int, metric: str = "rho_max"
) -> VariantRuns:
    """Run all variants on the seeds, with the first as the reference; stops early like `run_until`."""
    seeds = setup.seeds_of(usual, quick)

    def jobs_of(seed: int) -> list[SimulationRun]:
        workload = where.load(seed)
        return [v.job(workload, where, seed) for v in variants]

    def done(k: int, n: int) -> None:
        setup.note(f"{where.label}: {k} of {n} runs, {len(variants)} variants")

    def found() -> VariantRuns:
        return _by_label(where, variants, run_until(jobs_of, metric, seeds, processes=setup.processes, done=done))

    return _remembered(setup.runs.setdefault(measure, {}), (where, tuple(variants), seeds, metric), found)


def _by_label(where: Scene, variants: Sequence[Variant], groups: Sequence[Sequence[Result]]) -> VariantRuns:
    return VariantRuns(where, {v.label: [g[k] for g in groups] for k, v in enumerate(variants)})


def _remembered(
    recent: dict[tuple[Any, ...], VariantRuns], key: tuple[Any, ...], run: Callable[[], VariantRuns]
) -> VariantRuns:
    if key not in recent:
        while len(recent) >= RECENT:
            del recent[next(iter(recent))]
        recent[key] = run()
    return recent[key]


# ---- in words

ENOUGH = 3
"""The fewest seeds for a meaningful interval."""
FEW = f"By means alone: fewer than {ENOUGH} seeds."


def shown(value: Interval) -> str:
    """A mean, with its interval if there are enough seeds."""
    return with_interval(value) if value.n >= ENOUGH else f"{value.mean:.3g}"


def ratio_table(runs: VariantRuns, title: str, columns: Mapping[str, str], compared: str = "rho_max") -> Table:
    """One row per variant: means of the metrics, and the ratio of `compared` to the first variant's."""
    first = next(iter(runs.results))
    head = ("policy", *columns.values(), f"{columns.get(compared, compared)} / {first}'s")
    ratios = {label: shown(runs.ratio(label, metric=compared)) for label in runs.results} | {first: "1"}
    rows = [(label, *(shown(runs.mean(label, m)) for m in columns), ratios[label]) for label in runs.results]
    return Table(f"{title} ({runs.scene.label}; {runs.seeds} seeds)", head, tuple(rows))


def versus(
    runs: VariantRuns, labels: Sequence[str], ours: str = "themis", metric: str = "rho_max"
) -> dict[str, Interval]:
    """{label: ratio of a baseline's metric to ours}; above 1 if ours is better."""
    return {label: runs.ratio(label, ours, metric) for label in labels}


def spread(ratios: Mapping[str, Interval]) -> str:
    """The least and the largest ratio with their names."""
    low, high = (f(ratios, key=lambda n: ratios[n].mean) for f in (min, max))
    return f"{shown(ratios[low])} x ({low}) to {shown(ratios[high])} x ({high})"


def doubts(ratios: Mapping[str, Interval]) -> str:
    """The names of ratios that are not above 1, or not significantly different from 1."""
    worse = [f"{n} ({r.mean:.2f})" for n, r in ratios.items() if not r.mean > 1]
    unsure = [n for n, r in ratios.items() if r.low <= 1 <= r.high]
    said = [f"At least as good: {', '.join(worse)}."] if worse else []
    if min(r.n for r in ratios.values()) < ENOUGH:
        said += [FEW]
    elif unsure:
        said += [f"Not told from 1 at 95 %: {', '.join(unsure)}."]
    return " ".join(said)


def claim_best(claim: str, paper: str, ratios: Mapping[str, Interval], least: float = 1.0, why: str = "") -> Claim:
    """A claim that holds if every baseline's ratio is above `least`."""
    holds = all(r.mean > least for r in ratios.values())
    sure = all(r.low > least for r in ratios.values()) if holds else any(r.high <= least for r in ratios.values())
    return Claim(claim, paper, spread(ratios), holds, f"{doubts(ratios)} {why}".strip(), sure)


def claim_within(claim: str, paper: str, ratio: Interval, low: float, high: float, why: str = "") -> Claim:
    """A claim that holds if the ratio's mean is from `low` to `high`; notes if its interval is not."""
    sure = (low <= ratio.low and ratio.high <= high) or ratio.high < low or ratio.low > high
    unsure = FEW if ratio.n < ENOUGH else "" if sure else "Its 95 % interval allows either answer."
    return Claim(claim, paper, shown(ratio), bool(low <= ratio.mean <= high), f"{unsure} {why}".strip(), sure)
