"""Shares at the sizes of large clusters, with the paper's tools (cvxpy) and PuLP + CBC in the same run.

All times are CPU seconds of this process and its children, since the machine may be busy.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import Any

import cvxpy
import numpy as np

from pycontrol.lab.oef import paper_programs
from pycontrol.lab.shares.gandiva_fair_shares import GandivaFairShares
from pycontrol.lab.shares.gavel_shares import GavelShares
from pycontrol.shares.cooperative import OefCooperative
from pycontrol.shares.noncooperative import OefNoncooperative
from pycontrol.shares.problem import Matrix, ShareProblem

TYPES = 10


def problem(seed: int, users: int, kind: str) -> ShareProblem:
    """`general`, `ordered` (by ratio) or `50` (distinct vectors)."""
    rng = np.random.default_rng(seed)
    rows = min(users, 50) if kind == "50" else users
    if kind == "ordered":
        steps = np.concatenate([[0.0], np.cumsum(rng.uniform(0.05, 0.3, TYPES - 1))])
        w = np.exp(np.outer(rng.uniform(0, 2, rows), steps))
    else:
        w = np.cumprod(np.concatenate([np.ones((rows, 1)), rng.uniform(1, 1.5, (rows, TYPES - 1))], axis=1), axis=1)
    return ShareProblem.of(np.resize(w, (users, TYPES)), rng.integers(4, 40, TYPES))


def cpu(fn: Callable[[], Matrix]) -> tuple[float, Matrix]:
    """CPU seconds of one call, and its result."""
    before = _used_s()
    result = fn()
    return _used_s() - before, result


def _used_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def own(scheme: Any, users: int, kind: str, seeds: int) -> dict[str, Any]:
    """The worst and the median of some problems."""
    times = sorted(cpu(lambda s=seed: scheme.shares(problem(s, users, kind)))[0] for seed in range(seeds))  # type: ignore[misc]
    return {"users": users, "vectors": kind, "cpu_s": times[len(times) // 2], "worst_cpu_s": times[-1], "n": seeds}


def convex(p: ShareProblem, cooperative: bool, solver: str) -> Matrix:
    """The paper's formulation, vectorised."""
    x = cvxpy.Variable(p.speedups.shape, nonneg=True)
    mine = cvxpy.sum(cvxpy.multiply(p.speedups, x), axis=1)
    limits = [cvxpy.sum(x, axis=0) <= p.devices]
    if cooperative:
        limits += [cvxpy.reshape(mine, (p.users, 1), order="C") >= p.speedups @ x.T]
    else:
        limits += [mine == mine[0]]
    cvxpy.Problem(cvxpy.Maximize(cvxpy.sum(mine)), limits).solve(solver=solver)
    return np.asarray(x.value)


def yardsticks(users: int, seed: int, solvers: tuple[str, ...]) -> dict[str, Any]:
    """The other tools on one problem, with the differences of their totals from ours."""
    p = problem(seed, users, "general")
    result: dict[str, Any] = {"users": users}
    for name, scheme, plain in (
        ("cooperative", OefCooperative(), paper_programs.cooperative),
        ("noncooperative", OefNoncooperative(), paper_programs.noncooperative),
    ):
        cpu_s, x = cpu(lambda s=scheme: s.shares(p))  # type: ignore[misc]
        total = p.efficiency(x).sum()
        row: dict[str, Any] = {"ours": {"cpu_s": cpu_s}}
        tools: dict[str, Callable[[], Matrix]] = {"PuLP + CBC": lambda f=plain: f(p)}  # type: ignore[misc]
        for solver in solvers:
            tools[f"cvxpy + {solver}"] = lambda s=solver, n=name: convex(p, n == "cooperative", s)  # type: ignore[misc]
        for tool, solve in tools.items():
            tool_s, y = cpu(solve)
            off = float(p.efficiency(np.asarray(y)).sum() / total - 1)
            row[tool] = {"cpu_s": tool_s, "times_ours": tool_s / max(cpu_s, 1e-9), "total_off": off}
        result[name] = row
    return result


def run(quick: bool) -> dict[str, Any]:
    """`quick`: nothing that takes minutes. ISONOMY_BENCH_ECOS=1 adds the paper's tools at 200 x 10 (two minutes)."""
    seeds = 3 if quick else 5
    cooperative, noncooperative = OefCooperative(), OefNoncooperative()
    noncooperative.shares(problem(0, 50, "general"))  # libraries are loaded
    result: dict[str, Any] = {
        "cooperative": [
            own(cooperative, 200, "general", seeds),
            *([] if quick else [own(cooperative, 500, "general", 2)]),
            own(cooperative, 200, "ordered", seeds),
            own(cooperative, 500, "ordered", seeds),
            own(cooperative, 1000, "50", seeds),
        ],
        "noncooperative": [own(noncooperative, 500, kind, seeds) for kind in ("general", "ordered")],
        "gandiva_fair": own(GandivaFairShares(), 50, "general", 1),
        "gavel max_min": own(GavelShares(), 200, "general", 1),
        "other tools": [yardsticks(30 if quick else 100, 0, ("ECOS", "CLARABEL"))],
    }
    if os.environ.get("ISONOMY_BENCH_ECOS") == "1":
        result["other tools"].append(yardsticks(200, 0, ("ECOS",)))
    return result
