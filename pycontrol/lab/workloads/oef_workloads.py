"""OEF's workloads (Middleware '24, section 6): tenants with speedup vectors on 24 GPUs of three types.

The paper says: 8 x RTX 3070, 8 x 3080, 8 x 3090, four of a type on a host; VGG, ResNet, DenseNet (CIFAR-100), LSTM,
RNN, Transformer (WikiText-2) with random hyper-parameters; a 3090 is 1.39 times a 3070 for VGG and 2.15 times for
LSTM (Figure 1); 20 tenants of one job type each for throughput (6.3.1); 50 tenants of 20 jobs on average over three
days for completion times, contention as in Philly (6.3.2).

Chosen here: the other models lie between VGG and LSTM; a 3080 has 55 % of the 3090's gain; hyper-parameters move a
tenant's gain by a normal 5 % within the range; jobs have 1, 2 or 4 workers; tenants arrive as a
Poisson process in the first half of the three days, each one's jobs as another in the day and a half that follows; run
times as Philly's 1-GPU jobs between their 25 % and 95 % quantiles, scaled to the load, 0.9 of the GPUs by default (as
the slowest type).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.random import Generator
from pydantic import PositiveFloat, PositiveInt

from pycontrol.lab.workloads import measured_speedups
from pycontrol.lab.workloads.building import DAY_S, queue_of
from pycontrol.lab.workloads.hived import RUN_TIMES
from pycontrol.lab.workloads.sampling import quantile, stratified
from pycontrol.simulation.trace_apps import TraceApp, Workload

TYPES = ("RTX 3070", "RTX 3080", "RTX 3090")
GPUS = 24
HOST_GPUS = 4
FASTEST = {"vgg": 1.39, "resnet": 1.55, "densenet": 1.65, "transformer": 1.85, "rnn": 2.0, "lstm": 2.15}
"""Speed on a 3090, a 3070 being 1; VGG and LSTM are the paper's."""
MIDDLE = 0.55
"""A 3080's part of the 3090's gain."""
HYPER_SIGMA = 0.05
WORKERS = (1, 2, 4)
WORKER_SHARES = (0.5, 0.3, 0.2)
LONG_S = 30 * DAY_S


@dataclass(frozen=True, kw_only=True)
class Tenants:
    """Options of oef and oef-20."""

    tenants: PositiveInt = 50
    jobs: PositiveInt = 20
    """Of a tenant, on average."""
    profile: Literal["paper", "lambda", "gavel", "sia"] = "paper"
    """Where speedups come from: the paper's range, or measured profiles of RTX 3070-3090 (lambda), K80-V100 (gavel)
    or T4-A100 (sia)."""
    data: str = ""
    """Folder with these profiles; empty: ISONOMY_DATA, or ../shared/data."""


@dataclass(frozen=True, kw_only=True)
class OefWorkload(Tenants):
    """Options of oef."""

    days: PositiveFloat = 3.0
    """In which they arrive."""
    load: PositiveFloat = 0.9
    """GPU time asked for, on the slowest type, over that of 24 GPUs."""


@dataclass(frozen=True, kw_only=True)
class Oef20(Tenants):
    """Options of oef-20."""

    tenants: PositiveInt = 20
    jobs: PositiveInt = 4


def speedups(options: Tenants) -> dict[str, dict[str, float]]:
    """Speedup vectors by job type: GPU type -> speed, 1 on the slowest."""
    if options.profile == "paper":
        return {model: _vector(gain) for model, gain in FASTEST.items()}
    return measured_speedups.load(options.profile, Path(options.data) if options.data else None)


def _vector(gain: float) -> dict[str, float]:
    return dict(zip(TYPES, (1.0, 1 + MIDDLE * (gain - 1), gain), strict=True))


def _tenants(rng: Generator, o: Tenants) -> list[tuple[str, dict[str, float]]]:
    """Each tenant's job type and speedups: types in turn, in random order."""
    known = speedups(o)
    names = list(known)
    chosen = [names[i % len(names)] for i in rng.permutation(o.tenants).tolist()]
    if o.profile != "paper":
        return [(model, known[model]) for model in chosen]
    low, high = FASTEST["vgg"], FASTEST["lstm"]
    spread = 1 + HYPER_SIGMA * rng.standard_normal(o.tenants)
    gains = np.clip(1 + (np.array([FASTEST[m] for m in chosen]) - 1) * spread, low, high)
    return [(model, _vector(gain)) for model, gain in zip(chosen, gains.tolist(), strict=True)]


def oef(options: OefWorkload, seed: int) -> Workload:
    """Completion times: tenants arrive as a Poisson process, each with jobs of one type that arrive as another."""
    rng = np.random.default_rng([seed, 5])
    tenants = _tenants(rng, options)
    span_s = options.days * DAY_S
    counts = (1 + rng.poisson(options.jobs - 1, options.tenants)).tolist()
    begins_s = rng.uniform(0, span_s / 2, options.tenants).tolist()
    total = sum(counts)
    workers = rng.choice(WORKERS, total, p=WORKER_SHARES)
    run_s = quantile(RUN_TIMES[1], 0.25 + 0.7 * stratified(rng, total))
    run_s *= options.load * GPUS * span_s / float((run_s * workers).sum())
    apps: list[TraceApp] = []
    for t, (model, vector) in enumerate(tenants):
        name = f"t{t:02d}"
        for at_s in np.sort(begins_s[t] + rng.uniform(0, span_s / 2, counts[t])).tolist():
            i = len(apps)
            gang, work = int(workers[i]), float(run_s[i] * workers[i])
            app = TraceApp(f"oef-{i:04d}", at_s, gang, ((work,),), queue_of(name), name, model, speedups=vector)
            apps.append(app)
    apps.sort(key=lambda a: a.submitted_s)
    first_s = apps[0].submitted_s
    apps = [replace(a, submitted_s=a.submitted_s - first_s) for a in apps]
    return Workload("oef", tuple(apps), f"oef, seed {seed}, {options.profile} speedups, load {options.load:g}")


def oef_20(options: Oef20, seed: int) -> Workload:
    """Throughput of tenants that always have work: their jobs are there at time 0 and last a month each."""
    rng = np.random.default_rng([seed, 6])
    apps: list[TraceApp] = []
    for t, (model, vector) in enumerate(_tenants(rng, options)):
        for workers in rng.choice(WORKERS, options.jobs, p=WORKER_SHARES).tolist():
            name = f"t{t:02d}"
            phases = ((LONG_S * workers,),)
            app = TraceApp(f"oef-{len(apps):04d}", 0.0, workers, phases, queue_of(name), name, model, speedups=vector)
            apps.append(app)
    return Workload("oef-20", tuple(apps), f"oef-20, seed {seed}, {options.profile} speedups")
