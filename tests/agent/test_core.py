"""`AgentCore`, event by event: gangs from their plan to their end."""

from __future__ import annotations

import json

import pytest

from pycontrol.model.topology import Gpu
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent import gangs
from submarine_patch.agent.messages import Published
from submarine_patch.agent.report import progress as reported
from submarine_patch.worker.supervisor import START_S
from tests.agent.world import A2, HOSTS, STOPPED, A, B, World, hyperband, spec_of, started


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


def with_servers() -> World:
    """A job on two machines, with three servers and an own command for them, in training."""
    return started(World(spec_of(servers=3, server_memory_mb=100, server_vcores=2, server_cmd="serve")), A[0], B[0])


def test_servers_run_beside_the_workers_and_add_to_their_containers() -> None:
    world = with_servers()
    asks = [c.ask for c in world.to_shell if c.HasField("ask")]
    assert [(a.gpus, a.memory_mb, a.vcores) for a in asks] == [(1, 512 + 200, 1 + 4), (1, 512 + 100, 1 + 2)]
    first, second = world.gang("job000")
    assert first.launch is not None
    assert second.launch is not None
    assert [c.launch.env["ISONOMY_PORTS"] for c in (first, second)] == ["4", "2"]
    assert {c.launch.env["ISONOMY_PS_COMMAND"] for c in (first, second)} == {"serve"}
    assert first.start is not None
    assert second.start is not None
    told = json.loads(first.start.tf_config)
    assert {kind: len(places) for kind, places in told["cluster"].items()} == {"chief": 1, "worker": 2, "ps": 3}
    assert told["task"] == {"type": "chief", "index": 0}
    assert json.loads(second.start.tf_config)["task"] == {"type": "worker", "index": 1}


def test_a_job_with_servers_is_done_when_its_coordinator_is() -> None:
    world = with_servers()
    first, second = world.gang("job000")
    world.worker(first, exit=pb.WorkerExit(code=0, step=9))
    assert world.killed == [second.container_id]
    world.end(first, 0, say=False)
    assert world.core.jobs["job000"].state == "running"
    world.end(second, 143, say=False)
    assert world.core.jobs["job000"].failures == 0
    assert world.core.jobs["job000"].state == "done"


def test_a_coordinator_that_fails_counts_although_its_servers_are_stopped_first() -> None:
    world = with_servers()
    for failures in (1, 2, 3):
        first, second = world.gang("job000")
        world.worker(first, exit=pb.WorkerExit(code=1, message=f"no such file: {failures}"))
        world.end(second, 143, -105, say=False)
        world.end(first, 1, say=False)
        assert world.core.jobs["job000"].failures == failures
        assert "no such file" in world.core.jobs["job000"].problem
        world.rise()
    assert world.core.jobs["job000"].state == "failed"


def test_a_revoked_job_with_servers_keeps_them_until_its_coordinator_has_stopped() -> None:
    world = with_servers()
    first, second = world.gang("job000")
    world.revoke(A[0])
    world.pass_time()
    assert not world.killed
    world.worker(first, exit=pb.WorkerExit(code=75, step=4))
    assert world.killed == [second.container_id]
    world.end(first, 75, say=False)
    world.end(second, 143, say=False)
    assert world.core.jobs["job000"].state == "pending"
    assert world.core.jobs["job000"].failures == 0


def test_virtual_gpus_are_paced_by_scope() -> None:
    world = started(World(virtual=True), A[0], B[0])
    start = world.gang("job000")[0].start
    assert start is not None
    assert json.loads(start.pacing) == {"serial_iter_s": 1.0, "slowdown": 1.3, "gpus": 2, "gpu_bound": 1.0}


def test_a_machine_that_registers_after_the_app_has_its_rack_and_type() -> None:
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
    assert world.core.speeds.types == ("gpu", "k80")


def test_a_job_prefers_one_machine_then_one_rack() -> None:
    world = started(World(hyperband(gang_gpus=4)), B[0], *A, B[1], *A2[:2])
    assert {c.plan.host for c in world.gang("job000")} == {"a1"}
    assert {c.plan.host for c in world.gang("job001")} == {"a2", "b1"}


def test_the_users_options_are_in_every_demand() -> None:
    world = World(spec_of(within="switch", pinned="corner", lazy_preemption=True))
    demand = reported(world.core).demand
    assert (demand.scope, demand.within, demand.pinned) == (pb.MACHINE, "switch", "corner")
    assert demand.lazy_preemption
    assert not demand.opportunistic
    demand = reported(World(spec_of(within="rack", opportunistic=True)).core).demand
    assert (demand.scope, demand.within, demand.opportunistic) == (pb.RACK, "", True)


