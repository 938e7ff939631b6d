"""Themis' Figures 17 and 19: errors of estimates, the fairness knob f, the length of leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup
from pycontrol.lab.runs import Interval, paired_ratio
from pycontrol.lab.themis.sweeps import (
    CONVENTIONS,
    ENOUGH,
    THEMIS,
    Variant,
    VariantRuns,
    claim_within,
    measure,
    ratio_table,
    scene,
    variant,
)

LOADS = ("w1", "w2")
COLUMNS = {"rho_max": "max rho", "rho_path_max": "max rho, path", "rho_p95": "p95", "gpu_h": "GPU hours"}
PAPERS_CHANGE = 0.1076


def errors(setup: Setup) -> Findings:
    """Figure 17: errors of up to 5 to 20 % in the estimates of work and slowdown."""
    levels = (10, 20) if setup.quick else (5, 10, 15, 20)
    variants = (THEMIS, *(Variant(f"+-{x} %", world=(("error", x / 100),)) for x in levels))
    claims, tables, series = [], [], []
    for name in LOADS:
        runs = measure(setup, scene(setup, name), variants, 16, 3)
        ratio = runs.ratio("+-20 %")
        single = _largest_change(runs, "+-20 %")
        claims.append(
            claim_within(
                f"{name.upper()}: errors of +-20 % change max rho by no more than 10.76 % (here the mean over seeds).",
                "10.76 % (section 6.3, Figure 17)",
                ratio,
                1 - PAPERS_CHANGE,
                1 + PAPERS_CHANGE,
                f"With errors / without; the largest change of a single seed is {single:.0%}.",
            )
        )
        tables.append(ratio_table(runs, f"errors, {name.upper()}", COLUMNS))
        series.append(_series(name.upper(), [0, *levels], [runs.ratio(v.label) for v in variants]))
    figure = Figure(
        "errors", "max rho with errors / without", "errors up to +- %", "ratio of max rho", tuple(series), mark=1.0
    )
    own = "work and slowdown are each wrong by a factor drawn for every app, uniformly within the bound, once"
    return Findings(tuple(claims), tuple(tables), (figure,), (*CONVENTIONS, own), runs.seeds)


def _largest_change(runs: VariantRuns, label: str) -> float:
    pairs = zip(runs.values(label, "rho_max"), runs.values("themis", "rho_max"), strict=True)
    return max(abs(a / b - 1) for a, b in pairs)


def _series(label: str, x: Sequence[float], points: Sequence[Interval]) -> Series:
    bounds = {} if points[0].n < ENOUGH else {"low": [p.low for p in points], "high": [p.high for p in points]}
    return Series(label, x, [p.mean for p in points], **bounds)


# ---- f and leases


def knobs(setup: Setup) -> Findings:
    """Figure 19: the fairness knob f and the length of leases."""
    fs = (0.0, 0.5, 0.8, 1.0) if setup.quick else (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0)
    lengths = (5, 10, 40) if setup.quick else (2, 5, 10, 20, 40)
    sweep = {f: THEMIS if f == 0.8 else variant(f"f {f:g}", arbiter={"f": f}) for f in fs}
    leases = {m: THEMIS if m == 10 else variant(f"leases of {m} min", arbiter={"lease_s": 60.0 * m}) for m in lengths}
    variants = tuple(dict.fromkeys((THEMIS, *sweep.values(), *leases.values())))
    claims, tables, figures = [], [], []
    for name in LOADS:
        runs = measure(setup, scene(setup, name), variants, 8, 2)
        by_f = {f: v.label for f, v in sweep.items()}
        by_lease = {m: v.label for m, v in leases.items()}
        claims += [*_of_f(runs, name.upper(), by_f), *_of_leases(runs, name.upper(), by_lease)]
        tables.append(ratio_table(runs, f"f and lease, {name.upper()}", {**COLUMNS, "restarts": "restarts"}))
        figures += [
            _figure(runs, f"f-{name}", f"{name.upper()} by f", "fairness knob f", by_f),
            _figure(runs, f"lease-{name}", f"{name.upper()} by lease", "lease, minutes", by_lease),
        ]
    return Findings(tuple(claims), tuple(tables), tuple(figures), CONVENTIONS, runs.seeds)


def _of_f(runs: VariantRuns, name: str, labels: Mapping[float, str]) -> list[Claim]:
    ratios = {f: runs.ratio(label, "themis") for f, label in labels.items()}
    best = min(ratios, key=lambda f: ratios[f].mean)
    said = ", ".join(f"f {f:g}: {r.mean:.2f}" for f, r in ratios.items())
    gpu = runs.ratio(labels[1.0], labels[0.0], "gpu_h")
    return [
        Claim(
            f"{name}: f = 0.8 gives the smallest max rho.",
            "f = 0.8 (section 6.4, Figure 19a)",
            f"f = {best:g}",
            best == 0.8,
            f"Max rho / that at 0.8: {said}.",
        ),
        claim_within(
            f"{name}: max rho improves as f goes from 0 to 0.8.",
            "improves (section 6.4, Figure 19a)",
            ratios[0.0],
            1.0,
            1e9,
            "Max rho at f = 0 / at 0.8.",
        ),
        claim_within(
            f"{name}: at f = 1 max rho is worse than at 0.8 (the paper: by about 1.5 times).",
            "1.5 times worse (section 6.4, Figure 19a)",
            ratios[1.0],
            1.0,
            1e9,
            "Max rho at f = 1 / at 0.8.",
        ),
        claim_within(
            f"{name}: efficiency falls as f grows.",
            "falls (section 6.4, Figure 19b)",
            gpu,
            1.0,
            1e9,
            "GPU time at f = 1 / at f = 0.",
        ),
    ]


def _of_leases(runs: VariantRuns, name: str, labels: Mapping[int, str]) -> list[Claim]:
    short, long = labels[min(labels)], labels[max(labels)]
    words = f"{min(labels)} min / {max(labels)} min"
    return [
        claim_within(
            f"{name}: shorter leases are fairer.",
            "fairer (section 6.4, Figure 19a)",
            runs.ratio(short, long),
            0.0,
            1.0 - 1e-9,
            f"Max rho, {words}.",
        ),
        claim_within(
            f"{name}: longer leases are more efficient.",
            "more efficient (section 6.4, Figure 19b)",
            runs.ratio(short, long, "gpu_h"),
            1.0 + 1e-9,
            1e9,
            f"GPU time, {words}.",
        ),
    ]


def _figure(
    runs: VariantRuns, name: str, title: str, x: str, labels: Mapping[float, str] | Mapping[int, str]
) -> Figure:
    """max rho and GPU time, relative to the default's."""
    series = []
    for metric, words in (("rho_max", "max rho"), ("gpu_h", "GPU time")):
        base = runs.values("themis", metric)
        points = [paired_ratio(runs.values(label, metric), base) for label in labels.values()]
        series.append(_series(words, list(labels), points))
    return Figure(name, f"{title}, against f = 0.8 and 10 min", x, "ratio", tuple(series), mark=1.0)
