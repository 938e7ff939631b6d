"""The Agent's mind, event by event."""

from __future__ import annotations

import csv
import json
from xml.etree import ElementTree

import pytest

from pycontrol.model.topology import Gpu
from pycontrol.rpc import translate
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent import gangs, results
from submarine_patch.agent.brain import Brain
from submarine_patch.agent.messages import Published
from submarine_patch.agent.report import progress as reported
from tests.agent.world import HOSTS, SPEC, World, hyperband, machines, spec_of

A = [Gpu("a1", i) for i in range(4)]
A2 = [Gpu("a2", i) for i in range(4)]
B = [Gpu("b1", 0), Gpu("b1", 1)]


def started(world: World, *gpus: Gpu) -> World:
    world.register()
    world.grant(*gpus)
    world.rise()
    return world


def test_a_gang_is_planned_before_it_is_asked_for_and_starts_whole() -> None:
    world = World()
    world.register()
    world.grant(A[0], B[0])
    assert not world.asks
    world.answer_plans()
    assert len(world.asks) == 2
    world.allocate()
    first, second = world.gang("job000")
    world.worker(first, ready=pb.WorkerReady(host="a1", port=1))
    assert first.start is None
    world.worker(second, ready=pb.WorkerReady(host="b1", port=2))
    assert first.start is not None
    assert json.loads(first.start.tf_config) == {
        "cluster": {"worker": ["a1:1", "b1:2"]},
        "task": {"type": "worker", "index": 0},
    }
    assert json.loads(second.start.tf_config)["task"]["index"] == 1
    assert first.start.until_step == 9
    assert first.start.checkpoint_dir == "hdfs:///ck/application_1_0001/job000"


def test_one_worker_has_no_tf_config_and_real_gpus_are_not_paced() -> None:
    world = started(World(), *A[:2])
    (worker,) = world.gang("job000")
    assert worker.start is not None
    assert worker.start.tf_config == worker.start.pacing == ""


def test_virtual_gpus_are_paced_by_scope() -> None:
    world = started(World(virtual=True), A[0], B[0])
    start = world.gang("job000")[0].start
    assert start is not None
    assert json.loads(start.pacing) == {"serial_iter_s": 1.0, "slowdown": 1.3, "gpus": 2, "gpu_bound": 1.0}


def test_a_machine_that_came_after_the_app_is_known_by_its_rack_and_type() -> None:
    world = World(virtual=True)
    world.register()
    new = pb.Host(host="b3", rack="b", gpus=2, virtual_gpus=True, gpu_type="k80")
    known = [pb.Host(host=h, rack=r, gpus=n, virtual_gpus=True) for h, (r, n) in HOSTS.items()]
    world.arbiter(hosts=pb.Hosts(hosts=[*known, new]))
    world.grant(B[0], Gpu("b3", 0))
    world.rise()
    start = world.gang("job000")[0].start
    assert start is not None
    assert json.loads(start.pacing)["slowdown"] == 1.1, "one rack"
    assert world.brain.speeds.types == ("gpu", "k80")


def test_a_job_prefers_one_machine_then_one_rack() -> None:
    world = started(World(hyperband(gang_gpus=4)), B[0], *A, B[1], *A2[:2])
    assert {c.plan.host for c in world.gang("job000")} == {"a1"}
    assert {c.plan.host for c in world.gang("job001")} == {"a2", "b1"}


def test_what_the_user_asked_for_is_in_every_demand() -> None:
    world = World(spec_of(within="switch", pinned="corner", lazy_preemption=True))
    demand = reported(world.brain).demand
    assert (demand.scope, demand.within, demand.pinned) == (pb.MACHINE, "switch", "corner")
    assert demand.lazy_preemption
    assert not demand.opportunistic
    demand = reported(World(spec_of(within="rack", opportunistic=True)).brain).demand
    assert (demand.scope, demand.within, demand.opportunistic) == (pb.RACK, "", True)


