"""Every number from an Agent or a worker is brought within bounds or gives one Malformed: all in a table."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor import FieldDescriptor as Field

from pycontrol.model import bounds
from pycontrol.model.events import (
    AgentDone,
    AgentUp,
    BidReceived,
    Event,
    JobProgress,
    ProgressReported,
    RhoReported,
    UsePlanned,
)
from pycontrol.rpc import agent_messages, message_checks, relayed
from pycontrol.rpc.message_checks import Malformed
from pycontrol.wire.v1 import agent_pb2 as pb

HOSTS = {"n1": None}
DEMAND = pb.Demand(
    gang_gpus=2,
    gangs=3,
    job_demand_max=2,
    work_left_gpu_s=1.0,
    work_total_gpu_s=2.0,
    work_done_gpu_s=1.0,
    slowdown=[1.0, 1.1, 1.3],
    loss_rate=0.1,
    speedups={"K80": 1.0, "V100": 3.0},
    gpu_type="V100",
    within="switch",
    pinned="corner",
    lazy_preemption=True,
    mixes=True,
    unsaved=True,
)
STRANGER = pb.Demand(
    gang_gpus=1,
    gangs=1,
    job_demand_max=1,
    work_left_gpu_s=1.0,
    work_total_gpu_s=1.0,
    opportunistic=True,
    segments=1,
    segment_scope=pb.RACK,
)
GANG = pb.Gang(machines=[pb.MachineGpus(host="n1", gpus=2)])
ROW = pb.BidRow(rho=2.0, keep=[GANG], new_gangs=1, gang_gpus=2, scope=pb.MACHINE, gpu_type="V100", mixes=True)
GPUS = [pb.MachineGpuIds(host="n1", gpu_ids=[0])]
JOB = pb.JobProgress(
    job_id="j",
    state="running",
    step=1,
    loss=0.1,
    accuracy=0.5,
    iter_time_s=0.1,
    slowdown=1.0,
    gpus=2,
    rung=1,
    launches=1,
    worker_failures=1,
    metric=0.5,
    until_step=9,
    checkpoints_failed=1,
    note="n",
    lost_steps=1,
    lost_gpu_s=1.0,
    hangs=True,
)
LINK = pb.Link(label="UI", url="http://n1:80")
WORKER = pb.WorkerPlan(worker_id="w", job_id="j", host="n1", gpu_ids=[0], allocation_request_id=7, container_id="c")
PHASE = pb.PhaseLeft(jobs=[pb.JobsLeft(serial_s=5.0, jobs=1)])
AGENT: list[Any] = [
    pb.AgentMessage(register=pb.Register(app_id="a", attempt_id="a_1", app_scheduler="single", demand=DEMAND)),
    pb.AgentMessage(rho=pb.Rho(round_id="r", rho=2.0, demand=DEMAND, phases=[PHASE], job_ids=["j"])),
    pb.AgentMessage(rho=pb.Rho(round_id="r", rho=2.0, demand=STRANGER)),
    pb.AgentMessage(bid=pb.Bid(round_id="r", rho_nothing=3.0, rows=[ROW], restart_s=5.0)),
    pb.AgentMessage(use=pb.Use(use_id="u", workers=[WORKER])),
    pb.AgentMessage(released=pb.Released(gpus=GPUS)),
    pb.AgentMessage(
        progress=pb.Progress(demand=DEMAND, jobs=[JOB], rho=2.0, metric="f1", links=[LINK], stepwise_left_gpu_s=1.0)
    ),
    pb.AgentMessage(done=pb.Done(succeeded=True, best_accuracy=0.5, work_done_gpu_s=1.0, metric="f1", best_metric=0.5)),
]
WORKERS: list[Any] = [
    pb.WorkerMessage(worker_id="w", ready=pb.WorkerReady(host="n1", port=1)),
    pb.WorkerMessage(
        worker_id="w", progress=pb.WorkerProgress(step=1, loss=1.0, accuracy=1.0, metric=0.5, until_step=9)
    ),
    pb.WorkerMessage(worker_id="w", checkpoint=pb.WorkerCheckpoint(step=1, path="p", problem="x")),
    pb.WorkerMessage(worker_id="w", exit=pb.WorkerExit(code=1, message="m", step=1, unsaved=True, waits=True)),
    pb.WorkerMessage(worker_id="w", heartbeat=pb.Heartbeat(time_s=1.0)),
]
FLOATS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-300, 1e-12, 1e300, 1.7e308)
WIDTHS = {
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**31 - 1, 2**32 - 1, 1 << 20, 1 << 17),
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), -1, 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), -1, 2**31 - 1, 2**63 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: FLOATS,
    FieldDescriptor.CPPTYPE_ENUM: (0, 1, 7, 2**31 - 1),
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
    FieldDescriptor.CPPTYPE_STRING: ("", "x" * 100_000, "a\nb", "\x1b[2J", "\u202e", "../..", "é"),
}


def _fields(descriptor: Descriptor, seen: tuple[str, ...] = ()) -> set[str]:
    """Names of all numeric and text fields below a message."""
    found: set[str] = set()
    for field in descriptor.fields:
        if field.message_type is None:
            found.add(f"{descriptor.name}.{field.name}")
        elif field.message_type.GetOptions().map_entry or field.message_type.name not in seen:
            found |= _fields(field.message_type, (*seen, descriptor.name))
    return found


def _changed(message: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(field, value, the message with that value) for each field that is set, and each odd value of its type."""
    for field, _ in message.ListFields():
        repeated = field.is_repeated if hasattr(field, "is_repeated") else False
        held = getattr(message, field.name)
        name = f"{path}{field.name}"
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key = next(iter(held))
            for value in FLOATS if isinstance(held[key], float) else ("x" * 100_000,):
                other = type(message).FromString(message.SerializeToString())
                getattr(other, field.name)[key] = value
                yield name, value, other
            continue
        if field.message_type is not None:
            for sub_name, value, changed in _changed(held[0] if repeated else held, f"{name}."):
                other = type(message).FromString(message.SerializeToString())
                target = getattr(other, field.name)
                (target[0] if repeated else target).CopyFrom(changed)
                yield sub_name, value, other
            continue
        for value in WIDTHS[field.cpp_type]:
            other = type(message).FromString(message.SerializeToString())
            if repeated:
                getattr(other, field.name)[0] = value
            else:
                setattr(other, field.name, value)
            yield name, value, other