def test_segments_are_in_the_demand_one_grant_each_and_follow_each_other_in_the_order_of_ranks() -> None:
    world = World(spec_of(gang_gpus=6, segments=(2, "rack")))
    demand = reported(world.core).demand
    assert (demand.segments, demand.segment_scope, demand.within) == (2, pb.RACK, "")
    demand = reported(World(spec_of(gang_gpus=6, segments=(2, "switch"), within="rack")).core).demand
    assert (demand.segments, demand.segment_scope, demand.within, demand.scope) == (2, pb.MACHINE, "switch", pb.RACK)
    world.register()
    world.grant(A[0], B[0], B[1])
    world.rise()
    assert world.gang("job000") == []
    world.grant(A[0], A2[0], A2[1], *B, Gpu("b2", 0))
    world.rise()
    assert [c.plan.host for c in world.gang("job000")] == ["a2", "a1", "b1", "b2"], "rack by rack"


@pytest.mark.parametrize("parts", [(0, "machine"), (2, "machine")])
def test_a_mended_gang_goes_on_with_the_gpus_that_it_kept(parts: tuple[int, str]) -> None:
    world = World(spec_of(gang_gpus=4, segments=parts))
    world.register()
    world.grant(*A[:2], *A2[:2], grant_id="g")
    world.rise()
    world.train(world.gang("job000")[0], 3)
    world.revoke(*A2[:2], in_s=0.0)
    world.grant(*B, grant_id="g")
    world.obey_stops()
    world.rise()
    assert {g for c in world.gang("job000") for g in c.gpus} == {*A[:2], *B}
    assert world.running() == ["job000"]
    assert world.messages("released") == []
    assert world.core.jobs["job000"].launches == 2


def test_a_gang_with_a_limit_is_one_grant_as_the_arbiter_gave_it() -> None:
    """GPUs of two grants may be on one machine and yet in two switches."""
    world = World(hyperband(within="switch"))
    world.register()
    world.grant(A[0], A[2])
    world.grant(A[1], A[3])
    world.rise()
    gangs = {frozenset(w.gpus) for job in ("job000", "job001") for w in world.gang(job)}
    assert gangs == {frozenset((A[0], A[2])), frozenset((A[1], A[3]))}


def test_gpus_beyond_whole_gangs_or_runnable_jobs_go_back_immediately() -> None:
    world = started(World(), *A)
    assert world.held == set(A[:2])
    world = started(World(hyperband(gang_gpus=2)), *A[:3])
    assert len(world.held) == 2


def test_a_single_job_at_its_end_publishes_then_reports_done_then_finishes() -> None:
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


def test_the_exit_message_may_come_after_the_container_is_gone() -> None:
    world = started(World(hyperband()), *A[:2])
    (c,) = world.gang("job000")
    world.end(c, 0, say=False)
    assert "job000" not in world.core.scheduler.scores  # type: ignore[attr-defined]
    world.arbiter(
        from_worker=pb.WorkerMessage(worker_id=c.plan.worker_id, progress=pb.WorkerProgress(step=1, accuracy=0.7))
    )
    world.arbiter(from_worker=pb.WorkerMessage(worker_id=c.plan.worker_id, exit=pb.WorkerExit(step=1)))
    assert world.core.scheduler.scores["job000"] == (1, pytest.approx(0.7))  # type: ignore[attr-defined]


def test_the_wait_for_an_exit_message_is_bounded_except_while_the_arbiter_is_away() -> None:
    world = started(World(), *A[:2])
    world.lose_link()
    world.end(world.gang("job000")[0], 0, say=False)
    world.pass_time(100)
    assert world.core.jobs["job000"].active
    world.register()
    world.pass_time(gangs.SETTLE_S)
    assert not world.core.jobs["job000"].active


def test_a_revoked_gang_stops_whole_and_resumes_on_the_next_gpus() -> None:
    world = started(World(), A[0], B[0])
    world.train(world.gang("job000")[0], 4)
    world.revoke(A[0])
    assert all(c.stop and c.stop.deadline_s == world.now_s + 30 for c in world.containers.values())
    world.obey_stops()
    assert world.held == set()  # the other half is not a gang
    assert world.core.jobs["job000"].failures == 0
    world.grant(*A2[:2])
    world.rise()
    (worker,) = world.gang("job000")
    assert worker.plan.worker_id == "job000/2/0"
    assert world.core.jobs["job000"].step == 4


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
    assert len(world.held) == 2  # the third is useless
    world.obey_stops()
    world.rise()
    assert world.running() == ["job000"]


