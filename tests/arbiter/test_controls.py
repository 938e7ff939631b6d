"""Users' options for which GPUs they take, and from whom: on the path from an Agent's demand to the cells."""

from __future__ import annotations

import dataclasses

import pytest

from pycontrol.arbiter.ledger.lease import gpus_in
from pycontrol.model import events as ev
from pycontrol.model.topology import Scope
from pycontrol.policies.policy_port import Policy
from pycontrol.queries.explain import explain
from tests.arbiter.world import World
from tests.cells.files import supply_of
from tests.policies.scripted import Scripted

MACHINES = (("n1", "a", 4), ("n2", "a", 4), ("n3", "b", 4), ("n4", "b", 4))
TYPES = """
cell_types:
  switch: {child: gpu, count: 2}
  node: {child: switch, count: 2, node_level: true}
physical_cells:
  - {type: node, hosts: [n1]}
  - {type: node, hosts: [n2]}
  - {type: node, hosts: [n3]}
  - {type: node, hosts: [n4], pinned_id: corner}
"""
EVER = 1e7


def world(
    owners: str, policy: str | Policy = "isonomy", machines: tuple[tuple[str, str, int], ...] = MACHINES
) -> World:
    cells = f"{TYPES}virtual_clusters: {owners}"
    return World(policy, supply=cells, machines=machines, lease_s=60, lead_s=6, f=0.0)