def test_a_gang_with_a_limit_is_one_grant_as_the_arbiter_gave_it() -> None:
    """GPUs of two grants may lie on one machine and yet in two switches."""
    world = World(hyperband(within="switch"))
    world.register()
    world.grant(A[0], A[2])
    world.grant(A[1], A[3])
    world.rise()
    gangs = {frozenset(w.gpus) for job in ("job000", "job001") for w in world.gang(job)}
    assert gangs == {frozenset((A[0], A[2])), frozenset((A[1], A[3]))}


def test_gpus_beyond_whole_gangs_or_runnable_jobs_go_back_at_once() -> None:
    world = started(World(), *A)
    assert world.held == set(A[:2])
    world = started(World(hyperband(gang_gpus=2)), *A[:3])
    assert len(world.held) == 2


def test_the_end_of_a_single_job_publishes_then_says_done_then_finishes() -> None:
    world = started(World(), *A[:2])
    world.finish_gang("job000", accuracy=0.9)
    assert world.done is None
    world.publish()
    assert world.done is not None
    assert world.done.succeeded
    assert world.done.best_accuracy == pytest.approx(0.9)
    assert world.done.model_path == "hdfs:///model/ckpt"
    assert world.to_shell[-1].finish.succeeded
    assert world.ended is not None
    assert not world.held


def test_a_model_that_cannot_be_copied_fails_the_app_but_no_checkpoint_does_not() -> None:
    world = started(World(), *A[:2])
    world.publish_problem = "HDFS is full"
    world.finish_gang("job000")
    world.publish()
    assert world.done is not None
    assert not world.done.succeeded
    assert "HDFS is full" in world.done.message
    world = started(World(), *A[:2])
    world.finish_gang("job000")
    world.tell(Published(problem="no complete checkpoint", missing=True))
    assert world.done is not None
    assert world.done.succeeded


def test_the_last_words_may_come_after_the_container_is_gone() -> None:
    world = started(World(hyperband()), *A[:2])
    (c,) = world.gang("job000")
    world.end(c, 0, say=False)
    assert "job000" not in world.brain.scheduler.scores  # type: ignore[attr-defined]
    world.arbiter(
        from_worker=pb.WorkerMessage(worker_id=c.plan.worker_id, progress=pb.WorkerProgress(step=1, accuracy=0.7))
    )
    world.arbiter(from_worker=pb.WorkerMessage(worker_id=c.plan.worker_id, exit=pb.WorkerExit(step=1)))
    assert world.brain.scheduler.scores["job000"] == (1, pytest.approx(0.7))  # type: ignore[attr-defined]


def test_last_words_are_waited_for_only_so_long_but_as_long_as_the_arbiter_is_away() -> None:
    world = started(World(), *A[:2])
    world.lose_link()
    world.end(world.gang("job000")[0], 0, say=False)
    world.pass_time(100)
    assert world.brain.jobs["job000"].active
    world.register()
    world.pass_time(gangs.SETTLE_S)
    assert not world.brain.jobs["job000"].active


def test_a_revoked_gang_stops_whole_and_resumes_on_the_next_gpus() -> None:
    world = started(World(), A[0], B[0])
    world.train(world.gang("job000")[0], 4)
    world.revoke(A[0])
    assert all(c.stop and c.stop.deadline_s == world.now_s + 30 for c in world.containers.values())
    world.obey_stops()
    assert world.held == set()  # the other half is no gang
    assert world.brain.jobs["job000"].failures == 0
    world.grant(*A2[:2])
    world.rise()
    (worker,) = world.gang("job000")
    assert worker.plan.worker_id == "job000/2/0"
    assert world.brain.jobs["job000"].step == 4


def test_a_gang_that_left_a_bad_gpu_resumes_on_the_good_ones_and_another() -> None:
    world = started(World(), *A[:2])
    world.revoke(*A[:2])
    world.grant(A[0], B[0], available_s=world.now_s + 30)
    world.pass_time()
    assert not world.messages("released"), "the new GPU waits for the one that the ending gang still uses"
    world.obey_stops()
    world.rise()
    assert {g for c in world.gang("job000") for g in c.gpus} == {A[0], B[0]}


