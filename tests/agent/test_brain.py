"""The Agent's brain: scripted events, and what must hold whatever comes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.model.topology import Gpu
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent import jobs
from submarine_patch.agent.brain import Brain, End, Publish, ToArbiter, ToShell
from submarine_patch.agent.schedulers import RungScheduler, brackets_of, iterations
from submarine_patch.agent.spec import AppSpec, sample

SPACE = {"parameters": {"lr": {"type": "float", "min": 0.01, "max": 0.1, "log": True}}}
HOSTS = (("n1", "a", 4), ("n2", "a", 2), ("n3", "b", 4))


def spec(**changes: Any) -> AppSpec:
    base = AppSpec(
        app_id="application_1_0001", name="app", app_scheduler="successive_halving", search_space=SPACE, gang_gpus=2,
        max_iterations=20, min_iterations=10, eta=2, jobs=2, budget_iterations=0, metric="accuracy", seed=0,
        max_retries=2, iteration_s=1.0, slowdown=(1.0, 1.1, 1.3), launch_cmd="train", memory_mb=100, vcores=1,
        worker_count=1, env={}, checkpoint="hdfs://h/ck", saved_model="hdfs://h/model", staging="hdfs://h/st",
        webhdfs="http://h", hdfs_user="u", python="/venv/bin/python", arbiter="h:1", ca="",
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


class Rig:
    """Plays the Arbiter, the AM shell and the workers."""

    def __init__(self, **changes: Any) -> None:
        self.brain = Brain(spec(**changes), "attempt")
        self.now = 1000.0
        self.log: list[Any] = []
        self.asked: dict[int, int] = {}
        self.stopped: list[str] = []
        self.started: dict[str, pb.Start] = {}
        self.containers = 0
        self.launched: dict[str, str] = {}
        self.hear(registered=pb.Registered(
            contention=pb.Contention(cluster_gpus=10, n_avg=1, now_s=1000, submitted_s=990, lease_s=30),
            hosts=[pb.Host(host=h, rack=r, gpus=n, virtual_gpus=True) for h, r, n in HOSTS],
        ))  # fmt: skip

    def feed(self, event: object) -> None:
        self.take(self.brain.handle(event, self.now))

    def take(self, commands: list[Any]) -> None:
        for c in commands:
            self.log.append(c)
            if isinstance(c, ToArbiter):
                self.from_brain(c.message)
            elif isinstance(c, ToShell) and c.command.WhichOneof("kind") == "ask":
                self.asked[c.command.ask.allocation_request_id] = c.command.ask.gpus
            elif isinstance(c, Publish):
                self.take(self.brain.published_model("hdfs://h/model/ckpt", "", self.now))

    def from_brain(self, m: pb.AgentMessage) -> None:
        kind = m.WhichOneof("kind")
        if kind == "use":
            for w in m.use.workers:
                assert {Gpu(w.host, i) for i in w.gpu_ids} <= set(self.brain.held), "a worker outside its leases"
            self.hear(use_reply=pb.UseReply(use_id=m.use.use_id, accepted=True))
        elif kind == "to_worker" and m.to_worker.WhichOneof("kind") == "start":
            self.started[m.to_worker.worker_id] = m.to_worker.start
        elif kind == "to_worker":
            self.stopped.append(m.to_worker.worker_id)

    def hear(self, **kind: Any) -> None:
        self.feed(pb.ArbiterMessage(**kind))

    def grant(self, host: str, *ids: int) -> None:
        self.hear(grant=pb.Grant(grant_id=f"g{host}", gpus=[pb.MachineGpuIds(host=host, gpu_ids=ids)], end_s=1030))

    def allocate(self) -> None:
        """YARN answers every open ask."""
        for request in list(self.asked):
            self.asked.pop(request)
            self.containers += 1
            container = am.AmContainer(container_id=f"c{self.containers}", allocation_request_id=request)
            self.feed(am.AmEvent(allocated=container))

    def register(self) -> None:
        """Every launched worker says that it is ready."""
        for job in self.brain.jobs.values():
            for w in job.workers:
                if w.container_id and not w.ready:
                    ready = pb.WorkerReady(host=w.host, port=1)
                    self.hear(from_worker=pb.WorkerMessage(worker_id=w.worker_id, ready=ready))

    def progress(self, job: jobs.Job, step: int, accuracy: float = 0.5) -> None:
        p = pb.WorkerProgress(step=step, loss=1.0, accuracy=accuracy, iter_time_s=0.5, paced=True)
        self.hear(from_worker=pb.WorkerMessage(worker_id=job.workers[0].worker_id, progress=p))

    def end(self, job: jobs.Job, code: int) -> None:
        for w in list(job.workers):
            self.feed(am.AmEvent(completed=am.AmCompleted(container_id=w.container_id, exit_status=code)))

    def run_all(self) -> None:
        """Whatever runs gets to its rung's end."""
        self.allocate()
        self.register()
        for job in list(self.brain.jobs.values()):
            if job.state == jobs.RUNNING:
                self.progress(job, job.until_step, accuracy=0.1 + len(job.job_id) / 100)
                self.end(job, 0)

    def released(self) -> set[Gpu]:
        return {
            Gpu(g.host, i)
            for c in self.log
            if isinstance(c, ToArbiter) and c.message.WhichOneof("kind") == "released"
            for g in c.message.released.gpus
            for i in g.gpu_ids
        }

    def ended(self) -> bool | None:
        return next((c.succeeded for c in self.log if isinstance(c, End)), None)


