"""OEF's Figures 7 to 9 and its straggler counts: throughput and completion times, estimated and with placers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table, shown
from pycontrol.lab.oef.mixes import (
    ABOUT,
    ASSUMED,
    CAPS,
    COOPERATIVE,
    GANDIVA_FAIR,
    GAVEL,
    GAVEL_ONE,
    MAX_MIN,
    NONCOOPERATIVE,
    mixes,
    problem_of,
    tenants,
    total,
)
from pycontrol.lab.oef.observed_runs import (
    BASELINES,
    OEF,
    OEF_NONCOOPERATIVE,
    OURS,
    PLACERS,
    PUBLISHED,
    RUN_CONVENTIONS,
    OefOutcome,
    Run,
    measure,
)
from pycontrol.lab.oef.placers import Placed, Placer
from pycontrol.lab.runs import Interval, metric_ratio, paired_ratio, unfinished_note
from pycontrol.lab.workloads import load
from pycontrol.policies.sharing import Sharing

AGAINST = (GANDIVA_FAIR, GAVEL, GAVEL_ONE, MAX_MIN)
PENALTIES = (0.1, 0.3)
SAME, NAIVE = "the same placer", PLACERS[PUBLISHED[0]]
Key = tuple[str, float, str, str]
"""Mix, penalty, scheme, placer."""


# ---- Figures 7 and 8


def throughput(setup: Setup) -> Findings:
    """Figures 7-8: throughput of 20 tenants, estimated and with placers, in both settings."""
    estimated, seeds = _estimated(setup)
    runs = _backlogs(setup, {"OEF cooperative": OEF, "OEF non-cooperative": OEF_NONCOOPERATIVE, **BASELINES})
    actual = _ratios(runs, BASELINES)
    claims = (
        *_throughput_claims("OEF cooperative", "Figure 8", estimated, actual, 1.20, 1.32),
        *_throughput_claims("OEF non-cooperative", "Figure 7", estimated, actual, 1.0, 1.10),
    )
    mix_names = list(mixes(setup))
    tables = (
        Table(
            f"Estimated throughput, mean ratio over {seeds} seeds",
            ("setting", "over", *(ABOUT[m] for m in mix_names)),
            tuple(
                (mine, theirs.label, *(shown(estimated[m, mine, theirs.label]) for m in mix_names))
                for mine in ("OEF cooperative", "OEF non-cooperative")
                for theirs in AGAINST
            ),
        ),
        Table(
            "Measured throughput, mean ratio",
            ("mix", "span penalty", "setting", "over", "baseline placed by", "ratio"),
            tuple((m, f"{p:.0%}", mine, theirs, how, shown(v)) for (m, p, mine, theirs, how), v in actual.items()),
        ),
    )
    figures = tuple(
        Figure(name, f"{title}, 20 tenants", "scheme", y, series, "bar")
        for name, title, y, series in (
            ("estimated", "Estimated throughput of OEF over others", "ratio", _estimated_series(estimated, mix_names)),
            ("actual", "Throughput at a span penalty of 30 %", "slowest GPUs' worth", _actual_series(runs, mix_names)),
        )
    )
    return Findings(
        claims,
        tables,
        figures,
        (*ASSUMED, CAPS, *RUN_CONVENTIONS),
        len(setup.seeds_of(5, 1)),
        (f"Estimates are of {seeds} seeds; every ratio is of the same tenants and jobs.",),
    )


def _estimated(setup: Setup) -> tuple[dict[tuple[str, str, str], Interval], int]:
    """Ratios of all throughput, by mix, OEF's form and the other scheme."""
    seeds = range(30 if not setup.quick else 8)
    found = {}
    for mix, data in mixes(setup).items():
        problems = [problem_of(mix, data, seed, 20) for seed in seeds]
        totals = {e.label: [total(p, e.shares(p)) for p in problems] for e in (COOPERATIVE, NONCOOPERATIVE, *AGAINST)}
        for mine in (COOPERATIVE, NONCOOPERATIVE):
            for theirs in AGAINST:
                found[mix, mine.label, theirs.label] = paired_ratio(totals[mine.label], totals[theirs.label])
    return found, len(seeds)


