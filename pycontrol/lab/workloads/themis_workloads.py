"""Workloads 1 and 2 of the Themis paper, drawn to the marginals that it states (NSDI '20, sections 2.2 and 6.1).

The paper says: 85 apps; ~10 % have one job, ~90 % explore hyper-parameters with as many as 100 jobs, median 75; the
median app takes 11.5 GPU-days and the median task 3.75 GPU-hours; demand is bursty, ~50 GPUs on average; a two-week
snapshot; 10 % CV, 60 % NLP, 30 % Speech. Workload 2 keeps the arrivals of Workload 1, its jobs per app follow
successive halving, and its jobs have more tasks. The apps themselves are not published.

Chosen here, because the paper leaves it open:
- The statements bind each other. 50 GPUs over two weeks are 700 GPU-days, 8.2 an app, less than the median app: so
  large apps are alike (at most 30 GPU-days) and the small half is much smaller. "Many apps 10x longer" than the median
  cannot be true beside these. Medians first: demand comes out at 55 GPUs, the median task at 3.7 hours (over 100
  seeds; 2.7 to 4.1 by seed).
- Large apps have many jobs, and the jobs of such apps one task (rank correlations), or tasks would be shorter still.
- 20 % of an exploration's jobs are stopped early at a uniform point; the others run as long, give or take 10 %.
- Workload 1: 3 of 4 jobs have 1 GPU, the others 2 (the text of Figure 8's axis is lost; the issue says 1 to 2).
- Workload 2: halving from 1 to 64 jobs, every phase the same GPU time; the jobs of a phase differ as their seconds an
  iteration (sigma 20 %), survivors keep theirs; GPUs of a gang stay the same over the phases.
- Arrivals follow the hours and weekdays of Philly's jobs, in small bursts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.random import Generator
from pydantic import Field, PositiveFloat

from pycontrol.lab.workloads.building import DAY_S
from pycontrol.lab.workloads.models import draw
from pycontrol.lab.workloads.sampling import Knots, arrivals, coupled, quantile, ranks, rates, stratified
from pycontrol.lab.workloads.trace_table import Floats
from pycontrol.simulation.trace_apps import TraceApp, Workload

_SMALL: Knots = ((0.0, 0.04), (0.02, 0.11), (0.12, 0.4), (0.28, 0.9), (0.36, 2.0), (0.45, 4.0), (0.485, 9.0))
_LARGE: Knots = ((0.49, 11.5), (0.55, 11.6), (0.74, 15.0), (0.88, 18.5), (0.96, 23.0), (1.0, 30.0))
APP_GPU_DAYS = _SMALL + _LARGE
JOBS: Knots = ((0.0, 10.0), (0.15, 20.0), (0.3, 36.0), (0.435, 75.0), (0.8, 80.0), (0.92, 88.0), (1.0, 100.0))
"""Of apps that explore; 43.5 % of them, with the single jobs half of all apps, have fewer than 75."""
SINGLE = 0.1
CORRELATION = 0.9
"""Of app size and number of jobs, normal scores."""
GANG_CORRELATION = 0.6
"""Of few jobs and more tasks each, Workload 1."""
STOPPED = 0.2
LENGTH_SIGMA = 0.1
SPEED_SIGMA = 0.2
GANGS_1: Knots = ((0.0, 1), (0.75, 2))
"""Tasks a job: (share of the apps below it, tasks)."""
GANGS_2: Knots = ((0.0, 1), (0.2, 2), (0.38, 4), (0.98, 8))
HALVING: Knots = ((0.0, 1), (0.1, 2), (0.2, 4), (0.44, 8), (0.66, 16), (0.78, 32), (0.88, 64))
"""Jobs of the first phase: (share of the apps below it, jobs)."""
Phases = list[tuple[tuple[float, ...], ...]]
"""App, phase, job: serial GPU-seconds."""
ARRIVAL_BURSTS: Knots = ((0.0, 1.0), (0.7, 1.0), (0.9, 2.0), (1.0, 4.0))


@dataclass(frozen=True, kw_only=True)
class ThemisWorkload:
    """Options of w1 and w2."""

    count: Annotated[int, Field(ge=1, le=100_000)] = 85
    """Apps."""
    days: PositiveFloat = 14.0
    """Over which they arrive."""
    contention: PositiveFloat = 1.0
    """How many times as fast they arrive."""
    shorter: PositiveFloat = 1.0
    """All times divided by it, arrivals and work: the same load in less time."""
    network_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of apps with VGG16's slowdown, the others having Inception-v3's; none: the model mix."""