def test_gpus_that_come_while_a_revoked_gang_still_ends_wait_for_it() -> None:
    world = started(World(), *A[:2])
    world.revoke(*A[:2])
    world.grant(*A2[:3])
    assert len(world.held) == 2  # the third is no use
    world.obey_stops()
    world.rise()
    assert world.running() == ["job000"]


def test_a_stop_that_is_not_obeyed_ends_with_the_container() -> None:
    world = started(World(), *A[:2])
    world.revoke(*A[:2], in_s=10)
    world.pass_time(9)
    assert "killed" not in world.__dict__
    world.pass_time(2)
    assert world.killed == list(world.containers)


def test_a_failed_worker_takes_its_gang_along_and_is_retried_on_the_same_gpus() -> None:
    world = started(World(spec_of(max_retries=1)), A[0], B[0])
    first, second = world.gang("job000")
    world.train(first, 3)
    world.end(second, 1)
    assert first.stop is not None
    world.obey_stops()
    assert world.brain.jobs["job000"].failures == 1
    world.rise()
    assert world.running() == ["job000"]
    assert world.held == {A[0], B[0]}
    world.end(world.gang("job000")[1], 137)
    world.obey_stops()
    assert world.done is not None
    assert not world.done.succeeded
    assert "job000/2/1 on b1 ended with 137: why" in world.done.message


def test_a_container_killed_by_yarn_is_no_failure_of_the_job() -> None:
    world = started(World(spec_of(max_retries=0)), *A[:2])
    world.end(world.gang("job000")[0], 0, status=-102, say=False)
    world.rise()
    assert world.brain.jobs["job000"].failures == 0
    assert world.running() == ["job000"]


def test_a_group_goes_on_without_a_job_that_fails_for_good() -> None:
    world = started(World(hyperband(max_retries=0)), *A[:2])
    world.end(world.gang("job000")[0], 1)
    world.rise()
    assert world.running() == ["job001"]
    assert world.brain.jobs["job000"].state == "failed"


def test_promotion_goes_on_from_the_checkpoint_of_the_same_job() -> None:
    world = World(hyperband(jobs=3, max_iterations=3))
    started(world, *A, *A2[:2])
    for job_id, accuracy in (("job000", 0.2), ("job001", 0.9), ("job002", 0.4)):
        world.finish_gang(job_id, accuracy)
    world.rise()
    assert world.running() == ["job001"]
    (c,) = world.gang("job001")
    assert c.start is not None
    assert c.start.until_step == 3
    assert c.plan.worker_id == "job001/2/0"
    assert len(world.held) == 2
    world.finish_gang("job001", 0.95)
    world.publish()
    assert world.done is not None
    assert world.done.best_job_id == "job001"
    assert set(world.done.best_configuration) == {"rate"}


def test_a_plan_refused_for_a_moment_is_sent_again_and_gives_way_in_the_end() -> None:
    world = World()
    world.refuse_plans = 2
    started(world, *A[:2])
    for _ in range(3):
        world.pass_time(4)
        world.rise()
    assert world.running() == ["job000"]
    world = World()
    world.refuse_plans = 100
    started(world, *A[:2])
    for _ in range(gangs.PLAN_REFUSALS):
        world.pass_time(4)
        world.rise()
    assert not world.held
    assert world.messages("released")[-1].reason.startswith("plan refused")


def test_a_gang_that_does_not_come_together_is_given_up() -> None:
    world = World()
    world.register()
    world.grant(A[0], B[0], available_s=world.now_s + 60)
    world.answer_plans()
    world.asks.pop(max(world.asks))
    world.allocate()
    world.pass_time(gangs.GANG_TIMEOUT_S + 30)
    assert world.gang("job000")[0].stop is None  # the GPUs were not free before 60 s
    world.pass_time(60)
    world.obey_stops()
    assert world.held == set()
    assert world.brain.jobs["job000"].failures == 0


