"""Which app may start where: withheld and decommissioned machines, node labels, locality, oversized asks."""

from __future__ import annotations

import dataclasses
from collections import deque

import pytest

from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Ask, Container, Node, Queue
from pycontrol.model.topology import Gpu
from pycontrol.policies import registry
from pycontrol.queries.pending_reasons import reason
from tests.arbiter.mini import CELLS, SETTINGS, Mini


def change(m: Mini, k: int, **changes: object) -> None:
    """Changes fields of the k-th node."""
    m.nodes = tuple(dataclasses.replace(n, **changes) if i == k else n for i, n in enumerate(m.nodes))  # type: ignore[arg-type]
    m.send(ev.NodeUp(m.nodes[k]))


def hosts_of(m: Mini, name: str) -> set[str]:
    return {gpu.host for gpu in m.held(name)}


@pytest.mark.parametrize("changes", [{"withheld": "no Isonomy executor"}, {"untagged_gpus": 1}])
def test_a_machine_that_takes_no_container_is_not_offered(changes: dict[str, object]) -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)))
    change(m, 0, **changes)
    m.app("a", gang=2, gangs=4)
    m.run(10)
    assert hosts_of(m, "a") == {"n2"}
    assert len(m.held("a")) == 4
    assert "n1" in m.a.cluster.closed
    change(m, 0, withheld="", untagged_gpus=0)
    m.run(10)
    assert len(m.held("a")) == 8


PLAIN = Container("p1", "other", "n1:1", (Gpu("n1", 3),), plain=True)


@pytest.mark.parametrize("cells", [False, True])
def test_gpus_beside_a_container_of_capacity_scheduler_are_leased_and_it_is_left_alone(cells: bool) -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)), supply=CELLS if cells else None)
    m.send(ev.ContainerUp(PLAIN, True))
    m.app("a", gang=1, gangs=8, queue="root.a")
    m.run(10)
    assert len(m.held("a")) == 7
    assert Gpu("n1", 3) not in m.held("a")
    m.start("a")
    m.send(dataclasses.replace(m.snapshot(m.a.cluster.apps.values(), m.a.cluster.containers.values())))
    m.run(3 * SETTINGS.lease_s)
    assert not m.of(ev.Kill)
    m.send(ev.ContainerGone("p1"))
    m.run(10)
    assert len(m.held("a")) == 8


def test_a_lease_gives_way_to_a_container_of_capacity_scheduler_that_was_faster() -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)))
    m.app("a", gang=4)
    m.run(2)
    granted = m.held("a")
    plain = dataclasses.replace(PLAIN, gpus=(min(granted),), node_id=f"{min(granted).host}:1")
    m.send(ev.ContainerUp(plain))
    assert m.held("a") == granted - {min(granted)}
    assert [r.reason for r in m.of(ev.SendRevoke)] == ["CapacityScheduler gave it to p1"]
    m.run(3 * SETTINGS.lease_s)
    assert min(granted) not in m.held("a")
    assert "p1" not in {k.container_id for k in m.of(ev.Kill)}


def test_gangs_on_a_machine_that_takes_no_new_containers_stay_and_are_renewed() -> None:
    m = Mini()
    m.start_app("a", gang=4)
    change(m, 0, untagged_gpus=1)
    m.run(3 * SETTINGS.lease_s)
    assert len(m.held("a")) == 4
    assert not m.of(ev.Kill)


def test_a_machine_being_decommissioned_is_drained_with_the_usual_notice() -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)))
    (container,) = m.start_app("a", gang=4)
    host = container.gpus[0].host
    change(m, 0 if host == "n1" else 1, decommissioning=True)
    (told,) = m.of(ev.SendRevoke)
    assert told.deadline_s == pytest.approx(m.now + SETTINGS.lead)
    assert "decommissioned" in told.reason
    m.send(ev.ContainerGone(container.container_id))
    m.run(10)
    assert hosts_of(m, "a") == {"n1", "n2"} - {host}


