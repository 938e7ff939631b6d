"""S(G): the prior, offline profiles, measurements under noise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.fairness.slowdown import Profiler, rising
from pycontrol.model.topology import Scope

PRIOR = (1.0, 1.1, 1.3)


def measured(profiler: Profiler, job: str, iter_s: float, gpus: int, scope: Scope) -> None:
    for k in range(9):
        profiler.add(job, iter_s * (20 if k == 0 else 1), gpus, scope)  # the first step is slow


def test_the_prior_holds_until_enough_is_measured() -> None:
    profiler = Profiler(2.0, PRIOR)
    profiler.add("j", 9.0, 2, Scope.RACK)
    assert [profiler.slowdown(s) for s in Scope] == list(PRIOR)
    assert profiler.serial_s("j") == 2.0


def test_a_job_seen_on_one_machine_and_across_racks_gives_s() -> None:
    profiler = Profiler(None, PRIOR)
    measured(profiler, "j", 0.5, 4, Scope.MACHINE)
    measured(profiler, "j", 0.75, 4, Scope.CLUSTER)
    assert profiler.slowdown(Scope.CLUSTER) == pytest.approx(1.5)
    assert profiler.slowdown(Scope.RACK) == 1.1
    assert profiler.serial_s("j") == pytest.approx(2.0)


def test_the_declared_time_is_the_base_without_a_narrower_measurement() -> None:
    profiler = Profiler(1.0, PRIOR)
    measured(profiler, "j", 0.6, 2, Scope.RACK)
    assert profiler.slowdown(Scope.RACK) == pytest.approx(1.2)


def test_a_measured_s_is_the_base_of_the_next_one() -> None:
    profiler = Profiler(None, PRIOR)
    measured(profiler, "a", 1.0, 1, Scope.MACHINE)
    measured(profiler, "a", 1.5, 1, Scope.RACK)
    measured(profiler, "b", 3.0, 1, Scope.RACK)
    measured(profiler, "b", 4.0, 1, Scope.CLUSTER)
    assert profiler.slowdown(Scope.CLUSTER) == pytest.approx(1.5 * 4 / 3)
    assert profiler.serial_s("b") == pytest.approx(2.0)


def test_jobs_of_different_size_do_not_look_like_a_slowdown() -> None:
    profiler = Profiler(None, PRIOR)
    measured(profiler, "small", 0.1, 2, Scope.MACHINE)
    measured(profiler, "large", 1.0, 2, Scope.CLUSTER)
    assert profiler.slowdown(Scope.CLUSTER) == 1.3
    assert profiler.serial_s("small") == pytest.approx(0.2)


def test_it_survives_a_restart() -> None:
    profiler = Profiler(None, PRIOR)
    measured(profiler, "j", 0.5, 4, Scope.MACHINE)
    again = Profiler(None, PRIOR)
    again.restore(profiler.dump())
    assert again.serial_s("j") == profiler.serial_s("j")


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_stalls_hardly_move_the_estimate(seed: int) -> None:
    """Noise of 10 % each way; one iteration in ten stalls up to 30 times as long; 4 jobs of 32 iterations."""
    rng, profiler, true_s = random.Random(seed), Profiler(None, PRIOR), (1.0, 1.25, 1.6)
    for job in range(4):
        for scope in Scope:
            for _ in range(32):
                noise = rng.lognormvariate(0, 0.1) * (rng.uniform(5, 30) if rng.random() < 0.1 else 1)
                profiler.add(f"j{job}", (job + 1) * true_s[scope - 1] / 2 * noise, 2, scope)
    for scope in Scope:
        assert profiler.slowdown(scope) == pytest.approx(true_s[scope - 1], rel=0.08)


@pytest.mark.parametrize(
    ("measured_s", "s"),
    [
        ({}, (1.0, 1.1, 1.3)),
        ({Scope.CLUSTER: (1.05, 9.0)}, (1.0, 1.05, 1.05)),
        ({Scope.RACK: (1.6, 9.0)}, (1.0, 1.6, 1.6)),
        ({Scope.MACHINE: (1.0, float("inf")), Scope.RACK: (0.9, 5.0)}, (1.0, 1.0, 1.3)),
        ({Scope.RACK: (4.0, 1.0), Scope.CLUSTER: (1.0, 1.0)}, (1.0, 2.0, 2.0)),
        ({Scope.RACK: (1.2, 9.0), Scope.CLUSTER: (1.5, 9.0)}, (1.0, 1.2, 1.5)),
    ],
)
def test_s_never_falls_as_the_scope_widens(
    measured_s: dict[Scope, tuple[float, float]], s: tuple[float, float, float]
) -> None:
    assert list(rising(measured_s, PRIOR).values()) == pytest.approx(s)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(Scope)), st.integers(0, 2), st.floats(0.01, 50)), max_size=90))
def test_for_any_measurements_s_is_at_least_one_and_rises(samples: list[tuple[Scope, int, float]]) -> None:
    profiler = Profiler(None, PRIOR)
    for scope, job, iter_s in samples:
        profiler.add(f"j{job}", iter_s, 2, scope)
    s = [profiler.slowdown(scope) for scope in Scope]
    assert 1.0 <= s[0] <= s[1] * (1 + 1e-9) <= s[2] * (1 + 1e-9) ** 2