def test_a_silent_worker_fails_its_gang_but_not_while_the_arbiter_is_away() -> None:
    world = started(World(), *A[:2])
    world.train(world.gang("job000")[0], 2)
    world.lose_link()
    world.pass_time(600)
    world.register()
    world.pass_time(30)
    assert world.running() == ["job000"]
    world.pass_time(40)
    assert world.gang("job000")[0].stop is not None


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


def test_what_a_lost_stream_may_not_have_carried_is_said_again() -> None:
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
    assert not world.to_shell[-1].finish.succeeded


def test_an_attempt_that_must_end_says_nothing_of_the_app() -> None:
    world = started(World(), *A[:2])
    world.tell(am.AmEvent(shutdown="resync"))
    assert world.ended is not None
    assert world.ended.code != 0
    assert world.done is None


def test_a_container_that_is_not_what_was_planned_is_given_back() -> None:
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


def test_a_worker_whose_stream_broke_before_the_start_came_is_started_again() -> None:
    world = started(World(), *A[:2])
    (c,) = world.gang("job000")
    assert c.start is not None
    c.start = None  # it was lost with the stream
    ready = pb.WorkerReady(host="a1", port=2002, container_id=c.container_id)
    world.arbiter(from_worker=pb.WorkerMessage(worker_id=c.plan.worker_id, ready=ready))
    assert c.start is not None


class TestUntoldEnd:
    """A machine does not come back, and the ResourceManager that knew of its containers died before it told."""

    def test_a_container_that_nobody_speaks_of_is_given_up(self) -> None:
        world = started(World(), *A[:2])
        (c,) = world.gang("job000")
        del world.containers[c.container_id]
        world.pass_time(gangs.SILENCE_S + 1)
        world.pass_time(gangs.STOP_GRACE_S + gangs.GONE_S - 60)
        assert world.brain.jobs["job000"].state == "stopping"
        world.pass_time(120)
        assert world.brain.jobs["job000"].launches == 2
        assert world.brain.jobs["job000"].failures == 1

    def test_not_while_its_worker_is_heard(self) -> None:
        world = started(World(), *A[:2])
        (c,) = world.gang("job000")
        world.arbiter(revoke=pb.Revoke(gpus=machines(A[:2]), deadline_s=world.now_s + 10))
        for _ in range(10):
            del world.containers[c.container_id]  # the shell's stop does not reach it
            world.pass_time(gangs.GONE_S / 4)
            world.containers[c.container_id] = c
            heard = pb.WorkerMessage(worker_id=c.plan.worker_id, progress=pb.WorkerProgress(step=1, iter_time_s=1.0))
            world.arbiter(from_worker=heard)
        assert world.brain.jobs["job000"].state == "stopping"


class TestSecondAttempt:
    def test_adopted_workers_train_on_and_what_was_lost_is_launched_again(self) -> None:
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
        assert world.brain.jobs["job000"].launches == 1
        assert world.brain.jobs["job001"].launches == 2
        assert world.gang("job001")[0].plan.worker_id == "job001/2.2/0"
        assert world.running() == ["job000", "job001"]
        world.finish_gang("job000")
        assert world.brain.jobs["job000"].state == "paused"

    def test_a_container_whose_id_was_not_saved_is_known_by_its_request(self) -> None:
        world = started(World(), *A[:2])
        (c,) = world.gang("job000")
        world.brain.jobs["job000"].workers[0].container_id = ""
        world.brain.jobs["job000"].state = "starting"
        world.restart()
        world.tell(am.AmEvent(adopted=world.described(c)))
        c.start = None
        world.register()
        world.ready()
        assert c.start is not None

    def test_a_container_of_which_nothing_is_known_is_stopped(self) -> None:
        world = World()
        world.restart()
        world.tell(am.AmEvent(adopted=am.AmContainer(container_id="x", allocation_request_id=7)))
        assert world.to_shell[-1].stop.container_id == "x"


