"""Gavel's rounds as Shockwave's artifact has them, rule by rule, in cases small enough to do by hand."""

from __future__ import annotations

import dataclasses

import pytest

from pycontrol.lab.oef.artifact import ArtifactJob, ArtifactRounds, completions

AS_THERE = ArtifactRounds(time_shares=False)
LONG = ArtifactJob(0.0, 1, 5000.0)


def test_a_job_alone_pays_for_its_start_only() -> None:
    assert completions([ArtifactJob(7.0, 1, 300.0)], 4, AS_THERE) == [pytest.approx(320.0)]


@pytest.mark.parametrize(
    ("rules", "starts_s"),
    [
        (AS_THERE, 1200.0),  # allocations are at 0, at 120 and, in rounds of 120 s, a thousand seconds later
        (dataclasses.replace(AS_THERE, waits=False), 240.0),
        (dataclasses.replace(AS_THERE, waits=False, idles=False), 130.0),
    ],
)
def test_when_a_job_begins_that_finds_an_idle_gpu(rules: ArtifactRounds, starts_s: float) -> None:
    jobs = [LONG, ArtifactJob(50.0, 1, 5000.0), ArtifactJob(130.0, 1, 50.0), ArtifactJob(130.0, 1, 400.0)]
    found = completions(jobs, 4, rules)
    assert found[2] == pytest.approx(starts_s - 130.0 + 50.0)
    assert found[3] == pytest.approx(starts_s - 130.0 + 20.0 + 400.0)


def test_shares_of_time_favour_wide_gangs_and_shares_of_gpus_do_not() -> None:
    jobs = [ArtifactJob(0.0, 1, 9600.0) for _ in range(4)] + [ArtifactJob(0.0, 4, 2400.0)]
    by_time, by_gpus = (completions(jobs, 4, ArtifactRounds(time_shares=t)) for t in (True, False))
    assert ArtifactRounds(time_shares=True).shares(range(5), jobs, 4) == dict.fromkeys(range(5), 0.8)
    assert ArtifactRounds(time_shares=False).shares(range(5), jobs, 4)[4] == pytest.approx(0.2)
    assert by_time[4] < 0.9 * by_gpus[4]


def test_what_is_forgotten_at_an_allocation() -> None:
    """On one GPU, the second job comes when the first has had much: it catches up, unless that is forgotten."""
    jobs = [ArtifactJob(0.0, 1, 6000.0), ArtifactJob(2000.0, 1, 1500.0)]
    kept, forgotten = (completions(jobs, 1, dataclasses.replace(AS_THERE, forgets=f)) for f in (False, True))
    assert kept[1] < forgotten[1] - 1000.0
