"""`AgentCore` while the Arbiter is away, when containers vanish, and in a second attempt."""

from __future__ import annotations

import csv

import pytest

from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent import gangs
from tests.agent.world import A, World, hyperband, machines, started


def test_nothing_is_released_or_planned_while_the_arbiter_is_away() -> None:
    world = started(World(hyperband()), *A[:2])
    world.lose_link()
    before = len(world.sent)
    world.finish_gang("job000")
    world.pass_time(5)
    assert len(world.sent) == before
    world.register()
    world.rise()
    assert world.running() == ["job001"]


def test_messages_that_a_lost_stream_may_not_have_carried_are_sent_again() -> None:
    world = World()
    world.register()
    world.grant(*A[:2])
    world.replies = []  # the Use never arrived
    world.plans.clear()
    world.lose_link()
    world.register()
    world.rise()
    (c,) = world.gang("job000")
    c.start = None  # nor did the Start
    world.lose_link()
    world.register()
    assert c.start is not None
    world.revoke(*A[:2])
    c.stop = None  # nor the Stop
    world.lose_link()
    world.register()
    assert c.stop is not None


def test_leases_that_ended_while_the_arbiter_was_away_end_their_gangs() -> None:
    world = started(World(), *A[:2])
    world.lose_link()
    world.held.clear()
    world.register()
    assert world.gang("job000")[0].stop is not None


def test_the_operator_ends_the_app() -> None:
    world = started(World(), *A[:2])
    world.arbiter(finish=pb.Finish(reason="killed by root"))
    world.obey_stops()
    assert world.done is not None
    assert (world.done.succeeded, world.done.message) == (False, "killed by root")
    assert (world.to_shell[-1].finish.succeeded, world.to_shell[-1].finish.killed) == (False, True)


def test_a_killed_sweep_keeps_its_trials() -> None:
    world = started(World(hyperband(jobs=3)), *A)
    world.finish_gang("job000", accuracy=0.9)
    world.arbiter(finish=pb.Finish(reason="ended by ann"))
    assert world.publishes is None, "not before its gangs have ended"
    world.obey_stops()
    assert world.publishes is not None
    assert world.publishes.from_dir == "", "no model is copied"
    rows = list(csv.DictReader(world.publishes.results["trials.csv"].splitlines()))
    assert [(row["job"], row["accuracy"]) for row in rows][:2] == [("job000", "0.9"), ("job001", "")]
    assert world.done is not None
    assert world.done.model_path.endswith("/results-application_1_0001")


def test_an_attempt_that_must_end_does_not_report_the_app_as_ended() -> None:
    world = started(World(), *A[:2])
    world.tell(am.AmEvent(shutdown="resync"))
    assert world.ended is not None
    assert world.ended.code != 0
    assert world.done is None


def test_a_container_that_differs_from_its_plan_is_released() -> None:
    world = World()
    world.register()
    world.grant(*A[:2])
    world.answer_plans()
    (request_id,) = world.asks
    wrong = am.AmContainer(container_id="x", host="a1", gpu_ids=[2, 3], allocation_request_id=request_id)
    world.tell(am.AmEvent(allocated=wrong))
    assert world.to_shell[-1].release.container_id == "x"
    world.allocate()
    assert world.to_shell[-1].launch.container_id


def test_a_worker_whose_stream_broke_before_the_start_or_the_stop_came_is_told_again() -> None:
    world = started(World(), *A[:2])
    (c,) = world.gang("job000")
    assert c.start is not None
    c.start = None  # it was lost with the stream
    ready = pb.WorkerReady(host="a1", port=2002, container_id=c.container_id)
    world.worker(c, ready=ready)
    assert c.start is not None
    world.train(c, 1)
    world.revoke(*A[:2], in_s=60.0)
    c.stop = None  # so was this
    world.pass_time(15)
    world.worker(c, ready=ready)
    assert c.stop is not None
    assert c.stop.left_s == 45.0


class TestUntoldEnd:
    """A machine does not come back, and the ResourceManager died before it reported the end of its containers."""

    def test_a_container_without_reports_is_given_up(self) -> None:
        world = started(World(), *A[:2])
        (c,) = world.gang("job000")
        del world.containers[c.container_id]
        world.pass_time(gangs.SILENCE_S + 1)
        world.pass_time(gangs.STOP_GRACE_S + gangs.GONE_S - 60)
        assert world.core.jobs["job000"].state == "stopping"
        world.pass_time(120)
        assert world.core.jobs["job000"].launches == 2
        assert world.core.jobs["job000"].failures == 1

    def test_a_container_with_an_active_worker_is_not_given_up(self) -> None:
        world = started(World(), *A[:2])
        (c,) = world.gang("job000")
        world.arbiter(revoke=pb.Revoke(gpus=machines(A[:2]), deadline_s=world.now_s + 10))
        for _ in range(10):
            del world.containers[c.container_id]  # the shell's stop does not reach it
            world.pass_time(gangs.GONE_S / 4)
            world.containers[c.container_id] = c
            heard = pb.WorkerMessage(worker_id=c.plan.worker_id, progress=pb.WorkerProgress(step=1, iter_time_s=1.0))
            world.arbiter(from_worker=heard)
        assert world.core.jobs["job000"].state == "stopping"


@pytest.mark.parametrize("ahead_s", [-147.0, 0.0, 511.0])
def test_the_time_left_of_a_lease_does_not_depend_on_the_arbiters_clock(ahead_s: float) -> None:
    world = started(World(), *A[:2])
    world.revoke(*A[:2], in_s=30.0, ahead_s=ahead_s)
    (told,) = [m.stop for m in world.messages("to_worker") if m.HasField("stop")]
    assert (told.deadline_s, told.left_s) == (world.now_s + 30.0, 30.0)


class TestSecondAttempt:
    def test_adopted_workers_continue_and_lost_ones_are_launched_again(self) -> None:
        world = started(World(hyperband(gang_gpus=2)), *A)
        kept, lost = world.gang("job000")[0], world.gang("job001")[0]
        world.train(kept, 1)
        world.restart()
        del world.containers[lost.container_id]
        world.tell(am.AmEvent(adopted=world.described(kept)))
        world.register()
        world.answer_plans()
        world.pass_time(11)
        world.rise()
        assert world.core.jobs["job000"].launches == 1
        assert world.core.jobs["job001"].launches == 2
        assert world.gang("job001")[0].plan.worker_id == "job001/2.2/0"
        assert world.running() == ["job000", "job001"]
        world.finish_gang("job000")
        assert world.core.jobs["job000"].state == "paused"

    def test_a_container_whose_id_was_not_saved_is_recognised_by_its_request(self) -> None:
        world = started(World(), *A[:2])
        (c,) = world.gang("job000")
        world.core.jobs["job000"].workers[0].container_id = ""
        world.core.jobs["job000"].state = "starting"
        world.restart()
        world.tell(am.AmEvent(adopted=world.described(c)))
        c.start = None
        world.register()
        world.ready()
        assert c.start is not None

    def test_an_unknown_container_is_stopped(self) -> None:
        world = World()
        world.restart()
        world.tell(am.AmEvent(adopted=am.AmContainer(container_id="x", allocation_request_id=7)))
        assert world.to_shell[-1].stop.container_id == "x"
