"""Elastic jobs in the Agent: sizes of gangs, growth by a restart, demands and measurements."""

from __future__ import annotations

from typing import Any

import pytest

from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.agent.spec import gpus_range
from tests.agent.world import A2, A, World, hyperband, machines, spec_of, started


def elastic(**changes: Any) -> World:
    """One job of 1 to 8 GPUs with 10,000 steps of a second."""
    return World(spec_of(**{"gang_gpus": 1, "job_gpus_max": 8, "max_iterations": 10_000, **changes}))


def demand(world: World) -> pb.Demand:
    return world.core.register().register.demand


def renewed(world: World) -> None:
    grant = pb.Grant(grant_id="r", gpus=machines(world.held), end_s=world.now_s + 600, renewal=True)
    world.arbiter(grant=grant)


def test_a_job_takes_all_granted_gpus_and_asks_for_its_maximum() -> None:
    world = elastic()
    world.register()
    asked = demand(world)
    assert (asked.gang_gpus, asked.gangs, asked.job_demand_max) == (1, 8, 8)
    world.grant(*A)
    world.rise()
    assert len(world.core.jobs["job000"].gpus) == 4


def test_more_gpus_stop_the_gang_and_it_continues_on_all_of_them_from_its_checkpoint() -> None:
    world = started(elastic(), *A[:2])
    (worker,) = world.gang("job000")
    world.train(worker, 5)
    world.grant(*A[2:])
    assert worker.stop is not None
    assert worker.stop.deadline_s == world.now_s + 60
    assert worker.stop.reason == "grows: more than its 2 GPUs are free for it"
    world.obey_stops()
    world.rise()
    job = world.core.jobs["job000"]
    assert (len(job.gpus), job.step, job.failures, job.launches) == (4, 5, 0, 2)
    (again,) = world.gang("job000")
    assert again.start is not None
    assert again.start.checkpoint_dir == worker.start.checkpoint_dir  # type: ignore[union-attr]


def test_gpus_that_would_not_pay_are_returned_and_requested_again_with_the_next_lease() -> None:
    """Growing must save twice what a restart costs."""
    world = started(elastic(max_iterations=100), *A[:2])
    (worker,) = world.gang("job000")
    world.train(worker, 80)
    assert demand(world).gangs == 2, "a restart costs 5 s, growing to 8 would save 7.5 s"
    world = started(elastic(slowdown=(1.0, 5.0, 9.0)), *A[:2])
    world.train(world.gang("job000")[0], 1)
    world.grant(*A2[:2])
    assert world.held == set(A[:2]), "so far apart they are slower than two"
    assert demand(world).gangs == 2
    renewed(world)
    assert demand(world).gangs == 8


def test_a_gang_that_has_not_made_a_step_does_not_grow() -> None:
    world = started(elastic(), *A[:2])
    world.grant(*A[2:])
    assert world.gang("job000")[0].stop is None


def test_a_gang_that_loses_gpus_continues_with_those_that_it_keeps() -> None:
    world = started(elastic(), *A)
    (worker,) = world.gang("job000")
    world.train(worker, 3)
    world.revoke(*A[:2])
    world.obey_stops()
    world.rise()
    assert sorted(world.core.jobs["job000"].gpus) == A[2:]


def test_jobs_of_a_phase_share_the_gpus() -> None:
    world = started(World(hyperband(gang_gpus=1, job_gpus_max=4, jobs=3, max_iterations=900)), *A, *A2)
    assert sorted(len(j.gpus) for j in world.core.jobs.values() if j.active) == [2, 2, 4]


def test_efficiency_is_measured_stored_and_used() -> None:
    """Two GPUs take 0.5 s an iteration, four of them 0.35 s: E(4) = 0.71."""
    world = started(elastic(), *A[:2])
    world.train(world.gang("job000")[0], 8, iter_s=0.5)
    world.grant(*A[2:])
    world.obey_stops()
    world.rise()
    world.train(world.gang("job000")[0], 8, iter_s=0.35)
    scaling = world.core.scaling
    assert scaling.of(2) == 1.0
    assert scaling.of(4) == 1.0, "against one GPU nothing was measured"
    world = started(elastic(gang_gpus=2), *A[:2])
    world.train(world.gang("job000")[0], 8, iter_s=0.5)
    world.grant(*A[2:])
    world.obey_stops()
    world.rise()
    world.train(world.gang("job000")[0], 8, iter_s=0.35)
    assert world.core.scaling.of(4) == pytest.approx(0.5 / 0.7)
    later = elastic(gang_gpus=2)
    later.core.recall({"times": {}, "efficiency": world.core.scaling.kept()})
    assert later.core.scaling.of(4) == pytest.approx(0.5 / 0.7)
    world.restart()
    assert world.core.scaling.of(4) == pytest.approx(0.5 / 0.7)


def test_one_bid_has_rows_for_each_size() -> None:
    world = elastic()
    world.register()
    offer = pb.Offer(round_id="r", contention=world.contention(), machines=[pb.MachineGpus(host="a1", gpus=4)])
    world.arbiter(offer=offer)
    rows = world.messages("bid")[-1].rows
    assert {(r.new_gangs, r.gang_gpus) for r in rows} == {(1, 1), (1, 2), (1, 4)}
    assert (rows[0].gang_gpus, rows[0].scope) == (4, pb.MACHINE), "the best rho comes first"


@pytest.mark.parametrize(("text", "found"), [("", (0, 0)), ("4", (4, 4)), ("1:8", (1, 8)), ("2:6", (2, 6))])
def test_a_range_is_read(text: str, found: tuple[int, int]) -> None:
    assert gpus_range(text) == found


@pytest.mark.parametrize("text", ["0:8", "8:1", "2:7", "1:", ":8", "a:b", "1:8:9"])
def test_an_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        gpus_range(text)