def test_a_grant_becomes_a_gang_that_starts_when_all_have_registered() -> None:
    r = Rig(gang_gpus=4)
    r.hear(grant=pb.Grant(grant_id="g", end_s=1030, gpus=[
        pb.MachineGpuIds(host="n1", gpu_ids=[0, 1]), pb.MachineGpuIds(host="n2", gpu_ids=[0, 1])]))  # fmt: skip
    r.allocate()
    (job,) = [j for j in r.brain.jobs.values() if j.active]
    assert [len(w.gpu_ids) for w in job.workers] == [2, 2]
    first = job.workers[0]
    r.hear(from_worker=pb.WorkerMessage(worker_id=first.worker_id, ready=pb.WorkerReady(host="n1", port=5)))
    assert not r.started
    r.register()
    assert len(r.started) == 2
    assert '"index": 1' in r.started[job.workers[1].worker_id].tf_config
    assert '"slowdown": 1.1' in r.started[first.worker_id].pacing


def test_gpus_that_make_no_whole_gang_go_back() -> None:
    r = Rig()
    r.grant("n1", 0, 1, 2)
    assert r.released() == {Gpu("n1", 2)}


def test_the_best_go_on_from_their_checkpoint_and_the_app_ends_with_its_model() -> None:
    r = Rig()
    r.grant("n1", 0, 1, 2, 3)
    for _ in range(4):
        r.run_all()
    assert r.ended() is True
    assert r.brain.model_path == "hdfs://h/model/ckpt"
    steps = sorted(j.step for j in r.brain.jobs.values())
    assert steps == [10, 20]


def test_a_revoked_gang_is_stopped_and_its_job_waits_again() -> None:
    r = Rig()
    r.grant("n1", 0, 1)
    r.allocate()
    r.register()
    job = next(j for j in r.brain.jobs.values() if j.active)
    r.progress(job, 4)
    r.hear(revoke=pb.Revoke(gpus=[pb.MachineGpuIds(host="n1", gpu_ids=[0, 1])], deadline_s=1020, reason="lost"))
    assert r.stopped == [job.workers[0].worker_id]
    r.end(job, 75)
    assert job.state == jobs.PENDING
    assert job.failures == 0
    assert not r.brain.held
    r.grant("n3", 0, 1)
    assert job.launches == 2


@pytest.mark.parametrize(("code", "failures"), [(1, 1), (137, 1), (-100, 0), (-102, 0)])
def test_a_failed_worker_is_retried_and_lost_containers_are_not_its_fault(code: int, failures: int) -> None:
    r = Rig()
    r.grant("n1", 0, 1)
    r.allocate()
    r.register()
    job = next(j for j in r.brain.jobs.values() if j.active)
    r.end(job, code)
    assert job.failures == failures
    assert job.launches == 2, "the lease goes on, so it is launched again on the same GPUs"


def test_a_job_that_keeps_failing_is_given_up_and_the_others_go_on() -> None:
    r = Rig(max_retries=0)
    r.grant("n1", 0, 1)
    for _ in range(2):
        r.allocate()
        r.register()
        job = next(j for j in r.brain.jobs.values() if j.active)
        r.end(job, 1)
        if job.state == jobs.FAILED:
            break
    assert job.state == jobs.FAILED
    assert r.ended() is None
    assert len(r.brain.scheduler.runnable()) == 1


def test_a_refused_plan_gives_the_gpus_up() -> None:
    r = Rig()
    r.brain.held[Gpu("n1", 0)] = r.brain.held[Gpu("n1", 1)] = "g"
    r.from_brain = lambda m: None  # type: ignore[method-assign]
    r.feed(None)
    job = next(j for j in r.brain.jobs.values() if j.active)
    r.hear(use_reply=pb.UseReply(use_id=job.use_id, accepted=False, reason="not leased"))
    assert not r.brain.held
    assert job.state == jobs.PENDING


def test_the_operator_ends_an_app() -> None:
    r = Rig()
    r.grant("n1", 0, 1)
    r.allocate()
    r.register()
    job = next(j for j in r.brain.jobs.values() if j.active)
    r.hear(finish=pb.Finish(reason="ended by root"))
    assert r.stopped
    r.end(job, 75)
    assert r.ended() is False


