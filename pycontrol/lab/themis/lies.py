"""The gain of lies under Themis: Figure 18, single auctions by search, and many rounds in the simulator."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pycontrol.lab.clusters import racks_of, uniform
from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table, shown
from pycontrol.lab.runs import Interval, SimulationRun, interval, paired_ratio
from pycontrol.lab.themis.single_round import measure
from pycontrol.lab.themis.small_examples import COSTS, DEFAULTS, THEMIS, VGG16, VGG16_S, WORST_FIRST, Rule, over_seeds
from pycontrol.simulation.result import Result
from pycontrol.simulation.simulation_settings import Misreport
from pycontrol.simulation.trace_apps import TraceApp, Workload

# ---- Figure 18

APPS = 8
WORK_H = 2.0
GRID = (10, 20, 30, 34, 36, 40, 50, 60, 70, 80, 90, 100)
QUICK_GRID = (20, 40, 100)
SLIGHT = 0.02
"""A gain that counts as none, even if the interval includes it."""
LIE = {
    "slowdown": lambda x: Misreport(slowdown=1 + x / 100),
    "work left": lambda x: Misreport(work=1 + x / 100),
}
RULES_18 = (THEMIS, Rule("themis, f = 0", "themis", f=0.0))
Key = tuple[str, str, int]
"""(rule, subject of the lie, X in percent)."""


def identical() -> Workload:
    """Eight identical apps: one job of eight GPUs with VGG16's placement sensitivity, two hours on one machine."""
    work = ((8 * 3600.0 * WORK_H,),)
    return Workload("eight alike", tuple(TraceApp(f"a{i}", 0.0, 8, work, slowdown=VGG16) for i in range(APPS)))


def fig18(setup: Setup) -> Findings:
    """Figure 18: one liar among eight identical apps, one machine of 8 GPUs and 28 of 2."""
    seeds, grid = setup.seeds_of(40, 8), QUICK_GRID if setup.quick else GRID
    cluster, work = racks_of([[8] + [2] * 28]), identical()
    told: list[Key] = [(r.label, about, x) for r in RULES_18 for about in LIE for x in grid]
    rules = {r.label: r for r in RULES_18}

    def jobs_of(seed: int) -> list[SimulationRun]:
        liar = f"a{seed % APPS}"
        honest = [r.job(work, cluster, seed) for r in RULES_18]
        return honest + [rules[r].job(work, cluster, seed, lies={liar: LIE[about](x)}) for r, about, x in told]

    groups = over_seeds(setup, seeds, jobs_of, "liar")
    liar: dict[Key, Interval] = {}
    others: dict[Key, Interval] = {}
    for k, key in enumerate(told):
        base = list(rules).index(key[0])
        pairs = [(g[len(RULES_18) + k], g[base], s % APPS) for g, s in zip(groups, seeds, strict=True)]
        liar[key] = paired_ratio([r.apps[i].rho for r, _, i in pairs], [h.apps[i].rho for _, h, i in pairs])
        others[key] = paired_ratio([_others(r, i) for r, _, i in pairs], [_others(h, i) for _, h, i in pairs])
    rows = [(*key, shown(liar[key]), shown(others[key])) for key in told]
    claims = [c for rule in rules for c in _claims18(rule, grid, liar, others)]
    return Findings(
        claims=tuple(claims),
        tables=(
            Table(
                f"rho, as a multiple of that of the honest run ({len(seeds)} seeds)",
                ("policy", "lie about", "X, %", "the liar", "honest apps, mean"),
                tuple(rows),
            ),
        ),
        figures=tuple(
            Figure(
                f"liar-{about.replace(' ', '-')}",
                f"rho / honest run, {about} over-reported",
                "X, %",
                "ratio",
                tuple(
                    _line(rule, about, grid, who, v)
                    for rule in rules
                    for who, v in {"liar": liar, "honest": others}.items()
                ),
                mark=1.0,
            )
            for about in LIE
        ),
        conventions=(
            COSTS,
            DEFAULTS,
            f"one job of 8 GPUs an app, S = {VGG16_S:.2f} across machines (VGG16), one rack, "
            f"{WORK_H:g} h of work, all apps come at once; the paper gives none of these",
            "eight apps alike are a tie, which any lie breaks, however small",
            "X multiplies S beyond one machine, or the work left, in all that the liar reports and bids",
            "the liar is each of the eight in turn; the honest run has the same seed",
            "with f = 0.8 two of eight are asked; the paper does not say; so f = 0 beside it, where all bid",
        ),
        seeds=len(seeds),
        values={
            who: {" | ".join(map(str, k)): v.mean for k, v in found.items()}
            for who, found in {"liar": liar, "honest": others}.items()
        },
    )