def _backlogs(setup: Setup, policies: Mapping[str, Sharing]) -> dict[Key, list[OefOutcome]]:
    """20 tenants with 6 endless jobs each, under each policy and placer."""
    seeds, span_s = setup.seeds_of(5, 1), (24 if setup.quick else 48) * 300.0
    keys: list[Key] = []
    runs: list[Run] = []
    chosen = {m: d for m, d in mixes(setup).items() if not setup.quick or m in ("paper", "lambda")}
    for mix, data in chosen.items():
        for penalty in PENALTIES[1:] if setup.quick else PENALTIES:
            for label, policy in policies.items():
                for placer in _placers(label):
                    for seed in seeds:
                        workload = tenants(mix, data, seed, 20, jobs=6)
                        keys.append((mix, penalty, label, placer))
                        runs.append(Run(Placed(policy, placer), workload, span_s, penalty))
    found: dict[Key, list[OefOutcome]] = {}
    for key, result in zip(keys, measure(setup, runs, "throughput"), strict=True):
        found.setdefault(key, []).append(result)
    return found


def _placers(label: str) -> tuple[Placer, ...]:
    """OEF as it is and as published; the baselines with the same, and as published."""
    return (*OURS, *PUBLISHED) if label in BASELINES else OURS


def _ratios(
    runs: Mapping[Key, Sequence[OefOutcome]], baselines: Mapping[str, Sharing]
) -> dict[tuple[str, float, str, str, str], Interval]:
    """OEF with our placer and with the paper's, over each baseline with the same placer and as published."""
    found = {}
    for mix, penalty, label, placer in runs:
        if label in baselines:
            continue
        mine = [o.throughput for o in runs[mix, penalty, label, placer]]
        for theirs in baselines:
            for how, other in ((SAME, placer), *((PLACERS[p], p) for p in PUBLISHED)):
                values = [o.throughput for o in runs[mix, penalty, theirs, other]]
                found[mix, penalty, f"{label}, {PLACERS[_placer(placer)]}", theirs, how] = paired_ratio(mine, values)
    return found


def _placer(name: str) -> Placer:
    return next(p for p in PLACERS if p == name)


def _throughput_claims(
    label: str,
    where: str,
    estimated: Mapping[tuple[str, str, str], Interval],
    actual: Mapping[tuple[str, float, str, str, str], Interval],
    least: float,
    most: float,
) -> list[Claim]:
    own = {k: v for k, v in estimated.items() if k[1] == label and k[2] in (GANDIVA_FAIR.label, GAVEL.label)}
    low = {m: min(v.mean for k, v in own.items() if k[0] == m) for m in dict.fromkeys(k[0] for k in own)}
    one = {m: estimated[m, label, GAVEL_ONE.label].mean for m in low}
    said = ", ".join(f"{m} {v:.3f}" for m, v in low.items())
    holds = [m for m, v in low.items() if v >= least - 0.03]
    paper = "about 20 % more" if least > 1 else "on par"
    mine = {k: v.mean for k, v in actual.items() if k[2].startswith(label)}
    by = {
        (placer, how): [v for k, v in mine.items() if k[2] == f"{label}, {placer}" and k[4] == how]
        for placer in (PLACERS["whole"], PLACERS["paper"])
        for how in (SAME, *(PLACERS[p] for p in PUBLISHED))
    }
    ranges = "; ".join(f"{p} over {how}: {min(v):.2f} to {max(v):.2f}" for (p, how), v in by.items() if v)
    judged = by[PLACERS["whole"], NAIVE]
    return [
        Claim(
            f"{label}: estimated throughput over Gandiva_fair and Gavel.",
            f"{paper} ({where}(a))",
            f"smaller ratio by mix: {said}",
            len(holds) == len(low),
            f"Holds for {', '.join(holds) or 'none'} (within 3 %). Over Gavel with a cap of 1 a tenant: "
            + ", ".join(f"{m} {v:.2f}" for m, v in one.items())
            + ".",
        ),
        Claim(
            f"{label}: throughput with the placer up to {most - 1:.0%} more.",
            f"up to +{most - 1:.0%} ({where}(b))",
            ranges,
            max(judged, default=0.0) >= most - 0.05,
            "Judged with our placer over baselines placed by priority, unpacked. With the same placer for all, what "
            "is left is the estimated ratio.",
        ),
    ]


