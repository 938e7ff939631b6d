"""Users' options for which GPUs they take, and from whom: on the path from an Agent's demand to the cells."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

import pytest

from pycontrol.arbiter.ledger.lease import gpus_in
from pycontrol.arbiter.supply.cells import CellSupply
from pycontrol.arbiter.views.settings import Settings
from pycontrol.cells.config import CellsFile, layout
from pycontrol.config import parse
from pycontrol.model import events as ev
from pycontrol.model.auction import Bid, Offer, Plan, Snapshot
from pycontrol.model.topology import Scope
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.port import Policy
from pycontrol.policies.registry import make
from pycontrol.queries.explain import explain
from pycontrol.queries.reasons import reason
from tests.arbiter.world import World

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
    how = Settings(lease_s=60, lead_s=6, grant_timeout_s=20, recovery_s=2, round_retry_s=3, f=0.0)
    text = f"{TYPES}virtual_clusters: {owners}"
    supply = CellSupply(layout(parse(text, CellsFile, "cells.yaml"), name="cells.yaml"))
    return World(ByVirtualCluster(make(policy) if isinstance(policy, str) else policy), 0, how, supply, machines)


def later(w: World, s: float) -> None:
    """Lets this many seconds pass."""
    w.run(w.now - 1000 + s)


def places(w: World, app_id: str) -> dict[str, list[int]]:
    """The GPUs of an app's containers, by host."""
    found: dict[str, list[int]] = {}
    for c in w.containers.values():
        if c.app_id == app_id:
            for gpu in c.gpus:
                found.setdefault(gpu.host, []).append(gpu.index)
    return found


def why(w: World, app_id: str) -> str:
    return reason(w.arbiter, app_id, w.now).code