def _others(result: Result, liar: int) -> float:
    rho = [a.rho for i, a in enumerate(result.apps) if i != liar]
    return sum(rho) / len(rho)


def _line(rule: str, about: str, grid: Sequence[int], who: str, found: Mapping[Key, Interval]) -> Series:
    points = [found[rule, about, x] for x in grid]
    low, high = [p.low for p in points], [p.high for p in points]
    return Series(f"{who}, {rule}", list(grid), [p.mean for p in points], low, high)


def _claims18(
    rule: str, grid: Sequence[int], liar: Mapping[Key, Interval], others: Mapping[Key, Interval]
) -> list[Claim]:
    lines = {about: {x: liar[rule, about, x] for x in grid} for about in LIE}
    honest = [others[rule, "slowdown", x] for x in grid]
    loses = next((x for x in grid if lines["slowdown"][x].low > 1), None)
    return [
        *(_claim_lie(about, rule, line) for about, line in lines.items()),
        Claim(
            f"Honest apps gain from the lie ({rule}).",
            "their mean completion time falls",
            f"x {min(v.mean for v in honest):.3g} to x {max(v.mean for v in honest):.3g}",
            all(v.mean < 1 for v in honest) and any(v.high < 1 for v in honest),
            "" if any(v.high < 1 or v.low > 1 for v in honest) else "No X is told from 1 at 95 %.",
        ),
        Claim(
            f"At a tipping point X > 34 % the liar begins to lose ({rule}).",
            "X > 34 %",
            "it never loses measurably"
            if loses is None
            else f"it loses from X = {loses} % on (x {shown(lines['slowdown'][loses])})",
            loses is not None and 34 < loses <= 40,
        ),
    ]


def _claim_lie(about: str, rule: str, line: Mapping[int, Interval]) -> Claim:
    paper = "the liar never gains" if about == "slowdown" else "not tried"
    holds, sure = never_pays(list(line.values()))
    return Claim(f"Over-reporting {about} never pays ({rule}).", paper, _range(line), holds, _gains(line), sure)


def never_pays(ratios: Sequence[Interval]) -> tuple[bool, bool]:
    """Whether no lie pays, and whether that leaves no doubt: a gain at 95 %, or none of more than `SLIGHT`."""
    if any(v.high < 1 for v in ratios):
        return False, True
    return all(v.mean > 1 - SLIGHT for v in ratios), all(v.low > 1 - SLIGHT for v in ratios)


def _range(line: Mapping[int, Interval]) -> str:
    low, high = (f(line, key=lambda x: line[x].mean) for f in (min, max))
    return f"the liar's rho x {shown(line[low])} (X = {low} %) to x {shown(line[high])} (X = {high} %)"


def _gains(line: Mapping[int, Interval]) -> str:
    found = [f"{x} %" for x, v in line.items() if v.high < 1]
    return f"It gains at X = {', '.join(found)} (95 %, each by itself)." if found else _excluded(list(line.values()))