def _estimated_series(estimated: Mapping[tuple[str, str, str], Interval], names: Sequence[str]) -> tuple[Series, ...]:
    labels = (GANDIVA_FAIR.label, GAVEL.label, GAVEL_ONE.label, MAX_MIN.label)
    return tuple(
        Series(f"{mine.removeprefix('OEF ')}, {m}", labels, [estimated[m, mine, other].mean for other in labels])
        for mine in ("OEF cooperative", "OEF non-cooperative")
        for m in names
    )


def _actual_series(runs: Mapping[Key, Sequence[OefOutcome]], names: Sequence[str]) -> tuple[Series, ...]:
    labels = list(dict.fromkeys(k[2] for k in runs))
    mix = next(m for m in names if any(k[0] == m for k in runs))
    return tuple(
        Series(
            f"{PLACERS[placer]} ({mix})",
            labels,
            [
                float(np.mean([o.throughput for o in runs.get((mix, PENALTIES[-1], n, placer), ())] or [math.nan]))
                for n in labels
            ],
        )
        for placer in PLACERS
    )


# ---- stragglers


def stragglers(setup: Setup) -> Findings:
    """Section 6.3.3: workers of gangs on GPUs of several types."""
    runs = _backlogs(setup, {"OEF cooperative": OEF, **BASELINES})
    mixed = {k: float(np.mean([o.mixed_workers / max(1, o.workers) for o in v])) for k, v in runs.items()}
    spans = {k: float(np.mean([o.spanning_workers / max(1, o.workers) for o in v])) for k, v in runs.items()}
    held = _types_held(setup)
    claims: list[Claim] = []
    heads = list(dict.fromkeys(k[:2] for k in runs))
    for theirs, paper in (("Gandiva_fair", 0.14), ("Gavel", 0.26)):
        cuts = {k: (mixed[*k, "OEF cooperative", "paper"], mixed[*k, theirs, PUBLISHED[0]]) for k in heads}
        same = {k: (mixed[*k, "OEF cooperative", "paper"], mixed[*k, theirs, "paper"]) for k in heads}
        claims.append(
            Claim(
                f"OEF has {paper:.0%} fewer workers of mixed gangs than {theirs}.",
                f"{paper:.0%} fewer (section 6.3.3)",
                "OEF against it: " + "; ".join(f"{m}, {p:.0%} penalty: {_against(v)}" for (m, p), v in cuts.items()),
                all(ours <= (1 - paper + 0.05) * other for ours, other in cuts.values()),
                "Part of all workers, the paper's placer against baselines by priority, whose gangs have one type "
                "each, as published: there is nothing to cut. With the paper's for both: "
                + "; ".join(f"{m}, {p:.0%}: {_against(v)}" for (m, p), v in same.items())
                + ".",
            )
        )
    ours = max(v for k, v in mixed.items() if k[3] == "whole")
    claims.append(
        Claim("Our placer has none.", "-", f"at most {ours:.2%} of the workers", ours == 0, "Whatever the scheme.")
    )
    rows = tuple(
        (m, f"{p:.0%}", label, PLACERS[_placer(placer)], f"{v:.1%}", f"{spans[m, p, label, placer]:.1%}")
        for (m, p, label, placer), v in mixed.items()
    )
    tables = (
        Table(
            "Workers of gangs on several types, and on several hosts",
            ("mix", "span penalty", "scheme", "placer", "several types", "several hosts"),
            rows,
        ),
        Table(
            "GPU types in a tenant's share, mean", ("mix", *(e.label for e in (COOPERATIVE, GANDIVA_FAIR, GAVEL))), held
        ),
    )
    first = heads[0]
    labels = list(dict.fromkeys(k[2] for k in runs))
    figure = Figure(
        "stragglers",
        f"Workers of mixed gangs, {first[0]} mix",
        "scheme",
        "part of all workers",
        tuple(Series(PLACERS[p], labels, [mixed.get((*first, n, p), math.nan) for n in labels]) for p in PLACERS),
        "bar",
    )
    notes = ("A tenant under cooperative OEF holds more types than under the baselines; its cut is the placer's.",)
    return Findings(tuple(claims), tables, (figure,), (*ASSUMED, *RUN_CONVENTIONS), len(setup.seeds_of(5, 1)), notes)