class TestRounds:
    def test_rho_counts_gangs_whose_leases_go_on_only(self) -> None:
        world = started(World(hyperband(max_iterations=9)), *A[:2])
        world.arbiter(ask_rho=pb.AskRho(round_id="r", contention=world.contention()))
        world.arbiter(ask_rho=pb.AskRho(round_id="s", contention=world.contention(), ending=machines(A[:2])))
        with_gang, without = world.messages("rho")
        assert (with_gang.round_id, without.round_id) == ("r", "s")
        assert without.rho == pytest.approx(with_gang.rho * (100 + 600 + 18) / (100 + 18), rel=0.2)
        assert with_gang.demand.gangs == 9

    def test_a_bid_keeps_own_gangs_and_adds_new_ones_within_what_it_can_use(self) -> None:
        world = started(World(hyperband(jobs=3, max_iterations=3, iteration_s=200.0)), *A[:2])
        world.arbiter(ask_rho=pb.AskRho(round_id="r", contention=world.contention(), ending=machines(A[:2])))
        offered = [pb.MachineGpus(host=h, gpus=n) for h, n in (("a1", 4), ("a2", 4), ("b1", 2))]
        offer = pb.Offer(round_id="r", contention=world.contention(), machines=offered, ending=machines(A[:2]))
        world.arbiter(offer=offer)
        (bid,) = world.messages("bid")
        assert bid.rows
        for row in bid.rows:
            assert row.rho < bid.rho_nothing
            assert len(row.keep) + row.new_gangs <= 3
            for gang in row.keep:
                assert [(m.host, m.gpus) for m in gang.machines] == [("a1", 2)]
        best = min(bid.rows, key=lambda r: r.rho)
        assert (len(best.keep), best.new_gangs) == (1, 2)

    def test_a_gang_that_the_arbiter_did_not_know_when_the_round_began_is_not_named(self) -> None:
        world = World(hyperband())
        world.register()
        world.grant(*A[:2])
        world.arbiter(ask_rho=pb.AskRho(round_id="r", contention=world.contention(), ending=machines(A[:2])))
        world.rise()
        offered = [pb.MachineGpus(host="a1", gpus=2)]
        offer = pb.Offer(round_id="r", contention=world.contention(), machines=offered, ending=machines(A[:2]))
        world.arbiter(offer=offer)
        (bid,) = world.messages("bid")
        assert all(not row.keep for row in bid.rows)

    def test_progress_is_said_at_most_once_a_second(self) -> None:
        world = started(World(), *A[:2])
        before = len(world.messages("progress"))
        world.train(world.gang("job000")[0], 5)
        assert len(world.messages("progress")) <= before + 1
        world.pass_time(1)
        job = world.messages("progress")[-1].jobs[0]
        assert (job.state, job.step, job.launches, job.gpus) == ("running", 5, 1, 2)
        assert job.iter_time_s == pytest.approx(0.5)


def test_a_job_that_its_scheduler_stops_on_its_way_gives_its_gpus_to_the_next() -> None:
    spec = hyperband(app_scheduler="median", jobs=5, max_iterations=40, min_iterations=4)
    world = World(spec)
    started(world, *A, *A2[:4])
    assert world.running() == ["job000", "job001", "job002", "job003"]
    for job_id in ("job001", "job002", "job003"):
        world.train(world.gang(job_id)[0], 8, accuracy=0.8)
    world.train(world.gang("job000")[0], 4, accuracy=0.1)
    (chief,) = world.gang("job000")
    assert chief.stop is not None
    assert chief.stop.reason == "its app scheduler stopped it"
    world.obey_stops()
    assert world.brain.jobs["job000"].state == "stopped"
    world.rise()
    assert world.running() == ["job001", "job002", "job003", "job004"]


