"""The engines against the plain programmes, at sizes where each of their shortcuts applies, and on odd input."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings

from pycontrol.lab.oef import paper_programs
from pycontrol.lab.shares.gavel_shares import GavelShares
from pycontrol.lab.shares.simple import MaxEfficiency, MaxMinRatio, equal_split
from pycontrol.lab.shares.tenants import Tenancy
from pycontrol.shares import cooperative, noncooperative
from pycontrol.shares.cooperative import OefCooperative, ratio_ordered
from pycontrol.shares.noncooperative import OefNoncooperative
from pycontrol.shares.problem import Matrix, ShareError, ShareProblem
from tests.shares.test_promises import SCHEMES, envy, problems


def vectors(seed: int, n: int, k: int, ordered: bool) -> Matrix:
    """Random speedups, ratio-ordered or not."""
    rng = np.random.default_rng(seed)
    if ordered:
        return np.exp(np.outer(rng.uniform(0, 2, n), np.concatenate([[0.0], np.cumsum(rng.uniform(0.05, 0.3, k - 1))])))
    return np.cumprod(np.concatenate([np.ones((n, 1)), rng.uniform(1, 1.6, (n, k - 1))], axis=1), axis=1)


def problem_of(seed: int, n: int, k: int, ordered: bool) -> ShareProblem:
    """A problem with weights and some equal users."""
    rng = np.random.default_rng(seed + 1000)
    w = vectors(seed, n, k, ordered)
    w[rng.integers(0, n, n // 5)] = w[0]
    return ShareProblem.of(w, rng.integers(1, 30, k), rng.integers(1, 4, n))


@given(problem=problems())
@settings(max_examples=25, deadline=None)
def test_both_forms_are_optimal(problem: ShareProblem) -> None:
    for scheme, plain in (
        (OefNoncooperative(), paper_programs.noncooperative),
        (OefCooperative(), paper_programs.cooperative),
    ):
        total = problem.efficiency(scheme.shares(problem)).sum()
        assert total == pytest.approx(problem.efficiency(plain(problem)).sum(), rel=1e-6)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_both_forms_are_optimal_for_more_users(seed: int, ordered: bool) -> None:
    problem = problem_of(seed, 24, 5, ordered)
    x, y = OefNoncooperative().shares(problem), OefCooperative().shares(problem)
    own = problem.efficiency(x) / problem.weights
    assert own.max() - own.min() <= 1e-9 * own.max()
    assert problem.efficiency(x).sum() == pytest.approx(
        problem.efficiency(paper_programs.noncooperative(problem)).sum(), rel=1e-6
    )
    assert envy(problem, y) <= 1e-6
    assert problem.efficiency(y).sum() == pytest.approx(
        problem.efficiency(paper_programs.cooperative(problem)).sum(), rel=1e-6
    )


def test_the_coarse_start_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(5, 130, 6, ordered=True)
    assert ratio_ordered(np.unique(problem.speedups, axis=0)[np.argsort(np.unique(problem.speedups, axis=0)[:, -1])])
    fast = problem.efficiency(OefCooperative().shares(problem)).sum()
    monkeypatch.setattr(cooperative, "COARSE_FROM", 10**9)
    assert fast == pytest.approx(problem.efficiency(OefCooperative().shares(problem)).sum(), rel=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_staircase_and_prices_agree_where_users_are_ordered(seed: int) -> None:
    problem = problem_of(seed, 60, 6, ordered=True)
    w, m, pi = problem.speedups, problem.devices, problem.weights
    one = (noncooperative.common_efficiency(w, m, pi) * w).sum(axis=1) / pi
    other = (noncooperative.by_prices(w, m, pi) * w).sum(axis=1) / pi
    assert one == pytest.approx(other, rel=1e-9)


def test_several_job_types_share_their_tenants_weight() -> None:
    tenancy = Tenancy.of([[[1, 2], [1, 3]], [[1, 5]]], [1, 1])
    x = OefNoncooperative().shares(tenancy.problem)
    assert tenancy.problem.efficiency(x) / tenancy.problem.weights == pytest.approx([90 / 37] * 3)
    assert x == pytest.approx(np.array([[1, 4 / 37], [0, 15 / 37], [0, 18 / 37]]))
    assert tenancy.by_tenant(x) == pytest.approx(np.array([[1, 19 / 37], [0, 18 / 37]]))


@pytest.mark.parametrize("name", SCHEMES)
def test_odd_input_has_defined_results(name: str) -> None:
    scheme = SCHEMES[name]
    one_type = scheme.shares(ShareProblem.of([[1], [1], [1]], [6]))
    assert one_type == pytest.approx(np.full((3, 1), 2.0)) or name == "gavel_max_sum", "one type: alike"
    assert one_type.sum() == pytest.approx(6)
    equal = ShareProblem.of([[1, 3]] * 3, [3, 6])
    if name not in ("gavel_max_sum",):  # which has no second aim
        assert equal.efficiency(scheme.shares(equal)) == pytest.approx([7] * 3), "equal users: alike"
    alone = ShareProblem.of([[1, 3]], [3, 6])
    assert scheme.shares(alone) == pytest.approx(np.array([[3, 6]])), "alone: all"
    none = ShareProblem.of([[1, 3, 5], [1, 2, 7]], [3, 0, 6])
    assert (scheme.shares(none)[:, 1] == 0).all(), "no device of a type"
    slower = ShareProblem.of([[1, 0.5], [1, 2]], [4, 4])
    swapped = ShareProblem.of([[0.5, 1], [2, 1]], [4, 4])
    if name != "gandiva_fair":  # its prices are in units of the first type
        totals = [p.efficiency(scheme.shares(p)).sum() for p in (slower, swapped)]
        assert totals[0] == pytest.approx(totals[1]), "slower on a faster type: the types' order does not matter"
    nowhere = ShareProblem.of([[1, 2], [0, 0], [1, 3]], [4, 4])
    x = scheme.shares(nowhere)
    assert np.isfinite(x).all()
    assert (x.sum(axis=0) <= 4 + 1e-9).all()
    barred = ShareProblem.of([[0, 1], [1, 2]], [4, 4])
    x = scheme.shares(barred)
    if name in ("max_min_ratio", "oef_cooperative", "gavel", "gavel_water_filling", "gandiva_fair"):
        floor = barred.efficiency(equal_split(barred))
        assert (barred.efficiency(x) >= floor - 1e-7).all(), "who cannot use a type still has its part's worth"
    empty = scheme.shares(ShareProblem.of([[1, 2], [1, 3]], [0, 0]))
    assert (empty == 0).all()


@pytest.mark.timeout(20)
def test_gavel_fills_the_next_level_however_far_apart_the_weights_are() -> None:
    """The light user has what the heavy one, at its demand, leaves; with one device it has next to nothing."""
    for devices, due in ((8.0, [4.0, 4.0]), (1.0, [1.0, 0.0])):
        p = ShareProblem.of([[1.0], [1.0]], [devices], [1000.0, 1e-6], [4.0, 64.0])
        assert GavelShares("water_filling").shares(p).ravel() == pytest.approx(due, abs=1e-6)


@pytest.mark.parametrize(
    ("w", "m", "weights", "says"),
    [
        ([[1, float("nan")]], [1, 1], None, r"W\[0\]\[1\]: is NaN"),
        ([[1, float("inf")]], [1, 1], None, r"W\[0\]\[1\]: is NaN or infinite"),
        ([[1, -1]], [1, 1], None, r"W\[0\]\[1\]: is negative"),
        ([], [1], None, "W: must be a list of equal lists, and not empty"),
        ([[]], [], None, "W: must be a list of equal lists, and not empty"),
        ([[1, 2], [1]], [1, 1], None, "W: must be numbers"),
        ([[1, 2]], [1], None, "m: 1 types, but W has 2"),
        ([[1, 2]], [1, -2], None, r"m\[1\]: is negative"),
        ([[1, 2]], [1, 2], [0], r"weights\[0\]: must be positive"),
        ([[1, 2]], [1, 2], [1, 1], "weights: 2 users, but W has 1"),
    ],
)
def test_bad_input_is_refused_by_name(w: list[list[float]], m: list[float], weights: list[float], says: str) -> None:
    with pytest.raises(ShareError, match=says):
        ShareProblem.of(w, m, weights)


def test_sharing_incentive_costs_efficiency_and_a_common_ratio_more() -> None:
    problem = ShareProblem.of([[1, 2], [1, 3], [1, 4]], [1, 1])
    totals = [
        problem.efficiency(s.shares(problem)).sum()
        for s in (MaxEfficiency(), MaxEfficiency(sharing_incentive=True), OefCooperative(), MaxMinRatio())
    ]
    assert totals == sorted(totals, reverse=True)


def test_solvers_print_nothing_where_commands_print_json() -> None:
    """In a process of its own: HiGHS 1.16 names itself on stdout, once."""
    program = (
        "import numpy, pulp; from pycontrol.shares.rows import IncrementalLp\n"
        "assert IncrementalLp(numpy.ones(2), numpy.ones(2)).solve().tolist() == [1, 1]\n"
        "lp, x = pulp.LpProblem('p', pulp.LpMaximize), pulp.LpVariable('x', 0, 1); lp += x\n"
        "assert lp.solve(pulp.HiGHS(msg=False)) == 1"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
