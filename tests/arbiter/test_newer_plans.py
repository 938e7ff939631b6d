"""A GPU's container is being placed, and the next container of the same app is already planned there.

An app without an Agent borrows GPUs; before its containers come, a machine is lost and the cells of its own virtual
cluster need exactly these GPUs, for a further container of the app itself.
"""

from __future__ import annotations

from unittest import mock

import pytest

from pycontrol.arbiter.ledger.facts import LeaseIdle, LeaseStarted
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.arbiter.views.settings import Settings
from pycontrol.arbiter.views.workers import PlannedWorker
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask
from pycontrol.model.topology import Gpu
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.registry import make
from tests.arbiter.mini import Mini

pytestmark = pytest.mark.interpreted  # the scene replaces a method
CELLS = """
levels: {node: 2}
hosts: [n1, n2]
virtual_clusters: {root.a: {node: 1}}
"""
SETTINGS = Settings(lease_s=600, lead_s=8, grant_timeout_s=20, recovery_s=0, round_retry_s=5)


def superseded() -> tuple[Mini, ev.Place, PlannedWorker, PlannedWorker]:
    """The placement in progress, its worker, and the worker planned on its GPU after it."""
    m = Mini(ByVirtualCluster(make("isonomy")), SETTINGS, (("n1", 2), ("n2", 2)), supply=CELLS)
    m.start_app("holder", gang=2, queue="root.a")
    (held,) = {gpu.host for gpu in m.held("holder")}
    m.foreign("a", 1, 3, queue="root.a")
    m.run(2)
    borrowed = {p.gpus[0]: p for p in m.places()}
    assert len(borrowed) == 2
    m.send(ev.AppRemoved("holder", "FINISHED"))
    m.send(ev.NodeDown(f"{held}:1", "lost"))
    with mock.patch.object(CellSupply, "own", return_value=False):  # its cells cannot be bound in place
        m.run(2)
    (promised,) = m.a.durable.reservations.of("a")
    place = borrowed.pop(promised.gpus[0])
    (other,) = borrowed.values()
    m.up(other)
    before = m.a.workers.sent_as(place.directive_id)
    newer = m.a.workers.at[promised.gpus[0]]
    assert before is not None
    assert before is not newer
    assert before.app_id == newer.app_id == "a"
    assert not m.places()
    return m, place, before, newer


def test_a_worker_that_goes_on_in_a_container_of_its_app_takes_the_place_of_the_worker_there() -> None:
    m = Mini("isonomy", SETTINGS, (("n1", 4),))
    for name in ("a", "b"):
        m.app(name, gang=2)
    m.run(2)
    (here,), (theirs,) = m.start("a"), m.start("b")
    facts, end_s = len(m.facts), m.a.durable.leases[here.gpus[0]].end_s

    def goes_on(worker_id: str, container: str, gpus: tuple[Gpu, ...]) -> ev.SendUseReply:
        plan = ev.WorkerPlan(worker_id, "k", gpus, 99, container)
        m.send(ev.UsePlanned("a", f"u-{worker_id}", (plan,)))
        return m.of(ev.SendUseReply)[-1]

    for container, gpus in ((theirs.container_id, theirs.gpus), (here.container_id, here.gpus[:1]), ("c99", here.gpus)):
        assert "no container of a with these GPUs" in goes_on("w", container, gpus).reason
    assert goes_on("w-2", here.container_id, here.gpus).accepted
    (worker,) = m.a.workers.of("a")
    assert (worker.plan.worker_id, worker.plan.job_id, worker.container_id) == ("w-2", "k", here.container_id)
    m.run(30)
    assert not m.places(), "nothing is placed for it"
    assert m.held("a") == set(here.gpus)
    stopped, started = (f for f in m.facts[facts:] if type(f).__name__.startswith("Lease"))
    assert isinstance(stopped, LeaseIdle)
    assert isinstance(started, LeaseStarted)
    assert (started.gpus, started.container_id, started.job_id) == (here.gpus, here.container_id, "k")
    assert started.end_s == end_s, "its lease goes on"
    m.send(ev.ContainerGone(here.container_id))
    assert not m.a.workers.of("a")


def planned(m: Mini, gpu: Gpu) -> list[PlannedWorker]:
    return [w for w in m.a.workers if gpu in w.plan.gpus]


@pytest.mark.parametrize("told_of_first", ["its container", "its placement"])
def test_a_started_container_belongs_to_its_own_worker_even_if_reported_repeatedly(told_of_first: str) -> None:
    m, place, before, newer = superseded()
    if told_of_first == "its placement":
        m.send(ev.DirectiveDone(place.directive_id, True, "first"))
    first = m.up(place, "first")
    m.send(ev.ContainerUp(first, True))
    assert (before.container_id, newer.container_id) == ("first", "")
    m.run(3)
    assert not m.places()
    m.send(ev.ContainerGone("first"))
    (next_place,) = m.places()
    assert next_place.gpus == place.gpus
    second = m.up(next_place)
    assert planned(m, place.gpus[0]) == [newer]
    assert newer.container_id == second.container_id


@pytest.mark.parametrize("refused", [True, False])
def test_a_placement_that_fails_leaves_the_gpu_to_the_newer_plan(refused: bool) -> None:
    m, place, _, newer = superseded()
    if refused:
        m.send(ev.DirectiveDone(place.directive_id, False, "", "no room"))
    else:
        m.run(SETTINGS.grant_timeout_s)
    (next_place,) = m.places()
    assert next_place.gpus == place.gpus
    assert m.a.workers.sent_as(next_place.directive_id) is newer
    assert planned(m, place.gpus[0]) == [newer]
    m.up(next_place)
    assert not m.places()


@pytest.mark.parametrize("comes", [True, False])
def test_a_cancelled_newer_plan_returns_the_gpu_to_the_placement_in_progress(comes: bool) -> None:
    m, place, before, _ = superseded()
    gpu = place.gpus[0]
    m.send(ev.OperatorCommand("drain", gpu.host, "root"))
    assert planned(m, gpu) == [before]
    assert m.a.workers.at[gpu] is before
    if comes:
        m.up(place, "first")
        assert planned(m, gpu) == [before]
        assert before.container_id == "first"
    else:
        m.send(ev.DirectiveDone(place.directive_id, False, "", "no room"))
        assert planned(m, gpu) == []
        assert gpu not in m.a.durable.leases


def test_a_snapshot_forgets_the_placement_and_keeps_the_newer_plan() -> None:
    m, place, _, newer = superseded()
    app = m.a.cluster.apps["a"]
    node = m.a.cluster.node_at[place.gpus[0].host]
    others = [c for c in m.a.cluster.containers.values() if c.app_id == "a"]
    m.send(ev.ClusterLost())
    m.send(ev.ClusterSnapshot(True, (node,), (app,), (Ask("a_1", "a", 0, 1, 2),), tuple(others)))
    assert planned(m, place.gpus[0]) == [newer]
    m.run(20)
    (next_place,) = m.places()
    assert next_place.gpus == place.gpus
