"""Measured speeds of elastic jobs by number of GPUs, and the sizes that are worthwhile."""

from __future__ import annotations

import pytest

from pycontrol.fairness.elastic import Elastic, efficiency_of, measured_efficiency
from pycontrol.model.auction import gang_sizes
from pycontrol.model.topology import Scope

PRIOR = (1.0, 1.1, 1.3)


def test_sizes_double_up_to_the_most_in_whole_smallest_gangs() -> None:
    assert gang_sizes(1, 8) == (1, 2, 4, 8)
    assert gang_sizes(2, 13) == (2, 4, 8, 12)
    assert gang_sizes(4, 4) == gang_sizes(4, 0) == (4,)
    assert gang_sizes(0, 8) == ()


def test_without_measurements_gpus_add_up_and_placement_slows_down() -> None:
    e = Elastic(1, 8, PRIOR, 40.0)
    assert (e.speed(8), e.speed(8, Scope.CLUSTER)) == (8.0, pytest.approx(8 / 1.3))
    assert e.sizes == (1, 2, 4, 8)


def test_sizes_end_where_a_further_gpu_adds_less_than_half_of_one() -> None:
    assert Elastic(1, 8, PRIOR, 40.0, {1: 1.0, 2: 0.9, 4: 0.75, 8: 0.45}).sizes == (1, 2, 4), "8: 0.15 of each GPU more"
    assert Elastic(1, 8, PRIOR, 40.0, {1: 1.0, 2: 0.7, 4: 0.69}).sizes == (1,), "0.4 of the second"


def test_efficiency_is_measured_within_jobs_and_never_rises() -> None:
    slow, fast = {1: 2.0, 2: 2.5}, {2: 1.25, 4: 2.0}
    assert measured_efficiency([slow, fast], 1) == {1: 1.0, 2: 0.8, 4: pytest.approx(0.5)}
    assert measured_efficiency([{1: 2.0, 2: 1.0}], 1) == {1: 1.0, 2: 1.0}, "faster than linear: noise"
    assert measured_efficiency([{4: 2.0}], 1) == {1: 1.0}, "nothing to compare with"


@pytest.mark.parametrize("kept", [{"2": 0.0}, {"2": 1.5}, {"0": 0.5}, {"x": 0.5}, {"2": None}, {"2": float("nan")}])
def test_invalid_efficiencies_are_not_loaded(kept: dict[str, float]) -> None:
    with pytest.raises((ValueError, TypeError)):
        efficiency_of(kept)


def test_stored_efficiencies_are_loaded() -> None:
    assert efficiency_of({"1": 1.0, "4": 0.5}) == {1: 1.0, 4: 0.5}