def _against(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.1%} against {pair[1]:.1%}"


def _types_held(setup: Setup) -> tuple[tuple[str, ...], ...]:
    rows = []
    for mix, data in mixes(setup).items():
        problems = [problem_of(mix, data, seed, 20) for seed in range(4 if setup.quick else 20)]
        held = [
            np.mean([(e.shares(p) > 1e-6).sum(axis=1).mean() for p in problems])
            for e in (COOPERATIVE, GANDIVA_FAIR, GAVEL)
        ]
        rows.append((mix, *(f"{v:.2f}" for v in held)))
    return tuple(rows)


# ---- Figure 9


def figure9(setup: Setup) -> Findings:
    """Figure 9: completion times of many tenants' jobs, all jobs counted."""
    size: dict[str, Any] = {"tenants": 24, "jobs": 10, "days": 1.0}
    if setup.quick:
        size = {"tenants": 12, "jobs": 5, "days": 0.25}
    elif setup.full:
        size = {"tenants": 50, "jobs": 20, "days": 3.0}
    seeds = setup.seeds_of(1 if setup.full else 5, 1)
    found = _completions(setup, seeds, size)
    cut: dict[tuple[str, float, str, str, str], Interval] = {}
    for mix, penalty in dict.fromkeys(k[:2] for k in found):
        for theirs in BASELINES:
            for ours in OURS:
                for other in (*OURS[:1], *PUBLISHED):
                    mine = [o.figures for o in found[mix, penalty, "OEF cooperative", ours]]
                    others = [o.figures for o in found[mix, penalty, theirs, other]]
                    cut[mix, penalty, ours, theirs, other] = metric_ratio(mine, others, "completion_mean_s")
    note = unfinished_note(
        {
            f"{label}, {PLACERS[_placer(placer)]} ({mix}, {penalty:.0%})": [o.figures for o in v]
            for (mix, penalty, label, placer), v in found.items()
        }
    )
    claims = [_cut_claim(theirs, paper, cut, note) for theirs, paper in (("Gandiva_fair", 0.17), ("Gavel", 0.19))]
    tables = (
        Table(
            "Mean completion time of all jobs, OEF cooperative over a baseline; - where a job did not end",
            ("mix", "span penalty", "OEF's placer", "over", "placed", "ratio"),
            tuple(
                (m, f"{p:.0%}", PLACERS[_placer(ours)], theirs, PLACERS[_placer(other)], shown(v))
                for (m, p, ours, theirs, other), v in cut.items()
            ),
        ),
        Table(
            "Runs (mean over seeds)",
            (
                "mix",
                "span penalty",
                "scheme",
                "placer",
                "mean completion, s",
                "p95, s",
                "restarts",
                "utilisation",
                "unfinished",
            ),
            tuple(
                (
                    m,
                    f"{p:.0%}",
                    label,
                    PLACERS[_placer(placer)],
                    *(
                        float(np.mean([o.figures[f] for o in v]))
                        for f in ("completion_mean_s", "completion_p95_s", "restarts", "utilisation", "unfinished")
                    ),
                )
                for (m, p, label, placer), v in found.items()
            ),
        ),
    )
    labels, at = ["OEF cooperative", *BASELINES], list(found)[-1][:2]
    figure = Figure(
        "9",
        f"Mean completion time, {at[0]} mix, span penalty {at[1]:.0%}",
        "scheme",
        "seconds",
        tuple(Series(PLACERS[p], labels, [_mean_of(found.get((*at, n, p), ())) for n in labels]) for p in PLACERS),
        "bar",
    )
    said = f"{size['tenants']} tenants, about {size['jobs']} jobs each, arrivals over {size['days']:g} days"
    own = (f"{said}, load 1.1 of the GPUs as the slowest type (`isonomy workload show oef`)",)
    return Findings(
        tuple(claims),
        tables,
        (figure,),
        (*ASSUMED, *RUN_CONVENTIONS, *own),
        len(seeds),
        size="" if setup.full else said,
    )


