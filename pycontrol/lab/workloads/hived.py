"""HiveD's trace (OSDI '20, section 5.1), regenerated: 141,950 jobs of 11 tenants on 2,232 GPUs in two months.

Exact from the paper: jobs by tenant and GPU count (Table 2), quotas (Table 1), models and their mix (Table 3).

Inferred: each tenant's GPU time. Table 4 gives the utilisation of each tenant's own cells under the default
assignment, Table 5 how much usage fluctuates (RF, standard deviation over cells) where cells are proportional to
demand. With gamma-distributed usage X, E min(X, quota) / quota = Table 4 has one solution for the mean: LOADS. As a
check, the same model predicts Table 5's utilisation to within 13 points (median 7).

Chosen here, because the trace is not published:
- Load 0.70 of the cluster ("around 70 %", 5.2.2; the 200 nodes are then at 98 %, the paper sees around 90 % used).
- Run times as Philly's by GPU count (quantiles below), scaled by tenant to its GPU time, 40 days at most.
- At least 16 GPUs: 16, 24, 32 or 64 as in Philly's jobs.
- Arrivals: Philly's hours, weekdays and bursts, times a daily level of each tenant (log-normal, correlation 0.85 from
  day to day, coefficient of variation RF / 0.607, as in the inference), so that peaks of tenants interlace (Figure 3).
- Affinity: up to 8 GPUs on one machine, always (5.2.1: "each job always prefers the desired level of affinity"); more
  on whole machines anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.random import Generator
from pydantic import Field, PositiveFloat

from pycontrol.lab.workloads.building import DAY_S
from pycontrol.lab.workloads.job_columns import Jobs
from pycontrol.lab.workloads.models import BY_NAME, draw
from pycontrol.lab.workloads.sampling import Knots, arrivals, quantile, rates, stratified
from pycontrol.lab.workloads.trace_table import Floats, Skipped
from pycontrol.model.topology import Scope
from pycontrol.simulation.trace_apps import Workload

GPUS = 2232
NODE_GPUS = 8
DAYS = 62.0
QUOTAS = {
    "res-a": 0.0037,
    "res-b": 0.0073,
    "res-c": 0.0073,
    "res-d": 0.0147,
    "res-e": 0.0183,
    "res-f": 0.2857,
    "prod-a": 0.0879,
    "prod-b": 0.1062,
    "prod-c": 0.1136,
    "prod-d": 0.1575,
    "prod-e": 0.1978,
}
"""Table 1: share of the cluster by tenant."""
CLASSES = (1, 2, 4, 8, 16)
"""Classes of GPUs per job; the last one stands for 16 and more."""
COUNTS = {
    "res-a": (429, 14, 260, 625, 40),
    "res-b": (18319, 1593, 931, 148, 238),
    "res-c": (3285, 161, 716, 185, 0),
    "res-d": (1754, 0, 0, 0, 0),
    "res-e": (2682, 110, 3005, 0, 0),
    "res-f": (8181, 88, 618, 1337, 559),
    "prod-a": (227, 54, 23, 1132, 138),
    "prod-b": (16446, 67, 605, 1344, 22),
    "prod-c": (4692, 301, 1905, 4415, 1206),
    "prod-d": (781, 6, 545, 650, 95),
    "prod-e": (58407, 532, 2118, 959, 2),
}
"""Table 2: jobs by tenant and class."""
LOADS = {
    "res-a": 0.618,
    "res-b": 1.867,
    "res-c": 3.596,
    "res-d": 0.231,
    "res-e": 0.773,
    "res-f": 0.463,
    "prod-a": 0.281,
    "prod-b": 0.471,
    "prod-c": 1.157,
    "prod-d": 0.492,
    "prod-e": 0.664,
}
"""Inferred: a tenant's mean GPUs in demand over its quota, at a cluster load of 0.607."""
FLUCTUATION = {
    "res-a": 0.36,
    "res-b": 0.65,
    "res-c": 0.82,
    "res-d": 1.58,
    "res-e": 0.70,
    "res-f": 0.38,
    "prod-a": 0.85,
    "prod-b": 0.44,
    "prod-c": 0.41,
    "prod-d": 0.41,
    "prod-e": 0.38,
}
"""Table 5: relative fluctuation of usage by tenant."""
RUN_TIMES: dict[int, Knots] = {
    1: (
        (0, 2),
        (0.01, 15),
        (0.05, 41),
        (0.1, 57),
        (0.25, 103),
        (0.5, 1131),
        (0.75, 3466),
        (0.9, 12489),
        (0.95, 42048),
        (0.99, 394840),
        (0.999, 2537158),
        (1, 4310287),
    ),
    2: (
        (0, 2),
        (0.01, 4),
        (0.05, 8),
        (0.1, 11),
        (0.25, 16),
        (0.5, 26),
        (0.75, 2874),
        (0.9, 145801),
        (0.95, 312368),
        (0.99, 769852),
        (0.999, 1970383),
        (1, 2500000),
    ),
    4: (
        (0, 2),
        (0.01, 9),
        (0.05, 29),
        (0.1, 57),
        (0.25, 251),
        (0.5, 4691),
        (0.75, 53251),
        (0.9, 152906),
        (0.95, 265594),
        (0.99, 896443),
        (0.999, 3241075),
        (1, 3776477),
    ),
    8: (
        (0, 2),
        (0.01, 6),
        (0.05, 22),
        (0.1, 44),
        (0.25, 247),
        (0.5, 5322),
        (0.75, 56277),
        (0.9, 195704),
        (0.95, 338761),
        (0.99, 902214),
        (0.999, 2446224),
        (1, 3697341),
    ),
    16: (
        (0, 2),
        (0.01, 3),
        (0.05, 11),
        (0.1, 20),
        (0.25, 103),
        (0.5, 2484),
        (0.75, 20509),
        (0.9, 78153),
        (0.95, 142837),
        (0.99, 366062),
        (0.999, 992408),
        (1, 1500000),
    ),
}
"""Seconds by class: quantiles of Philly's jobs (public trace, CC-BY-4.0)."""
LARGE = ((16, 0.765), (24, 0.035), (32, 0.19), (64, 0.01))
"""GPUs of jobs with at least 16, and their share."""
LONGEST_S = 40 * DAY_S
DAY_TO_DAY = 0.85
INFERRED_LOAD = 0.607


