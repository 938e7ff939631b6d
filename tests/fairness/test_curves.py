"""Learning curves: forecasts of curves with a known end."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.fairness.curves import FAMILIES, POINTS_LEAST, best_possible, fit, longest_run

CURVES = {
    "power": lambda n: 0.2 + 2.0 * n**-0.5,
    "exponential": lambda n: 0.3 + 2.0 * math.exp(-n / 60),
    "log_power": lambda n: 0.1 + 1.5 / (1 + (n / 50) ** 1.5),
    "flat": lambda n: 0.7,
}


@pytest.mark.parametrize("name", CURVES)
def test_the_end_is_forecast_from_the_first_fifth(name: str) -> None:
    true = CURVES[name]
    curves = fit(range(1, 201), [true(n) for n in range(1, 201)])
    assert curves[0].at(1000) == pytest.approx(true(1000), abs=0.01)
    assert best_possible(curves, 1000) <= true(1000) + 1e-6


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("seed", range(3))
def test_under_noise_no_promising_job_is_missed(name: str, seed: int) -> None:
    """With noise of 0.05 and outliers the optimistic end is neither above the true one nor absurdly below it."""
    rng, true = random.Random(seed), CURVES[name]
    seen = [true(n) + rng.gauss(0, 0.05) + (5 if rng.random() < 0.02 else 0) for n in range(1, 301)]
    curves = fit(range(1, 301), seen)
    assert true(1000) - 0.35 < best_possible(curves, 1000) <= true(1000) + 0.02


def test_nothing_is_forecast_from_a_few_values() -> None:
    few = range(1, POINTS_LEAST)
    assert fit(few, [1.0 / n for n in few]) == ()
    assert fit(range(1, 30), [math.nan] * 29) == ()
    assert best_possible((), 100) == -math.inf
    assert longest_run((), 0.1, 100) == 100


def test_the_slowest_plausible_curve_decides_when_a_target_is_met() -> None:
    true = CURVES["power"]
    curves = fit(range(1, 201), [true(n) for n in range(1, 201)])
    assert longest_run(curves, true(500), 1000) == pytest.approx(500, rel=0.05)
    assert longest_run(curves, 0.0, 1000) == 1000, "it is never met"
    assert longest_run(curves, None, 1000) == 1000
    assert longest_run(curves, 9.0, 1000) < 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=POINTS_LEAST, max_size=60))
def test_curves_fall_and_are_inverted_by_reaches(values: list[float]) -> None:
    for curve in fit(range(1, len(values) + 1), values):
        ahead = [curve.at(n) for n in (1, 10, 100, 1000)]
        assert ahead == sorted(ahead, reverse=True)
        assert curve.family in FAMILIES
        if curve.b > 1e-6 and ahead[2] < ahead[1] - 1e-6:
            assert curve.at(curve.reaches(ahead[1])) == pytest.approx(ahead[1], abs=1e-6 * max(1, abs(curve.b)))
