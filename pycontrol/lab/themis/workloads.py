"""Themis' Figure 8, its two workloads; and the policies on real Philly jobs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table
from pycontrol.lab.measures import cdf
from pycontrol.lab.themis.sweeps import (
    BASELINES,
    CONVENTIONS,
    OPEN_HANDED,
    PACKED,
    THEMIS,
    WORST_FIRST,
    Scene,
    VariantRuns,
    measure,
    ratio_table,
    versus,
)
from pycontrol.lab.workloads import load
from pycontrol.lab.workloads.models import BY_NAME, MIX
from pycontrol.simulation.trace_apps import Workload

FACTS = {
    "apps": "85 (section 2.2)",
    "share of apps with one job": "0.1 (section 2.2)",
    "jobs of an app, median of the others": "75 (section 2.2)",
    "jobs of an app, most": "100 (section 2.2)",
    "GPU-days of the median app": "11.5 (section 2.2)",
    "GPU-hours of the median task": "3.75 (section 2.2)",
    "GPUs of a job, mean": "W1: 1 or 2 (section 6.2)",
    "GPUs in demand, mean": "50 (section 2.2)",
}


def facts(load_: Workload) -> dict[str, float]:
    """The facts of one workload, by the names of FACTS. A task is one GPU of one job."""
    apps = load_.apps
    jobs = [max(map(len, a.phases)) for a in apps]
    days = [a.work_gpu_s / 86400 for a in apps]
    tasks_h = [work / a.gang_gpus / 3600 for a in apps for phase in a.phases for work in phase]
    span_days = (max(a.submitted_s for a in apps) - min(a.submitted_s for a in apps)) / 86400
    return {
        "apps": float(len(apps)),
        "share of apps with one job": float(np.mean([j == 1 for j in jobs])),
        "jobs of an app, median of the others": float(np.median([j for j in jobs if j > 1])),
        "jobs of an app, most": float(max(jobs)),
        "GPU-days of the median app": float(np.median(days)),
        "GPU-hours of the median task": float(np.median(tasks_h)),
        "GPUs of a job, mean": float(np.mean([a.gang_gpus for a in apps])),
        "GPUs in demand, mean": sum(days) / span_days,
    }


def workloads(setup: Setup) -> Findings:
    """Figure 8: jobs per app and GPUs per job of workloads 1 and 2, as generated here."""
    seeds = setup.seeds_of(20, 4)
    setup.note("generating workloads")
    made = {name: [load(name, seed) for seed in seeds] for name in ("w1", "w2")}
    found = {name: [facts(w) for w in loads] for name, loads in made.items()}
    rows: list[tuple[str, str, float, float]] = []
    for fact, paper in FACTS.items():
        w1, w2 = (float(np.median([m[fact] for m in found[n]])) for n in made)
        rows.append((fact, paper, w1, w2))
    for kind, share in MIX.items():
        rows.append(
            (f"share of {kind} apps", f"{share:.0%} (Table 4)", _kind(made["w1"], kind), _kind(made["w2"], kind))
        )
    gangs = {n: [a.gang_gpus for w in loads for a in w.apps] for n, loads in made.items()}
    jobs = {n: [max(map(len, a.phases)) for w in loads for a in w.apps] for n, loads in made.items()}
    same = all(_arrivals(x) == _arrivals(y) for x, y in zip(*made.values(), strict=True))
    halved = all(_halves([len(p) for p in a.phases]) for w in made["w2"] for a in w.apps)
    mix = max(abs(_kind(made[n], k) - share) for n in made for k, share in MIX.items())
    small = float(np.mean([g in (1, 2) for g in gangs["w1"]]))
    claims = (
        Claim("W1's jobs take 1 or 2 GPUs.", "all (section 6.2, Figure 8a)", f"{small:.0%}", small == 1.0),
        Claim(
            "W2 has more tasks a job than W1.",
            "more (section 6.1, Figure 8a)",
            f"{np.mean(gangs['w2']):.2f} against {np.mean(gangs['w1']):.2f} on average",
            bool(np.mean(gangs["w2"]) > np.mean(gangs["w1"])),
        ),
        Claim("W2's apps arrive when W1's do.", "the same times (section 6.1)", "the same" if same else "others", same),
        Claim(
            "W2's apps halve their jobs from phase to phase.",
            "successive halving (section 6.1)",
            "all do" if halved else "not all do",
            halved,
        ),
        Claim(
            "The mix of models is 10 % vision, 60 % language, 30 % speech (here within 5 points).",
            "Table 4",
            f"off by {100 * mix:.1f} points at most",
            mix <= 0.05,
        ),
    )
    figures = (
        Figure("gpus", "GPUs of a job", "GPUs", "share of apps", _curves(gangs), "step"),
        Figure("jobs", "jobs of an app at its start", "jobs", "share of apps", _curves(jobs), "step"),
    )
    table = Table("medians over seeds", ("fact", "paper", "W1", "W2"), tuple(rows))
    own = "generated to the marginals that the paper prints: its own trace was not published"
    return Findings(claims, (table,), figures, (own,), len(seeds))


def _arrivals(workload: Workload) -> list[float]:
    return [a.submitted_s for a in workload.apps]


def _kind(loads: Sequence[Workload], kind: str) -> float:
    """Share of the apps with a model of that kind."""
    return float(np.mean([BY_NAME[a.model].kind == kind for w in loads for a in w.apps]))


def _halves(jobs: Sequence[int]) -> bool:
    return jobs[-1] == 1 and all(b == a // 2 for a, b in itertools.pairwise(jobs))


def _curves(values: dict[str, list[int]]) -> tuple[Series, ...]:
    made = []
    for name, found in values.items():
        x, share = cdf(sorted(found))
        last = [i for i in range(len(x)) if i + 1 == len(x) or x[i + 1] != x[i]]
        made.append(Series(name.upper(), [0.0, *(float(x[i]) for i in last)], [0.0, *(float(share[i]) for i in last)]))
    return tuple(made)


# ---- real jobs

RECIPES = {
    "A": "gaps up to 2400 s, at least 20 jobs",
    "B": "gaps up to 3600 s, at least 18 jobs of 60 s or more",
    "C": "the two weeks from a week earlier, jobs of 300 s or more",
}
COLUMNS = {
    "rho_max": "max rho",
    "rho_path_max": "max rho, path",
    "rho_p95": "p95",
    "si_share": "share <= 1",
    "gpu_h": "GPU hours",
}
VARIANTS = (THEMIS, OPEN_HANDED, WORST_FIRST, *PACKED)


@dataclass(frozen=True)
class TraceScene(Scene):
    """A trace file on a cluster; the seed only affects the policies' random draws."""

    path: Path = Path()
    limit: int | None = None

    def load(self, seed: int) -> Workload:
        """The same apps for every seed."""
        found = load(self.path, seed)
        return dataclasses.replace(found, apps=found.apps[: self.limit])

    @property
    def label(self) -> str:
        """In words."""
        return f"Philly apps {self.workload}, {self.cluster}" + (f", first {self.limit}" if self.limit else "")


