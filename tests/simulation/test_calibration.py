"""Ranges widened by past errors: pure, by class and by policy."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycontrol.simulation.calibration import FEWEST, Calibration, Calibrations, class_of

NARROW = (0.9, 1.0, 1.1)


def world(rng: random.Random, sigma: float, bias: float, typical_s: float = 3000.0) -> tuple[tuple[float, ...], float]:
    """Ranges that are far too narrow, and the actual times."""
    middle_s = typical_s * rng.uniform(0.7, 1.4)
    return tuple(middle_s * k for k in NARROW), middle_s * math.exp(rng.gauss(bias, sigma))


@pytest.mark.parametrize(("sigma", "bias"), [(0.05, 0.0), (0.6, 0.0), (0.6, 0.5), (1.0, -0.7)])
def test_four_of_five_fall_into_the_range_even_if_the_runs_are_wrong(sigma: float, bias: float) -> None:
    rng, calibration, raw, hits = random.Random(7), Calibration(), 0, 0
    for i in range(600):
        found, real_s = world(rng, sigma, bias)
        low, middle, high = calibration.widened(0.0, found)
        assert low is not None
        assert middle is not None
        assert high is not None
        assert low <= middle <= high
        if i >= 100:
            raw += found[0] <= real_s <= found[2]
            hits += low <= real_s <= high
        calibration.estimated(f"a{i}", 0.0, found)
        calibration.happened(f"a{i}", real_s)
    assert 0.75 <= hits / 500 <= 0.90
    assert sigma < 0.5 or raw / 500 < 0.5, "the runs' own range would not do"


def test_one_estimate_of_an_app_counts_for_each_class() -> None:
    calibration = Calibration()
    for made_s in (0.0, 30.0, 60.0):
        calibration.estimated("a", made_s, [made_s + 3000.0, made_s + 4000.0, made_s + 5000.0])
    calibration.estimated("a", 3900.0, [3910.0, 4000.0, 4100.0])
    calibration.happened("a", 4000.0)
    assert {kind: len(misses) for kind, misses in calibration.misses.items()} == {
        class_of(4000.0): 1,
        class_of(100): 1,
    }
    assert not calibration.open


def test_with_few_errors_ranges_stay_or_use_those_of_other_classes() -> None:
    calibration = Calibration()
    for i in range(FEWEST):
        assert calibration.widened(0.0, (90.0, 100.0, 110.0)) == (90.0, 100.0, 110.0)
        calibration.estimated(f"a{i}", 0.0, (90.0, 100.0, 110.0))
        calibration.happened(f"a{i}", 1000.0)
    assert calibration.widened(0.0, (90.0, 100.0, 110.0))[2] == pytest.approx(1000.0)
    assert calibration.widened(0.0, (9000.0, 10000.0, 11000.0))[2] > 20000.0  # type: ignore[operator]


def test_an_estimate_out_of_sight_stays_so_and_a_hopeless_one_is_forgotten() -> None:
    calibration = Calibration()
    assert calibration.widened(5.0, (None, None, None)) == (None, None, None)
    assert calibration.widened(5.0, (10.0, 20.0, None)) == (10.0, 20.0, None)
    calibration.estimated("a", 0.0, (1.0, 2.0, 3.0))
    calibration.forget(["a", "b"])
    calibration.happened("a", 9.0)
    assert not calibration.misses


@given(st.lists(st.tuples(*[st.floats(0, 1e9)] * 3, st.floats(0, 1e9)), min_size=1, max_size=60), st.floats(0, 2e9))
def test_no_past_makes_an_invalid_range(past: list[tuple[float, float, float, float]], now_s: float) -> None:
    calibration = Calibration()
    for i, (*found, real_s) in enumerate(past):
        calibration.estimated(f"a{i}", now_s, [now_s + x for x in sorted(found)])
        calibration.happened(f"a{i}", now_s + real_s)
    given_ = calibration.widened(now_s, [now_s + x for x in sorted(past[0][:3])])
    assert all(x is not None and math.isfinite(x) and x >= now_s for x in given_)
    assert list(given_) == sorted(given_)  # type: ignore[type-var]


def test_each_policy_learns_for_itself() -> None:
    learnt = Calibrations()
    for i in range(3 * FEWEST):
        apps = {f"a{i}": False}
        learnt.looked(1000.0 * i, apps)
        learnt.estimates(
            "isonomy",
            1000.0 * i,
            apps,
            {f"a{i}": ((1000.0 * i + 90, 1000.0 * i + 100, 1000.0 * i + 110), (None, None, None))},
        )
        learnt.looked(1000.0 * i + 900, {f"a{i}": True})
        learnt.looked(1000.0 * i + 950, {}, gone=[f"a{i}"])
    asked = {"b": ((90.0, 100.0, 110.0), (None, None, None))}
    assert learnt.estimates("isonomy", 0.0, {"b": False}, asked)["b"][0][2] == pytest.approx(900.0)
    assert learnt.estimates("themis", 0.0, {"b": False}, asked)["b"][0][2] == 110.0


def test_an_event_counts_when_it_happened_and_not_when_it_was_seen() -> None:
    """Half a minute or more lies between two pictures."""
    learnt = Calibrations()
    for i in range(FEWEST):
        a, b = f"a{i}", f"b{i}"
        found = ((90.0, 100.0, 110.0), (190.0, 200.0, 210.0))
        learnt.estimates("isonomy", 0.0, {a: False, b: False}, {a: found, b: found})
        learnt.looked(150.0, {a: True}, started_s={a: 110.0}, ended_s={b: 110.0})
        learnt.looked(250.0, {}, ended_s={a: 210.0, b: 110.0})
    (_, _, start_s), (low_s, _, end_s) = learnt.estimates("isonomy", 0.0, {"c": False}, {"c": found})["c"]
    assert start_s == pytest.approx(110.0), "nothing came later than foreseen"
    assert end_s == pytest.approx(210.0)
    assert low_s == pytest.approx(110.0)


def test_what_was_learnt_is_kept_as_json() -> None:
    learnt = Calibrations()
    for i in range(FEWEST):
        learnt.estimates("isonomy", 0.0, {f"a{i}": False}, {f"a{i}": ((90.0, 100.0, 110.0), (190.0, 200.0, 210.0))})
        assert learnt.looked(900.0, {f"a{i}": True})
        assert learnt.looked(1000.0, {})
        assert not learnt.looked(1000.0, {})
    again = Calibrations()
    again.load(json.loads(json.dumps(learnt.dump())))
    asked = {"b": ((90.0, 100.0, 110.0), (190.0, 200.0, 210.0))}
    said = learnt.estimates("isonomy", 0.0, {"b": False}, asked)
    assert said["b"][0][2] == pytest.approx(900.0)
    assert again.estimates("isonomy", 0.0, {"b": False}, asked) == said


@pytest.mark.parametrize(
    "damaged",
    [
        "[]",
        '{"starts": []}',
        '{"starts": {"p": {"1": [[1, 2]]}}}',
        '{"ends": {"p": {"x": []}}}',
        '{"starts": {"p": {"1": [[1, 2, Infinity]]}}}',
        '{"starts": {"p": {"1": [[1, 2, "x"]]}}}',
        '{"starts": {"p": {"1": 3}}}',
    ],
)
def test_a_damaged_file_is_refused_whole(damaged: str) -> None:
    learnt = Calibrations()
    with pytest.raises((ValueError, TypeError, AttributeError)):
        learnt.load(json.loads(damaged))
    assert learnt.dump() == {"starts": {}, "ends": {}}
