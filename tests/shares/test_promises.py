"""Each scheme keeps exactly its promises: SP by search over misreports, PE by a second programme."""

from __future__ import annotations

import enum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from pycontrol.lab.shares.gandiva_fair_shares import GandivaFairShares
from pycontrol.lab.shares.gavel_shares import GavelShares
from pycontrol.lab.shares.simple import (
    MaxEfficiency,
    MaxMinRatio,
    MaxMinShares,
    capacity_rows,
    efficiency_rows,
    equal_split,
)
from pycontrol.shares.cooperative import OefCooperative, ratio_ordered
from pycontrol.shares.noncooperative import OefNoncooperative
from pycontrol.shares.problem import Matrix, Scheme, ShareProblem


class SchemeProperty(enum.Enum):
    """A property of a scheme, for every problem with positive speedups."""

    SP = "strategy-proof: no misreport raises what the liar truly gets"
    SP_OVER = "strategy-proof against boasting: no overstated speedup raises what the liar truly gets"
    EF = "envy-free: nobody prefers another's share (per weight)"
    SI = "sharing incentive: everybody gets at least what its weight's part of each type is worth"
    PE = "Pareto-efficient: nobody can get more unless somebody gets less"


SCHEMES: dict[str, Scheme] = {
    "oef_noncooperative": OefNoncooperative(),
    "oef_cooperative": OefCooperative(),
    "max_min": MaxMinShares(),
    "max_min_ratio": MaxMinRatio(),
    "max_efficiency": MaxEfficiency(),
    "max_efficiency_sharing_incentive": MaxEfficiency(sharing_incentive=True),
    "gandiva_fair": GandivaFairShares(),
    "gavel": GavelShares(),
    "gavel_water_filling": GavelShares("water_filling"),
    "gavel_max_sum": GavelShares("max_sum"),
    "gavel_finish_time": GavelShares("finish_time"),
    "gavel_min_duration": GavelShares("min_duration"),
}


_SI_PE = frozenset({SchemeProperty.SI, SchemeProperty.PE})
PROMISES: dict[str, frozenset[SchemeProperty]] = {
    "oef_noncooperative": frozenset({SchemeProperty.SP_OVER, SchemeProperty.PE}),
    "oef_cooperative": frozenset({SchemeProperty.EF, SchemeProperty.SI}),
    "max_min": frozenset({SchemeProperty.SP, SchemeProperty.EF, SchemeProperty.SI}),
    "max_min_ratio": _SI_PE,
    "max_efficiency": frozenset({SchemeProperty.PE}),
    "max_efficiency_sharing_incentive": _SI_PE,
    "gandiva_fair": frozenset({SchemeProperty.SI}),
    "gavel": _SI_PE,
    "gavel_water_filling": _SI_PE,
    "gavel_max_sum": frozenset({SchemeProperty.PE}),
    "gavel_finish_time": frozenset(),
    "gavel_min_duration": frozenset(),
}
"""Without demands; with some, `gavel` may leave devices unused."""


def promising(promise: SchemeProperty) -> list[str]:
    """The schemes that make this promise."""
    return [name for name, promises in PROMISES.items() if promise in promises]


speedup = st.integers(50, 600).map(lambda v: v / 100)


@st.composite
def problems(draw: st.DrawFn) -> ShareProblem:
    """Problems with positive speedups (also below 1), weights, and possibly no devices of a type."""
    n, k = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    w = [[1.0, *draw(st.lists(speedup, min_size=k - 1, max_size=k - 1))] for _ in range(n)]
    m = draw(st.lists(st.integers(0, 12), min_size=k, max_size=k).filter(any))
    return ShareProblem.of(w, m, draw(st.lists(st.integers(1, 3), min_size=n, max_size=n)))


@st.composite
def with_unusable_types(draw: st.DrawFn) -> ShareProblem:
    """The same, where users cannot use some of the types."""
    problem = draw(problems())
    n, k = problem.speedups.shape
    usable = [draw(st.lists(st.booleans(), min_size=k, max_size=k).filter(any)) for _ in range(n)]
    return ShareProblem.of(problem.speedups * np.array(usable), problem.devices, problem.weights)


def envy(problem: ShareProblem, x: Matrix) -> float:
    """The largest gain, per weight, that any user would have from another's share."""
    y = x / problem.weights[:, None]
    worth = problem.speedups @ y.T
    return float((worth - np.diag(worth)[:, None]).max())


def pareto_gain(problem: ShareProblem, x: Matrix) -> float:
    """The possible increase of total efficiency with no user worse off."""
    n, k = problem.speedups.shape
    floor = problem.efficiency(x)
    rows = np.vstack([capacity_rows(n, k).toarray(), -efficiency_rows(problem.speedups).toarray()])
    done = linprog(-problem.speedups.ravel(), rows, np.concatenate([problem.devices, -floor * (1 - 1e-10)]))
    assert done.status == 0
    return float(-done.fun - floor.sum())


