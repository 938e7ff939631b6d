"""Themis' Figures 9 to 13: finish-time fairness, GPU time and placement by policy, workloads 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence

from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup
from pycontrol.lab.runs import Interval, paired_ratio
from pycontrol.lab.themis.sweeps import (
    BASELINES,
    CONVENTIONS,
    ENOUGH,
    FEW,
    OPEN_HANDED,
    PACKED,
    RANDOM_TIES,
    THEMIS,
    UNPACKED,
    WORST_FIRST,
    VariantRuns,
    claim_best,
    claim_within,
    measure,
    ratio_table,
    scene,
    shown,
    spread,
    versus,
)

LOADS = ("w1", "w2")
ALL = (THEMIS, OPEN_HANDED, WORST_FIRST, *PACKED, *RANDOM_TIES, *UNPACKED)
MAIN = ("themis", "worst_first", *BASELINES)
RHO = {
    "rho_max": "max rho",
    "rho_p95": "p95",
    "rho_p50": "median",
    "si_share": "share <= 1",
    "jain": "Jain",
    "rho_path_max": "max rho, path",
}


def _runs(setup: Setup, workload: str) -> VariantRuns:
    return measure(setup, scene(setup, workload), ALL, 16, 2)


def fairness(setup: Setup) -> Findings:
    """Figures 9-10: finish-time fairness by policy, workloads 1 and 2."""
    claims: list[Claim] = []
    tables, figures = [], []
    for name in LOADS:
        runs = _runs(setup, name)
        claims += _fairness_claims(runs, name.upper())
        tables.append(ratio_table(runs, f"rho, {name.upper()}", RHO))
        figures.append(_cdf(runs, f"rho-{name}", "rho", "finish-time fairness rho", log_x=True))
    return Findings(
        tuple(claims),
        tuple(tables),
        tuple(figures),
        (*CONVENTIONS, "ratios are geometric means, paired by seed; `unpacked`: hosts in a random order"),
        seeds=runs.seeds,
        notes=(
            "No policy can bring rho below the longest path of an app / (T_cluster x N_avg): W2's last phases are one "
            "gang each, so that its largest rho is often an app's own, not the policy's. The smallest apps are shorter "
            "than a lease, and waiting for one rules the max rho of W1.",
        ),
        values={"max_rho": {name: _values(_runs(setup, name), "rho_max") for name in LOADS}},
    )


def _fairness_claims(runs: VariantRuns, name: str) -> list[Claim]:
    where = f"section 6.2, Figure {9 if name == 'W1' else 10}"
    packed, unpacked = versus(runs, BASELINES), versus(runs, [v.label for v in UNPACKED])
    ties = versus(runs, [v.label for v in RANDOM_TIES])
    best = versus(runs, BASELINES, OPEN_HANDED.label)
    conditions = (
        f"Baselines unpacked: {spread(unpacked)}; with random ties: {spread(ties)}; against Themis whose leftovers go "
        f"to the worst rho, bidders too: {spread(best)}."
    )
    path = {n: runs.ratio(n, "themis", "rho_path_max") for n in BASELINES}
    width = {n: _width_ratio(runs, n) for n in BASELINES}
    plain = runs.ratio("themis", "worst_first")
    return [
        claim_best(
            f"{name}: the max rho of Themis is 2.2 to 3.25 times smaller than that of every baseline.",
            f"2.2x to 3.25x ({where})",
            packed,
            2.2,
            conditions,
        ),
        claim_best(
            f"{name}: the max rho of Themis is the smallest of all.",
            f"the smallest ({where})",
            packed,
            1.0,
        ),
        claim_best(
            f"{name}: so it is with the longest path in T_cluster.",
            f"not stated ({where})",
            path,
            1.0,
            f"Themis' is {shown(runs.mean('themis', 'rho_path_max'))}, worst first's "
            f"{shown(runs.mean('worst_first', 'rho_path_max'))}.",
        ),
        claim_best(
            f"{name}: the distribution of rho is the narrowest (here p90 - p10; baseline / Themis).",
            f"the narrowest ({where})",
            width,
        ),
        Claim(
            f"{name}: no simpler rule does as well as the auction (worst rho first, gang by gang).",
            "not compared (section 6)",
            f"max rho of Themis / that of worst first {shown(plain)}",
            plain.mean < 1,
            "" if plain.low > 1 or plain.high < 1 else FEW if plain.n < ENOUGH else "Not told apart at 95 %.",
            plain.low > 1 or plain.high < 1,
        ),
    ]


def _width_ratio(runs: VariantRuns, label: str) -> Interval:
    """Baseline / Themis of p90 - p10 of rho, paired by seed."""

    def width(of: str) -> list[float]:
        pairs = zip(runs.values(of, "rho_p90"), runs.values(of, "rho_p10"), strict=True)
        return [high - low for high, low in pairs]

    return paired_ratio(width(label), width("themis"))


def gpu_time(setup: Setup) -> Findings:
    """Figures 11-12: GPU time of the whole workload by policy, workloads 1 and 2."""
    w1, w2 = (_runs(setup, name) for name in LOADS)
    columns = {"gpu_h": "GPU hours", "utilisation": "utilisation", "restarts": "restarts", "makespan_s": "makespan, s"}
    first = versus(w1, BASELINES, metric="gpu_h")
    gandiva, slaq = (w2.ratio(n, "themis", "gpu_h") for n in ("gandiva", "slaq"))
    bare = [w2.ratio(f"{n}, unpacked", "themis", "gpu_h") for n in ("gandiva", "slaq")]
    claims = (
        Claim(
            "W1: all policies use about the same GPU time (here within 5 %).",
            "about equal (section 6.2, Figure 11)",
            f"baseline / Themis {spread(first)}",
            all(0.95 <= r.mean <= 1.05 for r in first.values()),
        ),
        claim_within(
            "W2: Themis needs less GPU time than Gandiva.",
            "4.8 % less (section 6.2, Figure 12)",
            gandiva,
            1.0,
            9.0,
            f"Gandiva / Themis; unpacked {shown(bare[0])}.",
        ),
        claim_within(
            "W2: SLAQ needs far more GPU time (here at least twice as much).",
            "250 % more (section 6.2, Figure 12)",
            slaq,
            2.0,
            99.0,
            f"SLAQ / Themis; unpacked {shown(bare[1])}.",
        ),
    )
    tables = tuple(ratio_table(r, f"GPU time, {n}", columns, "gpu_h") for r, n in ((w1, "W1"), (w2, "W2")))
    labels = [v.label for v in ALL[:10]]
    bars = tuple(_bar(r, n, labels, "gpu_h") for r, n in ((w1, "W1"), (w2, "W2")))
    figure = Figure("gpu-time", "GPU time for the whole workload", "policy", "GPU hours", bars, "bar")
    notes = ("GPU time counts GPUs in containers: slowdown, restarts and work done again, but no idle GPUs.",)
    return Findings(claims, tables, (figure,), CONVENTIONS, w1.seeds, notes)


def _bar(runs: VariantRuns, name: str, labels: Sequence[str], metric: str) -> Series:
    means = [runs.mean(n, metric) for n in labels]
    if runs.seeds < ENOUGH:
        return Series(name, labels, [m.mean for m in means])
    return Series(name, labels, [m.mean for m in means], [m.low for m in means], [m.high for m in means])


def placement(setup: Setup) -> Findings:
    """Figure 13: placement scores by policy, workloads 1 and 2."""
    w1, w2 = (_runs(setup, name) for name in LOADS)
    columns = {"placement": "mean score", "placement_p5": "5th percentile of apps"}
    claims = [_small_jobs(w1), *_large_jobs(w2)]
    tables = tuple(ratio_table(r, f"placement, {n}", columns, "placement") for r, n in ((w1, "W1"), (w2, "W2")))
    figures = tuple(
        _cdf(r, f"placement-{n}", "placement", "placement score 1/S, GPU time's mean over an app")
        for r, n in ((w1, "w1"), (w2, "w2"))
    )
    notes = ("The paper scores each allocation; here each app has the mean over its GPU time.",)
    return Findings(tuple(claims), tables, figures, CONVENTIONS, w1.seeds, notes)


def _small_jobs(runs: VariantRuns) -> Claim:
    least = min((runs.mean(n, "placement").mean, n) for n in MAIN)
    return Claim(
        "W1: almost all placements score 1, whatever the policy (here a mean of at least 0.95).",
        "almost all 1 (section 6.2.1, Figure 13)",
        f"at least {least[0]:.3f} ({least[1]})",
        least[0] >= 0.95,
        f"Unpacked: {min(runs.mean(v.label, 'placement').mean for v in UNPACKED):.3f}.",
    )


def _large_jobs(runs: VariantRuns) -> list[Claim]:
    inverse = {n: runs.ratio("themis", n, "placement") for n in BASELINES}
    bare = {v.label: runs.ratio("themis", v.label, "placement") for v in UNPACKED}
    nearest = sorted(BASELINES, key=lambda n: inverse[n].mean)[:2]
    return [
        claim_best(
            "W2: Themis has the best placement scores.",
            "the best (section 6.2.1, Figure 13)",
            inverse,
            1.0,
            f"Themis / baseline; unpacked {spread(bare)}.",
        ),
        Claim(
            "W2: Gandiva and Optimus come closest.",
            "Gandiva, Optimus (section 6.2.1, Figure 13)",
            " and ".join(nearest),
            set(nearest) == {"gandiva", "optimus"},
            "The two baselines with the best means.",
        ),
    ]


def _cdf(runs: VariantRuns, name: str, field: str, x: str, log_x: bool = False) -> Figure:
    curves = tuple(runs.curve(n, field) for n in MAIN)
    return Figure(name, f"{x}, {runs.scene.label}", x, "share of apps", curves, "step", log_x=log_x)


def _values(runs: VariantRuns, metric: str) -> dict[str, list[float]]:
    return {label: runs.values(label, metric) for label in runs.results}
