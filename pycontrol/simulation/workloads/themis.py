"""Themis' two workloads, generated to the marginals that the paper prints (NSDI '20, sections 2.2 and 8.1).

What it prints: 85 apps in two weeks; 10 % with one job, the others with up to 100 jobs, 75 in the median; the
median app takes 11.5 GPU-days, the median task 3.75 GPU-hours, many are ten times shorter or longer; 1 or 2 GPUs a
job in W1; W2 has W1's arrivals, jobs by successive halving, and more tasks a job; models 10 % vision, 60 % language,
30 % speech.

What it leaves open, and what is taken here: arrivals are Poisson with bursts; durations are log-normal between apps
and inside an app; W2's apps start with 8, 16, 32 or 64 jobs of 2, 4 or 8 GPUs, keep the better half, and spend the
same on every phase, so that a W2 app takes as long as W1's app of the same rank would. S across machines follows
Table 1 for VGG16 and Inception-v3 and the models' size beside their speed for the others; across racks the loss is
twice as large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pycontrol.simulation.apps import TraceApp, Workload

APPS = 85
SPAN_DAYS = 14.0
TASK_MEDIAN_H = 3.75
BETWEEN_APPS, INSIDE_APP = 1.0, 0.45
"""Sigma of the log-normal durations."""
JOBS_MEDIAN, JOBS_SPREAD, JOBS_MAX = 75, 18, 100
SINGLE_JOB_SHARE = 0.1
BURST = 0.3
"""Share of apps that come within an hour of the one before."""

MODELS: dict[str, tuple[tuple[str, float], ...]] = {
    "vision": (("inception-v3", 1.0), ("alexnet", 1.25), ("resnet50", 1.05), ("vgg16", 1.29), ("vgg19", 1.29)),
    "language": (("bi-att-flow", 1.05), ("langmodel", 1.2), ("gnmt", 1.15), ("transformer", 1.1)),
    "speech": (("wavenet", 1.05), ("deepspeech", 1.2)),
}
"""Category -> models and their S across the machines of a rack."""
MIX = {"vision": 0.1, "language": 0.6, "speech": 0.3}
NETWORK_BOUND, COMPUTE_BOUND = ("vgg16", 1.29), ("inception-v3", 1.0)


def slowdown_of(across_machines: float) -> tuple[float, float, float]:
    """S on one machine, in a rack, anywhere."""
    return 1.0, across_machines, 1 + 2 * (across_machines - 1)


def w1(
    seed: int = 0,
    apps: int = APPS,
    span_days: float = SPAN_DAYS,
    scale: float = 1.0,
    network: float | None = None,
) -> Workload:
    """W1: explorations of many small jobs. `scale` multiplies durations and the span.

    `network`: share of apps bound by the network (VGG16's S), the others by computing (none); None: the paper's mix.
    """
    rng = np.random.default_rng([seed, 1])
    arrivals, tasks_h = _apps(rng, apps, span_days, scale)
    made = []
    for i in range(apps):
        gang, jobs = int(rng.choice([1, 2], p=[0.8, 0.2])), _jobs(rng)
        work = tasks_h[i] * 3600 * gang * rng.lognormal(0.0, INSIDE_APP, jobs)
        made.append(_app(f"w1-{i:03d}", arrivals[i], gang, (tuple(map(float, work)),), _model(rng, network)))
    return Workload("w1", tuple(made), f"Themis W1, seed {seed}, {apps} apps in {span_days * scale:g} days")


def w2(
    seed: int = 0,
    apps: int = APPS,
    span_days: float = SPAN_DAYS,
    scale: float = 1.0,
    network: float | None = None,
) -> Workload:
    """W2: W1's arrivals and app sizes, jobs by successive halving, more tasks a job. Options as in W1."""
    rng = np.random.default_rng([seed, 1])
    arrivals, tasks_h = _apps(rng, apps, span_days, scale)
    rng = np.random.default_rng([seed, 2])
    made = []
    for i in range(apps):
        gang = int(rng.choice([2, 4, 8], p=[0.3, 0.5, 0.2]))
        jobs = 1 if rng.random() < SINGLE_JOB_SHARE else int(rng.choice([8, 16, 32, 64], p=[0.1, 0.3, 0.4, 0.2]))
        total_gpu_s = tasks_h[i] * 3600 * (JOBS_MEDIAN if jobs > 1 else 1) * 1.2
        made.append(_app(f"w2-{i:03d}", arrivals[i], gang, halving(rng, jobs, total_gpu_s), _model(rng, network)))
    return Workload("w2", tuple(made), f"Themis W2, seed {seed}, {apps} apps in {span_days * scale:g} days")


def halving(rng: np.random.Generator, jobs: int, total_gpu_s: float) -> tuple[tuple[float, ...], ...]:
    """Phases of jobs, jobs/2, ..., 1 with the same budget each (Hyperband's bracket); a job keeps its own speed."""
    phases = int(math.log2(jobs)) + 1
    speed = rng.lognormal(0.0, INSIDE_APP / 2, jobs)
    made = []
    for k in range(phases):
        alive = speed[: jobs >> k]
        made.append(tuple(map(float, alive * total_gpu_s / phases / len(alive))))
    return tuple(made)


def _apps(rng: np.random.Generator, apps: int, span_days: float, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Arrival times in seconds, and the median task of each app in hours."""
    gaps = rng.exponential(1.0, apps)
    gaps[rng.random(apps) < BURST] *= 0.05
    arrivals = np.cumsum(gaps) - gaps[0]
    arrivals *= span_days * 86400 * scale / max(arrivals[-1], 1e-9) if apps > 1 else 0.0
    return arrivals, scale * TASK_MEDIAN_H * rng.lognormal(0.0, BETWEEN_APPS, apps)


def _jobs(rng: np.random.Generator) -> int:
    if rng.random() < SINGLE_JOB_SHARE:
        return 1
    return int(np.clip(round(rng.normal(JOBS_MEDIAN, JOBS_SPREAD)), 20, JOBS_MAX))


def _model(rng: np.random.Generator, network: float | None) -> tuple[str, float]:
    draw, which = rng.random(), rng.random()
    if network is not None:
        return NETWORK_BOUND if draw < network else COMPUTE_BOUND
    category = list(MIX)[int(np.searchsorted(np.cumsum(list(MIX.values())), draw, side="right").clip(0, 2))]
    models = MODELS[category]
    return models[int(which * len(models))]


def _app(
    app_id: str, submitted_s: float, gang: int, phases: tuple[tuple[float, ...], ...], model: tuple[str, float]
) -> TraceApp:
    return TraceApp(app_id, float(submitted_s), gang, phases, model=model[0], slowdown=slowdown_of(model[1]))


def marginals(workload: Workload) -> dict[str, float]:
    """What the paper prints of its trace, of any workload. A task is one GPU of one job."""
    apps = workload.apps
    jobs = [max(map(len, a.phases)) for a in apps]
    app_days = [a.work_gpu_s / 86400 for a in apps]
    tasks_h = [job / a.gang_gpus / 3600 for a in apps for phase in a.phases for job in phase]
    span_s = max(a.submitted_s for a in apps) - min(a.submitted_s for a in apps)
    return {
        "apps": float(len(apps)),
        "single_job_share": float(np.mean([j == 1 for j in jobs])),
        "jobs_median": _median([j for j in jobs if j > 1]),
        "jobs_max": float(max(jobs)),
        "app_gpu_days_median": _median(app_days),
        "task_gpu_h_median": _median(tasks_h),
        "gpus_per_job_mean": float(np.mean([a.gang_gpus for a in apps])),
        "work_gpu_days": float(sum(app_days)),
        "mean_demand_gpus": sum(app_days) * 86400 / span_s if span_s > 0 else math.nan,
    }


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else math.nan
