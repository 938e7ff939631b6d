"""Boosts: first in the virtual cluster under every policy, within limits and guarantees, for a time, and journaled."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import pytest

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import Boosted, Fact
from pycontrol.lab.clusters import uniform
from pycontrol.model.cluster import Queue
from pycontrol.model.events import OperatorCommand
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.registry import POLICIES, make
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload
from tests.cells.files import supply_of

CELLS = """
cell_types: {box: {child: gpu, count: 4, node_level: true}}
physical_cells: [{type: box, hosts: [r00m00]}, {type: box, hosts: [r00m01]}]
virtual_clusters: {root.a: {box: 1}, root.b: {box: 1}}
"""


def app(app_id: str, queue: str, at_s: float = 0.0, jobs: int = 8, work_gpu_s: float = 300.0) -> TraceApp:
    return TraceApp(app_id, at_s, 1, ((work_gpu_s,) * jobs,), queue, f"user-of-{app_id}")


class Run:
    """A simulation with boosts from its beginning, and its facts."""

    def __init__(
        self,
        policy: str,
        apps: Sequence[TraceApp],
        boosts: dict[str, float],
        machines: int = 1,
        cells: str = "",
        queues: tuple[Queue, ...] = (),
    ) -> None:
        supply = supply_of(cells) if cells else None
        control = dataclasses.replace(ARBITER, lease_s=60.0, validate=True, f=0.5)
        world = SimulationSettings(arbiter=control, checkpoint_s=1.0, restart_s=1.0)
        chosen = ByVirtualCluster(make(policy)) if cells else make(policy)
        sim = Simulator(Workload("w", tuple(apps)), uniform(machines, 4), chosen, world, 1, queues, supply)
        self.facts: list[tuple[float, Fact]] = []
        sim.watchers.append(lambda facts: self.facts.extend((sim.now, f) for f in facts))
        self.sim = sim
        for target, for_s in boosts.items():
            sim.arbiter.handle(OperatorCommand("boost", target, "root", for_s), sim.now)
        found = sim.run()
        self.ends_s = {a.app_id: a.finished_s or 0.0 for a in found.apps}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_boosted_app_comes_first_under_every_policy(policy: str) -> None:
    """The one that comes last and has most to do ends first; its queue has a small share."""
    apps = [app("x", "root.a"), app("y", "root.a"), app("last", "root.b", 30.0, 12)]
    queues = (Queue("root.a", 0.9), Queue("root.b", 0.1))
    found = Run(policy, apps, {}, queues=queues).ends_s
    assert min(found, key=found.__getitem__) != "last", found
    target = "user user-of-last" if policy == "isonomy" else "app last"
    found = Run(policy, apps, {target: 1e6}, queues=queues).ends_s
    assert min(found, key=found.__getitem__) == "last", found


def test_a_boost_ends_at_its_time_and_is_journaled_with_who_made_it() -> None:
    run = Run("isonomy", [app("x", "root.a"), app("long", "root.b", 0.0, 40)], {"app long": 600.0})
    boosts = [(at_s, f) for at_s, f in run.facts if isinstance(f, Boosted)]
    assert [(f.target, f.user, f.until_s > f.at_s) for _, f in boosts] == [
        ("app long", "root", True),
        ("app long", "", False),
    ]
    assert boosts[1][0] == pytest.approx(boosts[0][1].until_s, abs=1.0)
    assert run.ends_s["x"] < run.ends_s["long"], "after ten minutes the order is the policy's again"
    assert not run.sim.arbiter.durable.boosts


def test_a_boost_takes_nothing_of_other_virtual_clusters() -> None:
    apps = [app("a1", "root.a"), app("a2", "root.a"), app("b1", "root.b"), app("b2", "root.b")]
    without, boosted = (Run("isonomy", apps, b, 2, CELLS).ends_s for b in ({}, {"app a2": 1e6}))
    assert boosted["a2"] < boosted["a1"]
    assert boosted["a2"] < without["a2"]
    assert {a: boosted[a] for a in ("b1", "b2")} == {a: without[a] for a in ("b1", "b2")}


def test_a_boosted_app_keeps_to_the_limit_of_its_queue() -> None:
    queues = (Queue("root.a", 0.5, 0.5), Queue("root.b", 0.5))
    run = Run("isonomy", [app("x", "root.a"), app("y", "root.b")], {"app x": 1e6}, queues=queues)
    assert run.ends_s["x"] >= 8 * 300 / 2


def test_every_receipt_of_a_round_with_a_boosted_app_says_who_boosted_it() -> None:
    run = Run("isonomy", [app("x", "root.a"), app("y", "root.b")], {"user user-of-y": 1e6})
    with_y = [r for r in run.sim.arbiter.holdings.receipts if "y" in r.done.why]
    assert with_y
    assert all(dict(r.boosted) == {"y": "root"} for r in with_y)
    assert all(not r.boosted for r in Run("isonomy", [app("x", "root.a")], {}).sim.arbiter.holdings.receipts)


def test_boosts_survive_a_restart_and_a_failover() -> None:
    state = Durable()
    for fact in (Boosted("app a", 900.0, "root", 1.0), Boosted("user u", 800.0, "root", 2.0)):
        state.apply(fact)
    state.apply(Boosted("app a", 5.0, "ann", 5.0))
    for kept in (state.dump(), state.kept()):
        assert Durable.load(json.loads(json.dumps(kept))).boosts == {"user u": Boosted("user u", 800.0, "root", 2.0)}
    assert not state.is_empty


def test_the_apps_of_a_boosted_user_are_boosted_from_their_arrival() -> None:
    run = Run("isonomy", [app("x", "root.a"), app("late", "root.a", 400.0)], {"user user-of-late": 1e6})
    assert run.ends_s["late"] < run.ends_s["x"]
    arbiter = run.sim.arbiter
    assert arbiter.holdings.boost_of("late") is not None
    assert arbiter.holdings.boost_of("x") is None
    arbiter.handle(OperatorCommand("boost", "user user-of-late", "ann", 0.0), run.sim.now)
    assert arbiter.holdings.boost_of("late") is None