def test_a_later_attempt_goes_on_with_the_containers_it_adopts() -> None:
    r = Rig()
    r.grant("n1", 0, 1)
    r.allocate()
    r.register()
    job = next(j for j in r.brain.jobs.values() if j.active)
    again = Brain(spec(), "attempt2", r.brain.dump())
    again.restored(2000.0)
    again.handle(am.AmEvent(adopted=am.AmContainer(container_id=job.workers[0].container_id)), 2000.1)
    again.handle(None, 2010.0)
    assert again.jobs[job.job_id].state == jobs.RUNNING
    lost = Brain(spec(), "attempt2", r.brain.dump())
    lost.restored(2000.0)
    lost.handle(None, 2010.0)
    assert lost.jobs[job.job_id].state == jobs.PENDING
    assert lost.jobs[job.job_id].failures == 0


def test_bids_fall_with_more_gangs_and_keep_what_runs() -> None:
    r = Rig(jobs=4)
    r.grant("n1", 0, 1)
    ending = [pb.MachineGpuIds(host="n1", gpu_ids=[0, 1])]
    contention = pb.Contention(cluster_gpus=10, n_avg=2, now_s=1010, submitted_s=990, lease_s=30)
    offer = pb.Offer(
        round_id="r", contention=contention, ending=ending,
        machines=[pb.MachineGpus(host="n1", gpus=4), pb.MachineGpus(host="n3", gpus=4)],
    )  # fmt: skip
    r.hear(offer=offer)
    bid = next(c.message.bid for c in reversed(r.log) if isinstance(c, ToArbiter) and c.message.HasField("bid"))
    assert all(row.rho < bid.rho_nothing for row in bid.rows)
    kept = [row for row in bid.rows if row.keep and not row.new_gangs]
    moved = [row for row in bid.rows if not row.keep and row.new_gangs == 1]
    assert kept
    assert min(x.rho for x in kept) < min(x.rho for x in moved), "moving costs a restart"


@given(
    st.integers(2, 4), st.integers(4, 120), st.integers(0, 9), st.sampled_from(["hyperband", "successive_halving"]),
    st.integers(0, 400),
)  # fmt: skip
def test_schedulers_are_deterministic_end_and_keep_the_budget(
    eta: int, last: int, n: int, name: str, budget: int
) -> None:
    s = spec(app_scheduler=name, eta=eta, max_iterations=last, min_iterations=0, jobs=n, budget_iterations=budget)
    one, two = RungScheduler(s), RungScheduler(s)
    rounds = 0
    while not one.finished:
        rounds += 1
        assert rounds < 2000
        assert one.dump() == two.dump() == RungScheduler.load(s, one.dump()).dump()
        job = one.runnable()[0]
        assert 0 < one.until_step() <= last
        for x in (one, two):
            x.on_result(job, 1.0, (hash(job) % 7) / 7)
    assert one.best() is not None
    brackets = brackets_of(s)
    if name == "hyperband" and budget and len(brackets) > 1:
        assert sum(iterations(b) for b in brackets) <= budget


@given(st.integers(0, 1000))
def test_samples_lie_in_the_space(seed: int) -> None:
    import random

    space = {"parameters": {
        "a": {"type": "float", "min": 0.1, "max": 2.0}, "b": {"type": "int", "min": 1, "max": 3},
        "c": {"type": "choice", "values": ["x", "y"]}}}  # fmt: skip
    drawn = sample(space, random.Random(seed))
    assert 0.1 <= float(drawn["a"]) <= 2.0
    assert drawn["b"] in "123"
    assert drawn["c"] in "xy"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=60))
def test_workers_stay_inside_leases_and_the_app_always_ends(moves: list[int]) -> None:
    r = Rig(jobs=3, max_retries=20)
    gpus = [("n1", (0, 1)), ("n1", (2, 3)), ("n3", (0, 1))]
    for m in moves:
        r.now += 1
        host, ids = gpus[m % 3]
        active = [j for j in r.brain.jobs.values() if j.active and all(w.container_id for w in j.workers)]
        if r.ended() is not None:
            return
        if m < 3 and not {Gpu(host, i) for i in ids} & (set(r.brain.held) | {
            g for j in r.brain.jobs.values() for g in j.gpus}):  # fmt: skip
            r.grant(host, *ids)
        elif m == 3:
            r.allocate()
        elif m == 4:
            r.register()
        elif m == 5 and active:
            r.end(active[0], 1)
        elif m == 6:
            lost = [pb.MachineGpuIds(host=host, gpu_ids=ids)]
            r.hear(revoke=pb.Revoke(gpus=lost, deadline_s=r.now + 5, reason="x"))
        elif m == 7:
            r.run_all()
        for job in r.brain.jobs.values():
            assert not job.active or len(job.gpus) == 2, "a gang is whole"
    for _ in range(60):
        if r.ended() is not None:
            break
        r.now += 1
        for job in list(r.brain.jobs.values()):
            if job.state == jobs.STOPPING:
                r.end(job, 75)
        if not r.brain.held:
            r.grant("n1", 0, 1)
        r.run_all()
    assert r.ended() is True