def test_a_stop_that_is_not_obeyed_ends_with_the_container() -> None:
    world = started(World(), *A[:2])
    world.revoke(*A[:2], in_s=10)
    world.pass_time(9)
    assert not world.killed
    world.pass_time(2)
    assert world.killed == list(world.containers)


def test_two_equal_failures_soon_after_the_start_are_not_tried_a_third_time() -> None:
    why = "exit code 1; last output: Traceback (most recent call last): | File x.py | ModuleNotFoundError: No module"
    world = started(World(spec_of(max_retries=3)), *A[:2])
    for _ in range(2):
        assert world.done is None
        (chief,) = world.gang("job000")
        world.worker(chief, exit=pb.WorkerExit(code=1, message=why))
        world.end(chief, 1, say=False)
        world.rise()
    assert world.done is not None
    assert world.core.jobs["job000"].failures == 2
    assert world.done.message.endswith("ended with 1: ModuleNotFoundError: No module (twice, so it is not tried again)")


@pytest.mark.parametrize("late", ["other", "later", "further", "signal"])
def test_failures_that_differ_are_tried_as_often_as_the_user_says(late: str) -> None:
    world = started(World(spec_of(max_retries=2)), *A[:2])
    for k in range(3):
        assert world.done is None
        (chief,) = world.gang("job000")
        world.train(chief, int(late == "further"))
        for _ in range(4 if late == "later" else 0):
            world.worker(chief, heartbeat=pb.Heartbeat())
            world.pass_time(gangs.SOON_S / 3)
        code, message = 137 if late == "signal" else 1, f"ValueError: {k if late == 'other' else 'x'}"
        world.worker(chief, exit=pb.WorkerExit(code=code, message=message))
        world.end(chief, code, say=False)
        world.rise()
    assert world.done is not None
    assert world.core.jobs["job000"].failures == 3


def test_a_demand_is_told_before_gpus_are_given_back() -> None:
    """A policy that asks no Agent would grant them again at once."""
    world = started(World(), *A[:2])
    world.pass_time(0.2)
    world.finish_gang("job000")
    kinds = [m.WhichOneof("kind") for m in world.sent]
    at = len(kinds) - 1 - kinds[::-1].index("released")
    assert kinds[at - 1] == "progress"
    assert world.sent[at - 1].progress.demand.gangs == 0


def test_a_failed_worker_takes_its_gang_along_and_is_retried_on_the_same_gpus() -> None:
    world = started(World(spec_of(max_retries=1)), A[0], B[0])
    first, second = world.gang("job000")
    world.train(first, 3)
    world.end(second, 1)
    assert first.stop is not None
    world.obey_stops()
    assert world.core.jobs["job000"].failures == 1
    world.rise()
    assert world.running() == ["job000"]
    assert world.held == {A[0], B[0]}
    world.end(world.gang("job000")[1], 137)
    world.obey_stops()
    assert world.done is not None
    assert not world.done.succeeded
    assert "job000/2/1 on b1 ended with 137: why" in world.done.message


def test_a_container_killed_by_yarn_does_not_count_as_a_failure_of_the_job() -> None:
    world = started(World(spec_of(max_retries=0)), *A[:2])
    world.end(world.gang("job000")[0], 0, status=-102, say=False)
    world.rise()
    assert world.core.jobs["job000"].failures == 0
    assert world.running() == ["job000"]


def test_a_group_continues_without_a_job_that_fails_permanently() -> None:
    world = started(World(hyperband(max_retries=0)), *A[:2])
    world.end(world.gang("job000")[0], 1)
    world.rise()
    assert world.running() == ["job001"]
    assert world.core.jobs["job000"].state == "failed"


def test_promotion_continues_from_the_checkpoint_of_the_same_job() -> None:
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


