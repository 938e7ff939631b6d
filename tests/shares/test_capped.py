"""Shares capped by demand: never beyond it, work-conserving, and unchanged where demands do not bind."""

from __future__ import annotations

import numpy as np
import pytest

from pycontrol.lab.shares.gandiva_fair_shares import GandivaFairShares
from pycontrol.lab.shares.simple import MaxMinShares
from pycontrol.shares.capped import within_demand
from pycontrol.shares.cooperative import OefCooperative
from pycontrol.shares.noncooperative import OefNoncooperative
from pycontrol.shares.problem import Scheme, ShareProblem

SCHEMES: tuple[Scheme, ...] = (OefCooperative(), OefNoncooperative(), GandivaFairShares(), MaxMinShares())


def problem(seed: int, tight: bool) -> ShareProblem:
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(2, 8)), int(rng.integers(1, 4))
    w = np.cumprod(np.hstack([np.ones((n, 1)), rng.uniform(1.0, 3.0, (n, k - 1))]), axis=1)
    devices = rng.integers(1, 9, k).astype(float)
    most = devices.sum()
    demands = rng.integers(0, int(most) + 1, n).astype(float) if tight else np.full(n, most)
    return ShareProblem.of(w, devices, rng.uniform(0.5, 3.0, n), demands)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("seed", range(25))
def test_within_demand_and_work_conserving(scheme: Scheme, seed: int) -> None:
    p = problem(seed, tight=True)
    x = within_demand(scheme, p)
    assert (x >= -1e-9).all()
    assert (x.sum(axis=0) <= p.devices + 1e-6).all()
    assert (x.sum(axis=1) <= p.demands + 1e-6).all()
    assert x.sum() == pytest.approx(min(p.devices.sum(), p.demands.sum()), abs=1e-5)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: type(s).__name__)
def test_without_excess_shares_nothing_changes(scheme: Scheme) -> None:
    for seed in range(10):
        p = problem(seed, tight=False)
        assert within_demand(scheme, p) == pytest.approx(scheme.shares(p), abs=1e-9)


def test_what_rounding_leaves_of_a_type_is_not_shared() -> None:
    """The users at their demand take all of the third type but 5.6e-16 devices, with which no optimum was found."""
    w = [[3.3, 10, 3.3], [10, 1, 1.7], [3.3, 10, 1], [1.7, 0, 0], [3.3, 0, 10]]
    x = within_demand(OefNoncooperative(), ShareProblem.of(w, [64, 8, 1], [1] * 5, [1, 64, 4096, 1, 4]))
    assert x.sum(axis=0) == pytest.approx([64, 8, 1])


def test_a_cut_keeps_the_fastest_of_the_share() -> None:
    p = ShareProblem.of([[1.0, 3.0], [1.0, 3.0]], [4.0, 4.0], None, [2.0, 8.0])
    assert within_demand(OefCooperative(), p) == pytest.approx(np.array([[0.0, 2.0], [4.0, 2.0]]), abs=1e-6)
