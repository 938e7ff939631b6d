"""OEF's Figure 10, solve times and profiling errors; and a map of where its shares are worth more than others'."""

from __future__ import annotations

import time

import numpy as np

from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table, shown
from pycontrol.lab.oef.mixes import (
    CAPS,
    COOPERATIVE,
    DEVICES,
    GANDIVA_FAIR,
    GAVEL,
    GAVEL_ONE,
    MAX_MIN,
    NONCOOPERATIVE,
    mixes,
    problem_of,
    total,
)
from pycontrol.lab.oef.observed_runs import LEASE_S
from pycontrol.lab.runs import Interval, interval
from pycontrol.shares.problem import ShareProblem

TYPES = 10
ERRORS = (0.05, 0.1, 0.15, 0.2)


# ---- Figure 10


def figure10(setup: Setup) -> Findings:
    """Figure 10: solve time beside a round, and what profiling errors cost."""
    sizes = (10, 50, 100) if setup.quick else (10, 50, 100, 200, 300, 500)
    times = {e.label: [_solve_s(e.label, n, setup) for n in sizes] for e in (NONCOOPERATIVE, COOPERATIVE)}
    worst = max(times[COOPERATIVE.label])
    cost = {mix: [_deviation(mix, setup, e) for e in ERRORS] for mix in mixes(setup)}
    at20 = {mix: v[-1] for mix, v in cost.items()}
    claims = (
        Claim(
            "Solving is negligible beside a round.",
            "negligible at hundreds of users, ten types (Figure 10(a))",
            f"{worst:.2g} s at {sizes[-1]} tenants: {worst / LEASE_S:.2%} of 5 minutes",
            worst / LEASE_S < 0.1,
            "Wall time on one core, general vectors; less than a tenth of a round is called negligible.",
        ),
        Claim(
            "The cooperative form costs more than the non-cooperative.",
            "more (Figure 10(a))",
            f"{times[COOPERATIVE.label][-1]:.2g} s against {times[NONCOOPERATIVE.label][-1]:.2g} s",
            times[COOPERATIVE.label][-1] > times[NONCOOPERATIVE.label][-1],
        ),
        Claim(
            "An error of 20 % costs about 3 %.",
            "about 3 % (Figure 10(b))",
            "; ".join(f"{m} {shown(v[0])} %" for m, v in at20.items()),
            all(v[0].mean <= 4.0 for v in at20.values()),
            "Throughput that shares of wrong vectors promise less what they give; at most 4 % on average. "
            "Against the true optimum: " + "; ".join(f"{m} {shown(v[1])} %" for m, v in at20.items()) + ".",
        ),
    )
    tables = (
        Table(
            "Solve time, seconds, ten GPU types",
            ("tenants", *map(str, sizes)),
            tuple((label, *v) for label, v in times.items()),
        ),
        Table(
            "Deviation of throughput, % (and of the optimum)",
            ("mix", *(f"error {e:.0%}" for e in ERRORS)),
            tuple((m, *(f"{shown(gap)} ({shown(lost)})" for gap, lost in v)) for m, v in cost.items()),
        ),
    )
    figures = (
        Figure(
            "a",
            "Time to solve, ten GPU types",
            "tenants",
            "seconds",
            tuple(Series(label, sizes, v) for label, v in times.items()),
            log_y=True,
        ),
        Figure(
            "b",
            "Deviation by profiling error, cooperative",
            "error, %",
            "deviation, %",
            tuple(Series(m, [100 * e for e in ERRORS], [gap.mean for gap, _ in v]) for m, v in cost.items()),
        ),
    )
    own = ("an error of e: each speedup but the slowest type's is off by a uniform draw within e, 20 tenants",)
    return Findings(claims, tables, figures, own, len(setup.seeds_of(30, 6)))


def _solve_s(label: str, n: int, setup: Setup) -> float:
    """The median of three random problems."""
    entrant = next(e for e in (COOPERATIVE, NONCOOPERATIVE) if e.label == label)
    taken = []
    for seed in range(1 if setup.quick or n > 200 else 3):
        rng = np.random.default_rng([seed, n])
        w = np.cumprod(1 + rng.exponential(0.25, (n, TYPES)), axis=1)
        problem = ShareProblem.of(w / w[:, :1], rng.integers(8, 65, TYPES).astype(np.float64))
        setup.note(f"{label}, {n} tenants")
        begin_s = time.perf_counter()
        entrant.shares(problem)
        taken.append(time.perf_counter() - begin_s)
    return float(np.median(taken))