@pytest.mark.parametrize("policy", ["isonomy", "themis", "tiresias", "oef"])
def test_a_gang_within_a_switch_waits_rather_than_spread_over_two(policy: str) -> None:
    """Both switches of the only node are half used: two GPUs are free, but not in the same switch."""
    w = world("{root.a: {node: 1}, root.b: {node: 2, pinned: [corner]}}", policy)
    w.add_app("b", 4, 3, EVER, "root.b")
    ones = [w.add_app(f"one{k}", 1, 1, EVER, "root.a", within="switch") for k in range(4)]
    later(w, 20)
    assert sum(len(x) for a in ones for x in places(w, a.app_id).values()) == 4
    host = next(iter(places(w, "one0")))
    by_switch: dict[int, list[str]] = {}
    for a in ones:
        by_switch.setdefault(places(w, a.app_id)[host][0] // 2, []).append(a.app_id)
    for mates in by_switch.values():
        w.finish(w.agents[mates[0]])
    w.add_app("two", 2, 1, EVER, "root.a", within="switch", scope=Scope.MACHINE)
    w.add_app("wide", 2, 1, EVER, "root.a")
    later(w, 20)
    assert places(w, "two") == {}
    assert why(w, "two") in ("CellsInUse", "NoRoomWithin")
    assert sum(map(len, places(w, "wide").values())) == 2, "who does not mind takes them"
    w.finish(w.agents[next(iter(by_switch.values()))[1]])
    w.finish(w.agents["wide"])
    later(w, 100)
    (found,) = places(w, "two").values()
    assert found[0] // 2 == found[1] // 2


@pytest.mark.parametrize("policy", ["isonomy", "themis", "worst_first", "tiresias", "yarn_cs"])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_gang_that_won_room_within_a_switch_has_it_at_the_next_common_end(policy: str, lazy: bool) -> None:
    """Two GPUs are free, one in each switch: the app on the other GPU of a switch moves to the free one elsewhere."""
    w = world("{root.a: {node: 1}, root.b: {node: 2, pinned: [corner]}}", policy)
    w.add_app("b", 4, 3, EVER, "root.b")
    ones = [w.add_app(f"one{k}", 1, 1, EVER, "root.a", lazy=lazy) for k in range(4)]
    later(w, 20)
    by_switch: dict[int, list[str]] = {}
    for a in ones:
        ((_, (gpu,)),) = places(w, a.app_id).items()
        by_switch.setdefault(gpu // 2, []).append(a.app_id)
    gone = [mates[0] for mates in by_switch.values()]
    for app_id in gone:
        w.finish(w.agents[app_id])
    w.add_app("two", 2, 1, EVER, "root.a", within="switch", scope=Scope.MACHINE)
    later(w, 150)
    (found,) = places(w, "two").values()
    assert found[0] // 2 == found[1] // 2
    stays = [a.app_id for a in ones if a.app_id not in gone]
    assert [sum(map(len, places(w, a).values())) for a in stays] == [1, 1]
    later(w, 400)
    assert [len(places(w, a)) for a in ("two", *stays)] == [1, 1, 1]


class GivesNothing:
    """A policy that leaves all to the last pass."""

    name, asks_agents = "gives_nothing", False

    def offer(self, snapshot: Snapshot) -> Offer | None:
        return None

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        return Plan(snapshot.round_id, ())


@pytest.mark.parametrize("owner", ["root.a", "root.nobody"])
def test_the_last_pass_gives_no_gang_that_the_cells_would_refuse(owner: str) -> None:
    """This holds lease after lease, on own and borrowed cells. When a switch is free, the gang gets it."""
    w = world("{root.a: {node: 1}, root.b: {node: 3}}", GivesNothing())
    w.add_app("b", 4, 3 if owner == "root.a" else 4, EVER, "root.b")
    later(w, 20)
    if owner != "root.a":
        w.finish(w.agents["b"])
        w.add_app("b3", 4, 3, EVER, "root.b")
        later(w, 20)
    ones = [w.add_app(f"one{k}", 1, 1, EVER, owner) for k in range(4)]
    later(w, 20)
    by_switch: dict[int, list[str]] = {}
    for a in ones:
        ((_, (gpu,)),) = places(w, a.app_id).items()
        by_switch.setdefault(gpu // 2, []).append(a.app_id)
    assert sorted(map(len, by_switch.values())) == [2, 2]
    for mates in by_switch.values():
        w.finish(w.agents[mates[0]])
    w.add_app("two", 2, 1, EVER, owner, within="switch", scope=Scope.MACHINE)
    later(w, 300)
    assert places(w, "two") == {}
    assert not any(r.done.refused for r in w.arbiter.receipts if r.outcome is not None)
    w.finish(w.agents[by_switch[0][1]])
    later(w, 100)
    ((_, found),) = places(w, "two").items()
    assert sorted(found) == [0, 1]


def test_borrowed_gpus_too_are_within_a_switch() -> None:
    w = world("{root.a: {node: 1}}")
    w.add_app("x", 2, 6, EVER, "root.x", within="switch", scope=Scope.MACHINE)
    later(w, 20)
    groups = [x.gpus for x in w.containers.values()]
    assert len(groups) >= 6
    assert all(gpus[0].index // 2 == gpus[1].index // 2 for gpus in groups)


def test_an_app_that_fits_no_cell_gets_that_reason() -> None:
    w = world("{root.a: {node: 1}}")
    w.add_app("large", 3, 1, EVER, "root.a", within="switch", scope=Scope.MACHINE)
    w.add_app("odd", 2, 1, EVER, "root.a", within="socket", scope=Scope.MACHINE)
    w.add_app("pin", 2, 1, EVER, "root.a", pinned="corner")
    w.add_app("none", 2, 1, EVER, "root.x", pinned="corner")
    later(w, 100)
    assert not w.containers
    assert [why(w, a) for a in ("large", "odd", "pin", "none")] == [
        "CellsTooSmall",
        "CellsTooSmall",
        "NoSuchCells",
        "NoSuchCells",
    ]


def test_a_pinned_app_runs_in_its_cell_or_not_at_all() -> None:
    w = world("{root.a: {node: 1, pinned: [corner]}, root.b: {node: 1}}")
    w.add_app("a", 2, 1, EVER, "root.a", pinned="corner")
    later(w, 20)
    assert list(places(w, "a")) == ["n4"]
    w.add_app("more", 2, 3, EVER, "root.a", pinned="corner")
    later(w, 100)
    assert list(places(w, "more")) == ["n4"]
    assert why(w, "more") == "CellsInUse"
    assert w.arbiter.gpus.free.count == 12, "idle GPUs elsewhere are not what it asked for"


def test_a_pinned_app_gets_its_cell_back_from_the_borrower() -> None:
    w = world("{root.a: {pinned: [corner]}, root.b: {node: 1}}")
    w.add_app("x", 1, 16, EVER, "root.x")
    later(w, 20)
    assert w.arbiter.gpus.free.count == 0
    w.add_app("a", 4, 1, EVER, "root.a", pinned="corner")
    later(w, 25)
    assert places(w, "a") == {"n4": [0, 1, 2, 3]}


@pytest.mark.parametrize("policy", ["isonomy", "themis"])
def test_an_opportunistic_app_uses_no_guarantee_and_gives_way(policy: str) -> None:
    w = world("{root.a: {node: 2}, root.b: {node: 2}}", policy)
    w.add_app("cheap", 2, 8, EVER, "root.a", opportunistic=True)
    later(w, 20)
    assert len(gpus_in(w.arbiter.durable.leases.of("cheap"))) == 16
    assert not any(x.guaranteed for x in w.arbiter.durable.leases.of("cheap"))
    w.add_app("dear", 4, 2, EVER, "root.a")
    later(w, 25)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("dear") for _ in x.gpus] == [True] * 8
    later(w, 200)
    assert not any(x.guaranteed for x in w.arbiter.durable.leases.of("cheap"))
    w.add_app("b", 4, 2, EVER, "root.b")
    later(w, 100)
    assert why(w, "cheap") == "Opportunistic"


def test_an_opportunistic_app_owns_nothing_after_a_lost_journal_either() -> None:
    from pycontrol.arbiter.core import Arbiter
    from pycontrol.arbiter.ledger.durable import Durable

    w = world("{root.a: {node: 2}}")
    w.add_app("cheap", 2, 8, EVER, "root.a", opportunistic=True)
    later(w, 20)
    w.journal = []
    w.supply = CellSupply(layout(parse(f"{TYPES}virtual_clusters: {{root.a: {{node: 2}}}}", CellsFile, "c"), name="c"))
    w.arbiter = Arbiter(w.settings, w.policy, Durable(), epoch=2, supply=w.supply)
    w.submit(w.snapshot())
    w.submit(ev.AgentUp("cheap", "", "hyperband", w.agents["cheap"].demand()))
    assert len(gpus_in(w.arbiter.durable.leases.of("cheap"))) == 16
    assert not any(x.guaranteed for x in w.arbiter.durable.leases.of("cheap"))
    later(w, 10)
    w.add_app("dear", 4, 2, EVER, "root.a")
    later(w, 30)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("dear") for _ in x.gpus] == [True] * 8


@pytest.mark.parametrize("lazy", [True, False])
def test_lazy_preemption_takes_the_guarantee_and_leaves_the_gpus(lazy: bool) -> None:
    """An app of a higher priority wins the queue's only node; another node is idle, so no app has to stop."""
    w = world("{root.a: {node: 1}, root.b: {node: 2}}")
    low = w.add_app("low", 4, 1, EVER, "root.a", lazy=lazy)
    later(w, 20)
    (before,) = places(w, "low")
    w.add_app("high", 4, 1, EVER, "root.a", priority=5)
    later(w, 120)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("high") for _ in x.gpus] == [True] * 4
    assert low.launches["j0"] == (1 if lazy else 2)
    if lazy:
        assert list(places(w, "low")) == [before]
        assert [x.guaranteed for x in w.arbiter.durable.leases.of("low") for _ in x.gpus] == [False] * 4
    w.add_app("b", 4, 4, EVER, "root.b")
    later(w, 60)
    w.finish(w.agents["high"])
    later(w, 100)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("low") for _ in x.gpus] == [True] * 4, (
        "it owns its queue's cells again"
    )


