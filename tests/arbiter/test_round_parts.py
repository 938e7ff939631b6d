"""Rounds of virtual clusters: a tenant's own GPUs, what it may borrow, and what it gets back."""

from __future__ import annotations

import pytest

from pycontrol.arbiter.supply.gpu_supply import RoundPart
from pycontrol.model.auction import Demand
from pycontrol.model.events import SendRevoke, Solve
from pycontrol.model.topology import Machine, Topology
from tests.arbiter.mini import CELLS, SETTINGS, Mini
from tests.arbiter.world import World

OWNED = """
cell_types:
  four: {child: gpu, count: 4, node_level: true}
  two: {child: gpu, count: 2, node_level: true}
physical_cells:
  - {type: four, hosts: [n1]}
  - {type: four, hosts: [n2]}
  - {type: two, hosts: [n3]}
  - {type: two, hosts: [n4]}
virtual_clusters: {root.a: {four: 2}, root.b: {two: 2}}
"""
"""root.a owns n1 and n2, root.b n3 and n4."""


def world() -> World:
    return World("themis", supply=OWNED, lease_s=300, lead_s=6, f=0.0)


def test_a_tenant_borrows_idle_gpus_and_returns_them_within_the_grace() -> None:
    w = world()
    greedy = w.add_app("greedy", 2, 6, 5000, "root.b")
    w.run(10)
    assert len(greedy.held) == 12, "idle cells are lent"
    w.run(20)
    owner = w.add_app("owner", 4, 2, 400, "root.a")
    w.run(32)
    hosts = {g.host for c in w.containers.values() if c.app_id == "owner" for g in c.gpus}
    assert hosts == {"n1", "n2"}, "its guarantee is served although the leases of the borrower had not ended"
    assert {g.host for g in greedy.held} == {"n3", "n4"}
    w.run(200)
    assert owner.finished
    assert len(greedy.held) == 12, "and lent again"
    w.run(6000)
    assert greedy.finished


def test_borrowers_share_idle_gpus() -> None:
    w = world()
    w.add_app("first", 1, 12, 2000, "root.x")
    w.run(30)
    w.add_app("second", 1, 12, 2000, "root.b")
    w.run(60)
    own = sum(x.guaranteed for x in w.arbiter.durable.leases.values() if x.app_id == "second")
    assert own == 4, "its own cells first"


def test_leases_on_owned_machines_are_guaranteed_and_borrowed_ones_are_not() -> None:
    w = world()
    w.add_app("b", 1, 10, 1000, "root.b")
    w.run(20)
    kinds = {(g.host, x.guaranteed) for g, x in w.arbiter.durable.leases.items()}
    assert {k for h, k in kinds if h in ("n3", "n4")} == {True}
    assert {k for h, k in kinds if h in ("n1", "n2")} == {False}
    assert {r.vc for r in w.arbiter.receipts} == {"root.b"}


@pytest.mark.parametrize(
    ("vc", "guaranteed", "owner", "opportunistic", "pinned"),
    [("", True, None, True, True), ("root.a", True, "root.a", False, True), ("root.a", False, None, True, False)],
)
def test_whose_machines_a_part_has_decides_who_takes_part(
    vc: str, guaranteed: bool, owner: str | None, opportunistic: bool, pinned: bool
) -> None:
    machines = Topology.of([Machine("h1", "r", 4), Machine("h2", "r", 4)])
    part = RoundPart(vc, guaranteed, {"h1": 2, "h2": 1}, machines, machines.gpus_by_host)
    assert part.owner == owner
    assert part.admits(Demand(1, 1, 1))
    assert part.admits(Demand(1, 1, 1, opportunistic=True)) == opportunistic
    assert part.admits(Demand(1, 1, 1, pinned="north")) == pinned
    left = Topology.of([Machine("h1", "r", 4)])  # h2 is lost; own machines are cells, which may be bound elsewhere
    assert part.on(left).free == ({"h1": 2, "h2": 1} if owner else {"h1": 2})


