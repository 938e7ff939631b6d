"""Runs until ratios are known, and distribution functions, for figures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from pycontrol.lab.paper_metrics import metrics
from pycontrol.lab.runs import Interval, SimulationRun, cores, metric_ratio, run_many
from pycontrol.simulation.result import Result

PRECISION = 0.05
"""Stop early: the half-width of the interval as a share of the mean (of the ratio to the first policy)."""


def run_groups(
    groups: Sequence[Sequence[SimulationRun]],
    processes: int | None = None,
    done: Callable[[int, int], None] | None = None,
) -> list[list[Result]]:
    """The results, group by group; `done` is told how many runs of how many are done."""
    jobs, count = [job for group in groups for job in group], itertools.count(1)
    found = run_many(jobs, processes, lambda _: done(next(count), len(jobs)) if done else None)
    return [[next(found) for _ in group] for group in groups]


def run_until(
    jobs_of: Callable[[int], Sequence[SimulationRun]],
    metric: str,
    seeds: Sequence[int],
    least: int = 8,
    precision: float = PRECISION,
    processes: int | None = None,
    done: Callable[[int, int], None] | None = None,
) -> list[list[Result]]:
    """Seed by seed the results of `jobs_of(seed)`, its first job being the one that the others are held against.

    Stops once at least `least` seeds ran and every ratio of `metric` to the first job's is known to `precision`.
    """
    results: list[list[Result]] = []
    while len(results) < len(seeds):
        batch = max(least - len(results), processes or cores())  # many at once, so that no core waits for the slowest
        groups = [list(jobs_of(seed)) for seed in seeds[len(results) : len(results) + batch]]
        results += run_groups(groups, processes, done)
        found = [[metrics(r) for r in group] for group in results]
        ratios = [metric_ratio(other, base, metric) for base, *rest in [zip(*found, strict=True)] for other in rest]
        if len(results) >= least and all(known(r, precision) for r in ratios):
            break
    return results


def known(found: Interval, precision: float = PRECISION) -> bool:
    """Whether the half-width of the interval is within that share of the mean."""
    return found.n >= 2 and found.high - found.low <= 2 * precision * abs(found.mean)


def cdf(values: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The empirical CDF: sorted values, and the share of values not above each."""
    x = np.sort(np.asarray(values, dtype=float))
    return x, np.arange(1, len(x) + 1) / max(1, len(x))