def _excluded(ratios: Sequence[Interval]) -> str:
    least = min(v.low for v in ratios)
    return f"Gains of more than {100 * max(0.0, 1 - least):.2g} % are excluded at 95 %, each by itself."


# ---- truth: one round

READINGS = {
    "fraction": "c V(G), the theorem's",
    "lottery": "all of G with probability c, else nothing",
    "gangs": "c of G's gangs by lot, as it is done",
}


def truth(setup: Setup) -> Findings:
    """Truthfulness, envy and efficiency by search: lies in one auction, and lies over many rounds."""
    rounds = one_round(setup)
    runs = many_rounds(setup)
    return Findings(
        claims=(*rounds.claims, *runs.claims),
        tables=(*rounds.tables, *runs.tables),
        figures=runs.figures,
        conventions=(*rounds.conventions, *runs.conventions),
        seeds=runs.seeds,
        values={"one_round": rounds.values, "many_rounds": runs.values},
    )


def one_round(setup: Setup) -> Findings:
    """Gains of lies, envy and efficiency in random auctions."""
    n, tries = (60, 6) if setup.quick else (600, 24)
    setup.note(f"{n} auctions, searched for lies")
    found = list(setup.each(partial(measure, tries=tries), range(n)))
    literal = list(setup.each(partial(measure, tries=tries, convention="twice_worst"), range(n)))
    best = {r: [max(f["gain"][r].values()) for f in found] for r in READINGS}
    gain = {r: interval(v) for r, v in best.items()}
    kinds = list(found[0]["gain"]["gangs"])
    rows = [(k, *(shown(interval([100 * f["gain"][r].get(k, 0.0) for f in found])) for r in READINGS)) for k in kinds]
    rows.append(("best of all", *(shown(interval([100 * x for x in best[r]])) for r in READINGS)))
    rows.append(("auctions with a gain over 1 %", *(f"{sum(x > 0.01 for x in best[r]) / n:.0%}" for r in READINGS)))
    rows.append(("largest gain", *(100 * max(best[r]) for r in READINGS)))
    envy, paid = ([f[k] for f in found] for k in ("envy", "envy_paid"))
    envious = interval([float(x > 1e-9) for x in paid])
    worse = sum(f["dominated"] for f in found)
    share = interval([f["paid_share"] for f in found])
    unproved = sum(not f["proved"] for f in found)
    return Findings(
        claims=(
            Claim(
                "One round is truthful if the payment takes the fraction 1 - c of an app's whole V.",
                "theorem 3.2",
                f"largest gain found {max(best['fraction']):.2g}",
                max(best["fraction"]) < 1e-6,
                "That is the mechanism of the proof; GPUs cannot be paid in V.",
            ),
            Claim(
                "One round as it is done, payments in whole gangs by lot, is truthful.",
                "strategy-proof",
                f"best lie found: + {shown(interval([100 * x for x in best['gangs']]))} % of V on average, "
                f"+ {100 * max(best['gangs']):.3g} % at most",
                max(best["gangs"]) < 1e-6,
                "An app that wins nothing keeps its projected V, which no payment takes: who says that nothing is "
                "worth more (or less) to it moves its payment. The lies searched know all the other bids.",
            ),
            Claim(
                "Nobody envies another's bundle after payments.",
                "envy-free",
                f"envy in {shown(envious)} of the auctions, by {100 * max(paid):.3g} % at most",
                max(paid) <= 1e-9,
                "GPUs and gangs are not divisible; the theorem's goods are.",
            ),
            Claim("G_pf is Pareto-efficient.", "theorem 3.2", f"dominated in {worse} of {n} auctions", worse == 0),
            _claim_literal(literal),
        ),
        tables=(
            Table(
                f"Gain of the best lie, % of V ({n} auctions, {tries} random lies and the systematic ones each)",
                ("lie", *READINGS.values()),
                tuple(rows),
            ),
            Table(
                "Envy and payments",
                ("", "mean", "largest"),
                (
                    ("envy in G_pf, V(other's) / V(own) - 1", shown(interval(envy)), max(envy)),
                    ("envy after payments", shown(interval(paid)), max(paid)),
                    ("share of won GPUs that are paid", shown(share), max(f["paid_share"] for f in found)),
                    ("auctions not proved optimal", unproved / n, unproved),
                ),
            ),
        ),
        conventions=(
            "one auction: 2 to 4 machines of 2 or 4 GPUs, 3 to 5 apps that hold nothing, gangs of 1, 2 or 4, "
            "true bids by the Agent's code; V = 1 / rho on the mean of the lot; the liar knows all bids",
        ),
        values={"gain": {r: g.mean for r, g in gain.items()}, "envious": envious.mean, "dominated": worse},
    )