def on_cells() -> Mini:
    """Two machines of four GPUs; root.a owns one of them, root.b two GPUs."""
    return Mini(nodes=[("n1", 4), ("n2", 4)], supply=CELLS)


def test_what_a_tenant_keeps_of_its_loans_is_not_on_offer_again_with_the_rest() -> None:
    m = on_cells()
    m.start_app("small", 4, queue="root.b", work=1.0)
    held = m.held("small")
    m.app("large", 8, queue="root.b")  # it waits, so the rest is on offer to its queue
    m.run(2 * SETTINGS.lease_s, 1.0)
    assert not m.of(SendRevoke)
    assert max(n for e in m.of(Solve) for n in e.snapshot.free.values()) == 4, "no machine has more"
    assert m.held("small") == held


def test_nobody_returns_loans_beyond_its_share_for_an_app_that_could_not_use_them() -> None:
    m = on_cells()
    for name, gang, queue in (("owner", 4, "root.a"), ("one", 2, "root.q"), ("two", 2, "root.q")):
        m.start_app(name, gang, queue=queue)
    m.app("large", 6, queue="root.b")
    m.run(2 * SETTINGS.lease_s, 1.0)
    assert not m.of(SendRevoke)


FOUR = """
cell_types:
  big: {child: gpu, count: 4, node_level: true}
physical_cells:
  - {type: big, hosts: [n1]}
  - {type: big, hosts: [n2]}
  - {type: big, hosts: [n3]}
  - {type: big, hosts: [n4]}
virtual_clusters: {root.a: {big: 1}, root.b: {big: 1}, root.idle: {big: 2}}
"""


def borrowing(*more: tuple[str, str, int]) -> World:
    """Machines of four GPUs in cells, of which root.idle uses none, and machines that no cell has."""
    machines = [*((f"n{k}", "r", 4) for k in range(1, 5)), *more]
    return World("isonomy", supply=FOUR, machines=machines, lease_s=60.0, lead_s=10.0)


@pytest.mark.parametrize("has_agent", [True, False])
def test_a_waiting_app_counts_in_shares_for_what_it_asks_with_or_without_an_agent(has_agent: bool) -> None:
    w = borrowing()
    w.add_app("own", 4, 1, 1e9, "root.a")
    w.run(5)
    w.add_app("b", 1, 12, 1e9, "root.b")
    w.run(30)
    if has_agent:
        w.add_app("f", 4, 1, 1e9, "root.a")
    else:
        w.add_foreign("f", 4, 1, "root.a")
    w.run(250)
    assert sum(len(c.gpus) for c in w.of("f")) == 4


def test_machines_that_no_cell_has_enlarge_no_share_of_what_is_lent() -> None:
    w = borrowing(("n9", "r", 8))
    for name in "ab":
        w.add_app(name, 1, 12, 1e9, f"root.{name}")
    w.run(250)
    assert [len(w.of(name)) for name in "ab"] == [8, 8]


@pytest.mark.parametrize("arrives_s", [0.0, 120.0])
def test_an_app_without_an_agent_that_asks_for_more_calls_no_loan_back_early(arrives_s: float) -> None:
    """However long ago it arrived, what was lent before it asked is kept for `min_lend_s`."""
    cells = FOUR.replace("root.a: {big: 1}", "root.a: {big: 1, min_lend_s: 300}")
    w = World("isonomy", supply=cells, machines=[(f"n{k}", "r", 4) for k in range(1, 5)], lease_s=600.0, lead_s=10.0)
    w.at(arrives_s, lambda: w.add_foreign("f", 1, 1, "root.a"))
    w.at(30.0, lambda: w.add_app("b", 1, 16, 1e9, "root.b"))
    w.at(130.0, lambda: w.ask_more("f", 1, 3))
    w.run(119)
    before = len(w.of("b"))
    w.run(300)
    assert len(w.of("b")) == before
    w.run(400)
    assert len(w.of("b")) < before