def w1(options: ThemisWorkload, seed: int) -> Workload:
    """Workload 1: explorations whose jobs run beside each other, with 1 to 2 GPUs each."""
    return _workload("w1", options, seed)


def w2(options: ThemisWorkload, seed: int) -> Workload:
    """Workload 2: the arrivals and sizes of Workload 1 for the same seed, jobs by successive halving, more tasks."""
    return _workload("w2", options, seed)


def _workload(name: str, o: ThemisWorkload, seed: int) -> Workload:
    shared = np.random.default_rng([seed, 1])
    span_s = o.days * DAY_S / o.shorter
    rate = rates(o.days * DAY_S)
    at_s = arrivals(shared, o.count, o.days * DAY_S, rate, ARRIVAL_BURSTS) / o.shorter / o.contention
    u = stratified(shared, o.count)
    work_gpu_s = quantile(APP_GPU_DAYS, u) * DAY_S / o.shorter
    models = draw(shared, o.count, o.network_share)
    rng = np.random.default_rng([seed, 2 if name == "w1" else 3])
    phases, gangs = (_explorations if name == "w1" else _halvings)(rng, u, work_gpu_s)
    apps = tuple(
        TraceApp(f"{name}-{i:03d}", float(at_s[i]), gangs[i], phases[i], model=m.name, slowdown=m.slowdown)
        for i, m in enumerate(models)
    )
    return Workload(name, apps, f"{name}, seed {seed}, {o.count} apps in {span_s / o.contention / DAY_S:.3g} days")


def _steps(knots: Knots, u: Floats) -> Floats:
    """The value of the last knot at or below each u."""
    p, v = np.array(knots).T
    return np.asarray(v[np.searchsorted(p, u, side="right") - 1])


def _explorations(rng: Generator, u: Floats, work_gpu_s: Floats) -> tuple[Phases, list[int]]:
    place = coupled(rng, u, CORRELATION)
    explores = place >= SINGLE
    jobs = np.where(explores, np.rint(quantile(JOBS, (place - SINGLE) / (1 - SINGLE), log=False)), 1).astype(int)
    gangs = _steps(GANGS_1, coupled(rng, place, -GANG_CORRELATION)).astype(int).tolist()
    phases: Phases = []
    for n, total in zip(jobs.tolist(), work_gpu_s.tolist(), strict=True):
        length = np.exp(LENGTH_SIGMA * rng.standard_normal(n))
        length *= np.where((rng.random(n) < STOPPED) & (n > 1), rng.uniform(0.02, 1.0, n), 1.0)
        phases.append((tuple((length * (total / length.sum())).tolist()),))
    return phases, gangs


def _halvings(rng: Generator, u: Floats, work_gpu_s: Floats) -> tuple[Phases, list[int]]:
    first = _steps(HALVING, ranks(coupled(rng, u, CORRELATION))).astype(int)
    gangs = _steps(GANGS_2, stratified(rng, len(u))).astype(int).tolist()
    phases: Phases = []
    for n, total in zip(first.tolist(), work_gpu_s.tolist(), strict=True):
        speed = np.exp(SPEED_SIGMA * rng.standard_normal(n))
        rounds = [speed[: n >> p] for p in range(n.bit_length())]
        each = total / len(rounds)
        phases.append(tuple(tuple((s * (each / s.sum())).tolist()) for s in rounds))
    return phases, gangs
