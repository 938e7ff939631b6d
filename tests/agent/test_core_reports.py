"""The Agent's answers in rounds, and its reports to the user about losses, results and the app's end."""

from __future__ import annotations

import csv
import json
import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from pycontrol.rpc import agent_messages
from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.agent import report, results
from submarine_patch.agent.agent_core import AgentCore
from submarine_patch.agent.messages import HasToken
from submarine_patch.agent.report import progress as reported
from tests.agent.world import A2, SPEC, A, World, hyperband, machines, spec_of, started


class TestRounds:
    def test_rho_counts_only_gangs_whose_leases_continue(self) -> None:
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

    def test_a_bid_names_only_gangs_that_the_arbiter_knew_when_the_round_began(self) -> None:
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

    def test_progress_is_reported_at_most_once_a_second(self) -> None:
        world = started(World(), *A[:2])
        before = len(world.messages("progress"))
        world.train(world.gang("job000")[0], 5)
        assert len(world.messages("progress")) <= before + 1
        world.pass_time(1)
        job = world.messages("progress")[-1].jobs[0]
        assert (job.state, job.step, job.launches, job.gpus) == ("running", 5, 1, 2)
        assert job.iter_time_s == pytest.approx(0.5)


def test_hours_are_the_declared_work_until_they_are_used_up() -> None:
    """The gang has 2 GPUs, a lease 600 s."""
    world = started(World(spec_of(hours=1.0, iteration_s=None, max_iterations=0)), *A[:2])
    assert world.core.register().register.demand.work_total_gpu_s == pytest.approx(7200.0)
    (chief,) = world.gang("job000")
    for step in (10, 20, 30, 40, 50, 1000):
        world.worker(chief, progress=pb.WorkerProgress(step=step, loss=0.9, iter_time_s=0.5))
    demand = world.core.register().register.demand
    assert (demand.work_done_gpu_s, demand.work_left_gpu_s) == pytest.approx((1000.0, 6200.0))
    world.worker(chief, progress=pb.WorkerProgress(step=8000, loss=0.9, iter_time_s=0.5))
    assert world.core.register().register.demand.work_left_gpu_s == pytest.approx(8000.0), "as if nothing was declared"


def test_steps_that_the_script_says_are_told_for_estimates_and_change_no_declared_work() -> None:
    world = started(World(spec_of(iteration_s=None, max_iterations=0)), *A[:2])
    (chief,) = world.gang("job000")
    for step in (1, 2, 4, 6):
        before = world.core.register().register.demand
        said = pb.WorkerProgress(step=step, loss=0.9, iter_time_s=0.5, until_step=2000)
        world.worker(chief, progress=said)
        world.now_s += 1.4
    told = reported(world.core)
    each_s = 3 * 1.4 / 5
    assert told.stepwise_left_gpu_s == pytest.approx((2000 - 6) * 2 * each_s), "with what is between the steps"
    assert told.demand.work_left_gpu_s == pytest.approx(before.work_left_gpu_s)
    assert told.jobs[0].until_step == 2000
    world.now_s += 494 * 0.5
    world.worker(chief, progress=pb.WorkerProgress(step=500, loss=0.9, iter_time_s=0.5, until_step=2000))
    world.pass_time(2)
    shown = [c.progress.fraction for c in world.to_shell if c.HasField("progress")]
    assert shown[-1] == pytest.approx(0.25, abs=0.02), "as YARN's pages show it"
    world.worker(chief, progress=pb.WorkerProgress(step=501, loss=0.9, iter_time_s=0.5, until_step=3))
    assert not reported(world.core).HasField("stepwise_left_gpu_s"), "a script that is beyond its end is not believed"
    declared = started(World(spec_of(max_iterations=100)), *A[:2])
    (chief,) = declared.gang("job000")
    for step in range(1, 7):
        declared.worker(chief, progress=pb.WorkerProgress(step=step, loss=0.9, iter_time_s=0.5, until_step=2000))
    assert not reported(declared.core).HasField("stepwise_left_gpu_s"), "declared steps are its end"


def test_hours_of_a_search_are_those_of_a_job_that_trains_to_its_end() -> None:
    whole = World(spec_of(hours=1.0, iteration_s=None, max_iterations=9))
    assert whole.core.register().register.demand.work_total_gpu_s == pytest.approx(7200.0)
    sweep = World(hyperband(hours=1.0, iteration_s=None, max_iterations=9))
    assert sweep.core.register().register.demand.work_total_gpu_s == pytest.approx((9 + 3 * 2 + 6) * 800.0)


