"""agent.proto and the Arbiter's values agree, and an Agent's invalid messages are refused."""

import math
import re
from typing import Any

import pytest

from pycontrol.model import bounds
from pycontrol.model.auction import Bid, BidRow, Contention, Demand, HeldGrant
from pycontrol.model.events import (
    AgentDone,
    AgentUp,
    GpusReleased,
    JobProgress,
    ProgressReported,
    RhoReported,
    SendAskRho,
    SendFinish,
    SendGrant,
    SendHosts,
    SendOffer,
    SendRegistered,
    SendRevoke,
    SendUseReply,
    UsePlanned,
    WorkerPlan,
)
from pycontrol.model.topology import Gpu, Machine, Scope, Topology
from pycontrol.rpc.agent_messages import agent_up, bid_received, event_of, gpus_of, hosts_of, message_of
from pycontrol.rpc.message_checks import Malformed
from pycontrol.wire.v1 import agent_pb2 as pb

APP = "application_1_0001"
TOPOLOGY = Topology.of([Machine("n1", "a", 4, "v100", True), Machine("n2", "b", 2)])
HOSTS = TOPOLOGY.machines
DEMAND = Demand(2, 3, 6, 10.5, 100.0, 89.5, paced=True)
WIRE_DEMAND = pb.Demand(
    gang_gpus=2,
    gangs=3,
    job_demand_max=6,
    work_left_gpu_s=10.5,
    work_total_gpu_s=100.0,
    work_done_gpu_s=89.5,
    paced=True,
)
N1 = [pb.MachineGpuIds(host="n1", gpu_ids=[2, 0])]
CONTENTION = Contention(6, 1.5, 1000.0, 900.0, 600.0)
WIRE_CONTENTION = pb.Contention(cluster_gpus=6, n_avg=1.5, now_s=1000.0, submitted_s=900.0, lease_s=600.0)


def _event(**kind):
    return event_of(APP, pb.AgentMessage(**kind), HOSTS)


def test_register_becomes_agent_up() -> None:
    register = pb.Register(app_id=APP, attempt_id="a1", app_scheduler="hyperband", grant_ids=["g1"], demand=WIRE_DEMAND)
    assert agent_up(APP, "ann", register) == AgentUp(APP, "a1", "hyperband", DEMAND, ("g1",), "ann")


def test_the_demand_carries_the_users_options() -> None:
    wire = pb.Demand(gang_gpus=2, gangs=1, within="switch", pinned="corner", lazy_preemption=True)
    found = agent_up(APP, "ann", pb.Register(demand=wire)).demand
    assert (found.scope, found.within, found.pinned, found.lazy) == (Scope.MACHINE, "switch", "corner", True)
    rack = agent_up(APP, "ann", pb.Register(demand=pb.Demand(scope=pb.RACK, opportunistic=True))).demand
    assert (rack.scope, rack.within, rack.opportunistic) == (Scope.RACK, "", True)


def test_segments_are_members_of_the_gang() -> None:
    def members(**wire: Any) -> tuple[int, ...]:
        return agent_up(APP, "ann", pb.Register(demand=pb.Demand(gang_gpus=8, gangs=1, **wire))).demand.members

    assert members() == ()
    assert members(segments=2, segment_scope=pb.MACHINE) == (4, 4)
    assert members(segments=4, segment_scope=pb.RACK) == (-2, -2, -2, -2)
    wire = pb.Demand(gang_gpus=8, gangs=1, segments=2, segment_scope=pb.MACHINE, within="switch", scope=pb.RACK)
    found = agent_up(APP, "ann", pb.Register(demand=wire)).demand
    assert (found.members, found.within, found.scope) == ((4, 4), "switch", Scope.RACK), "each within one switch"