def _claim_literal(found: Sequence[Mapping[str, Any]]) -> Claim:
    """What is left of theorem 3.2 where an app with nothing does not count by its own word."""
    gain = [max(f["gain"]["fraction"].values()) for f in found]
    worse, envious = (sum(f[k] > 1e-9 for f in found) for k in ("dominated", "envy_paid"))
    share = interval([f["paid_share"] for f in found])
    return Claim(
        "All this also where an app with nothing counts as twice the worst.",
        "unbounded (section 4.3)",
        f"by the theorem's payment a lie gains over 1 % in {sum(g > 0.01 for g in gain)} of {len(found)} auctions (+ "
        f"{100 * max(gain):.3g} % of V at most); envy in {envious}; dominated in {worse}",
        max(gain) < 1e-6 and not worse,
        f"{shown(share)} of the GPUs won are paid. That is why it is not the default.",
    )


# ---- truth: many rounds

CROWD = 16
RULES_MANY = (
    THEMIS,
    Rule("themis, leftovers worst first", "themis", {"leftovers": "worst_first"}),
    Rule("themis, cached tables", "themis", {"cached_tables": True}),
    Rule("themis, no last pass", "themis", last_pass=False),
    WORST_FIRST,
)
LIES_MANY = {
    "work x 3": (1, Misreport(work=3.0)),
    "work x 1/3": (1, Misreport(work=1 / 3)),
    "slowdown x 2": (1, Misreport(slowdown=2.0)),
    "slowdown x 1/2": (1, Misreport(slowdown=0.5)),
    "rho x 2": (1, Misreport(rho=2.0)),
    "rho x 1/2": (1, Misreport(rho=0.5)),
    "a pair, work x 3": (2, Misreport(work=3.0)),
    "a pair, slowdown x 2": (2, Misreport(slowdown=2.0)),
}
"""Numbers of liars, and their lies."""
QUICK_LIES = ("work x 3", "slowdown x 2", "rho x 2", "a pair, work x 3")


def crowd(seed: int) -> Workload:
    """16 apps of 1 to 12 jobs in gangs of 1, 2 or 4 that come within about an hour; half an hour's work a job."""
    rng = random.Random(f"crowd {seed}")
    apps, at_s = [], 0.0
    for i in range(CROWD):
        at_s += rng.expovariate(1 / 240)
        gang, rack = rng.choice((1, 2, 4)), rng.uniform(1.0, 1.5)
        jobs = tuple(gang * 1800 * math.exp(rng.gauss(0, 0.5)) for _ in range(rng.randint(1, 12)))
        apps.append(TraceApp(f"a{i:02}", at_s, gang, (jobs,), slowdown=(1.0, rack, rack * 1.2)))
    return Workload("crowd", tuple(apps), f"seed {seed}")


def liars(seed: int, n: int) -> list[int]:
    """The indices of the liars: a different app for each seed, for a pair also another."""
    return [seed % CROWD, (seed + 5) % CROWD][:n]