def _completions(setup: Setup, seeds: Sequence[int], size: Mapping[str, Any]) -> dict[Key, list[OefOutcome]]:
    """The jobs of many tenants to their ends, under each policy and placer."""
    policies: Mapping[str, Sharing] = {"OEF cooperative": OEF, **BASELINES}
    chosen = {m: d for m, d in mixes(setup).items() if m == "paper" or (m == "lambda" and not setup.quick)}
    keys: list[Key] = []
    runs: list[Run] = []
    for mix, data in chosen.items():
        works = [load("oef", s, profile=mix, data=str(data or ""), load=1.1, **size) for s in seeds]
        for penalty in PENALTIES[1:] if setup.quick else PENALTIES:
            for label, policy in policies.items():
                for placer in PUBLISHED + OURS[:1] if label in BASELINES else OURS:
                    keys += [(mix, penalty, label, placer)] * len(works)
                    runs += [Run(Placed(policy, placer), w, penalty=penalty) for w in works]
    found: dict[Key, list[OefOutcome]] = {}
    for key, result in zip(keys, measure(setup, runs, "completion times"), strict=True):
        found.setdefault(key, []).append(result)
    return found


def _mean_of(runs: Sequence[OefOutcome]) -> float:
    return float(np.mean([o.figures["completion_mean_s"] for o in runs])) if runs else math.nan


def _cut_claim(theirs: str, paper: float, cut: Mapping[tuple[str, float, str, str, str], Interval], note: str) -> Claim:
    """How much sooner jobs end under OEF with our placer than under a baseline as published."""

    def said(ours: str, other: str) -> str:
        mine = {k: v for k, v in cut.items() if k[2:] == (ours, theirs, other)}
        return "; ".join(f"{m}, {p:.0%} penalty: {_change(v)}" for (m, p, *_), v in mine.items())

    judged = [v for k, v in cut.items() if k[2:] == ("whole", theirs, PUBLISHED[0])]
    refused = any(math.isnan(v.mean) for v in judged)
    naive, packed = PUBLISHED
    return Claim(
        f"OEF completes jobs {paper:.0%} sooner than {theirs}.",
        f"-{paper:.0%} (Figure 9)",
        said("whole", naive),
        None if refused else all(1 - v.mean >= paper - 0.05 for v in judged),
        f"Our placer against {theirs} by priority, unpacked. The same packed: {said('whole', packed)}. Our placer for "
        f"both: {said('whole', 'whole')}. The paper's placer against {theirs} by priority, unpacked: "
        f"{said('paper', naive)}. {note}".rstrip(),
    )


def _change(value: Interval) -> str:
    return "-" if math.isnan(value.mean) else f"{value.mean - 1:+.0%} [{value.low - 1:+.0%}, {value.high - 1:+.0%}]"
