"""OEF's Table 1 and Figures 4 to 6: properties of schedulers, lying, sharing incentive, job types, envy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table
from pycontrol.lab.oef import paper_programs
from pycontrol.lab.oef.mixes import (
    ASSUMED,
    COOPERATIVE,
    EFFICIENCY,
    EIGHT,
    FOUR,
    FOUR_NAMES,
    GANDIVA_FAIR,
    MAX_MIN,
    NONCOOPERATIVE,
    Entrant,
    envy,
    pareto_gain,
    shortfall,
    total,
)
from pycontrol.lab.oef.observed_runs import (
    EQUAL,
    OEF,
    OEF_NONCOOPERATIVE,
    RUN_CONVENTIONS,
    Run,
    SpeedupLie,
    measure,
)
from pycontrol.lab.oef.placers import Placed
from pycontrol.lab.shares.gavel_shares import GavelShares
from pycontrol.lab.shares.tenants import Tenancy
from pycontrol.shares.problem import ShareProblem
from pycontrol.simulation.trace_apps import TraceApp, Workload

SEARCHED = (
    COOPERATIVE,
    NONCOOPERATIVE,
    GANDIVA_FAIR,
    Entrant("Gavel", GavelShares("max_min")),
    Entrant("Gavel, cap 1", GavelShares("max_min"), 1.0),
    MAX_MIN,
    EFFICIENCY,
)
PROPERTIES = ("PE", "EF", "SI", "SP, overstated", "SP, any lie")
CLOSE = 1e-6
KEPT = "-"
KNOWN = (
    ShareProblem.of([[1.0, 3.5, 3.5], [1.0, 8.0, 60.0], [1.0, 9.5, 90.25]], [4.0, 4.0, 1.0]),
    ShareProblem.of([[1.0, 4.0], [1.0, 4.0]], [1.0, 10.0]),
)
"""Known counter-examples that a short search may miss: to PE (cooperative), to SP (non-cooperative)."""
CHEAT = 1.5
"""Factor by which User-1 overstates its speedups beyond the slowest type; the paper does not state it."""
STEP_MIN, EXIT_MIN, END_MIN = 5, 40, 80


# ---- Table 1


def table1(setup: Setup) -> Findings:
    """Table 1: which scheduler keeps which property, found by search for a counter-example."""
    problems = [*KNOWN, *(_random(seed) for seed in range(12 if setup.quick else 400))]
    worst = {e.label: dict.fromkeys(PROPERTIES, 0.0) for e in SEARCHED}
    for seed, problem in enumerate(problems):
        setup.note(f"problem {seed} of {len(problems)}")
        for entrant in SEARCHED:
            found = worst[entrant.label]
            for name, value in _violations(entrant, problem, np.random.default_rng([seed, 2])).items():
                found[name] = max(found[name], value)
    rows = tuple(
        (label, *(KEPT if v <= CLOSE else f"{v:.1%}" for v in found.values())) for label, found in worst.items()
    )
    keeps = {label: [p for p, v in found.items() if v <= CLOSE] for label, found in worst.items()}
    optimal = _optimal_among_envy_free(problems[:10])
    claims = (
        _claim(
            "Gavel keeps SI and PE, not EF, not SP.",
            keeps["Gavel"],
            {"SI", "PE"},
            {"EF", "SP, overstated"},
            "With its cap of 1 a tenant: " + (", ".join(keeps["Gavel, cap 1"]) or "none") + ".",
        ),
        _claim(
            "Gandiva_fair keeps SI and PE, not EF, not SP.",
            keeps["Gandiva_fair"],
            {"SI", "PE"},
            {"EF", "SP, overstated"},
            "With three types its trades end before all gains are made.",
        ),
        _claim(
            "Cooperative OEF keeps EF, SI and PE.",
            keeps[COOPERATIVE.label],
            {"EF", "SI", "PE"},
            set(),
            "EF and SI hold; Pareto efficiency fails where a gain that harms nobody would make somebody envious.",
        ),
        _claim(
            "Non-cooperative OEF keeps PE, and nobody gains by overstating.",
            keeps[NONCOOPERATIVE.label],
            {"SP, overstated", "PE"},
            set(),
        ),
        _claim(
            "Non-cooperative OEF is strategy-proof against any lie.",
            keeps[NONCOOPERATIVE.label],
            {"SP, any lie"},
            set(),
            "Understating pays in some problems: Theorem 5.4 looks at overstated speedups only.",
        ),
        Claim(
            "Cooperative OEF is the most efficient of all envy-free divisions.",
            "optimal efficiency",
            f"within {optimal:.1e} of the linear programme that says so",
            optimal <= 1e-6,
            "Held against Equation 10 with all n(n-1) envy rows, solved by another solver.",
        ),
    )
    table = Table(
        f"Largest violation in {len(problems)} random problems (-: none found)", ("scheduler", *PROPERTIES), rows
    )
    return Findings(
        claims,
        (table,),
        (),
        (
            "problems: 2 to 5 tenants, 2 to 4 types of 1 to 12 devices, speedups from 1 to 6; two counter-examples "
            "found before; 6 lies each",
            "a violation: throughput to be had with nobody worse off (PE), by another's share (EF), lacking to the "
            "equal split (SI), by a lie (SP), as a part of one's own or of all",
        ),
        len(problems),
    )


def _random(seed: int) -> ShareProblem:
    rng = np.random.default_rng([seed, 1])
    n, k = int(rng.integers(2, 6)), int(rng.integers(2, 5))
    steps = rng.uniform(1.0, 6.0 ** (1 / (k - 1)), (n, k - 1)) if seed % 2 else 1 + rng.exponential(0.6, (n, k - 1))
    w = np.cumprod(np.hstack([np.ones((n, 1)), steps]), axis=1)
    return ShareProblem.of(np.asarray(w, dtype=np.float64), [float(v) for v in rng.integers(1, 13, k)])


def _violations(entrant: Entrant, problem: ShareProblem, rng: np.random.Generator) -> Mapping[str, float]:
    x = entrant.shares(problem)
    own = problem.efficiency(x)
    size = float(own.mean())
    found = {
        "PE": pareto_gain(problem, x),
        "EF": max(0.0, envy(problem, x) / size),
        "SI": max(0.0, shortfall(problem, x)),
        "SP, overstated": 0.0,
        "SP, any lie": 0.0,
    }
    for trial in range(6):
        liar = int(rng.integers(problem.users))
        over = trial % 2 == 0
        factors = rng.uniform(1.0 if over else 0.3, 3.0 if over else 1.0, problem.types)
        told = problem.speedups.copy()
        told[liar] *= factors
        lied = problem.efficiency(entrant.shares(ShareProblem.of(told, problem.devices)))[liar]
        gain = float(lied - own[liar]) / size
        if over:
            found["SP, overstated"] = max(found["SP, overstated"], gain)
        found["SP, any lie"] = max(found["SP, any lie"], gain)
    return found


def _optimal_among_envy_free(problems: list[ShareProblem]) -> float:
    """The largest relative gap of cooperative OEF to a direct formulation of Equation 10, solved by CBC."""
    best = [total(p, paper_programs.cooperative(p)) for p in problems]
    return max(abs(total(p, COOPERATIVE.shares(p)) / b - 1) for p, b in zip(problems, best, strict=True))


def _claim(claim: str, kept: list[str], must: set[str], must_not: set[str], why: str = "") -> Claim:
    holds = must <= set(kept) and not must_not & set(kept)
    return Claim(claim, "Table 1 and section 2.4", f"keeps {', '.join(kept) or 'none'}", holds, why)


# ---- Figures 4 to 6: four tenants


def four(jobs: int = 6) -> Workload:
    """Four tenants with endless jobs of 1, 2 and 4 GPUs."""
    types = ("RTX 3070", "RTX 3080", "RTX 3090")
    apps = []
    for u, (name, vector) in enumerate(zip(FOUR_NAMES, FOUR, strict=True), 1):
        for j in range(jobs):
            gang = (1, 2, 1, 4)[j % 4]
            app = TraceApp(
                f"u{u}-j{j}",
                0.0,
                gang,
                ((1e9,),),
                user=f"u{u}",
                model=name,
                speedups=dict(zip(types, vector.tolist(), strict=True)),
            )
            apps.append(app)
    return Workload("oef-four", tuple(apps), "four tenants of OEF 6.2")


def figure4(setup: Setup) -> Findings:
    """Figure 4: who lies about its speedups loses under non-cooperative OEF."""
    times = list(range(0, END_MIN + 1, STEP_MIN))
    told = FOUR.copy()
    told[0, 1:] *= CHEAT
    true = {k: ShareProblem.of(FOUR[:k], EIGHT) for k in (3, 4)}
    honest = {k: p.efficiency(NONCOOPERATIVE.shares(p)) for k, p in true.items()}
    lied = {k: p.efficiency(NONCOOPERATIVE.shares(ShareProblem.of(told[:k], EIGHT))) for k, p in true.items()}
    spread = max(float(np.ptp(v) / v.mean()) for v in honest.values())
    loss = {k: float(1 - lied[k][0] / honest[k][0]) for k in honest}
    gain = {k: float(lied[k][1:].min() / honest[k][1:].min() - 1) for k in honest}
    all_loss = {k: float(1 - lied[k].sum() / honest[k].sum()) for k in honest}
    span_s = (40 if setup.quick else 160) * 300.0
    runs = [Run(OEF_NONCOOPERATIVE, four(), span_s, lie=lie) for lie in (None, SpeedupLie("u1", CHEAT))]
    first, second = measure(setup, runs, "lying")
    actual = {u: (first.done[u] / span_s, second.done[u] / span_s) for u in sorted(first.done)}
    ran = [a for a, _ in actual.values()]
    loses = min(loss.values()) > 0 and actual["u1"][1] < actual["u1"][0]
    claims = (
        Claim(
            "Honest tenants have the same throughput.",
            "almost identical (Figure 4(a))",
            f"estimated: within {spread:.1e}; with the placer: within {(max(ran) - min(ran)) / max(ran):.1%}",
            spread < 1e-6 and (max(ran) - min(ran)) / max(ran) < 0.1,
        ),
        Claim(
            "The liar has less than before, also after User-4 left.",
            "penalised (Figure 4(b))",
            f"{loss[4]:.1%} less, {loss[3]:.1%} after User-4 left; with the placer "
            f"{1 - actual['u1'][1] / actual['u1'][0]:.1%}",
            loses,
        ),
        Claim(
            "Honest tenants gain by it.",
            "improves (Figure 4(b))",
            f"{gain[4]:+.1%}, {gain[3]:+.1%} after User-4 left",
            min(gain.values()) > 0,
        ),
        Claim(
            "The lie costs about 10 % of all throughput.",
            "around 10 % (section 6.2.1)",
            f"{all_loss[4]:.1%}, {all_loss[3]:.1%} after User-4 left",
            0.07 <= all_loss[4] <= 0.13,
            f"User-1 (LSTM) says {CHEAT:g} times its speedups; how far it lies the paper does not say. "
            + ", ".join(f"x{f:g}: {_lie_cost(f):.1%}" for f in (1.2, 2.0, 3.0))
            + ".",
        ),
    )
    rows = tuple(
        (f"u{i + 1} ({n})", float(honest[4][i]), float(lied[4][i]), *actual[f"u{i + 1}"])
        for i, n in enumerate(FOUR_NAMES)
    )
    columns = ("tenant", "estimated", "estimated, u1 lies", "with the placer", "with the placer, u1 lies")
    table = Table("Throughput of four tenants, GPUs of the slowest type", columns, rows)
    figures = tuple(
        Figure(
            name,
            f"Estimated throughput, {words}; User-4 leaves at {EXIT_MIN} min",
            "minutes",
            "throughput",
            tuple(
                Series(f"User-{i + 1} ({n})", t, [float(v[4 if m < EXIT_MIN else 3][i]) for m in t])
                for i, n in enumerate(FOUR_NAMES)
                for t in [[m for m in times if i < 3 or m < EXIT_MIN]]
            ),
            "step",
        )
        for name, words, v in (("a", "nobody cheats", honest), ("b", "User-1 cheats", lied))
    )
    return Findings(claims, (table,), figures, (*ASSUMED, *RUN_CONVENTIONS[:1]))


def _lie_cost(factor: float) -> float:
    told = FOUR.copy()
    told[0, 1:] *= factor
    true = ShareProblem.of(FOUR, EIGHT)
    lied = true.efficiency(NONCOOPERATIVE.shares(ShareProblem.of(told, EIGHT)))
    return float(1 - lied.sum() / true.efficiency(NONCOOPERATIVE.shares(true)).sum())


def figure5(setup: Setup) -> Findings:
    """Figure 5: sharing incentive of cooperative OEF, and a tenant with two job types."""
    problem = ShareProblem.of(FOUR[::-1].copy(), EIGHT)
    names = FOUR_NAMES[::-1]
    split, own = (problem.efficiency(e.shares(problem)) for e in (MAX_MIN, COOPERATIVE))
    ratio = own / split
    span_s = (40 if setup.quick else 160) * 300.0
    naive = Placed(EQUAL, "unpacked")
    variants = (OEF, Placed(OEF, "paper"), EQUAL, naive)
    runs = [Run(policy, four(), span_s, penalty) for penalty in (0.1, 0.3) for policy in variants]
    found = measure(setup, runs, "sharing incentive")
    users = ("u4", "u3", "u2", "u1")  # slow to fast, as in the figure
    rows, best = [], {}
    for k, penalty in enumerate((0.1, 0.3)):
        ours, paper, equal, rounded = (found[4 * k + i].done for i in range(4))
        for label, mine, theirs in (
            ("our placer, max-min too", ours, equal),
            ("our placer, max-min by priority, unpacked", ours, rounded),
            ("the paper's placer, max-min by priority, unpacked", paper, rounded),
        ):
            ratios = [mine[u] / theirs[u] for u in users]
            best[penalty, label] = max(ratios)
            rows.append((f"{penalty:.0%}", label, *ratios))
    types = Tenancy.of([[FOUR[0], FOUR[3]], [FOUR[1]], [FOUR[2]], [FOUR[3]]], EIGHT)
    both = types.problem.efficiency(NONCOOPERATIVE.shares(types.problem))
    actual = best[0.3, "our placer, max-min by priority, unpacked"]
    claims = (
        Claim(
            "Everybody has at least what max-min gives.",
            "higher or equal (Figure 5(a))",
            f"smallest ratio {ratio.min():.3f}",
            bool(ratio.min() >= 1 - 1e-7),
        ),
        Claim(
            "User-4 gains most, up to 1.16x estimated.",
            "1.16x (Figure 5(a))",
            f"{ratio.max():.2f}x ({names[int(ratio.argmax())]})",
            1.12 <= float(ratio.max()) <= 1.20,
        ),
        Claim(
            "With the placer up to 1.24x.",
            "1.24x (Figure 5(a))",
            "; ".join(f"{label}, {p:.0%} penalty: {v:.2f}x" for (p, label), v in best.items()),
            actual >= 1.2,
            "Judged with our placer against max-min by priority, unpacked, at 30 %; with the same placer for both it "
            "is the estimated gain.",
        ),
        Claim(
            "A tenant's two job types get equal throughput, half of the others'.",
            "equal, half (Figure 5(b))",
            f"{both[0]:.2f} and {both[1]:.2f}, others {both[2]:.2f}",
            bool(abs(both[0] / both[1] - 1) < 1e-6 and abs(both[0] * 2 / both[2] - 1) < 1e-6),
            "Non-cooperative.",
        ),
    )
    four_alone = NONCOOPERATIVE.shares(ShareProblem.of([FOUR[0], *FOUR[1:]], EIGHT))
    before = ShareProblem.of(FOUR, EIGHT).efficiency(four_alone)
    tables = (
        Table(
            "Estimated throughput over max-min",
            ("tenant", "max-min", "OEF", "ratio"),
            tuple((n, float(s), float(o), float(r)) for n, s, o, r in zip(names, split, own, ratio, strict=True)),
        ),
        Table("Measured throughput over max-min, by tenant", ("span penalty", "placers", *names), tuple(rows)),
    )
    lines = [
        ("User-1, first type", [before[0]] * 2 + [both[0]] * 2),
        ("User-1, second type", [0.0] * 2 + [both[1]] * 2),
        ("User-2", [before[1]] * 2 + [both[2]] * 2),
    ]
    figures = (
        Figure(
            "a",
            "Sharing incentive of cooperative OEF, estimated",
            "tenant",
            "throughput",
            (Series("max-min", names, split.tolist()), Series("OEF", names, own.tolist())),
            "bar",
        ),
        Figure(
            "b",
            "User-1 brings a second job type at 40 min",
            "minutes",
            "throughput",
            tuple(Series(n, [0, 39.9, 40, 80], [float(v) for v in y]) for n, y in lines),
        ),
    )
    return Findings(claims, tables, figures, (*ASSUMED, *RUN_CONVENTIONS))


def figure6(setup: Setup) -> Findings:
    """Figure 6: what each tenant would make of another's share under cooperative OEF."""
    problem = ShareProblem.of(FOUR[::-1].copy(), EIGHT)
    names = [f"User-{i} ({n})" for i, n in enumerate(FOUR_NAMES[::-1], 1)]
    x = COOPERATIVE.shares(problem)
    worth = problem.speedups @ x.T
    own = np.diag(worth)
    last = float(own[3] / worth[3, 0])
    claims = (
        Claim(
            "Nobody would rather have another's share.",
            "nobody (Figure 6)",
            f"largest gain {float((worth / own[:, None]).max() - 1):.1e}",
            envy(problem, x) <= CLOSE,
        ),
        Claim(
            "User-4 has 1.58 times what User-1's share would give it.",
            "1.58x (section 6.2.4)",
            f"{last:.2f}x",
            abs(last - 1.58) <= 0.08,
            "Depends on all four vectors, of which the paper prints two at most.",
        ),
    )
    table = Table(
        "Throughput (row: whose jobs; column: whose GPUs)",
        ("jobs", *names),
        tuple((n, *map(float, row)) for n, row in zip(names, worth, strict=True)),
    )
    figure = Figure(
        "6",
        "Estimated throughput with each other's share",
        "whose share",
        "throughput",
        tuple(Series(n, names, row.tolist()) for n, row in zip(names, worth, strict=True)),
        "bar",
    )
    return Findings(claims, (table,), (figure,), ASSUMED)
