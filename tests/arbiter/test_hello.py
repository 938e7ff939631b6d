"""Starts and Hellos: events before the first snapshot wait for it; repeated Hellos stop no app."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import LeaseEnded, LeaseIdle
from pycontrol.arbiter.ledger.lease import REVOKING, gpus_in
from pycontrol.daemon.assembly import owner_of
from pycontrol.model import events as ev
from pycontrol.model.cluster import Container, Queue, YarnApp
from pycontrol.model.topology import Gpu
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.tiresias import Tiresias
from pycontrol.queries.pending_reasons import reason
from pycontrol.rpc.admission import Owner
from tests.arbiter.mini import CELLS, SETTINGS, Mini

RECOVERING = dataclasses.replace(SETTINGS, recovery_s=5)


def cells() -> dict[str, object]:
    return {"supply": CELLS}


def running(with_cells: bool, queue: str = "root.a") -> tuple[Mini, YarnApp, Container]:
    """App `a` runs on two GPUs."""
    m = Mini(ByVirtualCluster(Tiresias(), {}), nodes=(("n1", 4), ("n2", 4)), **(cells() if with_cells else {}))
    app = m.app("a", gang=2, queue=queue)
    m.run(2)
    (container,) = m.start("a")
    return m, app, container


def restarted(m: Mini, with_cells: bool, **more: object) -> Mini:
    """The control plane, killed and restarted; it has received no event yet."""
    durable = Durable.load(json.loads(json.dumps(m.a.durable.dump())))
    more = {**(cells() if with_cells else {}), **more}
    again = Mini(ByVirtualCluster(Tiresias(), {}), RECOVERING, (("n1", 4), ("n2", 4)), durable=durable, epoch=2, **more)  # type: ignore[arg-type]
    again.now = m.now
    return again


@pytest.mark.parametrize("with_cells", [False, True])
@pytest.mark.parametrize("last", ["done", "released", "done, then lost", "drain", "nothing"])
def test_events_before_the_first_snapshot_count_after_it(with_cells: bool, last: str) -> None:
    m, app, container = running(with_cells)
    again = restarted(m, with_cells)
    again.send(ev.AgentUp("a", "a_1", "hyperband", m.a.agents["a"].demand))
    if last.startswith("done"):
        again.send(ev.AgentDone("a", True, "the best", "j", {}, 0.9))
    elif last == "released":
        again.send(ev.GpusReleased("a", frozenset(container.gpus)))
    elif last == "drain":
        again.send(ev.OperatorCommand("drain", container.gpus[0].host, "root"))
    if last.endswith("lost"):
        again.send(ev.AgentLost("a"))
    assert len(again.a.durable.leases) == 2
    assert not again.of(ev.SendRegistered)
    again.send(again.snapshot([app], [container]))
    again.run(6)
    mine = [x for x in again.a.durable.leases.of("a") if set(x.gpus) & set(container.gpus)]
    assert len(gpus_in(mine)) == 2, "its container is given notice, or time to end"
    assert {x.state == REVOKING for x in mine} == {last != "nothing"}
    assert again.a.durable.apps["a"].done == last.startswith("done")
    again.send(ev.ContainerGone(container.container_id))
    again.run(1)
    ended = {gpu for f in again.facts if isinstance(f, LeaseEnded) for gpu in f.gpus}
    assert (set(container.gpus) <= ended) == (last != "nothing")


def test_messages_of_an_unregistered_app_are_ignored() -> None:
    m, _, container = running(False)
    replies = len(m.of(ev.SendUseReply))
    m.send(ev.AgentDone("b", True))
    m.send(ev.GpusReleased("b", frozenset(container.gpus)))
    m.send(ev.UsePlanned("b", "u", (ev.WorkerPlan("w", "j", container.gpus, 1),)))
    assert len(m.of(ev.SendUseReply)) == replies
    assert len(m.a.durable.leases) == 2


def test_a_container_of_an_app_that_yarn_does_not_know_is_killed() -> None:
    m = Mini()
    stray = Container("c1", "application_1_0007", "n1:1", (Gpu("n1", 0),), "r1.1.0")
    m.send(m.snapshot([], [stray]))
    assert [k.container_id for k in m.of(ev.Kill)] == ["c1"]
    assert Gpu("n1", 0) not in set(m.a.gpus.free)
    assert not m.a.durable.leases


def hello(m: Mini, life: str, *apps: YarnApp) -> None:
    m.send(ev.ClusterLost())
    m.send(dataclasses.replace(m.snapshot(apps, m.a.cluster.containers.values()), rm_life=life))


def test_frequent_hellos_of_the_same_resource_manager_stop_no_round_and_prolong_no_lease() -> None:
    m = Mini("tiresias", RECOVERING)
    hello(m, "life 1")
    m.run(10)
    first = m.app("first", gang=4)
    m.run(2)
    (container,) = m.start("first")
    second = m.app("second", gang=4)
    rounds = m.a.durable.rounds
    while m.now < 1000 + 2 * SETTINGS.lease_s:
        hello(m, "life 1", first, second)
        m.run(4, step=2)
    assert m.a.durable.rounds > rounds
    assert container.container_id in {k.container_id for k in m.of(ev.Kill)}
    m.send(ev.ContainerGone(container.container_id))
    m.run(1)
    assert len(m.held("second")) == 4


@pytest.mark.parametrize("life", ["", "life 2"])
def test_a_restarted_resource_manager_gets_its_recovery_time(life: str) -> None:
    m = Mini("tiresias", RECOVERING)
    hello(m, life and "life 1")
    m.run(10 if life else RECOVERING.recovery_s + RECOVERING.lease_s + 1)
    app = m.app("a")
    hello(m, life, app)
    m.run(RECOVERING.recovery_s - 1)
    assert not m.held("a")
    m.run(3)
    assert m.held("a")


def test_leases_whose_containers_vanished_while_the_resource_manager_restarted_are_idle() -> None:
    m = Mini("tiresias")
    app = m.app("a", gang=2)
    m.run(2)
    m.start("a")
    m.send(m.snapshot([app]))
    assert m.facts[-1] == LeaseIdle(tuple(sorted(m.held("a"))), m.now)
    assert all(not x.container_id for x in m.a.durable.leases.of("a"))


def test_time_in_which_the_operator_paused_does_not_count_for_leases() -> None:
    m = Mini("tiresias")
    (container,) = m.start_app("a", gang=2)
    m.send(ev.OperatorCommand("pause"))
    m.run(2 * SETTINGS.lease_s, step=5)
    m.send(ev.OperatorCommand("resume"))
    assert [x.end_s for x in m.a.durable.leases.of("a")] == [m.now + 2 * SETTINGS.lead]
    m.app("b", gang=4)
    m.run(2 * SETTINGS.lead - 1)
    assert m.a.durable.leases.of("a")[0].container_id == container.container_id


def test_a_plugin_that_names_no_life_and_connects_again_and_again_suspends_no_lease_for_ever() -> None:
    m = Mini("tiresias", RECOVERING)
    hello(m, "")
    m.run(10)
    first = m.app("first", gang=4)
    m.run(2)
    (container,) = m.start("first")
    second = m.app("second", gang=4)
    while m.now < 1000 + 5 * SETTINGS.lease_s:
        hello(m, "", first, second)
        m.run(4, step=2)
    assert container.container_id in {k.container_id for k in m.of(ev.Kill)}


def test_a_machine_missing_in_a_hello_of_the_same_resource_manager_is_lost_immediately() -> None:
    m = Mini("tiresias", RECOVERING, (("n1", 4), ("n2", 4)))
    hello(m, "life 1")
    m.run(10)
    app = m.app("a", gang=8)
    m.run(2)
    m.start("a")
    m.nodes = m.nodes[:1]
    hello(m, "life 1", app)
    assert {g.host for g in m.held("a")} == {"n1"}


@pytest.mark.parametrize("event", [ev.OperatorCommand("pause"), ev.ClusterLost()])
def test_a_round_in_progress_is_aborted_when_leases_are_suspended(event: ev.Event) -> None:
    m = Mini("tiresias")

    plans: list[ev.Decided] = []
    decide, m.decide = m.decide, lambda e: plans.append(decide(e)) or ev.Tick()  # type: ignore[method-assign, assignment, func-returns-value, return-value]
    m.app("a")
    m.run(2)
    assert plans
    m.a.handle_all([event, plans[0]], m.now)
    m.run(5)
    assert not m.a.durable.leases
    assert m.a.rounds.current is None
    m.decide = decide  # type: ignore[method-assign]
    m.send(
        ev.OperatorCommand("resume") if isinstance(event, ev.OperatorCommand) else m.snapshot([m.a.cluster.apps["a"]])
    )
    m.run(10)
    assert len(m.held("a")) == 1


def test_a_round_goes_on_when_yarn_makes_a_queue() -> None:
    m = Mini(ByVirtualCluster(Tiresias(), {}), nodes=(("n1", 4), ("n2", 4)), supply=CELLS)
    plans: list[ev.Decided] = []
    m.decide, decide = lambda e: plans.append(decide(e)) or ev.Tick(), m.decide  # type: ignore[method-assign, assignment, func-returns-value, return-value]
    m.app("a", gang=2, queue="root.a")
    m.run(2)
    made = ev.ClusterChanged((Queue("root.a"), Queue("root.b")))
    m.a.handle_all([made, plans[0]], m.now)
    assert len(m.held("a")) == 2
    assert m.a.cluster.queues.keys() == {"root.a", "root.b"}


def test_a_machine_goes_with_its_own_event_alone() -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)))
    m.app("a", gang=8)
    m.run(2)
    m.send(ev.ClusterChanged((), (ev.NodeDown("n1:1", "LOST"),)))
    assert (m.a.cluster.machines.gpus, len(m.held("a"))) == (8, 8), "it came back after that was seen"
    m.send(ev.NodeDown("n1:1", "LOST"))
    assert {gpu.host for gpu in m.held("a")} <= {"n2"}
    m.send(ev.ClusterChanged((), (ev.NodeDown("n1:1", "DECOMMISSIONED"),)))
    assert not m.a.cluster.down


def test_directives_of_two_journals_have_different_ids() -> None:
    ids = []
    for journal_id in ("1234abcd", "5678ef00"):
        m = Mini(journal_id=journal_id)
        m.app("a")
        m.run(2)
        m.use("a")
        ids += [p.directive_id for p in m.places()]
    assert len(set(ids)) == 2


def test_an_unreadable_snapshot_of_another_control_plane_is_ignored() -> None:
    m = Mini(durable=Durable())
    for data in ({}, {"apps": 3}, {"apps": [{"app_id": 1}], "leases": [], "next": [], "switches": [], "rounds": 0}):
        m.send(ev.StandbyRestored(data))
    assert m.a.durable.is_empty


def test_an_unknown_command_does_nothing() -> None:
    m = Mini()
    m.send(ev.OperatorCommand("dance", "n1", "root"))
    assert not m.facts


def test_an_agent_learns_that_the_operator_ended_its_app() -> None:
    m, app, container = running(False)
    again = restarted(m, False)
    again.send(ev.OperatorCommand("kill", "a", "root"))
    again.send(ev.AgentUp("a", "a_1", "hyperband", m.a.agents["a"].demand))
    again.send(again.snapshot([app], [container]))
    assert [f.app_id for f in again.of(ev.SendFinish)] == ["a"]


# ---- queues

QUEUES = (Queue("root.full", 0.0, 0.0), Queue("root.wide"), Queue("root.one", 0.25, 0.25))


@pytest.mark.parametrize("told", [ev.AppAdded, ev.AppUpdated])
def test_an_app_that_is_moved_out_of_a_full_queue_is_served(told: type[ev.AppAdded | ev.AppUpdated]) -> None:
    m = Mini(queues=QUEUES)
    app = m.app("a", queue="root.full")
    m.run(10)
    assert reason(m.a, "a", m.now).code == "QueueLimit"
    m.send(told(dataclasses.replace(app, queue="root.wide")))
    m.run(10)
    assert len(m.held("a")) == 1
    assert m.a.durable.apps["a"].queue == "root.wide"


@pytest.mark.parametrize("policy", ["isonomy", "tiresias", "oef", "themis"])
def test_an_app_that_is_moved_into_a_smaller_queue_shrinks_to_its_limit(policy: str) -> None:
    m = Mini(policy, queues=QUEUES)
    app = m.app("a", gangs=4, queue="root.wide")
    while len(m.held("a")) < 4:
        m.run(30)
    for k, gpu in enumerate(sorted(m.held("a"))):
        m.send(ev.ContainerUp(Container(f"c{k}", "a", "n1:1", (gpu,)), running=True))
    m.send(ev.AppUpdated(dataclasses.replace(app, queue="root.one")))
    m.run(2 * SETTINGS.lease_s)
    assert sum(len(x.gpus) for x in m.a.durable.leases.of("a") if x.state != REVOKING) <= 1


def test_a_move_to_another_virtual_cluster_also_moves_the_apps_clock_and_cells() -> None:
    m, app, _ = running(True)
    m.run(100)
    before = m.a.durable.n_avg("a", m.now)
    m.send(ev.AppUpdated(dataclasses.replace(app, queue="root.b")))
    assert m.a.durable.apps["a"].vc == "root.b"
    assert m.a.durable.n_avg("a", m.now) == pytest.approx(before)
    assert (m.a.durable.clocks["root.a"].count, m.a.durable.clocks["root.b"].count) == (0, 1)
    again = Durable()
    for fact in m.facts:
        again.apply(fact)
    m.send(ev.AppRemoved("a", "FINISHED"))
    assert m.a.durable.clocks["root.b"].count == 0
    m.run(SETTINGS.lease_s)


@pytest.mark.parametrize("queue", ["root.a", "root.nobody"])
def test_without_its_cells_file_a_cluster_has_nobody_who_borrows(queue: str) -> None:
    m, app, container = running(True, queue)
    assert m.a.holdings.borrowing("a") == (0 if queue == "root.a" else 2)
    again = restarted(m, with_cells=False)
    again.send(again.snapshot([app], [container]))
    again.send(ev.AgentUp("a", "a_1", "hyperband", m.a.agents["a"].demand))
    again.run(6)
    assert {x.guaranteed for x in again.a.durable.leases.of("a")} == {True}
    assert again.a.durable.apps["a"].vc == ""
    again.run(again.a.settings.lease_s)  # its lease goes on offer, and it keeps its GPUs
    assert {gpu for x in again.a.durable.leases.of("a") for gpu in x.gpus} == set(container.gpus)


def test_without_yarn_an_app_that_ended_has_an_owner_only_as_long_as_it_has_leases() -> None:
    """Its token is valid for days, and would open streams and get HDFS tokens again."""
    m, app, container = running(False)
    owner = Owner("u", app.submitted_s)
    assert owner_of(restarted(m, False).a, "a") == owner
    m.send(ev.AgentDone("a", True))
    assert owner_of(restarted(m, False).a, "a") == owner, "it says yet what it has released"
    m.send(ev.AppRemoved("a", "FINISHED"))
    m.send(ev.ContainerGone(container.container_id))
    m.send(ev.ClusterLost())
    for a in (m.a, restarted(m, False).a):
        assert owner_of(a, "a") is None