def test_the_demand_reports_slowdown_loss_and_gpu_types() -> None:
    spec = spec_of(gpu_type="V100", speedups={"K80": 1.0, "V100": 3.0}, iteration_s=2.0)
    world = World(spec, types={"a1": "V100"})
    started(world, *A[:2])
    assert world.core.register().register.demand.loss_rate == 0.0
    (chief,) = world.gang("job000")
    for step, loss in enumerate((0.9, 0.8, 0.7, 0.6), 1):
        world.worker(chief, progress=pb.WorkerProgress(step=step, loss=loss, iter_time_s=1.0))
    demand = world.core.register().register.demand
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
    assert world.core.jobs["job000"].step == 5
    agent_messages.agent_up("application_1_0001", "ann", world.core.register().register)
    report = pb.AgentMessage(progress=reported(world.core))
    assert agent_messages.event_of("application_1_0001", report, {}) is not None


def test_a_report_that_would_be_too_large_has_the_configurations_of_the_running_and_the_newest_jobs() -> None:
    space = {"parameters": {"text": {"type": "choice", "values": ["x" * 4000]}}}
    world = started(World(spec_of(app_scheduler="asha", jobs=200, max_iterations=9, search_space=space)), *A)
    for job_id in world.core.scheduler.runnable():
        world.core.job(job_id)
    told = reported(world.core)
    assert agent_messages.event_of("application_1_0001", pb.AgentMessage(progress=told), {}) is not None
    kept = [j.job_id for j in told.jobs if j.configuration]
    newest = [j.job_id for j in told.jobs[-100:]]
    assert len(told.jobs) == 200
    assert len(kept) < 150
    assert {*world.running(), *newest} <= {*kept}
    assert world.running()


def test_a_script_without_checkpoints_starts_again_and_its_user_is_informed() -> None:
    world = started(World(), *A[:2])
    (worker,) = world.gang("job000")
    world.train(worker, 5)
    world.revoke(*A[:2])
    world.worker(worker, exit=pb.WorkerExit(code=75, step=5, unsaved=True))
    world.end(worker, 75)
    job = world.core.jobs["job000"]
    assert "starts again" in reported(world.core).jobs[0].note
    world.grant(*A[:2])
    world.rise()
    (worker,) = world.gang("job000")
    world.worker(worker, progress=pb.WorkerProgress(step=1, loss=0.9, iter_time_s=0.5))
    assert job.step == 1
    (told,) = reported(world.core).jobs
    assert told.lost_steps == 5
    assert told.lost_gpu_s == 5 * 2 * 0.5, "5 steps of half a second on 2 GPUs"


@pytest.mark.parametrize("folder", ["", "ckpt"])
def test_only_what_came_after_the_newest_checkpoint_is_lost(folder: str) -> None:
    world = started(World(spec_of(keep_folder=folder)), *A[:2])
    world.train(world.gang("job000")[0], 8)
    for resumed_at, lost in ((9, 0), (6, 3)):
        (worker,) = world.gang("job000")
        world.revoke(*A[:2])
        world.worker(worker, exit=pb.WorkerExit(code=75, unsaved=bool(folder)))
        world.end(worker, 75)
        world.grant(*A[:2])
        world.rise()
        (worker,) = world.gang("job000")
        world.worker(worker, progress=pb.WorkerProgress(step=resumed_at, loss=0.9, iter_time_s=0.5))
        assert reported(world.core).jobs[0].lost_steps == lost


def test_a_failed_checkpoint_is_reported_until_one_is_complete() -> None:
    world = started(World(), *A[:2])
    (worker,) = world.gang("job000")
    world.train(worker, 5)
    for step in (3, 5):
        world.worker(worker, checkpoint=pb.WorkerCheckpoint(step=step, problem="Token has expired"))
    (told,) = reported(world.core).jobs
    assert told.checkpoints_failed == 2
    assert told.note.endswith("step 5: Token has expired")
    assert AgentCore(SPEC, 2, json.loads(json.dumps(world.core.dump()))).jobs["job000"].checkpoints_failed == 2
    world.worker(worker, checkpoint=pb.WorkerCheckpoint(step=6, path="/c"))
    (told,) = reported(world.core).jobs
    assert (told.checkpoints_failed, told.note) == (0, "")