CASES = [(name, value, m) for message in AGENT for name, value, m in _changed(message)]


def _event(message: Any) -> Event | None:
    if message.WhichOneof("kind") == "register":
        return agent_messages.agent_up("a", "ann", message.register)
    return agent_messages.event_of("a", message, HOSTS)


@pytest.mark.parametrize("kind", sorted({m.WhichOneof("kind") for m in AGENT}))
def test_every_number_is_within_bounds_or_malformed(kind: str) -> None:
    checked, problems = 0, []
    for name, value, message in CASES:
        if message.WhichOneof("kind") != kind:
            continue
        try:
            event = _event(message)
        except Malformed as e:
            problems.append(str(e))
            continue
        _within(event, f"{name} = {value!r:.50}")
        checked += 1
    assert checked > 2
    assert all(len(p) < 400 and p.isprintable() for p in problems), problems


def _within(event: Event | None, case: str) -> None:
    match event:
        case AgentUp() | RhoReported() | ProgressReported():
            demand = event.demand
            assert 0 <= demand.gangs <= message_checks.DEMAND_MAX, case
            assert 0 <= demand.gang_gpus <= message_checks.DEMAND_MAX, case
            for work in (demand.work_left_gpu_s, demand.work_total_gpu_s, demand.work_done_gpu_s):
                assert 0 <= work <= bounds.WORK_GPU_S.high, case
            assert all(map(bounds.SLOWDOWN.holds, demand.slowdown)), case
            assert all(map(bounds.SPEEDUP.holds, demand.speedups.values())), case
            assert bounds.bound("loss_rate").holds(demand.loss_rate), case
            assert demand.gpu_type.isprintable(), case
            for left in event.phases or () if isinstance(event, RhoReported) else ():
                assert all(map(bounds.WORK_GPU_S.holds, left)), case
                assert len(left) <= message_checks.DEMAND_MAX, case
            left = event.stepwise_left_gpu_s if isinstance(event, ProgressReported) else None
            assert left is None or bounds.WORK_GPU_S.holds(left), case
            for job in event.jobs if isinstance(event, ProgressReported) else ():
                _job_within(job, case)
            if not isinstance(event, AgentUp):
                assert event.rho == 0 or bounds.RHO.holds(event.rho), case
        case BidReceived(bid=None):
            assert event.problem, case
            assert len(event.problem) < 400, case
        case BidReceived(bid=bid):
            assert bid is not None
            assert bounds.DURATION_S.holds(bid.restart_s), case
            for rho in (bid.rho_nothing, *(row.rho for row in bid.rows)):
                assert bounds.RHO.holds(rho), case
            assert all(row.new_gangs * row.gang_gpus <= bounds.GPUS_MAX for row in bid.rows), case
        case UsePlanned():
            assert all(w.container_id.isprintable() for w in event.workers), case
            assert all(w.worker_id.isprintable() and w.job_id.isprintable() for w in event.workers), case
        case AgentDone():
            assert bounds.WORK_GPU_S.holds(event.work_done_gpu_s), case
            assert math.isfinite(event.best_accuracy), case
            assert len(event.message) <= message_checks.TEXT_MAX_CHARS, case


def _job_within(job: JobProgress, case: str) -> None:
    assert bounds.STEP.holds(job.step), case
    assert bounds.bound("iter_time_s").holds(job.iter_time_s), case
    assert 0 <= job.slowdown <= bounds.SLOWDOWN.high, case
    assert bounds.METRIC.holds(job.loss), case
    assert math.isfinite(job.accuracy), case
    assert job.metric is None or math.isfinite(job.metric), case
    assert bounds.STEP.holds(job.until_step), case
    assert bounds.STEP.holds(job.lost_steps), case
    assert bounds.WORK_GPU_S.holds(job.lost_gpu_s), case
    assert len(job.note) <= message_checks.TEXT_MAX_CHARS, case
    assert max(job.rung, job.launches, job.worker_failures) <= bounds.COUNT_MAX, case
    assert job.job_id.isprintable(), case


