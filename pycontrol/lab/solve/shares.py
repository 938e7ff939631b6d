"""`isonomy replay` for cases of kind `shares`: the cases and their results."""

from __future__ import annotations

from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pycontrol.lab.shares import gavel_shares
from pycontrol.lab.shares.gandiva_fair_shares import GandivaFairShares
from pycontrol.lab.shares.simple import MaxEfficiency, MaxMinRatio, MaxMinShares, common_level, equal_split
from pycontrol.shares.cooperative import OefCooperative
from pycontrol.shares.noncooperative import OefNoncooperative
from pycontrol.shares.problem import Matrix, Scheme, ShareProblem

SCHEMES: dict[str, Scheme] = {
    "oef_noncooperative": OefNoncooperative(),
    "oef_cooperative": OefCooperative(),
    "max_efficiency": MaxEfficiency(),
    "max_efficiency_sharing_incentive": MaxEfficiency(sharing_incentive=True),
    "max_min": MaxMinShares(),
    "max_min_ratio": MaxMinRatio(),
    "gavel": gavel_shares.GavelShares(),
    "gandiva_fair": GandivaFairShares(),
}
WITH_STEPS = ("gavel_finish_time_fairness_perf", "gavel_min_total_duration_perf")
GAVEL = (
    "gavel_max_min_fairness_perf",
    "gavel_max_min_fairness",
    "gavel_max_min_fairness_water_filling_perf",
    "gavel_max_sum_throughput_perf",
    "gavel_isolated",
    "gavel_proportional",
    *WITH_STEPS,
)

Numbers = Annotated[list[Annotated[int | float, Field(allow_inf_nan=False)]], Field(min_length=1)]


class SharesCase(BaseModel):
    """One problem of shares and the scheme that solves it."""

    model_config = ConfigDict(extra="ignore", strict=True)

    scheme: str
    W: Annotated[list[Numbers], Field(min_length=1)]
    m: Numbers
    weights: Numbers | None = None
    steps_remaining: Numbers | None = None
    times_since_start_s: Numbers | None = None

    @model_validator(mode="after")
    def _sane(self) -> Self:
        if self.scheme not in SCHEMES and self.scheme not in GAVEL:
            raise ValueError(f"scheme {self.scheme!r} is not one of {', '.join([*SCHEMES, *GAVEL])}")
        self.problem()
        if self.scheme in WITH_STEPS:
            for name in ("steps_remaining", "times_since_start_s"):
                given = getattr(self, name)
                if given is None or len(given) != len(self.W) or min(given) < 0:
                    raise ValueError(f"{name}: must be {len(self.W)} numbers, none negative")
            if min(self.steps_remaining or [0]) <= 0:
                raise ValueError("steps_remaining: must be positive")
        return self

    def problem(self) -> ShareProblem:
        """The checked problem; Gavel's jobs have one GPU each."""
        ones = [1.0] * len(self.W) if self.scheme.startswith("gavel") else None
        return ShareProblem.of(self.W, self.m, self.weights, ones)


def solve_shares(case: SharesCase) -> dict[str, Any]:
    """X, E = W.X, the total of E, and the scheme's objective if it has one."""
    problem = case.problem()
    if case.scheme in GAVEL:
        return _gavel(case, problem)
    scheme = SCHEMES[case.scheme]
    more: dict[str, Any] = {}
    if isinstance(scheme, GandivaFairShares):
        x, trades = scheme.trades(problem)
        more["trades"] = [{"buyer": t.buyer, "seller": t.seller, "price": t.price, "slow_sold": t.sold} for t in trades]
    else:
        x = scheme.shares(problem)
    own = problem.efficiency(x)
    if isinstance(scheme, OefNoncooperative):
        more["common_per_weight"] = float((own / problem.weights).max())
    if isinstance(scheme, gavel_shares.GavelShares | MaxMinRatio):
        floor = problem.efficiency(equal_split(problem))
        more["ratio"] = float((own[floor > 0] / floor[floor > 0]).min(initial=np.inf))
    return _result(problem, x) | more


def _gavel(case: SharesCase, problem: ShareProblem) -> dict[str, Any]:
    steps, since = np.asarray(case.steps_remaining or [], float), np.asarray(case.times_since_start_s or [], float)
    w, m, demands = problem.speedups, problem.devices, problem.demands
    unit = problem.weights * problem.efficiency(gavel_shares.proportional(problem))
    match case.scheme:
        case "gavel_isolated":
            return _result(problem, gavel_shares.isolated(problem))
        case "gavel_proportional":
            return _result(problem, gavel_shares.proportional(problem))
        case "gavel_max_min_fairness_perf":
            x, level = common_level(w, m, unit, demands)
            return _result(problem, x) | {"objective": level}
        case "gavel_max_min_fairness":
            x, level = common_level(np.ones_like(w), m, problem.weights, demands)
            return _result(problem, x) | {"objective": level}
        case "gavel_max_min_fairness_water_filling_perf":
            x, levels = gavel_shares.water_filling(problem, unit)
            return _result(problem, x) | {"lexicographic_normalised_throughputs": sorted(levels.tolist())}
        case "gavel_max_sum_throughput_perf":
            x = gavel_shares.max_sum(problem)
            return _result(problem, x) | {"objective": float(problem.efficiency(x).sum())}
        case "gavel_finish_time_fairness_perf":
            x, rho = gavel_shares.finish_time_fairness(problem, since, steps)
            return _result(problem, x) | {"objective_max_rho": rho}
        case _:
            x, makespan = gavel_shares.min_total_duration(problem, steps)
            return _result(problem, x) | {"makespan": makespan}


def _result(problem: ShareProblem, x: Matrix) -> dict[str, Any]:
    own = problem.efficiency(x)
    return {"total": float(own.sum()), "E": own.tolist(), "X": x.tolist()}