def test_the_user_is_warned_before_a_token_ends() -> None:
    world = started(World(), *A[:2])
    world.core.has_token(world.now_s, world.now_s + 400.0)
    world.pass_time(290)
    assert reported(world.core).jobs[0].note == ""
    world.pass_time(20)
    note = reported(world.core).jobs[0].note
    assert note.startswith("the app's HDFS token ends at 1970-01-01 00:23 UTC")
    assert note.endswith("no checkpoint can be written after that")
    world.core.handle(HasToken(world.now_s, world.now_s + 400.0), world.now_s)
    assert reported(world.core).jobs[0].note == "", "it has a new one"
    world.pass_time(310)
    assert "HDFS token ends" in reported(world.core).jobs[0].note


def test_workers_are_told_the_epochs_that_the_user_said() -> None:
    (worker,) = started(World(spec_of(epochs=30, max_iterations=0)), *A[:2]).gang("job000")
    assert worker.launch.env["ISONOMY_EPOCHS"] == "30"


def test_jobs_are_compared_by_any_metric() -> None:
    world = started(World(hyperband(metric="val_f1", jobs=2, eta=2, max_iterations=2)), *A[:4])
    for job_id, value in (("job000", 0.3), ("job001", 0.8)):
        (worker,) = world.gang(job_id)
        assert worker.launch.env["ISONOMY_METRIC"] == "val_f1"
        world.worker(worker, progress=pb.WorkerProgress(step=1, loss=0.1, metric=value))
        world.worker(worker, exit=pb.WorkerExit(code=0, step=1))
        world.end(worker, 0)
    told = {j.job_id: j for j in reported(world.core).jobs}
    assert (told["job000"].metric, told["job001"].metric) == (0.3, 0.8)
    assert world.core.scheduler.runnable() == ["job001"]


@pytest.mark.parametrize(
    ("values", "best"),
    [((0.1, math.nan), "job001"), ((0.1, math.inf), "job001"), ((0.1, 1e200), "job001"), ((math.nan, 0.1), "job000")],
)
def test_a_job_whose_metric_diverged_is_worse_than_any_other_until_it_recovers(
    values: tuple[float, float], best: str
) -> None:
    world = started(World(hyperband(metric="val_loss", jobs=2, eta=2, max_iterations=2)), *A[:4])
    for job_id, losses in (("job000", values), ("job001", (0.8,))):
        (worker,) = world.gang(job_id)
        for loss in losses:
            world.worker(worker, progress=pb.WorkerProgress(step=1, loss=0.1, metric=loss))
        world.end(worker, 0)
    world.restart()
    assert world.core.scheduler.runnable() == [best]
    job = reported(world.core).jobs[0]
    assert (job.metric if job.HasField("metric") else None) == (0.1 if best == "job000" else None)


def test_the_results_of_all_jobs_are_stored_next_to_the_model() -> None:
    world = started(World(hyperband(metric="val_f1", jobs=2, eta=2, max_iterations=2)), *A[:4])
    for job_id, value in (("job000", 0.3), ("job001", 0.8)):
        (worker,) = world.gang(job_id)
        for step in (1, 2):
            world.worker(worker, progress=pb.WorkerProgress(step=step, loss=0.1, metric=value * step))
    world.revoke(*A[:2])
    for job_id in ("job000", "job001"):
        for worker in world.gang(job_id):
            world.end(worker, 75)
    made = results.files(world.core, "job001")
    trials = list(csv.DictReader(made["trials.csv"].splitlines()))
    assert [(t["job"], t["best"], t["val_f1"]) for t in trials] == [("job000", "0", "0.6"), ("job001", "1", "1.6")]
    assert all(float(t["rate"]) > 0 for t in trials)
    launches = list(csv.DictReader(made["launches.csv"].splitlines()))
    assert {x["gpus"] for x in launches} == {"a1:0 a1:1", "a1:2 a1:3"}
    assert [x["why"] for x in launches if x["gpus"] == "a1:0 a1:1"] == ["lost a round"]
    assert ElementTree.fromstring(made["curves.svg"]).tag.endswith("svg")
    assert made["curves.svg"].count("<polyline") == 2