@pytest.mark.parametrize("entries", [{f"p{k}": "x" * 4096 for k in range(30)}, {f"{k}": "" for k in range(1000)}])
def test_a_large_configuration_is_cut_as_a_whole(entries: dict[str, str]) -> None:
    """It is kept of 10,000 apps for weeks after they ended, and of 20,000 jobs."""
    job = pb.AgentMessage(progress=pb.Progress(jobs=[pb.JobProgress(job_id="j", configuration=entries)]))
    done = pb.AgentMessage(done=pb.Done(best_job_id="j", best_configuration=entries))
    progressed, ended = (agent_messages.event_of("a", message, HOSTS) for message in (job, done))
    assert isinstance(progressed, ProgressReported)
    assert isinstance(ended, AgentDone)
    for kept in (progressed.jobs[0].configuration, ended.best_configuration):
        assert 1 <= len(kept) <= 128
        assert kept.items() < entries.items()
        assert sum(map(len, [*kept, *kept.values()])) <= 8192
    usual = {f"parameter-{k}": "0.0001" for k in range(64)}
    assert message_checks.texts(usual) == usual


def test_the_table_has_every_field_of_an_agents_messages() -> None:
    """A field that is added to agent.proto must be added to the messages above."""
    named = {name for name, _, _ in CASES}
    leaves = {n.rsplit(".", 1)[-1] for n in named}
    known = {f.split(".")[1] for f in _fields(pb.AgentMessage.DESCRIPTOR)}
    relayed_or_plain = {
        f.split(".")[1] for m in (pb.WorkerCommand, pb.Start, pb.Stop, pb.Next) for f in _fields(m.DESCRIPTOR)
    } | {"key", "value", "paced", "succeeded", "grant_ids", "reason", "message", "best_job_id", "model_path"}
    assert known - leaves - relayed_or_plain == set()


@pytest.mark.parametrize("message", WORKERS, ids=lambda m: m.WhichOneof("kind"))
def test_workers_messages_are_bounded(message: Any) -> None:
    for name, value, changed in _changed(message):
        try:
            said = relayed.worker_message(changed)
        except Malformed:
            continue
        assert said.ByteSize() < 8 * message_checks.TEXT_MAX_CHARS, (name, value)
        step = getattr(getattr(said, said.WhichOneof("kind")), "step", 0)
        assert bounds.STEP.holds(step), (name, value)


def test_every_field_of_a_workers_messages_is_relayed() -> None:
    """A field that is added to a worker's messages must be added to `relayed`."""
    rng = random.Random(3)
    ordinary = {"string": "n1", "double": 0.5, "bool": True}
    for kind in pb.WorkerMessage.DESCRIPTOR.oneofs_by_name["kind"].fields:
        sent = pb.WorkerMessage(worker_id="w")
        inner = getattr(sent, kind.name)
        inner.SetInParent()
        for field in inner.DESCRIPTOR.fields:
            names = {Field.TYPE_STRING: "string", Field.TYPE_DOUBLE: "double", Field.TYPE_BOOL: "bool"}
            setattr(inner, field.name, ordinary.get(names.get(field.type, ""), rng.randrange(1, 100)))
        assert relayed.worker_message(sent) == sent


def test_unknown_fields_are_not_relayed() -> None:
    unknown = b"\xfa\x3f" + b"\xa0\x8d\x06" + b"x" * 100_000  # field 1023, length-delimited
    said = relayed.worker_message(pb.WorkerMessage.FromString(WORKERS[1].SerializeToString() + unknown))
    assert said.ByteSize() < 100
    command = pb.WorkerCommand(worker_id="w", stop=pb.Stop(reason="r")).SerializeToString()
    assert relayed.worker_command(pb.WorkerCommand.FromString(command + unknown)).ByteSize() < 100


def test_a_message_too_large_for_its_kind_is_refused() -> None:
    many = pb.Progress(jobs=[pb.JobProgress(job_id=f"{i}", state="s" * 250) for i in range(2048)])
    with pytest.raises(Malformed, match="progress has 5"):
        agent_messages.event_of("a", pb.AgentMessage(progress=many), HOSTS)
    few = pb.Progress(jobs=[pb.JobProgress(job_id=f"{i}") for i in range(2049)])
    with pytest.raises(Malformed, match="at most 2048"):
        agent_messages.event_of("a", pb.AgentMessage(progress=few), HOSTS)
    with pytest.raises(Malformed, match="to_worker has"):
        relayed.worker_command(pb.WorkerCommand(worker_id="w", start=pb.Start(tf_config="x" * 300_000)))
    register = pb.Register(grant_ids=["g" * 250] * 2000)
    with pytest.raises(Malformed, match="register has"):
        agent_messages.agent_up("a", "ann", register)


@pytest.mark.parametrize("message", WORKERS[1:4], ids=lambda m: m.WhichOneof("kind"))
def test_a_workers_messages_arrive_complete(message: Any) -> None:
    assert relayed.worker_message(message) == message