@pytest.mark.parametrize("name", SCHEMES)
@given(problem=problems() | with_unusable_types())
@settings(max_examples=60, deadline=None)
def test_devices_are_divided_and_promises_kept(name: str, problem: ShareProblem) -> None:
    scheme = SCHEMES[name]
    x = scheme.shares(problem)
    size = problem.speedups.max() * problem.devices.sum()
    assert (x >= 0).all()
    assert (x.sum(axis=0) <= problem.devices + 1e-9 * size).all()
    if SchemeProperty.EF in PROMISES[name]:
        assert envy(problem, x) <= 1e-7 * size
    if SchemeProperty.SI in PROMISES[name]:
        floor = problem.efficiency(equal_split(problem))
        assert (problem.efficiency(x) >= floor - 1e-7 * size).all()
    if SchemeProperty.PE in PROMISES[name] and (problem.speedups > 0).all():  # else equal shares may leave a type idle
        assert pareto_gain(problem, x) <= 1e-6 * size


@pytest.mark.parametrize("name", promising(SchemeProperty.SP) + promising(SchemeProperty.SP_OVER))
@given(problem=problems(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_misreport_pays(name: str, problem: ShareProblem, data: st.DataObject) -> None:
    """With SP_OVER no overstatement pays, with SP no misreport at all."""
    scheme = SCHEMES[name]
    least = 1.0 if SchemeProperty.SP not in PROMISES[name] else 0.2
    liar = data.draw(st.integers(0, problem.users - 1))
    k = problem.types
    factors = data.draw(st.lists(st.floats(least, 4.0), min_size=k, max_size=k))
    told = problem.speedups.copy()
    told[liar] *= factors
    honest = problem.efficiency(scheme.shares(problem))[liar]
    lied = problem.efficiency(scheme.shares(ShareProblem.of(told, problem.devices, problem.weights)))[liar]
    assert lied <= honest * (1 + 1e-7) + 1e-9


KNOWN = [
    ("oef_noncooperative", SchemeProperty.SP),
    ("oef_cooperative", SchemeProperty.SP_OVER),
    ("gandiva_fair", SchemeProperty.SP_OVER),
    ("gavel", SchemeProperty.SP_OVER),
    ("max_efficiency", SchemeProperty.SP_OVER),
]
LIES = {
    # an understating user needs more devices for the common efficiency; Theorem 5.4 does not consider that
    "oef_noncooperative": ([[1, 4], [1, 4]], [1, 10], [1, 1]),
    "oef_cooperative": ([[1, 2], [1, 5]], [1, 1], [1, 4]),
    "gandiva_fair": ([[1, 2], [1, 3], [1, 4]], [1, 1], [1, 2.8]),
    "gavel": ([[1, 2], [1, 3], [1, 4]], [1, 1], [1, 2.5]),
    "max_efficiency": ([[1, 2], [1, 3]], [1, 1], [1, 9]),
}


@pytest.mark.parametrize(("name", "promise"), KNOWN, ids=lambda v: v if isinstance(v, str) else v.name)
def test_without_the_promise_some_lie_pays(name: str, promise: SchemeProperty) -> None:
    scheme, (w, m, told) = SCHEMES[name], LIES[name]
    assert promise not in PROMISES[name]
    demands = [1.0] * len(w) if name == "gavel" else None
    true = ShareProblem.of(w, m, demands=demands)
    lie = ShareProblem.of([told, *w[1:]], m, demands=demands)
    gain = true.efficiency(scheme.shares(lie))[0] / true.efficiency(scheme.shares(true))[0]
    assert gain > 1.01


def test_the_cooperative_optimum_need_not_be_pareto_efficient() -> None:
    problem = ShareProblem.of([[1.0, 3.5, 3.5], [1.0, 8.0, 60.0], [1.0, 9.5, 90.25]], [4, 4, 1])
    assert SchemeProperty.PE not in PROMISES["oef_cooperative"]
    assert pareto_gain(problem, OefCooperative().shares(problem)) == pytest.approx(3.920635, rel=1e-5)


@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_noncooperative_shares_are_few(problem: ShareProblem) -> None:
    """The extreme point theorem (OEF 4.4): at most n + k - 1 shares are not 0."""
    x = OefNoncooperative().shares(problem)
    assert (x > 0).sum() <= problem.users + problem.types - 1


@given(
    slopes=st.lists(st.integers(1, 300), min_size=1, max_size=6, unique=True),
    gaps=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    devices=st.lists(st.integers(1, 9), min_size=5, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_noncooperative_types_are_adjacent_where_users_are_strictly_ordered(
    slopes: list[int], gaps: list[int], devices: list[int]
) -> None:
    """Theorem 5.2, which needs rows that are strictly ratio-ordered."""
    logs = np.outer(slopes, np.concatenate([[0], np.cumsum(gaps)])) / 20000
    problem = ShareProblem.of(np.exp(logs), devices[: logs.shape[1]])
    assert ratio_ordered(problem.speedups[np.argsort(slopes)])
    for row in OefNoncooperative().shares(problem):
        held = np.flatnonzero(row > 1e-9)
        assert len(held) == held[-1] - held[0] + 1