def test_the_demand_tells_slowdown_loss_and_gpu_types() -> None:
    spec = spec_of(gpu_type="V100", speedups={"K80": 1.0, "V100": 3.0}, iteration_s=2.0)
    world = World(spec, types={"a1": "V100"})
    started(world, *A[:2])
    assert world.brain.register().register.demand.loss_rate == 0.0
    (chief,) = world.gang("job000")
    for step, loss in enumerate((0.9, 0.8, 0.7, 0.6), 1):
        world.worker(chief, progress=pb.WorkerProgress(step=step, loss=loss, iter_time_s=1.0))
    demand = world.brain.register().register.demand
    assert demand.loss_rate == pytest.approx(0.1 / 2.0), "a decrease of 0.1 a step of 2 GPU-s"
    assert list(demand.slowdown) == pytest.approx([1.0, 1.1, 1.3])
    assert dict(demand.speedups) == {"K80": 1.0, "V100": 3.0, "gpu": 1.0}
    assert demand.gpu_type == "V100"


@pytest.mark.parametrize("iter_time_s", [0.1, 1e300, 1e-300, float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("losses", [(1e300, -1e300, 1e308), (float("nan"), 1.0, 2.0), (float("inf"), 1e99, 0.0)])
def test_no_number_of_a_log_ends_the_agent_or_its_stream(losses: tuple[float, ...], iter_time_s: float) -> None:
    world = World()
    started(world, *A[:2])
    (chief,) = world.gang("job000")
    for step, loss in zip((1, 5, 1 << 60), losses, strict=True):
        said = pb.WorkerProgress(step=step, loss=loss, accuracy=loss, iter_time_s=iter_time_s)
        world.worker(chief, progress=said)
    assert world.brain.jobs["job000"].step == 5
    translate.agent_up("application_1_0001", "ann", world.brain.register().register)
    report = pb.AgentMessage(progress=reported(world.brain))
    assert translate.event_of("application_1_0001", report, {}) is not None


def test_a_script_without_checkpoints_begins_anew_and_its_user_is_told() -> None:
    world = started(World(), *A[:2])
    (worker,) = world.gang("job000")
    world.train(worker, 5)
    world.revoke(*A[:2])
    world.worker(worker, exit=pb.WorkerExit(code=75, step=5, unsaved=True))
    world.end(worker, 75)
    job = world.brain.jobs["job000"]
    assert "begins anew" in reported(world.brain).jobs[0].note
    world.grant(*A[:2])
    world.rise()
    (worker,) = world.gang("job000")
    world.worker(worker, progress=pb.WorkerProgress(step=1, loss=0.9, iter_time_s=0.5))
    assert job.step == 1


def test_a_checkpoint_that_fails_is_told_until_one_is_whole() -> None:
    world = started(World(), *A[:2])
    (worker,) = world.gang("job000")
    world.train(worker, 5)
    for step in (3, 5):
        world.worker(worker, checkpoint=pb.WorkerCheckpoint(step=step, problem="Token has expired"))
    (told,) = reported(world.brain).jobs
    assert told.checkpoints_failed == 2
    assert told.note.endswith("step 5: Token has expired")
    assert Brain(SPEC, 2, json.loads(json.dumps(world.brain.dump()))).jobs["job000"].checkpoints_failed == 2
    world.worker(worker, checkpoint=pb.WorkerCheckpoint(step=6, path="/c"))
    (told,) = reported(world.brain).jobs
    assert (told.checkpoints_failed, told.note) == (0, "")


def test_the_user_hears_of_a_tokens_end_before_it() -> None:
    world = started(World(), *A[:2])
    world.brain.has_token(world.now_s, world.now_s + 400.0)
    world.pass_time(290)
    assert reported(world.brain).jobs[0].note == ""
    world.pass_time(20)
    note = reported(world.brain).jobs[0].note
    assert note.startswith("the app's HDFS token ends at 1970-01-01 00:23 UTC")
    assert note.endswith("no checkpoint can be written after that")


def test_jobs_are_compared_by_any_metric() -> None:
    world = started(World(hyperband(metric="val_f1", jobs=2, eta=2, max_iterations=2)), *A[:4])
    for job_id, value in (("job000", 0.3), ("job001", 0.8)):
        (worker,) = world.gang(job_id)
        assert worker.launch.env["ISONOMY_METRIC"] == "val_f1"
        world.worker(worker, progress=pb.WorkerProgress(step=1, loss=0.1, metric=value))
        world.worker(worker, exit=pb.WorkerExit(code=0, step=1))
        world.end(worker, 0)
    told = {j.job_id: j for j in reported(world.brain).jobs}
    assert (told["job000"].metric, told["job001"].metric) == (0.3, 0.8)
    assert world.brain.scheduler.runnable() == ["job001"]


def test_what_came_of_all_jobs_goes_beside_the_model() -> None:
    world = started(World(hyperband(metric="val_f1", jobs=2, eta=2, max_iterations=2)), *A[:4])
    for job_id, value in (("job000", 0.3), ("job001", 0.8)):
        (worker,) = world.gang(job_id)
        for step in (1, 2):
            world.worker(worker, progress=pb.WorkerProgress(step=step, loss=0.1, metric=value * step))
    world.revoke(*A[:2])
    for job_id in ("job000", "job001"):
        for worker in world.gang(job_id):
            world.end(worker, 75)
    made = results.files(world.brain, "job001")
    trials = list(csv.DictReader(made["trials.csv"].splitlines()))
    assert [(t["job"], t["best"], t["val_f1"]) for t in trials] == [("job000", "0", "0.6"), ("job001", "1", "1.6")]
    assert all(float(t["rate"]) > 0 for t in trials)
    launches = list(csv.DictReader(made["launches.csv"].splitlines()))
    assert {x["gpus"] for x in launches} == {"a1:0 a1:1", "a1:2 a1:3"}
    assert [x["why"] for x in launches if x["gpus"] == "a1:0 a1:1"] == ["lost a round"]
    assert ElementTree.fromstring(made["curves.svg"]).tag.endswith("svg")
    assert made["curves.svg"].count("<polyline") == 2


def test_a_curve_is_thinned_out_and_keeps_its_ends() -> None:
    world = World()
    job = world.brain.job("job000")
    for step in range(1, 1001):
        job.accuracy = step / 1000
        results.seen(world.brain, job, step)
    assert len(job.curve) <= results.POINTS
    assert (job.curve[0], job.curve[-1]) == ([1, 0.001], [1000, 1.0])


def test_a_webhook_is_told_of_start_revocation_and_end() -> None:
    world = started(World(spec_of(notify="https://hooks.example.com/t1")), *A[:2])
    world.revoke(*A[:2])
    world.rise()
    world.grant(*A2[:2])
    world.rise()
    world.finish_gang("job000", accuracy=0.9)
    world.publish()
    kinds = [e["event"] for e in world.notified]
    assert kinds == ["started", "revoked", "ended"], "the second launch is no start"
    assert world.notified[1]["gpus"] == ["a1:0", "a1:1"]
    assert all((e["app_id"], e["name"], e["user"]) == (SPEC.app_id, "digits", "ann") for e in world.notified)
    silent = started(World(), *A[:2])
    silent.finish_gang("job000")
    silent.publish()
    assert not silent.notified


def test_a_webhook_is_told_of_a_failure_and_once_of_the_start_over_attempts() -> None:
    world = started(World(spec_of(notify="https://hooks.example.com/t1")), *A[:2])
    saved = world.brain.dump()
    assert Brain(SPEC, 2, saved).start_told
    world.publish_problem = "HDFS is full"
    world.finish_gang("job000")
    world.publish()
    assert world.notified[-1]["event"] == "failed"
    assert "HDFS is full" in world.notified[-1]["message"]
