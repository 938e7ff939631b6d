"""rho, T_sh, T_id, N_avg and S as in Themis, section 4.3."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.fairness.contention import ContentionClock
from pycontrol.fairness.figure7 import JobInfo
from pycontrol.fairness.gang_rho import AppWork, PhaseWork, projected_rho, rho_with_gangs, t_id, t_sh
from pycontrol.fairness.makespan import longest_first, pack
from pycontrol.lab.solve.paper_rho import Halving, curve_t_sh, phase_end

EXAMPLE = Halving((80, 100, 100, 120), 8, ((2, 16), (1, 36)), 8, 1.0, 0.0)
"""Section 4.3.3."""


def test_the_papers_worked_example_to_the_digit() -> None:
    t_id_s = t_id(10_000, 16, 32, 4)
    assert t_id_s == 2500
    two = EXAMPLE.on(2)
    assert two.phases_s == (1600, 1600, 1800)
    assert two.t_sh_s / t_id_s == 2
    table = {g: round(EXAMPLE.fluid_on(g).t_sh_s / t_id_s, 2) for g in (1, 2, 4, 8, 16)}
    assert table == {1: 4, 2: 2, 4: 1, 8: 0.5, 16: 0.34}
    whole = {g: round(EXAMPLE.on(g).t_sh_s / t_id_s, 3) for g in (1, 2, 4, 8, 16)}
    assert whole == {1: 4, 2: 2, 4: 1.064, 8: 0.532, 16: 0.345}
    assert EXAMPLE.on(0).t_sh_s == EXAMPLE.fluid_on(0).t_sh_s == math.inf


def test_elastic_jobs_give_the_papers_table() -> None:
    """Section 4.3.3 in the form of Agents' bids: a slot of n GPUs is as fast as n slots of one."""
    phases = (PhaseWork((640.0, 800.0, 800.0, 960.0)), PhaseWork((1600.0, 1600.0)), PhaseWork((3600.0,)))
    app = AppWork(phases, 1, 0.0, 2500.0, job_gpus_max=8)
    for slots_of in (lambda n: [1.0] * n, lambda n: [1.0 / n]):
        table = {n: round(rho_with_gangs(app, slots_of(n)), 2) for n in (1, 2, 4, 8, 16)}
        assert table == {1: 4, 2: 2, 4: 1, 8: 0.5, 16: 0.34}
    assert rho_with_gangs(app, []) == math.inf


def test_the_estimate_is_revised_when_the_survivors_are_known() -> None:
    survivors = Halving((120, 100), 16, ((1, 36),), 8, 1.0, 1600.0)
    assert survivors.on(2).phases_s == (1920, 1980), "120 s x 16; then the median job"
    winner = Halving((120,), 36, (), 8, 1.0, 3520.0)
    assert winner.on(2).phases_s == (2160,)


def test_the_same_example_on_gangs_of_one_gpu() -> None:
    phases = tuple(PhaseWork(tuple(t * 8 for t in (80, 100, 100, 120))) for _ in range(1))
    app = AppWork((*phases, PhaseWork((1600, 1600)), PhaseWork((3600,))), 1, 0.0, 2500.0)
    assert t_sh(app, [1.0, 1.0]) == 1600 + 1600 + 3600, "a gang of one GPU does not run on two"
    assert rho_with_gangs(app, []) == math.inf
    assert projected_rho(app, 600) == (600 + rho_with_gangs(app, [1.0]) * 2500) / 2500


def test_performance_curve_stopping_takes_the_latest_forecast() -> None:
    @dataclass
    class Curve:
        jobs: list[JobInfo]

        def get_jobs_remaining(self, gpu_alloc: Sequence[int]) -> Sequence[JobInfo]:
            return self.jobs

    app = Curve([JobInfo(100, 2.0), JobInfo(50, 2.0, 1.1), JobInfo(10, 2.0)])
    assert curve_t_sh(app, [2, 1], 30.0, 1).t_sh_s == 30 + 200
    assert curve_t_sh(app, [4], 30.0, 4).t_sh_s == pytest.approx(30 + 110), "the 4th GPU goes to the last job"


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 3))
def test_packing_finds_the_optimum_and_reports_it_as_such(jobs: list[int], machines: int) -> None:
    best = min(
        max(sum(j for j, at in zip(jobs, where, strict=True) if at == m) for m in range(machines))
        for where in itertools.product(range(machines), repeat=len(jobs))
    )
    packed = pack([float(j) for j in jobs], machines)
    assert packed.proved
    assert packed.end_s == best


@settings(deadline=None)
@given(st.lists(st.floats(1, 100), min_size=1, max_size=60), st.integers(1, 12))
def test_packing_never_beats_its_bounds_nor_loses_to_longest_first(jobs: list[float], machines: int) -> None:
    packed = pack(jobs, machines, nodes_max=2000)
    assert packed.end_s <= longest_first(jobs, machines)
    assert packed.end_s >= max(max(jobs), sum(jobs) / machines) * (1 - 1e-9)


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(0, 6), st.integers(1, 4))
def test_gpus_are_shared_among_jobs_optimally(jobs: list[int], spare: int, most: int) -> None:
    gpus = len(jobs) + spare
    best = min(
        max(j / n for j, n in zip(jobs, share, strict=True))
        for share in itertools.product(range(1, most + 1), repeat=len(jobs))
        if sum(share) <= gpus
    )
    assert phase_end(jobs, gpus, most).end_s == pytest.approx(best)


@settings(deadline=None)
@given(st.lists(st.floats(1, 1000), min_size=1, max_size=12), st.integers(1, 8), st.sampled_from([1.0, 1.1, 1.3]))
def test_more_gangs_of_one_kind_never_end_later(jobs: list[float], gangs: int, s: float) -> None:
    app = AppWork((PhaseWork(tuple(jobs)),), 1, 0.0, 1.0)
    fewer, more = t_sh(app, [s] * gangs), t_sh(app, [s] * (2 * gangs))
    assert more <= fewer * (1 + 1e-9)


def test_n_avg_weighs_by_time() -> None:
    clock = ContentionClock().turned(60.0, 3).turned(100.0, 1)  # the app arrives as the fourth, at 100
    then = clock.value
    assert clock.n_avg(100.0, then, 100.0) == 4
    clock = clock.turned(110.0, -2).turned(140.0, -1)
    assert clock.n_avg(100.0, then, 140.0) == (10 * 4 + 30 * 2) / 40
    assert clock.n_avg(100.0, then, 180.0) == (10 * 4 + 30 * 2 + 40 * 1) / 80
    assert clock.turned(90.0, 6).app_seconds(140.0) == clock.app_seconds(140.0), "time does not run backwards"
    assert ContentionClock().n_avg(0.0, 0.0, 9.0) == 1, "the app itself"
