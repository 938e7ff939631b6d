"""Shared by OEF's experiments on shares: speedup mixes, schemes, and measures of a division."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

from pycontrol.lab.kit import Setup
from pycontrol.lab.shares.gandiva_fair_shares import GandivaFairShares
from pycontrol.lab.shares.gavel_shares import GavelShares
from pycontrol.lab.shares.simple import MaxEfficiency, MaxMinShares, capacity_rows, efficiency_rows, equal_split
from pycontrol.lab.workloads import load
from pycontrol.shares.cooperative import OefCooperative
from pycontrol.shares.noncooperative import OefNoncooperative
from pycontrol.shares.problem import Matrix, Scheme, ShareProblem, Vector
from pycontrol.simulation.trace_apps import Workload

PAPER = "OEF (Middleware '24)"
DEVICES = 8.0
"""Devices of each of three types (section 6.1.1)."""
TABLES: Mapping[str, str] = {
    "lambda": "profiles/lambda/pytorch-train-throughput-fp16.csv",
    "gavel": "profiles/gavel_simulation_throughputs.json.gz",
    "sia": "profiles/sia",
}
"""{mix: its file in the public data}."""
ABOUT: Mapping[str, str] = {
    "paper": "VGG 1.39x to LSTM 2.15x (the paper's range)",
    "lambda": "RTX 3070, 3080, 3090 (Lambda)",
    "gavel": "K80, P100, V100 (Gavel)",
    "sia": "T4, RTX 2080 Ti, A100 (Sia)",
}
VGG, LSTM = (1.0, 1.0 + 0.55 * 0.39, 1.39), (1.0, 1.0 + 0.55 * 1.15, 2.15)
"""Speedups on RTX 3070, 3080, 3090: the ends are the paper's; 55 % of the gain for the middle type is assumed."""
FOUR = np.array([LSTM, (1.0, 1.0 + 0.55 * 0.85, 1.85), (1.0, 1.0 + 0.55 * 0.55, 1.55), VGG])
"""Four tenants (section 6.2): LSTM, Transformer, ResNet, VGG; the two in the middle are assumed."""
FOUR_NAMES = ("LSTM", "Transformer", "ResNet", "VGG")
EIGHT = np.full(3, DEVICES)
ASSUMED = (
    "24 GPUs, eight of each of three types, four a host, one rack (section 6.1.1)",
    "the paper prints two speedups, VGG's and LSTM's on the fastest type; the other models lie between them and the "
    "middle type has 55 % of the gain",
)


@dataclass(frozen=True)
class Entrant:
    """A scheme in a comparison. `cap`: the most devices of a tenant; None: unlimited."""

    label: str
    scheme: Scheme
    cap: float | None = None

    def shares(self, problem: ShareProblem) -> Matrix:
        """The shares, shape (n, k)."""
        if self.cap is not None:
            problem = replace(problem, demands=np.full(problem.users, self.cap))
        return self.scheme.shares(problem)


COOPERATIVE = Entrant("OEF cooperative", OefCooperative())
NONCOOPERATIVE = Entrant("OEF non-cooperative", OefNoncooperative())
GANDIVA_FAIR = Entrant("Gandiva_fair", GandivaFairShares())
GAVEL = Entrant("Gavel, cap by demand", GavelShares("water_filling"))
GAVEL_ONE = Entrant("Gavel, cap 1 a tenant", GavelShares("water_filling"), 1.0)
MAX_MIN = Entrant("max-min", MaxMinShares())
EFFICIENCY = Entrant("efficiency only", MaxEfficiency())
CAPS = (
    "Gavel bounds a job's time shares by 1; a tenant is bounded by its jobs' demand (cap by demand, which never "
    "binds here) or, if it counts as one job of one GPU, by 1 (cap 1: GPUs idle when tenants are fewer than GPUs)"
)


def mixes(setup: Setup) -> dict[str, Path | None]:
    """{available speedup mix: the data's folder}; measured mixes only if their files exist."""
    found: dict[str, Path | None] = {"paper": None}
    for name, file in TABLES.items():
        path = setup.trace(file)
        if path is not None:
            found[name] = Path(str(path)[: -len(file)])
    return found


def tenants(mix: str, data: Path | None, seed: int, n: int, jobs: int = 1) -> Workload:
    """n tenants with `jobs` endless jobs each, all of one job type per tenant."""
    return load("oef-20", seed, profile=mix, data=str(data or ""), tenants=n, jobs=jobs)


def types_of(workload: Workload) -> tuple[str, ...]:
    """The workload's GPU types, from slow to fast."""
    return tuple(workload.apps[0].speedups)


def matrix(workload: Workload) -> Matrix:
    """Each tenant's speedup vector, shape (tenants, k)."""
    vectors = {a.user: tuple(a.speedups.values()) for a in workload.apps}
    return np.array([vectors[u] for u in sorted(vectors)])


def problem_of(mix: str, data: Path | None, seed: int, n: int) -> ShareProblem:
    """n tenants on eight devices of each type."""
    w = matrix(tenants(mix, data, seed, n))
    return ShareProblem.of(w, np.full(w.shape[1], DEVICES))


def total(problem: ShareProblem, x: Matrix) -> float:
    """Total estimated throughput, in devices of the slowest type."""
    return float(problem.efficiency(x).sum())


def envy(problem: ShareProblem, x: Matrix) -> float:
    """The largest gain per weight of a tenant with another's share; at most 0 without envy."""
    worth = problem.speedups @ (x / problem.weights[:, None]).T
    return float((worth - np.diag(worth)[:, None]).max())


def shortfall(problem: ShareProblem, x: Matrix) -> float:
    """How far the worst-off is below its equal split, as a part of it; at most 0 if nobody is."""
    split = problem.efficiency(equal_split(problem))
    own: Vector = problem.efficiency(x)
    return float(np.max(1 - own / np.maximum(split, 1e-12)))


def pareto_gain(problem: ShareProblem, x: Matrix) -> float:
    """By how much all throughput can rise with nobody worse off, as a part of it."""
    floor = problem.efficiency(x)
    rows = np.vstack([capacity_rows(*problem.speedups.shape).toarray(), -efficiency_rows(problem.speedups).toarray()])
    done = linprog(-problem.speedups.ravel(), rows, np.concatenate([problem.devices, -floor * (1 - 1e-10)]))
    return float(-done.fun / floor.sum() - 1) if done.status == 0 else 0.0