def many_rounds(setup: Setup) -> Findings:
    """Completion times of liars, and of the others, against the honest run."""
    seeds, cluster = setup.seeds_of(64, 8), uniform(8, 4, 4)
    told = {lie: LIES_MANY[lie] for lie in (QUICK_LIES if setup.quick else LIES_MANY)}

    def jobs_of(seed: int) -> list[SimulationRun]:
        work = crowd(seed)
        said: list[dict[str, Misreport]] = [{}]
        said += [{work.apps[i].app_id: lie for i in liars(seed, n)} for n, lie in told.values()]
        return [rule.job(work, cluster, seed, lies=lies) for rule in RULES_MANY for lies in said]

    groups = over_seeds(setup, seeds, jobs_of, "lies over many rounds")
    width = 1 + len(told)
    gain: dict[tuple[str, str], Interval] = {}
    rows: list[tuple[Any, ...]] = []
    for r, rule in enumerate(RULES_MANY):
        for k, (lie, (n, _)) in enumerate(told.items(), 1):
            runs = [(g[r * width + k], g[r * width], set(liars(s, n))) for g, s in zip(groups, seeds, strict=True)]
            liar = paired_ratio([_time(x, who) for x, _, who in runs], [_time(h, who) for _, h, who in runs])
            rest = [(set(range(CROWD)) - who) for _, _, who in runs]
            others = paired_ratio(
                [_time(x, w) for (x, _, _), w in zip(runs, rest, strict=True)],
                [_time(h, w) for (_, h, _), w in zip(runs, rest, strict=True)],
            )
            gain[rule.label, lie] = liar
            rows.append((rule.label, lie, shown(liar), shown(others)))
    return Findings(
        claims=tuple(_claim_many(rule.label, gain) for rule in RULES_MANY),
        tables=(
            Table(
                f"Completion time, as a multiple of that of the honest run ({len(seeds)} seeds)",
                ("policy", "lie", "liars", "the others"),
                tuple(rows),
            ),
        ),
        figures=(
            Figure(
                "lies",
                "Liars' completion time / honest run",
                "lie",
                "ratio",
                tuple(
                    Series(
                        rule.label,
                        list(told),
                        [gain[rule.label, lie].mean for lie in told],
                        [gain[rule.label, lie].low for lie in told],
                        [gain[rule.label, lie].high for lie in told],
                    )
                    for rule in RULES_MANY
                ),
                "bar",
                mark=1.0,
            ),
        ),
        conventions=(
            COSTS,
            DEFAULTS,
            "many rounds: 16 apps on 8 machines of 4 GPUs in 2 racks; reports are checked "
            "(docs/themis.md); another app lies with each seed; geometric means of ratios, the same seed",
        ),
        seeds=len(seeds),
        values={" | ".join(k): v.mean for k, v in gain.items()},
    )


def _time(result: Result, who: set[int]) -> float:
    times = [result.apps[i].completion_s for i in sorted(who)]
    return sum(times) / len(times)


def _claim_many(rule: str, gain: Mapping[tuple[str, str], Interval]) -> Claim:
    mine = {lie: v for (of, lie), v in gain.items() if of == rule}
    best = min(mine, key=lambda lie: mine[lie].mean)
    holds, sure = never_pays(list(mine.values()))
    pays = [f"{lie} (x {shown(v)})" for lie, v in mine.items() if v.high < 1]
    unsure = [lie for lie, v in mine.items() if v.mean < 1 <= v.high]
    return Claim(
        f"Over many rounds lies do not pay ({rule}).",
        "theorem 3.3: strategy-proof over rounds" if rule.startswith("themis") else "no claim: the paper's strawman",
        f"best lie: {best}, the liar's completion time x {shown(mine[best])}",
        holds,
        (f"Pays at 95 %, each by itself: {', '.join(pays)}. " if pays else f"{_excluded(list(mine.values()))} ")
        + (f"Not told from 1, but on the gaining side: {', '.join(unsure)}." if unsure else ""),
        sure,
    )