def philly(setup: Setup) -> Findings:
    """Themis and its baselines on real Philly jobs, grouped into apps."""
    scenes = []
    for recipe in ("B",) if setup.quick else RECIPES:
        path = setup.trace(f"philly/themis_w1_apps_{recipe}.csv.gz")
        if path is not None:
            scenes.append(TraceScene(recipe, "testbed-64", path=path, limit=8 if setup.quick else 24))
    claim = "On real Philly jobs Themis has the smallest max rho of all."
    source = "2.2x to 3.25x smaller on a trace of Philly (section 6.2, Figure 9)"
    if not scenes:
        why = "The public traces are not there: --data or ISONOMY_DATA names their folder."
        return Findings((Claim(claim, source, "no trace", None, why),))
    runs = [measure(setup, s, VARIANTS, 2, 1) for s in scenes]
    tables = tuple(ratio_table(r, f"recipe {r.scene.workload}: {RECIPES[r.scene.workload]}", COLUMNS) for r in runs)
    figures = tuple(_figure(r) for r in runs)
    own = (
        "jobs of one virtual cluster that came in one burst with one GPU count stand for an app; the authors' own "
        "grouping was not published",
        "one GPU-second of a job's run is one of its work, S the priors 1.0, 1.1, 1.3",
    )
    return Findings(
        tuple(_philly_claim(r, claim, source) for r in runs),
        tables,
        figures,
        (*CONVENTIONS[:2], *CONVENTIONS[3:], *own),
        runs[0].seeds,
        ("Seeds change only what policies draw: the intervals do not say how other traces would be.",),
    )


def _philly_claim(runs: VariantRuns, claim: str, source: str) -> Claim:
    def said(metric: str) -> tuple[bool, str]:
        ratios = versus(runs, BASELINES, metric=metric)
        best = min(ratios, key=lambda n: ratios[n].mean)
        return ratios[best].mean > 1, f"{ratios[best].mean:.2f} ({best})"

    holds, words = said("rho_max")
    plain = runs.ratio("themis", "worst_first").mean
    why = f"With the longest path in T_cluster: {said('rho_path_max')[1]}. Themis / worst first: {plain:.2f}."
    return Claim(f"{claim} (Recipe {runs.scene.workload}.)", source, f"best baseline / Themis {words}", holds, why)


def _figure(runs: VariantRuns) -> Figure:
    labels = ("themis", "worst_first", *BASELINES)
    curves = tuple(runs.curve(n, "rho") for n in labels)
    return Figure(f"rho-{runs.scene.workload}", runs.scene.label, "rho", "share of apps", curves, "step", log_x=True)
