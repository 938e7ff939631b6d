"""Drawing from stated distributions so that the sample has their marginals: stratified quantiles, bursty arrivals."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from pycontrol.lab.workloads.trace_table import Floats

Knots = tuple[tuple[float, float], ...]
"""(probability, value) of a distribution function, both rising, from probability 0 to 1."""

_UNTIL_NOON = (1.20, 1.15, 1.05, 0.99, 1.08, 1.18, 1.35, 1.94, 1.18, 1.04, 0.90, 0.76)
_FROM_NOON = (0.83, 0.54, 0.64, 0.56, 0.95, 0.82, 0.69, 0.85, 1.09, 0.87, 1.11, 1.23)
HOURS = _UNTIL_NOON + _FROM_NOON
"""Jobs of each hour of the day relative to the mean (Philly's jobs, Pacific time)."""
WEEKDAYS = (0.89, 1.13, 1.04, 1.32, 1.48, 0.63, 0.51)
"""Jobs of each day of the week from Monday on, relative to the mean (the same)."""
_SHORT: Knots = ((0.0, 1.0), (0.6, 1.0), (0.75, 1.0), (0.9, 2.0), (0.95, 4.0))
BURSTS: Knots = (*_SHORT, (0.99, 36.0), (0.999, 369.0), (1.0, 1089.0))
"""Jobs that one user submits with gaps of a minute at most (the same: one virtual cluster and GPU count)."""
BURST_GAP_S = 12.0
"""Mean gap inside a burst."""
HOUR_S = 3600.0


def quantile(knots: Knots, u: Floats, log: bool = True) -> Floats:
    """Values at probabilities u, interpolated between the knots, in the logarithm unless `log` is false."""
    p, v = np.array(knots).T
    return np.asarray(np.exp(np.interp(u, p, np.log(v))) if log else np.interp(u, p, v))


def stratified(rng: Generator, n: int) -> Floats:
    """n uniforms, one in each n-th of [0, 1), in random order: their sample quantiles are right to 1/n."""
    return (rng.permutation(n) + rng.random(n)) / max(n, 1)


def ranks(values: Floats) -> Floats:
    """Each value's place among all of them, as a probability in (0, 1)."""
    order = np.empty(len(values))
    order[np.argsort(values, kind="stable")] = np.arange(len(values)) + 0.5
    return order / max(len(values), 1)


def coupled(rng: Generator, u: Floats, correlation: float) -> Floats:
    """Uniforms whose normal scores correlate so with those of u; each has its place of a stratified sample."""
    noise = rng.standard_normal(len(u))
    base = rng.standard_normal(len(u))
    base = np.sort(base)[np.argsort(np.argsort(u))]
    return ranks(correlation * base + np.sqrt(1 - correlation**2) * noise)


def rates(span_s: float) -> Floats:
    """Relative arrival rate of each hour of a span that begins on a Monday at midnight."""
    hour = np.arange(int(np.ceil(span_s / HOUR_S)))
    return np.asarray(np.array(HOURS)[hour % 24] * np.array(WEEKDAYS)[(hour // 24) % 7])


def arrivals(rng: Generator, n: int, span_s: float, rate: Floats, bursts: Knots = BURSTS) -> Floats:
    """n arrival times in [0, span_s), sorted: bursts begin at the relative rate by hour, members follow closely.

    No burst is larger than a hundredth of all.
    """
    if n == 0:
        return np.zeros(0)
    sizes = np.minimum(np.rint(quantile(bursts, rng.random(n))), max(4, n // 100)).astype(int)
    count = int(np.searchsorted(np.cumsum(sizes), n)) + 1
    sizes = sizes[:count]
    edges = np.minimum(np.arange(len(rate) + 1) * HOUR_S, span_s)
    share = np.concatenate([[0.0], np.cumsum(rate * np.diff(edges))])
    begin_s = np.interp(rng.random(count) * share[-1], share, edges)
    burst = np.repeat(np.arange(count), sizes)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    gaps = np.cumsum(rng.exponential(BURST_GAP_S, len(burst)))
    times = begin_s[burst] + gaps - gaps[first]
    return np.sort(times[:n] % span_s)