def test_a_job_that_ends_by_itself_trained_to_the_step_that_it_told() -> None:
    world = started(World(), *A[:2])
    (chief,) = world.gang("job000")
    world.worker(chief, progress=pb.WorkerProgress(step=5, loss=0.5, iter_time_s=0.1))
    world.end(chief, 0)
    (row,) = csv.DictReader(results.files(world.core, "job000")["trials.csv"].splitlines())
    assert (row["state"], row["step"]) == ("done", "5")


class TestUnseen:
    """A script whose log lacks what Isonomy needs: its user is told."""

    @staticmethod
    def _note(world: World) -> str:
        return str(reported(world.core).jobs[0].note)

    def test_a_log_without_the_metric(self) -> None:
        world = started(World(spec_of(metric="f1")), *A[:2])
        world.train(world.gang("job000")[0], 5)
        assert self._note(world) == "", "it may come at the end of an epoch"
        world.pass_time(report.UNSEEN_S)
        assert self._note(world) == "no line of its log shows f1, by which its jobs are compared"
        (chief,) = world.gang("job000")
        world.worker(chief, progress=pb.WorkerProgress(step=6, accuracy=0.5, metric=0.3))
        assert self._note(world) == ""
        world.finish_gang("job000")
        world.publish()
        assert world.done is not None
        assert world.done.message == "done"

    def test_an_app_whose_best_job_never_showed_the_metric(self) -> None:
        world = started(World(spec_of(metric="f1")), *A[:2])
        world.finish_gang("job000")
        world.publish()
        assert world.done is not None
        assert world.done.message == "done; no line of its log shows f1, by which its jobs are compared"

    def test_a_silent_log(self) -> None:
        world = started(World(), *A[:2])
        for _ in range(int(report.UNSEEN_S / 30) + 1):
            world.worker(world.gang("job000")[0], checkpoint=pb.WorkerCheckpoint(step=1))  # it is alive
            world.pass_time(30)
        assert self._note(world) == "no line of its log shows progress (docs/submit.md says which do)"
        for worker in world.gang("job000"):
            world.end(worker, 0)
        world.publish()
        assert world.done is not None
        assert world.done.succeeded
        assert world.done.message == "done; no line of its log shows progress (docs/submit.md says which do)"

    def test_what_no_line_showed_is_not_0(self) -> None:
        world = started(World(), *A[:2])
        (chief,) = world.gang("job000")
        world.worker(chief, progress=pb.WorkerProgress(step=1, loss=0.5, iter_time_s=0.1))
        assert not reported(world.core).jobs[0].HasField("metric")
        (row,) = csv.DictReader(results.files(world.core, "job000")["trials.csv"].splitlines())
        assert (row["loss"], row["accuracy"]) == ("0.5", "")
        world.finish_gang("job000", accuracy=0.0)
        world.publish()
        assert world.done is not None
        assert not world.done.HasField("best_metric")

    def test_a_loss_of_0_that_a_line_showed_is_the_best(self) -> None:
        world = started(World(hyperband(jobs=2, max_iterations=1, metric="loss")), *A)
        for job_id, said in (("job000", {"loss": 0.1, "metric": 0.1}), ("job001", {"metric": 0.0})):
            (c,) = world.gang(job_id)
            world.worker(c, progress=pb.WorkerProgress(step=1, **said))
            world.end(c, 0)
        world.publish()
        assert world.done is not None
        assert (world.done.best_job_id, world.done.best_metric) == ("job001", 0.0)

    def test_a_plain_job_need_not_show_the_default_metric(self) -> None:
        world = started(World(), *A[:2])
        world.worker(world.gang("job000")[0], progress=pb.WorkerProgress(step=1, loss=0.5))
        world.pass_time(report.UNSEEN_S)
        assert self._note(world) == ""

    def test_jobs_that_are_compared_must_show_it(self) -> None:
        world = started(World(hyperband()), *A[:2])
        world.worker(world.gang("job000")[0], progress=pb.WorkerProgress(step=1, loss=0.5))
        world.pass_time(report.UNSEEN_S)
        assert self._note(world) == "no line of its log shows accuracy, by which its jobs are compared"