@pytest.mark.parametrize(
    ("demand", "problem"),
    [
        (pb.Demand(gang_gpus=8, gangs=1, segments=3), "segments is 3: must divide the 8 GPUs"),
        (pb.Demand(gang_gpus=8, gangs=1, segments=2, segment_scope=pb.RACK, within="switch"), "segments is 2"),
        (pb.Demand(gang_gpus=8, gangs=1, segments=2, job_demand_max=16), "segments is 2"),
        (pb.Demand(gang_gpus=4096, gangs=1, segments=2048), "segments is 2048"),
        (pb.Demand(pinned="corner", opportunistic=True), "cannot ask for a pinned cell"),
        (pb.Demand(pinned="x" * 300), "demand.pinned is longer"),
        (pb.Demand(within="a\nb"), "demand.within has characters"),
        (pb.Demand(scope=9), "demand.scope is 9"),
    ],
)
def test_impossible_options_are_refused(demand: pb.Demand, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        agent_up(APP, "ann", pb.Register(demand=demand))


def test_messages_become_events() -> None:
    told = RhoReported(APP, "r1", 2.5, DEMAND, ((3.5, 3.5, 3.5),))
    assert _event(rho=pb.Rho(round_id="r1", rho=2.5, demand=WIRE_DEMAND)) == told
    released = _event(released=pb.Released(gpus=N1, reason="rung"))
    assert released == GpusReleased(APP, frozenset({Gpu("n1", 0), Gpu("n1", 2)}))
    worker = pb.WorkerPlan(worker_id="w1", job_id="j1", host="n1", gpu_ids=[2, 0], allocation_request_id=7)
    plan = WorkerPlan("w1", "j1", (Gpu("n1", 0), Gpu("n1", 2)), 7)
    assert _event(use=pb.Use(use_id="u1", workers=[worker])) == UsePlanned(APP, "u1", (plan,))
    job = pb.JobProgress(
        job_id="j1",
        state="running",
        configuration={"lr": "0.1"},
        step=5,
        loss=0.5,
        accuracy=0.9,
        iter_time_s=0.1,
        slowdown=1.1,
        gpus=2,
        rung=1,
        launches=2,
        worker_failures=1,
        checkpoints_failed=3,
        hangs=True,
    )
    progress = _event(progress=pb.Progress(demand=WIRE_DEMAND, jobs=[job], rho=1.5))
    read = JobProgress(
        "j1", "running", 5, 0.5, 0.9, 0.1, 1.1, 2, 1, 2, 1, {"lr": "0.1"}, checkpoints_failed=3, hangs=True
    )
    assert progress == ProgressReported(APP, DEMAND, (read,), 1.5)
    done = pb.Done(
        succeeded=True,
        message="m",
        best_job_id="j1",
        best_configuration={"lr": "0.1"},
        best_accuracy=0.9,
        work_done_gpu_s=89.5,
        model_path="/m",
    )
    assert _event(done=done) == AgentDone(APP, True, "m", "j1", {"lr": "0.1"}, 0.9, 89.5, "/m")
    assert _event(to_worker=pb.WorkerCommand(worker_id="w1")) is None


def test_bid_keeps_its_rows() -> None:
    gang = pb.Gang(machines=[pb.MachineGpus(host="n2", gpus=1), pb.MachineGpus(host="n1", gpus=1)])
    rows = [
        pb.BidRow(rho=2.0, keep=[gang]),
        pb.BidRow(rho=1.5, keep=[gang], new_gangs=1, gang_gpus=2, scope=pb.RACK),
    ]
    received = bid_received(APP, pb.Bid(round_id="r1", rho_nothing=math.inf, rows=rows), HOSTS)
    kept = ((("n1", 1), ("n2", 1)),)
    assert received.bid == Bid(APP, 1e12, (BidRow(2.0, kept), BidRow(1.5, kept, 1, 2, Scope.RACK)))
    assert not received.problem


def _row(**changes):
    row = pb.BidRow(**{"rho": 1, "new_gangs": 1, "gang_gpus": 1} | changes)
    return pb.Bid(round_id="r1", rho_nothing=3.0, rows=[row])


UNKNOWN = pb.Gang(machines=[pb.MachineGpus(host="nowhere", gpus=1)])
EMPTY = pb.Gang()
TWICE = pb.Gang(machines=[pb.MachineGpus(host="n1", gpus=1)] * 2)


@pytest.mark.parametrize(
    ("bid", "problem"),
    [
        (pb.Bid(rho_nothing=math.nan), "rho_nothing is nan"),
        (pb.Bid(rho_nothing=-1), "rho_nothing is -1"),
        (pb.Bid(), "rho_nothing is 0"),
        (_row(rho=math.nan), r"rows\[0\].rho is nan"),
        (_row(rho=0), "rho is 0"),
        (_row(new_gangs=4_000_000_000), "new_gangs is 4000000000"),
        (_row(new_gangs=1 << 19, gang_gpus=1 << 19), "new_gangs x gang_gpus"),
        (_row(gang_gpus=0), "gang_gpus is 0"),
        (_row(new_gangs=0), "asks for nothing"),
        (_row(scope=9), "scope is 9"),
        (_row(keep=[UNKNOWN]), "unknown host 'nowhere'"),
        (_row(keep=[EMPTY]), "empty gang"),
        (_row(keep=[TWICE]), "n1 twice"),
        (pb.Bid(rho_nothing=1, rows=[pb.BidRow(rho=1, new_gangs=1, gang_gpus=1)] * 5000), "5000 entries"),
    ],
)
def test_malformed_bid_is_a_bid_with_a_problem(bid: pb.Bid, problem: str) -> None:
    received = bid_received(APP, bid, HOSTS)
    assert received.bid is None
    assert re.search(problem, received.problem)


@pytest.mark.parametrize(
    "kind",
    [
        {"rho": pb.Rho(round_id="r", rho=math.nan)},
        {"rho": pb.Rho(round_id="r", rho=-1)},
        {"rho": pb.Rho(round_id="r", rho=1, demand=pb.Demand(gangs=1))},
        {"rho": pb.Rho(round_id="r", rho=1, demand=pb.Demand(work_left_gpu_s=math.inf))},
        {"progress": pb.Progress(demand=pb.Demand(gangs=4_000_000_000, gang_gpus=1))},
        {"progress": pb.Progress(jobs=[pb.JobProgress(job_id="j", iter_time_s=-1)])},
        {"use": pb.Use(use_id="u", workers=[pb.WorkerPlan(worker_id="w", job_id="j", host="n1")])},
        {"released": pb.Released(gpus=[pb.MachineGpuIds(host="n1", gpu_ids=[1, 1])])},
        {"released": pb.Released(gpus=[pb.MachineGpuIds(host="n1", gpu_ids=[5000])])},
        {"register": pb.Register()},
    ],
)
def test_malformed_messages_are_refused(kind) -> None:
    with pytest.raises(Malformed):
        _event(**kind)


def test_odd_numbers_do_not_refuse_an_exit_message_and_a_diverged_loss_is_the_greatest() -> None:
    done = _event(done=pb.Done(succeeded=False, best_accuracy=math.nan, work_done_gpu_s=-5))
    assert (done.best_accuracy, done.work_done_gpu_s) == (0.0, 0.0)
    progress = _event(progress=pb.Progress(jobs=[pb.JobProgress(job_id="j", loss=math.nan, accuracy=math.nan)]))
    assert progress.jobs[0].loss == bounds.METRIC.high
    assert progress.jobs[0].accuracy == 0.0


GPUS = (Gpu("n1", 2), Gpu("n1", 0), Gpu("n2", 1))
WIRE_GPUS = [pb.MachineGpuIds(host="n1", gpu_ids=[0, 2]), pb.MachineGpuIds(host="n2", gpu_ids=[1])]
GRANT = HeldGrant("g1", GPUS, 1600.0, 1010.0)
WIRE_GRANT = {"grant_id": "g1", "gpus": WIRE_GPUS, "end_s": 1600.0, "available_s": 1010.0}


@pytest.mark.parametrize(
    ("effect", "message"),
    [
        (
            SendRegistered(APP, CONTENTION, (GRANT,)),
            {
                "registered": pb.Registered(
                    contention=WIRE_CONTENTION,
                    grants=[pb.Grant(**WIRE_GRANT)],
                    hosts=[
                        pb.Host(host="n1", rack="a", gpus=4, virtual_gpus=True, gpu_type="v100"),
                        pb.Host(host="n2", rack="b", gpus=2, gpu_type="gpu"),
                    ],
                )
            },
        ),
        (
            SendHosts(APP),
            {
                "hosts": pb.Hosts(
                    hosts=[
                        pb.Host(host="n1", rack="a", gpus=4, virtual_gpus=True, gpu_type="v100"),
                        pb.Host(host="n2", rack="b", gpus=2, gpu_type="gpu"),
                    ]
                )
            },
        ),
        (
            SendAskRho(APP, "r1", CONTENTION, GPUS, 1001.0),
            {"ask_rho": pb.AskRho(round_id="r1", contention=WIRE_CONTENTION, ending=WIRE_GPUS, deadline_s=1001.0)},
        ),
        (
            SendOffer(APP, "r1", CONTENTION, {"n2": 1, "n1": 2}, GPUS, 1001.0),
            {
                "offer": pb.Offer(
                    round_id="r1",
                    contention=WIRE_CONTENTION,
                    ending=WIRE_GPUS,
                    deadline_s=1001.0,
                    machines=[pb.MachineGpus(host="n1", gpus=2), pb.MachineGpus(host="n2", gpus=1)],
                )
            },
        ),
        (
            SendGrant(APP, "r1", GRANT, renewal=True, leftover=True),
            {"grant": pb.Grant(round_id="r1", renewal=True, leftover=True, **WIRE_GRANT)},
        ),
        (
            SendRevoke(APP, GPUS, 1100.0, 8.0, "lost"),
            {"revoke": pb.Revoke(gpus=WIRE_GPUS, deadline_s=1100.0, left_s=8.0, reason="lost")},
        ),
        (SendUseReply(APP, "u1", False, "no"), {"use_reply": pb.UseReply(use_id="u1", reason="no")}),
        (SendFinish(APP, "killed"), {"finish": pb.Finish(reason="killed")}),
    ],
)
def test_effects_become_messages(effect, message) -> None:
    assert message_of(effect, lambda: hosts_of(TOPOLOGY)) == pb.ArbiterMessage(**message)
    assert gpus_of(WIRE_GPUS) == tuple(sorted(GPUS))
