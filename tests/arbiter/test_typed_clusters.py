"""Auctions that see types, inside virtual clusters: Themis in one, OEF in another, isonomy in a third, on two types."""

from __future__ import annotations

import dataclasses

import pytest

from pycontrol.arbiter.ledger.lease import gpus_in
from pycontrol.arbiter.round.parts import shares_by_type, speed_vector
from pycontrol.model import events as ev
from pycontrol.model.auction import Bid, BidRow, Demand, Snapshot
from pycontrol.model.topology import Scope
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.isonomy import Isonomy
from pycontrol.policies.oef import Oef
from pycontrol.policies.themis import Themis
from tests.arbiter.fake_agent import FakeAgent
from tests.arbiter.world import World

CELLS = """
cell_types:
  slow: {child: gpu, count: 4, node_level: true}
  fast: {child: gpu, count: 4, node_level: true}
physical_cells:
  - {type: slow, hosts: [s1]}
  - {type: slow, hosts: [s2]}
  - {type: slow, hosts: [s3]}
  - {type: fast, hosts: [f1]}
  - {type: fast, hosts: [f2]}
  - {type: fast, hosts: [f3]}
virtual_clusters:
  root.a: {slow: 1, fast: 1, policy: themis}
  root.b: {slow: 1, fast: 1, policy: oef}
  root.c: {slow: 1, fast: 1, policy: isonomy}
"""
TYPE = {"s": "K80", "f": "V100"}
MACHINES = tuple((h, "r", 4, TYPE[h[0]]) for h in ("s1", "s2", "s3", "f1", "f2", "f3"))


class TypedAgent(FakeAgent):
    """An Agent that bids by its speed on each type."""

    fast = 1.0

    def demand(self) -> Demand:
        return dataclasses.replace(super().demand(), speedups={"K80": 1.0, "V100": self.fast}, scope=Scope.MACHINE)

    def bid(self, e: ev.SendOffer) -> Bid:
        said = super().bid(e)
        rows = [
            BidRow(
                row.rho / (self.fast if t == "V100" else 1.0), row.keep, row.new_gangs, row.gang_gpus, Scope.MACHINE, t
            )
            for row in said.rows
            if row.new_gangs and not row.keep
            for t in ("K80", "V100")
        ]
        kept = [r for r in said.rows if not r.new_gangs]
        return dataclasses.replace(said, rows=(*kept, *rows))


def world() -> World:
    policies = {"root.a": Themis(), "root.b": Oef(tenant="app"), "root.c": Isonomy()}
    return World(ByVirtualCluster(Themis(), policies), 1, supply=CELLS, machines=MACHINES, lease_s=300, lead_s=6, f=0.0)


def add(w: World, app_id: str, gang: int, gangs: int, work: float, queue: str, fast: float) -> TypedAgent:
    """Adds an app whose Agent reports its speed on the fast type."""
    agent = w.add_app(app_id, gang, gangs, work, queue)
    agent.__class__ = TypedAgent
    agent.fast = fast  # type: ignore[attr-defined]
    w.submit(ev.ProgressReported(app_id, agent.demand(), ()))
    return agent  # type: ignore[return-value]


def types_of(w: World, app_id: str) -> set[str]:
    return {TYPE[gpu.host[0]] for gpu in gpus_in(w.arbiter.durable.leases.of(app_id))}


def gangs_of(w: World, app_id: str) -> list[set[str]]:
    return [{TYPE[gpu.host[0]] for gpu in gpus_in(gang)} for gang in w.arbiter.holdings.gangs_of(app_id)]


def test_idle_gpus_are_shared_by_oef_and_owned_ones_by_cells() -> None:
    """App a gains most from the fast type, so of the idle GPUs it gets the fast ones and b the slow ones."""
    w = world()
    s = w.arbiter.holdings
    for app_id, queue, fast in (("a1", "root.a", 5.0), ("b1", "root.b", 1.2)):
        add(w, app_id, 4, 2, 4000, queue, fast)
    wanting = {"root.a": [("a1", 8)], "root.b": [("b1", 8)]}
    found = shares_by_type(
        s, wanting, {"root.a": 8, "root.b": 8}, {"K80": 4, "V100": 4}, {"root.a": 1.0, "root.b": 1.0}
    )
    assert found["root.a"].get("V100", 0) > found["root.b"].get("V100", 0)
    assert sum(n for own in found.values() for n in own.values()) == 8
    heavy = shares_by_type(
        s, wanting, {"root.a": 8, "root.b": 8}, {"K80": 4, "V100": 4}, {"root.a": 1.0, "root.b": 9.0}
    )
    assert sum(heavy["root.b"].values()) > sum(found["root.b"].values())


def test_a_virtual_clusters_speeds_are_those_of_its_apps_weighted_by_demand() -> None:
    fast, flat = (Demand(1, 1, speedups={"K80": 1.0, "V100": v}) for v in (5.0, 1.0))
    assert speed_vector([(fast, 3), (flat, 1)], ["K80", "V100"]) == [1.0, 4.0]
    assert speed_vector([(dataclasses.replace(fast, gpu_type="V100"), 1)], ["K80", "V100"]) == [0.0, 5.0]


@pytest.mark.parametrize("order", [("cnn", "rnn"), ("rnn", "cnn")])
def test_the_auction_gives_the_fast_machine_to_the_app_that_it_helps_most(order: tuple[str, str]) -> None:
    """Both want one gang of four; a type-blind auction always gave the slow machine to the first name."""
    w = world()
    for app_id in order:
        add(w, app_id, 4, 1, 4000, "root.a", {"cnn": 5.0, "rnn": 1.2}[app_id])
    for queue in ("root.b", "root.c"):
        add(w, f"other-{queue[-1]}", 4, 2, 4000, queue, 2.0)
    w.run(40)
    assert types_of(w, "cnn") == {"V100"}
    assert types_of(w, "rnn") == {"K80"}


def test_three_policies_on_two_types_with_loans_and_recall() -> None:
    """At first b and c are idle, so a borrows; later b and c get their own GPUs; all finish; no gang mixes types."""
    w = world()
    apps = [add(w, "a1", 4, 6, 3000, "root.a", 5.0)]
    w.run(40)
    assert w.arbiter.holdings.holding("a1") == 24
    apps += [add(w, "b1", 4, 2, 2000, "root.b", 1.5), add(w, "c1", 2, 4, 2000, "root.c", 3.0)]
    for _ in range(40):
        w.wait(20.0)
        for agent in apps:
            assert all(len(kinds) == 1 for kinds in gangs_of(w, agent.app_id))
    assert {r.policy for r in w.arbiter.receipts} == {"themis", "oef", "isonomy"}
    served = {x.app_id for r in w.arbiter.receipts if r.guaranteed for x in r.done.granted}
    assert {"b1", "c1"} <= served
    w.run(20000)
    assert all(a.finished for a in apps)


def test_a_rounds_snapshot_has_the_types() -> None:
    """The auction's view of a virtual cluster's machines."""
    seen: list[Snapshot] = []

    class Watching(Themis):
        def decide(self, snapshot, bids, rng):  # type: ignore[no-untyped-def]
            seen.append(snapshot)
            return super().decide(snapshot, bids, rng)

    w = world()
    w.arbiter.rounds.policy = ByVirtualCluster(Watching())
    add(w, "a1", 4, 1, 500, "root.a", 2.0)
    w.run(20)
    assert seen
    assert set(seen[0].topology.types) == {"K80", "V100"}
