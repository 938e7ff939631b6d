"""OEF's printed examples: Equations 5 to 8, Figure 2 and the examples of sections 2.3 and 4.2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table
from pycontrol.lab.oef.mixes import (
    COOPERATIVE,
    EFFICIENCY,
    EIGHT,
    GANDIVA_FAIR,
    GAVEL,
    LSTM,
    MAX_MIN,
    NONCOOPERATIVE,
    VGG,
    Entrant,
)
from pycontrol.lab.shares.gavel_shares import GavelShares
from pycontrol.lab.shares.tenants import Tenancy
from pycontrol.shares.problem import Matrix, ShareProblem

ROUNDED = 0.0101
"""The paper prints two digits, of which some are cut off rather than rounded."""
GAVEL_JOBS = Entrant("Gavel", GavelShares("max_min"), 1.0)
OPEN = (math.nan, math.nan)
"""Not printed, or either way."""
THREE = ((1.0, 2.0), (1.0, 3.0), (1.0, 4.0))


@dataclass(frozen=True)
class Vector:
    """One example: speedups, who divides one device of each type, and the printed shares."""

    name: str
    where: str
    entrant: Entrant
    speedups: tuple[tuple[float, ...], ...]
    printed: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...] | None = None

    def shares(self) -> Matrix:
        """Ours."""
        return self.entrant.shares(ShareProblem.of(self.speedups, [1.0, 1.0], self.weights))


VECTORS = (
    Vector("Gandiva_fair", "section 2.3", GANDIVA_FAIR, THREE, ((1, 0.09), (0, 0.47), (0, 0.44))),
    Vector("Gandiva_fair, u1 says 2.8", "section 2.3", GANDIVA_FAIR, ((1, 2.8), *THREE[1:]), ((1, 0.11), OPEN, OPEN)),
    Vector("Gavel", "section 2.3", GAVEL_JOBS, THREE, ((0.91, 0.09), (0.09, 0.45), (0, 0.45))),
    Vector("efficiency only", "Equation 5", EFFICIENCY, THREE, ((math.nan, 0), (math.nan, 0), (math.nan, 1))),
    Vector("cooperative", "Equation 6", COOPERATIVE, ((1, 2), (1, 5)), ((1, 0.25), (0, 0.75))),
    Vector("cooperative, u1 says 4", "section 3.1", COOPERATIVE, ((1, 4), (1, 5)), ((1, 0.375), (0, 0.625))),
    Vector("cooperative", "Figure 2(a)", COOPERATIVE, ((1, 2), (1, 4)), ((1, 0.25), (0, 0.75))),
    Vector("cooperative, u1 says 3", "Figure 2(b)", COOPERATIVE, ((1, 3), (1, 4)), ((1, 0.33), (0, 0.67))),
    Vector(
        "non-cooperative, weights 1 and 2",
        "section 4.2.3",
        NONCOOPERATIVE,
        ((1, 2), (1, 5)),
        ((1, 1 / 3), (0, 2 / 3)),
        (1.0, 2.0),
    ),
)
TWO_TYPES = (((1.0, 2.0), (1.0, 3.0)), ((1.0, 5.0),))
"""Job types of two tenants (section 4.2.4)."""
TWO_TYPES_PRINTED = ((1, 0.11), (0, 0.41), (0, 0.24), (0, 0.24))


def vectors(setup: Setup) -> Findings:
    """The shares that the paper prints, recomputed."""
    claims: list[Claim] = []
    rows: list[tuple[str, ...]] = []
    for v in VECTORS:
        _compare(v.name, v.where, v.shares(), v.printed, claims, rows)
    tenancy = Tenancy.of(TWO_TYPES, [1.0, 1.0])
    x = NONCOOPERATIVE.shares(tenancy.problem)
    # the paper lists the second tenant's half-weight twins; ours is one user of twice their weight
    x = np.vstack([x[:2], x[2] / 2, x[2] / 2])
    _compare("non-cooperative, two job types", "section 4.2.4", x, TWO_TYPES_PRINTED, claims, rows)
    table = Table(
        "Shares of one device of each of two types", ("example", "where", "paper", "ours", "largest gap"), tuple(rows)
    )
    notes = ("Printed throughputs come from rounded shares, so shares are compared.",)
    return Findings(tuple(claims), (table,), (), (f"agreement within {ROUNDED:.2f}: two digits are printed",), 0, notes)


def _compare(
    name: str,
    where: str,
    x: Matrix,
    printed: Sequence[Sequence[float]],
    claims: list[Claim],
    rows: list[tuple[str, ...]],
) -> None:
    gap = float(np.nanmax(np.abs(x - np.array(printed, dtype=float))))
    paper, ours = _said(np.array(printed, dtype=float)), _said(x)
    claims.append(Claim(f"{name} ({where}): the printed shares.", paper, ours, gap <= ROUNDED))
    rows.append((name, where, paper, ours, f"{gap:.3f}"))


def _said(x: Matrix) -> str:
    rows = [", ".join("-" if math.isnan(v) else f"{v:.3g}" for v in np.round(row, 3) + 0.0) for row in x]
    return " ".join(f"[{row}]" for row in rows)


def figures_1_and_2(setup: Setup) -> Findings:
    """Figures 1-2: what a fast GPU is worth, what schedulers make of it, and why nobody can have it all."""
    entrants = (MAX_MIN, GANDIVA_FAIR, GAVEL, NONCOOPERATIVE, COOPERATIVE)
    speeds = {}
    for types, columns in (("two types", [0, 2]), ("three types", [0, 1, 2])):
        problem = ShareProblem.of(np.array([VGG, LSTM])[:, columns], EIGHT[columns])
        unit = 2 / problem.devices.sum()
        speeds[types] = {e.label: problem.efficiency(e.shares(problem)) * unit for e in entrants}
    found, gains, losses = speeds["two types"], {}, {}
    for types, own in speeds.items():
        most, best = own[MAX_MIN.label], own[COOPERATIVE.label]
        gains[types], losses[types] = float(best[1] / most[1]), float(1 - most.sum() / best.sum())
    lied = COOPERATIVE.shares(ShareProblem.of([(1, 3), (1, 4)], [1.0, 1.0]))
    honest = COOPERATIVE.shares(ShareProblem.of([(1, 2), (1, 4)], [1.0, 1.0]))
    true = np.array([1.0, 2.0])
    before, after = float(honest[0] @ true), float(lied[0] @ true)
    claims = (
        Claim(
            "LSTM has less under max-min than under OEF.",
            "1.18x less (Figure 1(b))",
            _both(gains, "{:.2f}x"),
            gains["two types"] >= 1.165,
            "With the slowest and the fastest type; a middle type dilutes it.",
        ),
        Claim(
            "The cluster loses efficiency under max-min.",
            "about 10 % (section 2.3)",
            _both(losses, "{:.1%}"),
            0.085 <= losses["two types"] <= 0.115,
            "1 - max-min / cooperative OEF; with two types.",
        ),
        Claim(
            "Efficiency and envy-freeness together pay liars.",
            "u1: [1, .25] to [1, .33] (Figure 2)",
            f"[{honest[0][0]:.2f}, {honest[0][1]:.2f}] to [{lied[0][0]:.2f}, {lied[0][1]:.2f}]: truly "
            f"{before:.2f} to {after:.2f}",
            after > before + 1e-6,
            "Theorem 3.2's example.",
        ),
    )
    names = ("VGG", "LSTM")
    table = Table(
        "Speed of a tenant's GPUs, an equal number of the slowest being 1",
        ("GPUs", "scheduler", *names, "both"),
        tuple(
            (types, k, float(v[0]), float(v[1]), float(v.mean()))
            for types, own in speeds.items()
            for k, v in own.items()
        ),
    )
    cards = ("RTX 3070", "RTX 3080", "RTX 3090")
    figures = (
        Figure(
            "1a",
            "Speedup of training by GPU type",
            "GPU type",
            "speedup",
            (Series("VGG", cards, VGG), Series("LSTM", cards, LSTM)),
            "bar",
        ),
        Figure(
            "1b",
            "Speedup of two tenants under schedulers, two types",
            "scheduler",
            "speedup",
            tuple(Series(n, list(found), [float(v[i]) for v in found.values()]) for i, n in enumerate(names)),
            "bar",
        ),
        Figure(
            "2",
            "Shares of the fast GPU, before and after u1 lies",
            "user",
            "part of GPU 2",
            tuple(Series(n, ("u1", "u2"), x[:, 1].tolist()) for n, x in (("before", honest), ("after", lied))),
            "bar",
        ),
    )
    return Findings(claims, (table,), figures, ("an RTX 3080 has 55 % of the 3090's gain",))


def _both(values: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{form.format(v)} with {types}" for types, v in values.items())