@pytest.mark.parametrize("policy", ["isonomy", "themis", "tiresias", "oef"])
def test_a_gang_within_a_switch_waits_rather_than_spread_over_two(policy: str) -> None:
    """Both switches of the only node are half used: two GPUs are free, but not in the same switch."""
    w = world("{root.a: {node: 1}, root.b: {node: 2, pinned: [corner]}}", policy)
    w.add_app("b", 4, 3, EVER, "root.b")
    ones = [w.add_app(f"one{k}", 1, 1, EVER, "root.a", within="switch") for k in range(4)]
    w.wait(20)
    assert sum(len(x) for a in ones for x in w.places(a.app_id).values()) == 4
    host = next(iter(w.places("one0")))
    by_switch: dict[int, list[str]] = {}
    for a in ones:
        by_switch.setdefault(w.places(a.app_id)[host][0] // 2, []).append(a.app_id)
    for mates in by_switch.values():
        w.finish(w.agents[mates[0]])
    w.add_app("two", 2, 1, EVER, "root.a", within="switch", scope=Scope.MACHINE)
    w.add_app("wide", 2, 1, EVER, "root.a")
    w.wait(20)
    assert w.places("two") == {}
    assert w.why("two") in ("CellsInUse", "NoRoomWithin")
    assert sum(map(len, w.places("wide").values())) == 2, "who does not mind takes them"
    w.finish(w.agents[next(iter(by_switch.values()))[1]])
    w.finish(w.agents["wide"])
    w.wait(100)
    (found,) = w.places("two").values()
    assert found[0] // 2 == found[1] // 2


@pytest.mark.parametrize("policy", ["isonomy", "themis", "worst_first", "tiresias", "yarn_cs"])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_gang_that_won_room_within_a_switch_has_it_at_the_next_common_end(policy: str, lazy: bool) -> None:
    """Two GPUs are free, one in each switch: the app on the other GPU of a switch moves to the free one elsewhere."""
    w = world("{root.a: {node: 1}, root.b: {node: 2, pinned: [corner]}}", policy)
    w.add_app("b", 4, 3, EVER, "root.b")
    ones = [w.add_app(f"one{k}", 1, 1, EVER, "root.a", lazy=lazy) for k in range(4)]
    w.wait(20)
    by_switch: dict[int, list[str]] = {}
    for a in ones:
        ((_, (gpu,)),) = w.places(a.app_id).items()
        by_switch.setdefault(gpu // 2, []).append(a.app_id)
    gone = [mates[0] for mates in by_switch.values()]
    for app_id in gone:
        w.finish(w.agents[app_id])
    w.add_app("two", 2, 1, EVER, "root.a", within="switch", scope=Scope.MACHINE)
    w.wait(150)
    (found,) = w.places("two").values()
    assert found[0] // 2 == found[1] // 2
    stays = [a.app_id for a in ones if a.app_id not in gone]
    assert [sum(map(len, w.places(a).values())) for a in stays] == [1, 1]
    w.wait(400)
    assert [len(w.places(a)) for a in ("two", *stays)] == [1, 1, 1]


@pytest.mark.parametrize("owner", ["root.a", "root.nobody"])
def test_the_last_pass_gives_no_gang_that_the_cells_would_refuse(owner: str) -> None:
    """This holds lease after lease, on own and borrowed cells. When a switch is free, the gang gets it."""
    w = world("{root.a: {node: 1}, root.b: {node: 3}}", Scripted())
    w.add_app("b", 4, 3 if owner == "root.a" else 4, EVER, "root.b")
    w.wait(20)
    if owner != "root.a":
        w.finish(w.agents["b"])
        w.add_app("b3", 4, 3, EVER, "root.b")
        w.wait(20)
    ones = [w.add_app(f"one{k}", 1, 1, EVER, owner) for k in range(4)]
    w.wait(20)
    by_switch: dict[int, list[str]] = {}
    for a in ones:
        ((_, (gpu,)),) = w.places(a.app_id).items()
        by_switch.setdefault(gpu // 2, []).append(a.app_id)
    assert sorted(map(len, by_switch.values())) == [2, 2]
    for mates in by_switch.values():
        w.finish(w.agents[mates[0]])
    w.add_app("two", 2, 1, EVER, owner, within="switch", scope=Scope.MACHINE)
    w.wait(300)
    assert w.places("two") == {}
    assert not any(r.done.refused for r in w.arbiter.receipts if r.outcome is not None)
    w.finish(w.agents[by_switch[0][1]])
    w.wait(100)
    ((_, found),) = w.places("two").items()
    assert sorted(found) == [0, 1]


def test_borrowed_gpus_too_are_within_a_switch() -> None:
    w = world("{root.a: {node: 1}}")
    w.add_app("x", 2, 6, EVER, "root.x", within="switch", scope=Scope.MACHINE)
    w.wait(20)
    groups = [x.gpus for x in w.containers.values()]
    assert len(groups) >= 6
    assert all(gpus[0].index // 2 == gpus[1].index // 2 for gpus in groups)


def test_an_app_that_fits_no_cell_gets_that_reason() -> None:
    w = world("{root.a: {node: 1}}")
    w.add_app("large", 3, 1, EVER, "root.a", within="switch", scope=Scope.MACHINE)
    w.add_app("odd", 2, 1, EVER, "root.a", within="socket", scope=Scope.MACHINE)
    w.add_app("pin", 2, 1, EVER, "root.a", pinned="corner")
    w.add_app("none", 2, 1, EVER, "root.x", pinned="corner")
    w.wait(100)
    assert not w.containers
    assert [w.why(a) for a in ("large", "odd", "pin", "none")] == [
        "CellsTooSmall",
        "CellsTooSmall",
        "NoSuchCells",
        "NoSuchCells",
    ]


def test_a_pinned_app_runs_in_its_cell_or_not_at_all() -> None:
    w = world("{root.a: {node: 1, pinned: [corner]}, root.b: {node: 1}}")
    w.add_app("a", 2, 1, EVER, "root.a", pinned="corner")
    w.wait(20)
    assert list(w.places("a")) == ["n4"]
    w.add_app("more", 2, 3, EVER, "root.a", pinned="corner")
    w.wait(100)
    assert list(w.places("more")) == ["n4"]
    assert w.why("more") == "CellsInUse"
    assert w.arbiter.gpus.free.count == 12, "idle GPUs elsewhere are not what it asked for"


def test_a_pinned_app_gets_its_cell_back_from_the_borrower() -> None:
    w = world("{root.a: {pinned: [corner]}, root.b: {node: 1}}")
    w.add_app("x", 1, 16, EVER, "root.x")
    w.wait(20)
    assert w.arbiter.gpus.free.count == 0
    w.add_app("a", 4, 1, EVER, "root.a", pinned="corner")
    w.wait(25)
    assert w.places("a") == {"n4": [0, 1, 2, 3]}


@pytest.mark.parametrize("policy", ["isonomy", "themis"])
def test_an_opportunistic_app_uses_no_guarantee_and_gives_way(policy: str) -> None:
    w = world("{root.a: {node: 2}, root.b: {node: 2}}", policy)
    w.add_app("cheap", 2, 8, EVER, "root.a", opportunistic=True)
    w.wait(20)
    assert len(gpus_in(w.arbiter.durable.leases.of("cheap"))) == 16
    assert not any(x.guaranteed for x in w.arbiter.durable.leases.of("cheap"))
    w.add_app("dear", 4, 2, EVER, "root.a")
    w.wait(25)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("dear") for _ in x.gpus] == [True] * 8
    w.wait(200)
    assert not any(x.guaranteed for x in w.arbiter.durable.leases.of("cheap"))
    w.add_app("b", 4, 2, EVER, "root.b")
    w.wait(100)
    assert w.why("cheap") == "Opportunistic"


def test_an_opportunistic_app_owns_nothing_after_a_lost_journal_either() -> None:
    from pycontrol.arbiter.core import Arbiter
    from pycontrol.arbiter.ledger.durable import Durable

    w = world("{root.a: {node: 2}}")
    w.add_app("cheap", 2, 8, EVER, "root.a", opportunistic=True)
    w.wait(20)
    w.journal = []
    w.supply = supply_of(f"{TYPES}virtual_clusters: {{root.a: {{node: 2}}}}")
    w.arbiter = Arbiter(w.settings, w.policy, Durable(), epoch=2, supply=w.supply)
    w.submit(w.snapshot())
    w.submit(ev.AgentUp("cheap", "", "hyperband", w.agents["cheap"].demand()))
    assert len(gpus_in(w.arbiter.durable.leases.of("cheap"))) == 16
    assert not any(x.guaranteed for x in w.arbiter.durable.leases.of("cheap"))
    w.wait(10)
    w.add_app("dear", 4, 2, EVER, "root.a")
    w.wait(30)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("dear") for _ in x.gpus] == [True] * 8


@pytest.mark.parametrize("lazy", [True, False])
def test_lazy_preemption_takes_the_guarantee_and_leaves_the_gpus(lazy: bool) -> None:
    """An app of a higher priority wins the queue's only node; another node is idle, so no app has to stop."""
    w = world("{root.a: {node: 1}, root.b: {node: 2}}")
    low = w.add_app("low", 4, 1, EVER, "root.a", lazy=lazy)
    w.wait(20)
    (before,) = w.places("low")
    w.add_app("high", 4, 1, EVER, "root.a", priority=5)
    w.wait(120)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("high") for _ in x.gpus] == [True] * 4
    assert low.launches["j0"] == (1 if lazy else 2)
    if lazy:
        assert list(w.places("low")) == [before]
        assert [x.guaranteed for x in w.arbiter.durable.leases.of("low") for _ in x.gpus] == [False] * 4
    w.add_app("b", 4, 4, EVER, "root.b")
    w.wait(60)
    w.finish(w.agents["high"])
    w.wait(100)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("low") for _ in x.gpus] == [True] * 4, (
        "it owns its queue's cells again"
    )