def test_a_machine_being_decommissioned_while_the_control_plane_restarts_gives_notice_too() -> None:
    m = Mini("tiresias", nodes=(("n1", 4), ("n2", 4)))
    app = m.app("a", gang=8)
    m.run(2)
    containers = m.start("a")
    assert len(containers) == 2
    settings = dataclasses.replace(SETTINGS, recovery_s=5)
    again = Mini("tiresias", settings, nodes=(("n1", 4), ("n2", 4)), durable=m.a.durable, epoch=2)
    again.now = m.now
    again.nodes = (dataclasses.replace(again.nodes[0], decommissioning=True), again.nodes[1])
    again.send(again.snapshot([app], containers))
    again.send(ev.AgentUp("a", "a_1", "hyperband", m.a.agents["a"].demand))
    again.run(6)
    (told,) = again.of(ev.SendRevoke)
    assert told.deadline_s >= again.now + SETTINGS.lead - 6
    assert {c.container_id for c in containers} == set(again.a.cluster.containers)


def test_a_drain_told_before_the_cluster_is_known_gives_notice_when_it_is() -> None:
    m = Mini("tiresias")
    app = m.app("a", gang=4)
    m.run(2)
    containers = m.start("a")
    again = Mini("tiresias", dataclasses.replace(SETTINGS, recovery_s=5), durable=m.a.durable, epoch=2)
    again.now = m.now
    again.send(ev.OperatorCommand("drain", "n1", "root"))
    assert len(again.a.durable.leases) == 4
    again.send(again.snapshot([app], containers))
    again.send(ev.AgentUp("a", "a_1", "hyperband", m.a.agents["a"].demand))
    again.run(6)
    assert [p.container_id for p in again.of(ev.Preempt)] == [containers[0].container_id]
    assert len(again.a.durable.leases) == 4


@pytest.mark.parametrize("policy", registry.names())
def test_an_ask_limited_to_a_host_is_served_there_or_waits(policy: str) -> None:
    m = Mini(policy, nodes=(("n1", 2), ("n2", 4), ("n3", 4)))
    m.start_app("busy", gang=2)
    m.foreign("here", 2, only_on=("n2",))
    m.foreign("elsewhere", 2, only_on=("n9",))
    m.run(30)
    assert hosts_of(m, "here") == {"n2"}
    assert not m.held("elsewhere")
    assert reason(m.a, "elsewhere", m.now).code == "NotAllowedThere"


def test_an_ask_limited_to_a_rack_is_served_in_it() -> None:
    m = Mini(nodes=(("n1", 2), ("n2", 4)))
    change(m, 1, rack="far")
    m.foreign("a", 2, only_on=("far",))
    m.run(5)
    assert hosts_of(m, "a") == {"n2"}


QUEUES = (Queue("root.q"), Queue("root.ml", default_partition="ml"))


@pytest.mark.parametrize(
    ("queue", "partition", "host"),
    [("root.q", None, "n1"), ("root.ml", None, "n2"), ("root.q", "ml", "n2"), ("root.ml", "", "n1")],
)
def test_an_ask_is_served_in_its_partition(queue: str, partition: str | None, host: str) -> None:
    """The partition is that of its node label expression, else that of its queue."""
    m = Mini(nodes=(("n1", 4), ("n2", 4)), queues=QUEUES)
    change(m, 1, partition="ml")
    m.foreign("a", 2, queue=queue, partition=partition)
    m.run(5)
    assert hosts_of(m, "a") == {host}


def test_an_agents_app_is_served_in_the_partition_of_its_queue() -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)), queues=QUEUES)
    change(m, 1, partition="ml")
    m.app("a", gang=4, queue="root.ml")
    m.app("b", gang=4, queue="root.q")
    m.app("c", gang=8, queue="root.q")
    m.run(10)
    assert (hosts_of(m, "a"), hosts_of(m, "b")) == ({"n2"}, {"n1"})
    assert not m.held("c")


