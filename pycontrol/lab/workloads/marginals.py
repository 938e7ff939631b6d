"""The marginals of a workload, next to the paper's figures where a paper states them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.console import RenderableType

from pycontrol.cli.tables import Data, lines, table
from pycontrol.lab.workloads import hived, models, oef_workloads
from pycontrol.lab.workloads.building import DAY_S, ROOT, Imported
from pycontrol.lab.workloads.trace_table import Floats
from pycontrol.simulation.trace_apps import TraceApp, Workload

HOUR_S = 3600.0


def _columns(apps: Sequence[TraceApp]) -> dict[str, Any]:
    """Arrays over the jobs of all apps and phases: app (index), phase, gang, work_gpu_s, duration_s (at S = 1)."""
    counts = [len(jobs) for a in apps for jobs in a.phases]
    app = np.repeat([i for i, a in enumerate(apps) for _ in a.phases], counts)
    phase = np.repeat([p for a in apps for p, _ in enumerate(a.phases)], counts)
    work = np.fromiter((w for a in apps for jobs in a.phases for w in jobs), float, sum(counts))
    gang = np.array([a.gang_gpus for a in apps], dtype=float)[app] if len(apps) else np.zeros(0)
    return {"app": app, "phase": phase, "gang": gang, "work_gpu_s": work, "duration_s": work / gang}


@dataclass(frozen=True)
class Marginal:
    """One figure of a workload. `paper`: the paper's value, None if it states none."""

    name: str
    ours: float
    paper: float | None = None
    source: str = ""
    """Source of the paper's figure."""


def jobs_per_app(workload: Workload) -> Floats:
    """Jobs of each app's largest phase (Themis, Figures 2 and 8)."""
    return np.array([max((len(jobs) for jobs in a.phases), default=0) for a in workload.apps], dtype=float)


def app_gpu_days(workload: Workload) -> Floats:
    """GPU time of each app (Themis, Figure 3)."""
    return np.array([a.work_gpu_s for a in workload.apps]) / DAY_S


def task_gpu_h(workload: Workload) -> Floats:
    """GPU-hours of each task, one GPU of one job (Themis, Figure 4)."""
    c = _columns(workload.apps)
    return np.asarray(np.repeat(c["duration_s"], c["gang"].astype(int)) / HOUR_S)


def demand(workload: Workload, step_s: float = HOUR_S) -> tuple[Floats, Floats]:
    """GPUs in demand over time (Themis, Figure 1): seconds, and the mean over each step of `step_s`.

    In demand: what would run on a cluster without limits, each job from its phase's begin for its run time at S = 1.
    """
    c = _columns(workload.apps)
    begin_s = _begins_s(workload.apps)
    end_s = begin_s + c["duration_s"]
    edges = np.arange(0.0, max(float(end_s.max(initial=0.0)), step_s) + step_s, step_s)
    busy = _until(edges, begin_s, c["gang"]) - _until(edges, end_s, c["gang"])
    return edges[:-1], np.diff(busy) / step_s


def _until(edges: Floats, at_s: Floats, weight: Floats) -> Floats:
    """The integral up to each edge of the number of `weight`s that have begun."""
    order = np.argsort(at_s)
    times, weights = at_s[order], weight[order]
    count = np.concatenate([[0.0], np.cumsum(weights)])
    moment = np.concatenate([[0.0], np.cumsum(weights * times)])
    place = np.searchsorted(times, edges)
    return np.asarray(edges * count[place] - moment[place])


def _begins_s(apps: Sequence[TraceApp]) -> Floats:
    """When each job of each phase begins where nothing waits."""
    begins: list[float] = []
    counts: list[int] = []
    for a in apps:
        at_s = a.submitted_s
        for jobs in a.phases:
            begins.append(at_s)
            counts.append(len(jobs))
            at_s += max(jobs, default=0.0) / a.gang_gpus
    return np.repeat(np.array(begins, dtype=float), counts)


def general(workload: Workload) -> list[Marginal]:
    """What can be said of any workload."""
    jobs, days, tasks = jobs_per_app(workload), app_gpu_days(workload), task_gpu_h(workload)
    gangs = np.array([a.gang_gpus for a in workload.apps], dtype=float)
    span_s = max(a.submitted_s for a in workload.apps) if workload.apps else 0.0
    total = float(days.sum())
    return [
        Marginal("apps", len(workload.apps)),
        Marginal("days of arrivals", span_s / DAY_S),
        Marginal("apps with one job, share", _mean(jobs == 1)),
        Marginal("jobs of an app, median", _median(jobs)),
        Marginal("jobs of an app, largest", float(jobs.max(initial=0))),
        Marginal("GPUs of a job, mean", _mean(gangs)),
        Marginal("GPUs of a job, largest", float(gangs.max(initial=0))),
        Marginal("GPU-days of an app, median", _median(days)),
        Marginal("GPU-hours of a task, median", _median(tasks)),
        Marginal("GPU-days in all", total),
        Marginal("GPUs in demand, mean over the arrivals", total * DAY_S / span_s if span_s > 0 else math.nan),
        Marginal("GPUs in demand, most in an hour", float(demand(workload)[1].max(initial=0))),
    ]