def _deviation(mix: str, setup: Setup, error: float) -> tuple[Interval, Interval]:
    """Percent: promised less given over promised, and the loss against the true vectors' optimum."""
    gaps, losses = [], []
    for seed in setup.seeds_of(30, 6):
        true = problem_of(mix, mixes(setup)[mix], seed, 20)
        rng = np.random.default_rng([seed, 3])
        wrong = true.speedups.copy()
        wrong[:, 1:] *= 1 + rng.uniform(-error, error, wrong[:, 1:].shape)
        told = ShareProblem.of(wrong, true.devices)
        x = COOPERATIVE.shares(told)
        gaps.append(100 * abs(total(told, x) - total(true, x)) / total(told, x))
        losses.append(100 * (1 - total(true, x) / total(true, COOPERATIVE.shares(true))))
    return interval(gaps), interval(losses)


# ---- the map


def conditions(setup: Setup) -> Findings:
    """Where cooperative OEF's shares are worth more: by tenants without speedup and the others' speedup."""
    shares = (0.0, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95)
    speeds = (1.5, 2.0, 3.0, 5.0, 8.0)
    others = (GANDIVA_FAIR, GAVEL, GAVEL_ONE, MAX_MIN)
    found = {(s, v): _ratios(s, v) for v in speeds for s in shares}
    most = ", ".join(f"{e.label} {max(r[e.label] for r in found.values()):.2f}" for e in others)
    wins = [k for k, r in found.items() if min(r[GANDIVA_FAIR.label], r[GAVEL.label]) >= 1.2]
    range_ = [max(r[GANDIVA_FAIR.label], r[GAVEL.label]) for (s, v), r in found.items() if v <= 2.0 and s <= 0.5]
    claims = (
        Claim(
            "Some mix gives +20 % estimated over both Gandiva_fair and Gavel.",
            "+20 % (Figure 8(a))",
            f"in {len(wins)} of {len(found)} cells of the map",
            bool(wins),
            "Where: "
            + ("; ".join(f"{s:.0%} without speedup, the others {v:g}x" for s, v in wins) or "nowhere")
            + f". With at most half without speedup and the others at most 2x: at most {max(range_):.3f}. "
            f"The most on the map, over: {most}.",
        ),
    )
    tables = tuple(
        Table(
            f"Cooperative OEF over {e.label}: estimated throughput of 20 tenants",
            ("speedup of the others", *(f"{s:.0%} without" for s in shares)),
            tuple((f"{v:g}x", *(f"{found[s, v][e.label]:.3f}" for s in shares)) for v in speeds),
        )
        for e in others
    )
    figures = tuple(
        Figure(
            f"map-{k}",
            f"Cooperative OEF over {e.label}",
            "tenants without speedup, %",
            "ratio of throughput",
            tuple(
                Series(f"others {v:g}x", [100 * s for s in shares], [found[s, v][e.label] for s in shares])
                for v in speeds
            ),
            mark=1.2,
        )
        for k, e in enumerate(others)
    )
    own = (
        "20 tenants, eight devices of each of three types; tenants without speedup 1.02 (middle type 1.01), those "
        "with it within 5 % of the cell's, the middle type 55 % of the gain",
        CAPS,
    )
    return Findings(claims, tables, figures, own)


def _ratios(without: float, speed: float) -> dict[str, float]:
    rng = np.random.default_rng([int(100 * without), int(100 * speed)])
    flat = round(20 * without)
    gains = np.concatenate([np.full(flat, 0.02), (speed - 1) * rng.uniform(0.95, 1.05, 20 - flat)])
    problem = ShareProblem.of(1 + gains[:, None] * np.array([0.0, 0.55, 1.0]), np.full(3, DEVICES))
    own = total(problem, COOPERATIVE.shares(problem))
    return {e.label: own / total(problem, e.shares(problem)) for e in (GANDIVA_FAIR, GAVEL, GAVEL_ONE, MAX_MIN)}