def test_a_gang_that_was_lazily_preempted_gives_way_where_it_is_in_the_way() -> None:
    w = world("{root.a: {node: 1}, root.b: {node: 2, pinned: [corner]}}")
    w.add_app("b", 4, 3, EVER, "root.b")
    w.add_app("low", 4, 1, EVER, "root.a", lazy=True)
    w.wait(20)
    assert w.places("low")
    w.add_app("high", 4, 1, EVER, "root.a", priority=5)
    w.wait(100)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("high") for _ in x.gpus] == [True] * 4
    assert w.places("low") == {}


def test_a_gang_within_a_rack_is_bound_to_one_rack() -> None:
    """The queue's cells may be bound anywhere, but two cells for one gang are bound in one rack."""
    w = world("{root.a: {node: 2}, root.b: {node: 1}}")
    for k in range(6):
        w.add_app(f"a{k}", 8, 1, 300, "root.a", scope=Scope.RACK)
        w.add_app(f"b{k}", 4, 1, 100, "root.b")
    racks = {h: r for h, r, _ in MACHINES}
    seen = 0
    for _ in range(60):
        w.wait(10)
        for k in range(6):
            hosts = {gpu.host for x in w.arbiter.durable.leases.of(f"a{k}") if x.state != "revoking" for gpu in x.gpus}
            seen += len(hosts) == 2
            assert len({racks[h] for h in hosts}) <= 1
    assert seen