def themis(workload: Workload, second: bool = False) -> list[Marginal]:
    """Beside sections 2.2 and 6.1 of the Themis paper. `second`: Workload 2, whose jobs the paper does not count."""
    stated = {
        "apps": (85, "2.2"),
        "days of arrivals": (14, "6.1"),
        "apps with one job, share": (0.1, "2.2, Figure 2"),
        "GPU-days of an app, median": (11.5, "2.2, Figure 3"),
        "GPUs in demand, mean over the arrivals": (50, "2.2, Figure 1"),
    }
    if not second:
        stated |= {
            "jobs of an app, median": (75, "2.2, Figure 2"),
            "jobs of an app, largest": (100, "2.2, Figure 2"),
            "GPU-hours of a task, median": (3.75, "2.2, Figure 4"),
        }
    kinds = Counter(models.BY_NAME[a.model].kind for a in workload.apps if a.model in models.BY_NAME)
    mix = [Marginal(f"{k} apps, share", kinds[k] / len(workload.apps), p, "Table 4") for k, p in models.MIX.items()]
    return [*_beside(general(workload), stated), *mix]


def hived_tables(workload: Workload) -> list[Marginal]:
    """Beside Tables 1, 2, 4 and 5 of the HiveD paper: jobs by tenant and size, load and fluctuation of usage."""
    stated = {"apps": (141_950, "5.1"), "days of arrivals": (hived.DAYS, "5.1: over two months")}
    found = _beside(general(workload), stated)
    span_s = hived.DAYS * DAY_S
    load = float(app_gpu_days(workload).sum()) * DAY_S / (span_s * hived.GPUS)
    found.append(Marginal("load of 2,232 GPUs", load, 0.70, "5.2.2: around 70 % used"))
    for tenant, counts in hived.COUNTS.items():
        mine = Workload(tenant, tuple(a for a in workload.apps if a.queue == ROOT + tenant))
        sizes = Counter(min(a.gang_gpus, hived.CLASSES[-1]) for a in mine.apps)
        for size, count in zip(hived.CLASSES, counts, strict=True):
            more = " and more" if size == hived.CLASSES[-1] else ""
            found.append(Marginal(f"{tenant}: jobs of {size}{more} GPUs", sizes[size], count, "Table 2"))
        cells = hived.QUOTAS[tenant] / sum(hived.QUOTAS.values()) * hived.GPUS
        found.append(Marginal(f"{tenant}: demand over quota", float(app_gpu_days(mine).sum()) * DAY_S / span_s / cells))
        found.append(
            Marginal(
                f"{tenant}: relative fluctuation",
                _fluctuation(mine, load),
                hived.FLUCTUATION[tenant],
                "Table 5, of usage in a cluster with limits",
            )
        )
    return found


def _fluctuation(mine: Workload, load: float) -> float:
    """Equation 3: standard deviation of usage over the cells, cells proportional to demand; of demand, here."""
    usage = demand(mine)[1][: int(hived.DAYS * DAY_S / HOUR_S)]
    cells = _mean(usage) / load if load else math.nan
    return float(usage.std()) / cells if cells else math.nan


def oef_range(workload: Workload) -> list[Marginal]:
    """Beside section 6 of the OEF paper."""
    fastest = [max(a.speedups.values(), default=1.0) for a in workload.apps]
    tenants = Counter(a.user for a in workload.apps)
    paper = oef_workloads.FASTEST["vgg"], oef_workloads.FASTEST["lstm"]
    return [
        *general(workload),
        Marginal("tenants", len(tenants), 50 if workload.name == "oef" else 20, "6.3"),
        Marginal("apps of a tenant, mean", _mean(np.array(list(tenants.values()))), *_jobs_of_a_tenant(workload)),
        Marginal("speed on the fastest type, least", min(fastest, default=math.nan), paper[0], "Figure 1: VGG"),
        Marginal("speed on the fastest type, most", max(fastest, default=math.nan), paper[1], "Figure 1: LSTM"),
    ]


def _jobs_of_a_tenant(workload: Workload) -> tuple[float | None, str]:
    return (20, "6.3.2") if workload.name == "oef" else (None, "")


REPORTS: dict[str, Callable[[Workload], list[Marginal]]] = {
    "w1": themis,
    "w2": partial(themis, second=True),
    "hived": hived_tables,
    "oef": oef_range,
    "oef-20": oef_range,
}


def marginals(workload: Workload) -> list[Marginal]:
    """Beside the paper's where the workload is one of a paper, alone otherwise."""
    return REPORTS.get(workload.name, general)(workload)


def _beside(found: list[Marginal], stated: dict[str, tuple[float, str]]) -> list[Marginal]:
    return [Marginal(m.name, m.ours, *stated[m.name]) if m.name in stated else m for m in found]


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else math.nan


def _mean(values: Floats | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan


# ---- for `isonomy workload show`


def document(found: Imported) -> dict[str, Any]:
    """The marginals of a workload, and what was skipped of a trace."""
    return {
        "workload": found.workload.name,
        "source": found.workload.source,
        "marginals": [
            {"name": m.name, "ours": None if math.isnan(m.ours) else m.ours, "paper": m.paper, "source": m.source}
            for m in marginals(found.workload)
        ],
        "skipped": dict(found.skipped.reasons),
        "skipped_parts": dict(found.skipped.parts),
        "bad_rows": found.skipped.bad,
    }


def draw(data: Data) -> RenderableType:
    """The same for people, with the paper's figures beside where it states some."""
    rows = [[m["name"], _number(m["ours"]), _number(m["paper"]), m["source"]] for m in data["marginals"]]
    compared = any(m["paper"] is not None for m in data["marginals"])
    columns = ["", ">OURS", ">PAPER", "WHERE"] if compared else ["", ">"]
    return lines(
        f"{data['workload']}: {data['source']}",
        "",
        table(columns, rows if compared else [r[:2] for r in rows]),
        *(f"skipped: {problem}" for problem in data["bad_rows"]),
        f"\nwritten: {data['written']}" if data["written"] else None,
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"