@dataclass(frozen=True, kw_only=True)
class Hived:
    """Options of hived."""

    load: PositiveFloat = 0.70
    """Requested GPU time over that of 2,232 GPUs in two months; run times are scaled to it."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Random share of each tenant's jobs of each class; 96/2232 for the paper's 96 GPUs."""
    affinity: Literal["hard", "soft"] = "hard"
    """Whether jobs of up to 8 GPUs run only on one machine."""


def hived(options: Hived, seed: int) -> Workload:
    """All tenants' jobs; queues are root.TENANT. About two seconds."""
    rng = np.random.default_rng([seed, 4])
    parts = [_tenant(rng, tenant, options) for tenant in COUNTS]
    at_s, gpus, run_s = (np.concatenate([p[i] for p in parts]) for i in range(3))
    queues = [tenant for tenant, p in zip(COUNTS, parts, strict=True) for _ in p[0]]
    order = np.argsort(at_s, kind="stable")
    hard = options.affinity == "hard"
    jobs = Jobs(
        ids=[f"hived-{i:06d}" for i in np.argsort(order).tolist()],
        submitted_s=at_s,
        gpus=gpus,
        work_gpu_s=run_s * gpus,
        queues=queues,
        users=queues,
        models=[m.name for m in draw(rng, len(at_s))],
        slowdown=lambda name: BY_NAME[name].slowdown,
        scopes=lambda g: Scope.MACHINE if hard and g <= NODE_GPUS else Scope.CLUSTER,
    )
    apps = jobs.apps(np.ones(len(at_s), dtype=bool), Skipped())
    source = f"hived, seed {seed}, load {options.load:g}" + (f", share {options.share:g}" if options.share < 1 else "")
    return Workload("hived", apps, source)


def _tenant(rng: Generator, tenant: str, o: Hived) -> tuple[Floats, Floats, Floats]:
    """(arrivals, GPUs, run times in seconds) of one tenant's jobs, unordered."""
    counts = [round(n * o.share) for n in COUNTS[tenant]]
    gpus = np.repeat(np.array(CLASSES, dtype=float), counts)
    large = gpus >= CLASSES[-1]
    sizes, shares = np.array(LARGE).T
    gpus[large] = rng.choice(sizes, int(large.sum()), p=shares / shares.sum())
    run_s = np.concatenate([quantile(RUN_TIMES[c], stratified(rng, n)) for c, n in zip(CLASSES, counts, strict=True)])
    total = LOADS[tenant] * QUOTAS[tenant] * GPUS * DAYS * DAY_S * o.load / INFERRED_LOAD * o.share
    run_s = _scaled(run_s, gpus, total)
    span_s = DAYS * DAY_S
    rate = rates(span_s) * np.repeat(_levels(rng, FLUCTUATION[tenant] / INFERRED_LOAD), 24)
    mixed = rng.permutation(len(gpus))
    return arrivals(rng, len(gpus), span_s, rate), gpus[mixed], run_s[mixed]


def _scaled(run_s: Floats, gpus: Floats, total_gpu_s: float) -> Floats:
    """Run times scaled by one factor, cut at LONGEST_S, so that their GPU time is `total_gpu_s` if possible."""
    low, high = 0.0, 1e6
    for _ in range(60):
        factor = np.sqrt(max(low, 1e-9) * high)
        short = float((np.minimum(run_s * factor, LONGEST_S) * gpus).sum()) < total_gpu_s
        low, high = (factor, high) if short else (low, factor)
    return np.minimum(run_s * high, LONGEST_S)


def _levels(rng: Generator, fluctuation: float) -> Floats:
    """A tenant's relative level of each day: a log-normal with this coefficient of variation, correlated in time."""
    days = int(DAYS)
    noise = rng.standard_normal(days)
    level = np.empty(days)
    level[0] = noise[0]
    for d in range(1, days):
        level[d] = DAY_TO_DAY * level[d - 1] + np.sqrt(1 - DAY_TO_DAY**2) * noise[d]
    return np.asarray(np.exp(np.sqrt(np.log(1 + fluctuation**2)) * level))