@pytest.mark.parametrize("policy", registry.names())
def test_an_ask_that_fits_no_machine_leaves_the_gpus_to_the_others(policy: str) -> None:
    m = Mini(policy, Settings(lease_s=30, grant_timeout_s=20, recovery_s=0, round_retry_s=3), (("n1", 8), ("n2", 4)))
    m.foreign("big", 9, user="mallory")
    m.run(5)
    for k in range(3):
        m.app(f"a{k}", gang=4, user=f"u{k}")
    for _ in range(200):
        m.run(1)
        for k in range(3):
            if m.held(f"a{k}") and not m.a.workers.of(f"a{k}"):
                m.start(f"a{k}")
    assert [len(m.held(f"a{k}")) for k in range(3)] == [4, 4, 4]
    assert reason(m.a, "big", m.now).code == "NoMachineLargeEnough"


def test_asks_that_fit_are_served_although_a_larger_one_does_not_fit() -> None:
    m = Mini()
    m.foreign("a", 9)
    m.send(ev.AskChanged(Ask("a_1", "a", 1, 2, 1)))
    m.run(5)
    assert m.held("a") == {Gpu("n1", 0), Gpu("n1", 1)}


def test_two_nodes_of_one_host_are_one_machine() -> None:
    m = Mini()
    m.send(ev.NodeUp(Node("n1:2", "n1", "r", 4, untagged_gpus=1)))
    assert set(m.a.cluster.closed) == {"n1"}
    m.send(ev.NodeDown("n1:2"))
    assert not m.a.cluster.closed


def two_types(policy: str, **demand: object) -> Mini:
    """Four GPUs of each type, and app `a` with a gang of 6."""
    m = Mini(policy, nodes=(("n1", 4), ("n2", 4)))
    for k, kind in enumerate(("K80", "V100")):
        change(m, k, attributes={"gpu_type": kind})
    m.app("a", gang=6)
    m.send(ev.ProgressReported("a", Demand(6, 1, 6, 1e6, 1e6, 0.0, **demand), ()))  # type: ignore[arg-type]
    return m


def test_a_gang_larger_than_each_type_gets_that_reason_before_and_after_a_round() -> None:
    m = two_types("themis")
    early = reason(m.a, "a", m.now)
    assert (early.code, m.a.receipts) == ("ExceedsGpuType", deque())
    assert "K80 has 4, V100 has 4; isonomy.mix_types=true" in early.sentence
    m.app("b")
    m.run(10)
    assert m.held("b")
    assert not m.held("a")
    assert m.a.receipts[-1].out["a"].code == "ExceedsGpuType"
    assert not m.of(ev.SendAskRho) or all(e.app_id != "a" for e in m.of(ev.SendAskRho)), "nobody asks it in vain"


@pytest.mark.parametrize(("policy", "demand"), [("themis", {"mixes": True}), ("isonomy", {"mixes": True}), ("drf", {})])
def test_a_gang_that_may_mix_types_does_not_exceed_a_gpu_type(policy: str, demand: dict[str, object]) -> None:
    assert reason(two_types(policy, **demand).a, "a", 1001.0).code != "ExceedsGpuType"


@pytest.mark.parametrize("policy", ["themis", "isonomy"])
def test_a_gang_larger_than_the_type_that_it_names_is_told_its_size(policy: str) -> None:
    m = two_types(policy, gpu_type="V100", mixes=True)
    m.run(10)
    said = reason(m.a, "a", m.now)
    assert said.code == "ExceedsGpuType"
    assert said.detail == "6 GPUs in one gang, V100 has 4"


def test_cells_that_hold_a_gang_only_by_mixing_types_are_too_small_for_it() -> None:
    file = CELLS.replace("root.a: {big: 1}", "root.a: {big: 2}").replace("root.b: {pair: 1}", "root.b: {}")
    m = Mini("themis", nodes=(("n1", 4), ("n2", 4)), supply=file)
    for k, kind in enumerate(("K80", "V100")):
        change(m, k, attributes={"gpu_type": kind})
    m.nodes += (Node("n3:1", "n3", "r", 8, attributes={"gpu_type": "K80"}),)
    m.send(ev.NodeUp(m.nodes[-1]))
    m.app("a", gang=6, queue="root.a")
    m.run(5)
    assert reason(m.a, "a", m.now).code == "CellsTooSmall"