class TestReuse:
    """With a session, a trial goes on in the process that waits on its GPUs."""

    def test_the_next_trial_and_the_next_rung_need_no_container(self) -> None:
        world = started(World(hyperband(jobs=3, eta=3)), *A[:2])
        (container,) = world.containers
        for job_id in ("job000", "job001", "job002"):
            assert world.running() == [job_id]
            world.finish_gang(job_id, accuracy=0.9 if job_id == "job002" else 0.1, waits=True)
            world.answer_plans()
            world.ready()
        assert world.running() == ["job002"], "it is promoted"
        assert list(world.containers) == [container]
        assert len([c for c in world.to_shell if c.HasField("ask")]) == 1
        (worker,) = world.gang("job002")
        assert worker.start is not None
        assert worker.start.until_step == 9
        assert [m.next.command for m in world.messages("to_worker") if m.HasField("next")] == [
            world.spec.command(world.core.jobs[j].configuration) for j in ("job001", "job002", "job002")
        ]

    def test_a_process_that_no_trial_goes_on_with_ends_before_its_gpus_are_given_back(self) -> None:
        world = started(World(hyperband(jobs=3, eta=3)), *A)
        assert len(world.running()) == 2
        first, second = world.running()
        world.finish_gang(first, waits=True)
        world.answer_plans()
        world.ready()
        assert world.running() == ["job001", "job002"]
        world.finish_gang(second, waits=True)
        (container,) = (c for c in world.containers.values() if c.stop)
        assert "no job goes on with it" in container.stop.reason
        assert not world.messages("released")
        world.end(container, STOPPED, say=False)
        assert world.messages("released")
        world.finish_gang("job002", waits=True)
        world.pass_time()

    def test_one_that_does_not_end_is_stopped(self) -> None:
        world = started(World(hyperband(jobs=1, max_iterations=1, min_iterations=1)), *A[:2])
        world.finish_gang("job000", waits=True)
        (container,) = world.containers
        assert world.done is None
        world.pass_time(gangs.EXIT_GRACE_S)
        assert world.killed == [container]
        world.end(world.containers[container], STOPPED, say=False)
        world.publish()
        assert world.done is not None

    def test_a_refused_takeover_becomes_a_launch_of_its_own(self) -> None:
        world = started(World(hyperband(jobs=3, eta=3)), *A[:2])
        world.refuse_plans = 1
        world.finish_gang("job000", waits=True)
        world.answer_plans()
        (container,) = world.containers.values()
        assert container.stop is not None
        world.pass_time(1)
        world.end(container, STOPPED, say=False)
        world.rise()
        assert world.running() == ["job001"]
        assert container.container_id not in world.containers

    def test_a_script_that_cannot_run_twice_is_not_blamed_and_gets_a_process_each_time(self) -> None:
        world = started(World(hyperband(jobs=3, eta=3)), *A[:2])
        assert world.gang("job000")[0].start.again
        world.finish_gang("job000", waits=True)
        world.answer_plans()
        world.ready()
        world.end(world.gang("job001")[0], 1)
        world.rise()
        assert world.running() == ["job001"]
        assert world.core.jobs["job001"].failures == 0
        assert not world.gang("job001")[0].start.again
        world.restart()
        assert not world.core.reuse

    def test_a_takeover_survives_the_agents_restart_and_a_broken_stream(self) -> None:
        world = started(World(hyperband(jobs=3, eta=3)), *A[:2])
        world.finish_gang("job000", waits=True)
        world.answer_plans()
        world.restart()
        (container,) = world.containers.values()
        world.tell(am.AmEvent(adopted=world.described(container)))
        world.register()
        world.answer_plans()
        nexts = [m.next.worker_id for m in world.messages("to_worker") if m.HasField("next")]
        assert nexts == ["job001/1/0"] * 2, "told again"
        world.ready()
        assert world.running() == ["job001"]

    def test_only_trials_of_scripts_with_sessions_wait(self) -> None:
        for changes in ({"unsaved": True}, {"keep_folder": "ckpt"}, {"servers": 1}):
            assert not hyperband(**changes).reusable
        assert not spec_of().reusable
        assert hyperband().reusable


def test_a_temporarily_refused_plan_is_sent_again_and_finally_dropped() -> None:
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


def test_an_incomplete_gang_is_given_up() -> None:
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
    assert world.core.jobs["job000"].failures == 0


def test_a_gang_whose_files_are_still_being_copied_gets_more_time_and_a_reason() -> None:
    world = World()
    world.register()
    world.grant(A[0], B[0])
    world.answer_plans()
    world.allocate()
    first, second = world.gang("job000")
    world.worker(first, ready=pb.WorkerReady(host=first.plan.host, port=2000))
    world.pass_time(gangs.COPY_S)
    assert (first.stop, second.stop) == (None, None)
    assert gangs.GANG_TIMEOUT_S < gangs.COPY_S < START_S - 30
    world.pass_time(1)
    assert first.stop is not None
    assert first.stop.reason == (
        "no gang within 540 s: job000/1/1: its files are still being copied, or its container did not start"
    )
    world.obey_stops()
    job = world.core.jobs["job000"]
    assert (job.failures, job.state) == (1, "starting")


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


def test_a_job_that_its_scheduler_stops_early_gives_its_gpus_to_the_next() -> None:
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
    assert world.core.jobs["job000"].state == "stopped"
    world.rise()
    assert world.running() == ["job001", "job002", "job003", "job004"]
