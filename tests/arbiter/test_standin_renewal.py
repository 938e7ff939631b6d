"""Who keeps what when leases of an app without an Agent end."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest

from pycontrol.arbiter.round import standin
from pycontrol.arbiter.state import HOUR_S
from pycontrol.model import events as ev
from pycontrol.model import tags
from pycontrol.model.auction import AppView, Demand
from pycontrol.model.cluster import Ask, Node
from pycontrol.model.topology import Gpu
from tests.arbiter.mini import SETTINGS, Mini
from tests.arbiter.world import World

LEASE_S = 600.0


def test_containers_one_by_one_are_renewed_in_an_auction_where_nobody_else_waits() -> None:
    m = Mini("themis", dataclasses.replace(SETTINGS, standin_revocable=True))
    app = m.foreign("f", gpus=1, count=2)
    m.run(4)
    for place in m.places():
        m.up(place)
    m.send(ev.AskChanged(Ask(app.attempt_id, "f", 0, 1, 0)))
    before = m.held("f")
    assert len(before) == 2
    m.run(2 * SETTINGS.lease_s, step=5)
    assert m.held("f") == before
    assert not m.of(ev.Preempt)


def test_it_bids_for_the_gpus_that_it_runs_on_before_further_ones() -> None:
    """Its containers cannot move: a win of a GPU elsewhere would end one."""
    m = Mini("themis", dataclasses.replace(SETTINGS, f=0.0), [("n1", 2)])
    app = m.foreign("f", gpus=1)
    m.run(4)
    (place,) = m.places()
    m.up(place)
    m.send(ev.AskChanged(Ask(app.attempt_id, "f", 0, 1, 1)))
    m.send(ev.NodeUp(Node("n2:1", "n2", "r", 1)))
    m.app("wide", gang=2)
    m.run(2 * SETTINGS.lease_s, step=5)
    solve = next(e for e in m.of(ev.Solve) if any(v.app_id == "f" and v.ending for v in e.snapshot.apps))
    rows = solve.bids["f"].rows
    own = ((("n1", 1),),)
    assert [(row.keep, row.new_gangs) for row in rows] == [(own, 0), (own, 1)]
    assert rows[0].rho > rows[1].rho


def test_in_a_virtual_cluster_its_gpus_on_offer_are_counted_by_machine() -> None:
    m = Mini("themis", nodes=[("n1", 2)])
    m.foreign("f", gpus=2, count=2)
    m.run(1)
    demand = Demand(2, 2, 2, 100.0, 100.0, 0.0, members=(2,))
    ending = frozenset(Gpu("n1", k) for k in range(2))
    view = AppView("f", "root.q", 1.0, demand, ending, ((("root.q-machine-0", 2),),))
    bid = standin.bid(m.a.holdings, view, {"root.q-machine-0": 2}, m.now)
    assert [(row.keep, row.new_gangs) for row in bid.rows] == [(view.ending_gangs, 0)]


class Insistent(World):
    """Apps without Agents ask again for each container that they lose."""

    def container_ends(self, container_id: str) -> None:
        lost = self.containers.get(container_id)
        super().container_ends(container_id)
        if lost is not None and lost.app_id in self.apps and lost.app_id not in self.agents:
            self.ask_more(lost.app_id, len(lost.gpus), 1)


def world(policy: str = "isonomy", **changes: object) -> World:
    """Two machines with four GPUs each."""
    machines = [("n0", "r", 4), ("n1", "r", 4)]
    return Insistent(policy, machines=machines, **{"lease_s": LEASE_S, "lead_s": 30, **changes})


def gpus(w: World) -> Counter[str]:
    """GPUs by app."""
    return Counter(c.app_id for c in w.containers.values() for _ in c.gpus)


def lost_rounds(w: World, app_id: str) -> int:
    """Rounds in which the app lost GPUs in the newest hour."""
    recent = w.arbiter.durable.apps[app_id].preempted_s
    return sum(at_s > w.now - HOUR_S for at_s in recent)


@pytest.mark.parametrize("first_s", [5, 200])
def test_an_app_without_an_agent_does_not_keep_a_cluster_for_ever(first_s: float) -> None:
    w = world()
    w.at(first_s, lambda: w.add_app("good", 1, 8, 4_000.0))
    w.at(100, lambda: w.add_foreign("rude", 1, 8, user="v"))
    w.run(2 * (4_000 + 2 * LEASE_S))
    assert "good" not in w.arbiter.durable.live, "equal sharing would have ended it after 8,000 s"
    assert gpus(w) == {"rude": 8}
    w.check()


def test_it_keeps_its_gpus_where_it_is_not_to_lose_them() -> None:
    for settings in ({"standin_revocable": False}, {"exempt_queues": ("root.own",)}):
        w = world(**settings)
        w.add_foreign("rude", 1, 8, queue="root.own", user="v")
        w.at(100, lambda w=w: w.add_app("good", 1, 8, 4_000.0))  # type: ignore[misc]
        w.run(4 * LEASE_S)
        assert gpus(w) == {"rude": 8}


def test_the_container_of_its_master_is_never_revoked() -> None:
    w = world()
    w.ids = itertools.chain(["ontainer_1_0001_01_000001"], itertools.count(2))  # type: ignore[assignment]
    w.add_foreign("rude", 1, 8, user="v")
    w.at(100, lambda: w.add_app("good", 1, 8, 4_000.0))
    seen = set()
    for k in range(1, 12):
        w.run(k * LEASE_S)
        assert "container_1_0001_01_000001" in w.containers
        seen.add(gpus(w)["rude"])
    assert 1 in seen, "it lost all others"


@pytest.mark.parametrize(("most", "policy"), [(3, "isonomy"), (1, "isonomy"), (3, "tiresias"), (0, "max_min")])
def test_it_loses_gpus_no_more_than_some_times_an_hour(most: int, policy: str) -> None:
    w = world(policy, lease_s=120.0, preemptions_per_hour=most)
    w.add_foreign("rude", 1, 8, user="v")
    for k in range(25):
        w.at(60 + 290 * k, lambda k=k: w.add_app(f"s{k}", 1, 8, 100.0))  # type: ignore[misc]
    seen = 0
    for k in range(1, 60):
        w.run(120 * k)
        assert lost_rounds(w, "rude") <= most
        seen = max(seen, lost_rounds(w, "rude"))
    assert seen == most
    w.crash()
    assert lost_rounds(w, "rude") <= most


def test_who_may_lose_gpus_again_does_so_at_the_end_of_the_present_lease() -> None:
    """An app with three losses in this hour renews its leases until one of them is an hour old."""
    w = world(lease_s=120.0)
    w.add_foreign("rude", 1, 8, user="v")
    w.run(60)
    w.arbiter.durable.apps["rude"].preempted_s = [w.now] * 3
    w.add_app("good", 1, 8, 4_000.0)
    w.run(60 + HOUR_S - 130)
    assert gpus(w) == {"rude": 8}
    w.run(60 + HOUR_S + 250)
    assert gpus(w)["good"] > 0


def test_a_busy_loop_does_not_hold_an_interactive_gpu_for_ever() -> None:
    w = world(interactive_gpus=8)
    w.add_foreign("loop", 1, 8, tags=[tags.INTERACTIVE], user="v")
    w.at(100, lambda: w.add_app("good", 1, 8, 4_000.0))
    w.run(8_000 + 3 * LEASE_S)
    assert "good" not in w.arbiter.durable.live


@pytest.mark.parametrize("comes_s", [745, 760, 775])
def test_whoever_comes_shortly_before_the_end_takes_no_container_of_a_master(comes_s: float) -> None:
    w = world()
    w.ids = itertools.chain(["ontainer_1_0001_01_000001"], itertools.count(2))
    w.add_foreign("rude", 1, 8, user="v")
    w.run(comes_s)
    w.add_app("good", 8, 1, 800.0)
    w.submit(ev.OperatorCommand("boost", "app good", "root", for_s=3_000))
    w.run(2_000)
    (master,) = (c for c in w.containers.values() if c.is_master)
    assert w.arbiter.durable.leases[master.gpus[0]].state == "active"


def test_what_waits_for_gpus_of_an_app_that_is_ended_never_starts() -> None:
    m = Mini(settings=dataclasses.replace(SETTINGS, lead_s=60.0), nodes=[("n1", 2)])
    (busy,) = m.start_app("busy", gang=2, work=1e9)
    m.foreign("f", 1, 2)
    m.send(ev.OperatorCommand("boost", "app f", "root", for_s=9_000))
    while not m.a.durable.reservations:
        m.run(1)
    m.send(ev.OperatorCommand("kill", "f", "root"))
    m.send(ev.ContainerGone(busy.container_id))
    m.run(5)
    assert [p.ask.app_id for p in m.places()] == []
    assert not m.held("f")


def test_a_drained_machine_gets_no_container_of_a_gang_that_waits_for_others() -> None:
    m = Mini(settings=dataclasses.replace(SETTINGS, lead_s=60.0), nodes=[("n1", 2), ("n2", 2)])
    (busy,) = m.start_app("busy", gang=2, work=1e9)
    m.foreign("f", 2, 2, tags=[f"{tags.GANG}=2"])
    m.send(ev.OperatorCommand("boost", "app f", "root", for_s=9_000))
    while not m.a.durable.reservations:
        m.run(1)
    other = {"n1": "n2", "n2": "n1"}[busy.gpus[0].host]
    m.send(ev.OperatorCommand("drain", other, "root"))
    m.send(ev.ContainerGone(busy.container_id))
    m.run(50)
    assert other not in {p.gpus[0].host for p in m.places()}
    assert not [x for x in m.a.durable.leases.each() if x.gpus[0].host == other]


@pytest.mark.parametrize(("left", "started"), [(0, 0), (1, 1), (2, 2)])
def test_what_is_no_longer_asked_for_keeps_no_gpus_that_are_being_revoked_for_it(left: int, started: int) -> None:
    """As when Spark's dynamic allocation lowers its target at a stage's end."""
    m = Mini(settings=dataclasses.replace(SETTINGS, lead_s=60.0), nodes=[("n1", 2)])
    (busy,) = m.start_app("busy", gang=2, work=1e9)
    spark = m.foreign("spark", 1, 2)
    m.send(ev.OperatorCommand("boost", "app spark", "root", for_s=9_000))
    while not m.a.durable.reservations:
        m.run(1)
    m.send(ev.AskChanged(Ask(spark.attempt_id, "spark", 0, 1, left)))
    m.send(ev.ContainerGone(busy.container_id))
    m.foreign("other", 1, 2)
    m.run(5)
    assert Counter(p.ask.app_id for p in m.places()) == +Counter(spark=started, other=2 - started)


def test_a_gang_of_which_a_container_is_no_longer_asked_for_gives_its_gpus_up_whole() -> None:
    m = Mini(settings=dataclasses.replace(SETTINGS, lead_s=60.0), nodes=[("n1", 2), ("n2", 2)])
    m.start_app("busy", gang=2, work=1e9)
    f = m.foreign("f", 2, 2, tags=[f"{tags.GANG}=2"])
    m.send(ev.OperatorCommand("boost", "app f", "root", for_s=9_000))
    while not m.a.durable.reservations:
        m.run(1)
    assert len(m.held("f")) == 2, "and the other machine"
    m.send(ev.AskChanged(Ask(f.attempt_id, "f", 0, 2, 1)))
    assert not m.held("f")
    assert not m.a.durable.reservations


def test_what_waits_for_gpus_keeps_them_while_a_new_resource_manager_has_no_asks_yet() -> None:
    m = Mini(settings=dataclasses.replace(SETTINGS, lead_s=60.0, recovery_s=30.0), nodes=[("n1", 2)])
    m.run(40, step=40)
    (busy,) = m.start_app("busy", gang=2, work=1e9)
    f = m.foreign("f", 1, 2)
    m.send(ev.OperatorCommand("boost", "app f", "root", for_s=9_000))
    while not m.a.durable.reservations:
        m.run(1)
    coming = list(m.a.durable.reservations.each())
    m.send(ev.ClusterLost())
    m.send(m.snapshot(m.a.cluster.apps.values(), [busy]))
    m.run(10)
    m.send(ev.AskChanged(Ask(f.attempt_id, "f", 0, 1, 2)))
    m.run(40)
    assert list(m.a.durable.reservations.each()) == coming