class TestHangs:
    """All workers of a gang live, and none makes a step."""

    @staticmethod
    def _steps(world: World, *steps: int) -> None:
        for worker, step in zip(world.gang("job000"), steps, strict=False):
            world.worker(worker, progress=pb.WorkerProgress(step=step, loss=0.5))

    @staticmethod
    def _live(world: World, for_s: float) -> tuple[str, bool]:
        for _ in range(int(for_s / 30)):
            for worker in world.gang("job000"):
                world.worker(worker, heartbeat=pb.Heartbeat())
            world.pass_time(30)
        job = reported(world.core).jobs[0]
        return str(job.note), job.hangs

    @pytest.mark.parametrize(
        ("steps", "said"),
        [
            ((50, 40), "rank 1 on a2 hangs at step 40, others are at 50"),
            ((40, 50), "rank 0 on a1 hangs at step 40, others are at 50"),
            ((50, 50), "the ranks that report are at step 50, each waits for another"),
            ((50,), "the ranks that report are at step 50; rank 1 on a2 showed none"),
        ],
    )
    def test_the_rank_that_is_behind_is_named(self, steps: tuple[int, ...], said: str) -> None:
        world = started(World(spec_of(notify="http://hook")), A[0], A2[0])
        self._steps(world, *steps)
        assert self._live(world, report.HANG_S - 30) == ("", False)
        told = f"no step for 5 min, though all its workers live: {said}"
        assert self._live(world, 60) == (told, True)
        self._live(world, 60)
        assert [x["reason"] for x in world.notified if x["event"] == "hangs"] == [told], "its user is told once"
        self._steps(world, 51, 51)
        assert self._live(world, 30) == ("", False)

    def test_a_gang_of_one(self) -> None:
        world = started(World(), *A[:2])
        self._steps(world, 7)
        assert self._live(world, 330)[0].endswith("rank 0 on a1 hangs at step 7")

    def test_a_job_that_pauses_long_between_epochs_does_not_hang(self) -> None:
        world = started(World(), *A[:2])
        self._steps(world, 1)
        self._live(world, 270)
        self._steps(world, 2)
        assert self._live(world, 480) == ("", False)
        assert self._live(world, 120)[1]

    def test_time_in_which_the_agent_was_away_does_not_count(self) -> None:
        world = started(World(), *A[:2])
        self._steps(world, 1)
        world.lose_link()
        world.now_s += 600
        world.register()
        assert self._live(world, 60) == ("", False)


@pytest.mark.parametrize(
    ("metric", "mode", "best"),
    [
        ("val_loss", "", "job001"),
        ("loss", "", "job001"),
        ("val_loss", "max", "job000"),
        ("f1", "", "job000"),
        ("glossary", "", "job000"),
    ],
)
def test_the_smallest_loss_is_the_best_and_of_other_metrics_the_largest(metric: str, mode: str, best: str) -> None:
    world = started(World(hyperband(jobs=2, max_iterations=1, metric=metric, mode=mode)), *A)
    for job_id, value in (("job000", 0.9), ("job001", 0.2)):
        (c,) = world.gang(job_id)
        said = pb.WorkerProgress(step=1, loss=value, metric=None if metric == "loss" else value)
        world.worker(c, progress=said)
        world.end(c, 0)
    world.publish()
    assert world.done is not None
    assert world.done.best_job_id == best


def test_a_curve_is_thinned_out_evenly_and_keeps_its_ends() -> None:
    world = World()
    job = world.core.job("job000")
    for step in range(1, 1001):
        job.metric = step / 1000
        results.seen(world.core, job, step)
    steps = [step for step, _ in job.curve]
    assert results.POINTS / 2 <= len(steps) <= results.POINTS
    assert max(b - a for a, b in pairwise(steps)) <= 2 * 1000 / len(steps)
    assert (job.curve[0], job.curve[-1]) == ([1, 0.001], [1000, 1.0])


def test_a_webhook_gets_start_revocation_and_end() -> None:
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


def test_a_webhook_gets_a_failure_and_over_all_attempts_one_start() -> None:
    world = started(World(spec_of(notify="https://hooks.example.com/t1")), *A[:2])
    saved = world.core.dump()
    assert AgentCore(SPEC, 2, saved).start_told
    world.publish_problem = "HDFS is full"
    world.finish_gang("job000")
    world.publish()
    assert world.notified[-1]["event"] == "failed"
    assert "HDFS is full" in world.notified[-1]["message"]
