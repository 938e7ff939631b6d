"""The conformance suite over all built-in app schedulers."""

from __future__ import annotations

import pytest

from submarine_patch.agent import schedulers
from submarine_patch.lab.conformance import AppSchedulerConformance, spec_of, trained


@pytest.mark.parametrize("name", schedulers.MAKERS)
class TestEveryAppScheduler(AppSchedulerConformance):
    """Each app scheduler, by its name."""


@pytest.mark.parametrize("name", ["asha", "median", "curve"])
def test_schedulers_that_stop_jobs_early_save_iterations(name: str) -> None:
    trainer = trained(spec_of(name, jobs=16, max_iterations=60))
    assert sum(trainer.steps.values()) < 0.75 * 16 * 60


def test_an_unknown_scheduler_is_named_with_the_known_ones() -> None:
    with pytest.raises(schedulers.SchedulerError, match=r"hyperbandd: must be one of single, .*optuna"):
        schedulers.create(spec_of("hyperbandd"))