def test_explain_tells_what_was_asked_for() -> None:
    w = world("{root.a: {node: 1, pinned: [corner]}}")
    w.add_app("a", 2, 1, EVER, "root.a", priority=3, pinned="corner", within="switch", scope=Scope.MACHINE, lazy=True)
    w.add_app("rack", 2, 1, EVER, "root.a", scope=Scope.RACK, opportunistic=True)
    w.wait(5)
    told = explain(w.arbiter, w.now, {"app": "a"})["controls"]
    assert told == {
        "priority": 3,
        "boost": None,
        "opportunistic": False,
        "lazy_preemption": True,
        "within": "switch",
        "segments": "",
        "pinned": "corner",
        "declared": "",
        "unsaved": False,
    }
    told = explain(w.arbiter, w.now, {"app": "rack"})["controls"]
    assert (told["within"], told["opportunistic"]) == ("rack", True)


def test_an_owner_with_a_new_demand_is_served_although_no_gpu_is_free() -> None:
    """Borrowers hold every GPU: a demand that arrives after the app also requests a round."""
    w = world("{root.a: {node: 2}}")
    owner = w.add_app("owner", 4, 1, EVER, "root.a")
    w.add_app("x", 1, 12, EVER, "root.x")
    w.wait(30)
    assert w.arbiter.gpus.free.count == 0
    owner.work["j1"] = EVER
    w.submit(ev.ProgressReported("owner", owner.demand(), ()))
    w.wait(15)
    assert len(gpus_in(w.arbiter.durable.leases.of("owner"))) == 8


def test_a_raised_priority_counts_at_the_next_end_of_leases() -> None:
    w = world("{root.a: {node: 1}, root.b: {node: 2, pinned: [corner]}}")
    w.add_app("b", 4, 3, EVER, "root.b")
    w.add_app("first", 4, 1, EVER, "root.a")
    w.wait(20)
    w.add_app("second", 4, 1, 2 * EVER, "root.a")
    w.wait(100)
    assert w.places("second") == {}
    w.apps["second"] = dataclasses.replace(w.apps["second"], priority=7)
    w.submit(ev.AppUpdated(w.apps["second"]))
    w.wait(100)
    assert len(gpus_in(w.arbiter.durable.leases.of("second"))) == 4


def test_a_receipt_says_since_when_the_served_apps_waited() -> None:
    w = world("{root.a: {node: 1}, root.b: {node: 2}}")
    w.add_app("first", 4, 1, EVER, "root.a")
    w.add_app("b", 4, 3, EVER, "root.b")
    w.wait(20)
    asked_s = w.now
    w.add_app("second", 4, 1, EVER, "root.a")
    w.wait(50)
    w.finish(w.agents["first"])
    w.wait(20)
    (receipt,) = [r for r in w.arbiter.receipts if any(g.app_id == "second" for g in r.done.granted)]
    assert receipt.asked_s["second"] == pytest.approx(asked_s)
    assert receipt.at_s > asked_s + 45
    w.submit(ev.OperatorCommand("pause"))
    w.submit(ev.OperatorCommand("resume"))
    w.add_app("third", 4, 1, EVER, "root.a")
    assert set(w.arbiter.agents.unmet_since_s) >= {"third"}


def test_a_copy_of_what_agents_said_has_all_of_it() -> None:
    """Queries read a copy."""
    w = world("{root.a: {node: 1}}")
    owner = w.add_app("owner", 1, 1, EVER, "root.a")
    w.wait(5)
    w.submit(ev.ProgressReported("owner", owner.demand(), (), 1.0, (("UI", "http://n1:80"),)))
    agents = w.arbiter.agents
    assert agents.copy()["owner"] == agents["owner"]
    assert explain(w.arbiter, w.now, {"app": "owner"})["links"] == [{"label": "UI", "url": "http://n1:80"}]
