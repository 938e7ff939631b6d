"""What cached tables (Theorem 3.3) and the last pass cost and gain; what lies gain with each is in `themis-truth`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table
from pycontrol.lab.paper_metrics import metrics
from pycontrol.lab.runs import Interval, metric_ratio, paired_ratio, unfinished_note
from pycontrol.lab.themis.sweeps import (
    CONVENTIONS,
    QUICK_APPS,
    THEMIS,
    Scene,
    VariantRuns,
    measure,
    shown,
    variant,
)
from pycontrol.simulation.result import Result

CACHED, NO_LAST_PASS = "cached tables", "no last pass"
VARIANTS = (
    THEMIS,
    variant(CACHED, cached_tables=True),
    variant(NO_LAST_PASS, arbiter={"last_pass": False}),
    variant(f"{CACHED}, {NO_LAST_PASS}", arbiter={"last_pass": False}, cached_tables=True),
)
FIGURES = {
    "rho_max": "max rho",
    "rho_mean": "mean rho",
    "rho_p95": "p95",
    "completion_mean_s": "mean completion time",
    "gpu_h": "GPU time",
}
APPS = 30
"""Of the trace, at its density."""
LITTLE = 0.1
"""A part by which a figure may be larger and still count as alike."""
Ratios = Mapping[tuple[str, str, str], Interval]
"""(scene, variant, figure) -> its ratio to Themis' by default."""


def cached_tables(setup: Setup) -> Findings:
    """Cached tables of Theorem 3.3, and rounds without the last pass: rho, completion times and GPU time."""
    where = [
        Scene(name, apps=QUICK_APPS if setup.quick else APPS, faster=k)
        for name in ("w1", "w2")
        for k in ((1.0,) if setup.quick else (1.0, 4.0))
    ]
    runs = [measure(setup, at, VARIANTS, 8, 2) for at in where]
    others = [v.label for v in VARIANTS[1:]]
    ratios = {(r.scene.label, n, f): _ratio(r, n, f) for r in runs for n in others for f in FIGURES}
    rows = tuple(
        (at, n, *(shown(ratios[at, n, f]) for f in FIGURES)) for at in (r.scene.label for r in runs) for n in others
    )
    note = unfinished_note(
        {f"{n} ({r.scene.label})": [metrics(x) for x in results] for r in runs for n, results in r.results.items()}
    )
    bars = tuple(
        Series(r.scene.label, others, [ratios[r.scene.label, n, "rho_max"].mean for n in others]) for r in runs
    )
    figure = Figure("cached", "max rho / that by default", "changed", "ratio", bars, "bar", mark=1.0)
    title = f"Each figure as a multiple of that by default ({min(r.seeds for r in runs)} seeds or more)"
    return Findings(
        _claims(ratios),
        (Table(title, ("workload", "changed", *FIGURES.values()), rows),),
        (figure,),
        CONVENTIONS,
        min(r.seeds for r in runs),
        tuple(filter(None, [note])),
        {" | ".join(key): v.mean for key, v in ratios.items()},
    )


def _ratio(runs: VariantRuns, label: str, figure: str) -> Interval:
    """Paired by seed; nan if an app did not finish."""
    ours, theirs = runs.results[label], runs.results[THEMIS.label]
    mine, base = [metrics(r) for r in ours], [metrics(r) for r in theirs]
    if figure != "rho_mean":
        return metric_ratio(mine, base, figure)
    if any(m["unfinished"] for m in (*mine, *base)):
        return Interval(math.nan, math.nan, math.nan, len(mine))
    return paired_ratio([_mean(r) for r in ours], [_mean(r) for r in theirs])


def _mean(result: Result) -> float:
    return sum(a.rho for a in result.apps) / len(result.apps)


def _claims(ratios: Ratios) -> tuple[Claim, ...]:
    def claim(text: str, paper: str, label: str, figures: Sequence[str], why: str) -> Claim:
        found = {f: {at: v for (at, n, g), v in ratios.items() if (n, g) == (label, f)} for f in figures}
        every = [v for values in found.values() for v in values.values()]
        said = "; ".join(
            f"{FIGURES[f]}: {', '.join(f'{shown(v)} ({at})' for at, v in values.items())}"
            for f, values in found.items()
        )
        refused = any(math.isnan(v.mean) for v in every)
        sure = all(v.high < 1 + LITTLE for v in every) or any(v.low > 1 + LITTLE for v in every)
        return Claim(text, paper, said, None if refused else all(v.mean < 1 + LITTLE for v in every), why, sure)

    by = "As a multiple of the default's."
    return (
        claim(
            "Filtering by cached tables is as fair as by reported rho (here within 10 %).",
            "as fair (section 3.3.2, Theorem 3.3)",
            CACHED,
            ("rho_max", "rho_mean"),
            by,
        ),
        claim(
            "Cached tables cost no time (here 10 %).",
            "not stated (section 3.3.2)",
            CACHED,
            ("completion_mean_s", "gpu_h"),
            by,
        ),
        claim(
            "Without the last pass rounds are as fair and as fast (here within 10 %).",
            "not stated (section 3.3.2)",
            NO_LAST_PASS,
            ("rho_max", "rho_mean", "completion_mean_s", "gpu_h"),
            by,
        ),
    )
