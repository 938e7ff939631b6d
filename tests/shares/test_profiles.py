"""The estimator of speedup vectors: noise, outliers, warm-up, and updates from running jobs."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from pycontrol.shares.problem import ShareError
from pycontrol.shares.profiles import TypeProfile

TRUE_S = {"3070": 0.30, "3080": 0.20, "3090": 0.14}


def times(noise: float, rng: random.Random, n: int = 7) -> dict[str, list[float]]:
    """A slow first mini-batch, then noisy ones."""
    return {t: [5 * s] + [s * (1 + rng.uniform(-noise, noise)) for _ in range(n)] for t, s in TRUE_S.items()}


def test_exact_times_give_the_exact_vector() -> None:
    profile = TypeProfile.of(times(0.0, random.Random(0)))
    assert profile.speedups == pytest.approx({"3070": 1.0, "3080": 1.5, "3090": 0.3 / 0.14})
    assert profile.times["3090"].error == 0.0


def test_twenty_percent_noise_per_mini_batch_is_much_less_in_the_vector() -> None:
    errors, said = [], []
    for seed in range(200):
        profile = TypeProfile.of(times(0.2, random.Random(seed)))
        errors.append(profile.speedups["3090"] / (0.3 / 0.14) - 1)
        said.append(math.hypot(profile.times["3090"].error, profile.times["3070"].error))
    assert statistics.pstdev(errors) < 0.1
    assert 0.5 < statistics.median(said) / statistics.pstdev(errors) < 2, "it knows its error"


def test_one_bad_time_changes_little() -> None:
    good = times(0.0, random.Random(0))
    good["3090"][3] = 9.0
    assert TypeProfile.of(good).speedups["3090"] == pytest.approx(0.3 / 0.14)
    assert TypeProfile.of(good).measured("3090", 9.0).speedups["3090"] > 0.85 * 0.3 / 0.14


def test_running_jobs_correct_a_wrong_profile() -> None:
    profile = TypeProfile.of({"3070": [0.3], "3090": [0.07]})
    for _ in range(30):
        profile = profile.measured("3090", 0.14)
    assert profile.speedups["3090"] == pytest.approx(0.3 / 0.14, rel=0.01)


def test_a_type_is_tried_once() -> None:
    profile = TypeProfile().tried("3070", [0.3, 0.3]).tried("3090", [0.1]).tried("3070", [0.9])
    assert profile.speedups == pytest.approx({"3070": 1.0, "3090": 3.0}), "the first trial counts"


@pytest.mark.parametrize(
    ("times_s", "prior", "speedups"),
    [
        ({}, {}, {}),
        ({}, {"V100": 4.0, "K80": 2.0}, {"K80": 2.0, "P100": 1.0, "V100": 4.0}),
        ({"K80": [1.0]}, {}, {"K80": 1.0, "P100": 1.0, "V100": 1.0}),
        ({"K80": [1.0], "V100": [0.25]}, {}, {"K80": 1.0, "P100": 1.6, "V100": 4.0}),
        ({"K80": [1.0], "P100": [0.5], "V100": [0.25]}, {"K80": 9.0}, {"K80": 1.0, "P100": 2.0, "V100": 4.0}),
        ({"V100": [0.5]}, {"K80": 1.0, "P100": 2.0, "V100": 3.0}, {"K80": 1.0, "P100": 2.0, "V100": 3.0}),
    ],
    ids=["nothing", "declared", "one type tells nothing", "between the known", "measured wins", "the prior's unit"],
)
def test_measured_speeds_replace_the_prior(
    times_s: dict[str, list[float]], prior: dict[str, float], speedups: dict[str, float]
) -> None:
    profile = TypeProfile.of(times_s) if times_s else TypeProfile()
    assert profile.with_prior(prior, ["K80", "P100", "V100"]) == pytest.approx(speedups)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_times_are_refused_by_name(bad: float) -> None:
    with pytest.raises(ShareError, match=r"3090\[1\]"):
        TypeProfile.of({"3090": [0.1, bad]})
    with pytest.raises(ShareError, match="3090"):
        TypeProfile.of({"3090": [0.1]}).measured("3090", bad)


def test_empty_times_are_refused() -> None:
    with pytest.raises(ShareError, match="times_s: is empty"):
        TypeProfile.of({})
    with pytest.raises(ShareError, match="3090: is empty"):
        TypeProfile.of({"3090": []})
