"""Themis' Figures 14 to 16: contention, and the share of network-intensive apps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table
from pycontrol.lab.runs import Interval
from pycontrol.lab.themis.sweeps import (
    BASELINES,
    CONVENTIONS,
    ENOUGH,
    OPEN_HANDED,
    PACKED,
    THEMIS,
    TWICE_WORST,
    WORST_FIRST,
    VariantRuns,
    claim_best,
    claim_within,
    measure,
    scene,
    shown,
    versus,
)
from pycontrol.lab.workloads.models import BY_NAME

VARIANTS = (THEMIS, OPEN_HANDED, WORST_FIRST, *PACKED)
MAIN = ("themis", "worst_first", *BASELINES)
SI = 1.0
"""Sharing incentive: rho at most this."""


def contention(setup: Setup) -> Findings:
    """Figure 14: max rho at 1, 2 and 4 times the contention, by fewer machines and by denser arrivals."""
    levels = (1, 4) if setup.quick else (1, 2, 4)
    ways = {
        "fewer machines": [scene(setup, "w1", cluster="paper-256", smaller=float(k)) for k in levels],
        "denser arrivals": [scene(setup, "w1", cluster="paper-256", faster=float(k)) for k in levels],
    }
    claims: list[Claim] = []
    tables, figures = [], []
    for way, scenes in ways.items():
        runs = dict(zip(levels, (measure(setup, s, (*VARIANTS, TWICE_WORST), 8, 2) for s in scenes), strict=True))
        claims += _contention_claims(way, runs)
        for metric, words in (("rho_max", "max rho"), ("rho_path_max", "max rho, path")):
            tables.append(_grid(f"{words}, {way}", "contention", runs, metric))
        figures.append(_lines(f"contention-{way.split()[0]}", f"max rho of W1, {way}", "contention", runs, "rho_max"))
    notes = ("The cluster is paper-256 at 1x. Fewer machines mean smaller racks too, so less locality.",)
    return Findings(tuple(claims), tuple(tables), tuple(figures), CONVENTIONS, runs[1].seeds, notes)


def _contention_claims(way: str, runs: Mapping[int, VariantRuns]) -> list[Claim]:
    high = max(runs)
    keeps = {n: max(r.mean(n).mean for r in runs.values()) for n in MAIN if n != "worst_first"}
    only = [n for n, rho in keeps.items() if rho <= SI]
    path = {n: max(r.mean(n, "rho_path_max").mean for r in runs.values()) for n in keeps}
    versus_high = versus(runs[high], BASELINES)
    order = sorted(BASELINES, key=lambda n: versus_high[n].mean)
    said = ", ".join(f"{n} {keeps[n]:.2f}" for n in ("themis", *order))
    by_path = [n for n, rho in path.items() if rho <= SI]
    plain = max(r.mean("worst_first").mean for r in runs.values())
    others = [f"{n} / Themis: {shown(runs[high].ratio(n))}" for n in (OPEN_HANDED.label, "worst_first")]
    literal = versus(runs[high], BASELINES, TWICE_WORST.label)
    return [
        Claim(
            f"{way}: only Themis keeps max rho <= 1 up to 4x contention.",
            "only Themis (section 6.2.2, Figure 14)",
            f"largest mean max rho {said}",
            only == ["themis"],
            f"With max rho <= 1 throughout: {', '.join(only) or 'none'}; with the longest path in T_cluster: "
            f"{', '.join(by_path) or 'none'}. Worst first: {plain:.2f}.",
        ),
        claim_best(
            f"{way}: at 4x Themis has the smallest max rho.",
            "the smallest (section 6.2.2, Figure 14)",
            versus_high,
            1.0,
            f"{'; '.join(others)}.",
        ),
        claim_best(
            f"{way}: so it has where an app with nothing counts as twice the worst.",
            "unbounded (section 4.3)",
            literal,
            1.0,
            f"Its max rho / Themis': {shown(runs[high].ratio(TWICE_WORST.label))}.",
        ),
        Claim(
            f"{way}: at 4x SRSF comes closest to Themis among the baselines.",
            "SRSF (section 6.2.2, Figure 14)",
            f"in order {', '.join(order)}",
            order[0] == "srsf",
            "From the smallest max rho on.",
        ),
    ]


def network(setup: Setup) -> Findings:
    """Figures 15-16: max rho and GPU time as 0 to 100 % of the apps are network-intensive."""
    shares = (0, 50, 100) if setup.quick else (0, 20, 40, 60, 80, 100)
    runs = {k: measure(setup, scene(setup, "w2", network_share=k / 100), VARIANTS, 8, 2) for k in shares}
    everywhere = {k: versus(r, BASELINES) for k, r in runs.items()}
    path = {k: {n: r.ratio(n, "themis", "rho_path_max") for n in BASELINES} for k, r in runs.items()}
    wins = [k for k, ratios in everywhere.items() if all(r.mean > 1 for r in ratios.values())]
    incentive = [n for n in ("themis", *BASELINES) if all(r.mean(n).mean <= SI for r in runs.values())]
    mixed = [k for k in shares if 0 < k < 100]
    peak = max(shares, key=lambda k: runs[k].mean("themis").mean)
    equal = versus(runs[0], BASELINES, metric="gpu_h")
    claims = (
        Claim(
            "Themis has the smallest max rho at every share.",
            "at every share (section 6.3, Figure 15)",
            f"at {', '.join(f'{k} %' for k in wins) or 'none'}",
            len(wins) == len(shares),
            f"Best baseline / Themis: {', '.join(_best(k, everywhere[k]) for k in shares)}; with the longest path in "
            f"T_cluster: {', '.join(_best(k, path[k]) for k in shares)}.",
        ),
        Claim(
            "Only Themis ensures max rho <= 1 at every share.",
            "only Themis (section 6.3, Figure 15)",
            ", ".join(incentive) or "none",
            incentive == ["themis"],
        ),
        Claim(
            "A heterogeneous mix is worst for sharing incentive.",
            "worst at 40 and 60 % (section 6.3, Figure 15)",
            f"Themis' max rho is largest at {peak} %",
            peak in mixed,
            ", ".join(f"{k} %: {shown(runs[k].mean('themis'))}" for k in shares) + ".",
        ),
        claim_best(
            "At 100 % the max rho of Themis is 1.24 to 1.77 times smaller.",
            "1.24x to 1.77x (section 6.3, Figure 15)",
            everywhere[100],
            1.24,
        ),
        Claim(
            "At 0 % all policies use the same GPU time (here within 5 %).",
            "equal (section 6.3, Figure 16)",
            ", ".join(f"{n} {r.mean:.3f}" for n, r in equal.items()),
            all(0.95 <= r.mean <= 1.05 for r in equal.values()),
            "Baseline / Themis.",
        ),
        claim_within(
            "At 100 % Themis needs less GPU time than Gandiva.",
            "8.1 % less (section 6.3, Figure 16)",
            runs[100].ratio("gandiva", "themis", "gpu_h"),
            1.0,
            9.0,
            "Gandiva / Themis.",
        ),
    )
    unit = "network-intensive, %"
    tables = (
        _grid("max rho", unit, runs, "rho_max"),
        _grid("max rho, path", unit, runs, "rho_path_max"),
        _grid("GPU hours", unit, runs, "gpu_h"),
    )
    figures = (
        _lines("rho", "max rho of W2", unit, runs, "rho_max"),
        _lines("gpu-time", "GPU time of W2", unit, runs, "gpu_h"),
    )
    own = (
        "workload 2, whose gangs have more than one GPU; S on a machine, in a rack, across racks: "
        f"{_numbers(BY_NAME['vgg16'].slowdown)} for network-intensive apps (VGG16, Table 1), "
        f"{_numbers(BY_NAME['inception-v3'].slowdown)} for compute-intensive ones (Inception-v3)"
    )
    return Findings(claims, tables, figures, (*CONVENTIONS, own), runs[0].seeds)


def _best(share: int, ratios: Mapping[str, Interval]) -> str:
    name = min(ratios, key=lambda n: ratios[n].mean)
    return f"{share} % {ratios[name].mean:.2f} ({name})"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.2f}" for v in values)


def _grid(title: str, unit: str, runs: Mapping[int, VariantRuns], metric: str) -> Table:
    """A table with one row per policy and one column per level."""
    first = next(iter(runs.values()))
    rows = [(label, *(shown(r.mean(label, metric)) for r in runs.values())) for label in first.results]
    return Table(f"{title} ({first.scene.label}; {first.seeds} seeds)", (unit, *map(str, runs)), tuple(rows))


def _lines(name: str, title: str, x: str, runs: Mapping[int, VariantRuns], metric: str) -> Figure:
    series = []
    for label in MAIN:
        means = [r.mean(label, metric) for r in runs.values()]
        bounds = {} if means[0].n < ENOUGH else {"low": [m.low for m in means], "high": [m.high for m in means]}
        series.append(Series(label, list(runs), [m.mean for m in means], **bounds))
    rho = metric.startswith("rho")
    return Figure(name, title, x, metric, tuple(series), "line", log_y=rho, mark=1.0 if rho else None)