def test_a_gang_that_was_lazily_preempted_gives_way_where_it_is_in_the_way() -> None:
    w = world("{root.a: {node: 1}, root.b: {node: 2, pinned: [corner]}}")
    w.add_app("b", 4, 3, EVER, "root.b")
    w.add_app("low", 4, 1, EVER, "root.a", lazy=True)
    later(w, 20)
    assert places(w, "low")
    w.add_app("high", 4, 1, EVER, "root.a", priority=5)
    later(w, 100)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("high") for _ in x.gpus] == [True] * 4
    assert places(w, "low") == {}


def test_a_gang_within_a_rack_is_bound_to_one_rack() -> None:
    """The queue's cells may be bound anywhere, but two cells for one gang are bound in one rack."""
    w = world("{root.a: {node: 2}, root.b: {node: 1}}")
    for k in range(6):
        w.add_app(f"a{k}", 8, 1, 300, "root.a", scope=Scope.RACK)
        w.add_app(f"b{k}", 4, 1, 100, "root.b")
    racks = {h: r for h, r, _ in MACHINES}
    seen = 0
    for _ in range(60):
        later(w, 10)
        for k in range(6):
            hosts = {gpu.host for x in w.arbiter.durable.leases.of(f"a{k}") if x.state != "revoking" for gpu in x.gpus}
            seen += len(hosts) == 2
            assert len({racks[h] for h in hosts}) <= 1
    assert seen


