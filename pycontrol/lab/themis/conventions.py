"""Conventions that Themis' paper leaves open, varied one at a time, and where its headline would hold."""

from __future__ import annotations

from collections.abc import Sequence

from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table
from pycontrol.lab.themis.sweeps import (
    BASELINES,
    CONVENTIONS,
    OPEN_HANDED,
    PACKED,
    THEMIS,
    TWICE_WORST,
    WORST_FIRST,
    Variant,
    VariantRuns,
    measure,
    ratio_table,
    scene,
    shown,
    variant,
    versus,
)

COLUMNS = {"rho_max": "max rho", "rho_path_max": "max rho, path", "rho_p95": "p95", "gpu_h": "GPU hours"}
TIMINGS = ("aligned", "machine", "spread")
ONE_AT_A_TIME: tuple[Variant, ...] = (
    THEMIS,
    variant("leases end by machine", arbiter={"lease_timing": "machine"}),
    variant("leases end spread", arbiter={"lease_timing": "spread"}),
    variant("leftovers to the worst rho first", leftovers="worst_first"),
    variant("leftovers where a gang helps most", leftovers="most_helped"),
    variant("leftovers at random, bidders too", participants=True),
    OPEN_HANDED,
    variant("rounding down", rounding="floor"),
    TWICE_WORST,
    variant("rho with nothing: huge", rho_nothing="huge"),
    variant("cached tables across rounds", cached_tables=True),
    variant("random ties", ties="random"),
    variant("f 0", arbiter={"f": 0.0}),
    variant("f 0.5", arbiter={"f": 0.5}),
    variant("f 0.95", arbiter={"f": 0.95}),
    WORST_FIRST,
)
QUICK_LEAVES_OUT = frozenset({"leftovers where a gang helps most", "leftovers at random, bidders too", "f 0.5"})
RIVALS = (*PACKED[:3], *PACKED[4:])
"""All baselines but SLAQ, which is far behind."""


def conventions(setup: Setup) -> Findings:
    """What the paper leaves open: one convention at a time from the default, and when the headline holds."""
    variants = [v for v in ONE_AT_A_TIME if not (setup.quick and v.label in QUICK_LEAVES_OUT)]
    where = [(name, k) for name in ("w1", "w2") for k in ((1.0,) if setup.quick else (1.0, 4.0))]
    runs = [measure(setup, scene(setup, name, faster=k), variants, 8, 2) for name, k in where]
    tables = [ratio_table(r, "one convention at a time", COLUMNS) for r in runs]
    labels = [v.label for v in variants]
    bars = tuple(Series(r.scene.label, labels, [r.ratio(n).mean for n in labels]) for r in runs)
    figure = Figure("conventions", "max rho / that of the default", "convention", "ratio", bars, "bar", mark=1.0)
    grid, cells = _headline(setup, where)
    return Findings(
        (*_claims(runs), _headline_claim(cells)),
        (*tables, grid),
        (figure,),
        CONVENTIONS,
        runs[0].seeds,
        ("The paper specifies none of these; each row changes one of them only.",),
        {"ratio": {r.scene.label: {n: r.ratio(n).mean for n in labels} for r in runs}},
    )


def _claims(runs: Sequence[VariantRuns]) -> list[Claim]:
    """Claims about the defaults and what the paper states."""

    def said(label: str) -> tuple[str, list[float]]:
        found = [r.ratio(label) for r in runs]
        words = "; ".join(f"{shown(f)} ({r.scene.label})" for f, r in zip(found, runs, strict=True))
        return words, [f.mean for f in found]

    aligned = {t: said(f"leases end {'by machine' if t == 'machine' else t}") for t in TIMINGS[1:]}
    worst, floor, tables, plain = (
        said(x)
        for x in (
            "leftovers to the worst rho first",
            "rounding down",
            "cached tables across rounds",
            "worst_first",
        )
    )
    rho_old = {x: said(f"rho with nothing: {x}") for x in ("twice the worst", "huge")}
    return [
        Claim(
            "When leases end decides little (here less than 20 % of max rho).",
            "not stated (section 3.1)",
            "; ".join(f"{t}: {words}" for t, (words, _) in aligned.items()),
            all(abs(m - 1) < 0.2 for _, means in aligned.values() for m in means),
            "Max rho / that of the default.",
        ),
        Claim(
            "Leftovers at random are as fair as leftovers to the worst rho (here within 10 %).",
            "at random (section 4.2, Pseudocode 1)",
            worst[0],
            all(m > 0.9 for m in worst[1]),
            f"Worst first / random; bidders too: {said(OPEN_HANDED.label)[0]}.",
        ),
        Claim(
            "Rounding payments down to whole gangs costs little (here 10 %).",
            "not stated (section 4.2.1)",
            floor[0],
            all(m < 1.1 for m in floor[1]),
        ),
        Claim(
            "The rho of an app with nothing decides little (here 10 %).",
            "unbounded (section 4.3)",
            "; ".join(f"{x}: {words}" for x, (words, _) in rho_old.items()),
            all(abs(m - 1) < 0.1 for _, means in rho_old.values() for m in means),
        ),
        Claim(
            "Filtering by cached tables is as fair as by reported rho (here within 10 %).",
            "as fair (section 4.2.2)",
            tables[0],
            all(m < 1.1 for m in tables[1]),
        ),
        Claim(
            "The auction is as fair as worst rho first without an auction (here within 10 %).",
            "not compared (section 4.2)",
            plain[0],
            all(m > 0.9 for m in plain[1]),
            "Worst first / Themis.",
        ),
    ]


# ---- where the headline would hold


def _headline(setup: Setup, where: Sequence[tuple[str, float]]) -> tuple[Table, dict[str, float]]:
    """Best baseline / Themis for each timing of leases, with leftovers at random and worst first."""
    rows, cells = [], {}
    for name, k in where:
        for timing in TIMINGS:
            variants = tuple(v.under(lease_timing=timing) for v in (THEMIS, OPEN_HANDED, WORST_FIRST, *RIVALS))
            runs = measure(setup, scene(setup, name, faster=k), variants, 4, 1)
            rivals = [n for n in BASELINES if n in runs.results]
            for ours in (THEMIS.label, OPEN_HANDED.label, WORST_FIRST.label):
                ratios = versus(runs, rivals, ours)
                best = min(ratios, key=lambda n: ratios[n].mean)
                cells[f"{runs.scene.label}, {timing}, {ours}"] = ratios[best].mean
                rows.append((runs.scene.label, timing, ours, shown(runs.mean(ours)), best, shown(ratios[best])))
    columns = ("workload", "leases end", "policy", "max rho", "best baseline", "its max rho / the policy's")
    return Table("where the headline holds: above 1 the policy beats every baseline", columns, tuple(rows)), cells


def _headline_claim(cells: dict[str, float]) -> Claim:
    own = {at: v for at, v in cells.items() if not at.endswith(WORST_FIRST.label)}
    wins = [at for at, v in own.items() if v > 1]
    large = [at for at, v in own.items() if v >= 2.2]
    return Claim(
        "Under some conventions Themis' max rho is at least 2.2 times smaller than that of all baselines.",
        "2.2x to 3.25x (section 6.2, Figures 9-10)",
        f"under {len(large)} of {len(own)}",
        bool(large),
        f"It is the smallest under {len(wins)}: {'; '.join(wins) or 'none'}.",
    )