def test_explain_tells_what_was_asked_for() -> None:
    w = world("{root.a: {node: 1, pinned: [corner]}}")
    w.add_app("a", 2, 1, EVER, "root.a", priority=3, pinned="corner", within="switch", scope=Scope.MACHINE, lazy=True)
    w.add_app("rack", 2, 1, EVER, "root.a", scope=Scope.RACK, opportunistic=True)
    later(w, 5)
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
    later(w, 30)
    assert w.arbiter.gpus.free.count == 0
    owner.work["j1"] = EVER
    w.submit(ev.ProgressReported("owner", owner.demand(), ()))
    later(w, 15)
    assert len(gpus_in(w.arbiter.durable.leases.of("owner"))) == 8


def test_a_raised_priority_counts_at_the_next_end_of_leases() -> None:
    w = world("{root.a: {node: 1}, root.b: {node: 2, pinned: [corner]}}")
    w.add_app("b", 4, 3, EVER, "root.b")
    w.add_app("first", 4, 1, EVER, "root.a")
    later(w, 20)
    w.add_app("second", 4, 1, 2 * EVER, "root.a")
    later(w, 100)
    assert places(w, "second") == {}
    w.apps["second"] = dataclasses.replace(w.apps["second"], priority=7)
    w.submit(ev.AppUpdated(w.apps["second"]))
    later(w, 100)
    assert len(gpus_in(w.arbiter.durable.leases.of("second"))) == 4


def test_a_receipt_says_since_when_the_served_apps_waited() -> None:
    w = world("{root.a: {node: 1}, root.b: {node: 2}}")
    w.add_app("first", 4, 1, EVER, "root.a")
    w.add_app("b", 4, 3, EVER, "root.b")
    later(w, 20)
    asked_s = w.now
    w.add_app("second", 4, 1, EVER, "root.a")
    later(w, 50)
    w.finish(w.agents["first"])
    later(w, 20)
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
    later(w, 5)
    w.submit(ev.ProgressReported("owner", owner.demand(), (), 1.0, (("UI", "http://n1:80"),)))
    agents = w.arbiter.agents
    assert agents.copy()["owner"] == agents["owner"]
    assert explain(w.arbiter, w.now, {"app": "owner"})["links"] == [{"label": "UI", "url": "http://n1:80"}]
