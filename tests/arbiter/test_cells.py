"""Real cells behind the Arbiter: guarantees, loans, lost machines, crashes."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pycontrol.arbiter.ledger.facts import PolicyMemory
from pycontrol.arbiter.round.candidates import remembered
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.model.cluster import Ask, Mode, ModeSwitch
from pycontrol.model.events import (
    AppRemoved,
    AppUpdated,
    AskChanged,
    ClusterSnapshot,
    ContainerGone,
    ExchangePosted,
    GpusReleased,
    OperatorCommand,
    Tick,
)
from pycontrol.model.topology import Gpu, Scope
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.themis import Themis
from pycontrol.policies.tiresias import Tiresias
from tests.arbiter.mini import Mini
from tests.arbiter.mixes import BAD_GPUS, SOMETIMES_S, Mix, mixes, plan
from tests.arbiter.world import NODES, TROUBLES, World
from tests.cells.files import layout_of

CELLS = """
cell_types:
  pair: {child: gpu, count: 2}
  big: {child: pair, count: 2, node_level: true}
  small: {child: gpu, count: 2, node_level: true}
physical_cells:
  - {type: big, hosts: [n1]}
  - {type: big, hosts: [n2]}
  - {type: small, hosts: [n3]}
  - {type: small, hosts: [n4]}
virtual_clusters:
  root.a: {big: 1, small: 1, policy: themis}
  root.b: {pair: 1, small: 1, policy: tiresias}
"""

NODES4 = """
levels: {pair: 2, node: 2}
hosts: [n1, n2, n3]
virtual_clusters:
  root.a: {node: 2}
  root.b: {node: 1}
"""


def mini(file: str = NODES4) -> Mini:
    return Mini(nodes=(("n1", 4), ("n2", 4), ("n3", 4)), supply=file)


def owned_gpus(m: Mini) -> dict[str, int]:
    """App -> its GPUs that are guaranteed, of each that has leases."""
    leases = list(m.a.durable.leases.each())
    return {x.app_id: sum(len(y.gpus) * y.guaranteed for y in leases if y.app_id == x.app_id) for x in leases}


def world(seed: int = 0, **changes: object) -> World:
    policies = {"root.a": Themis(), "root.b": Tiresias()}
    terms = {"lease_s": 300, "lead_s": 6, "f": 0.0, **changes}
    return World(ByVirtualCluster(Themis(), policies), seed, supply=CELLS, **terms)


def guaranteed_gpus(w: World, app_id: str) -> int:
    return sum(len(x.gpus) for x in w.arbiter.durable.leases.of(app_id) if x.guaranteed)


@pytest.mark.parametrize("queue", ["root.a", "root.guest"])
def test_a_part_of_a_grant_that_ended_is_free_for_the_cells_too(queue: str) -> None:
    """Whether the grant's cells are its own or borrowed; what is left of it keeps its cells."""
    w = world(grant_timeout_s=200)
    app = w.add_app("app", 4, 1, 5000, queue)
    w.run(30)
    gone, owned = sorted(app.held)[1], guaranteed_gpus(w, "app")
    app.held.discard(gone)
    w.submit(GpusReleased("app", frozenset({gone})))
    w.run(5)
    assert guaranteed_gpus(w, "app") == owned
    assert w.arbiter.supply.idle()[gone.host] == 1
    w.arbiter.validate(w.now)


def test_a_lost_machine_takes_spare_cells_first() -> None:
    w = world()
    w.add_app("a", 4, 1, 4000, "root.a")
    w.run(10)
    (container,) = w.of("a")
    w.lose_node(container.gpus[0].host)
    w.run(40)
    (again,) = w.of("a")
    assert again.gpus[0].host != container.gpus[0].host
    assert guaranteed_gpus(w, "a") == 4, "the other big cell is spare enough"


def test_a_bad_gpu_takes_spare_cells_first_and_is_shown_and_lent_to_nobody() -> None:
    w = world()
    w.add_app("a", 4, 1, 4000, "root.a")
    w.run(10)
    (container,) = w.of("a")
    bad = container.gpus[1]
    w.mark(bad.host, bad.index)
    w.run(40)
    (again,) = w.of("a")
    assert again.gpus[0].host != bad.host
    assert guaranteed_gpus(w, "a") == 4
    assert isinstance(w.supply, CellSupply)
    hosts = w.supply.inspect()["physical_cluster"]
    assert [(h["host"], g["index"]) for h in hosts for g in h["gpus"] if not g["healthy"]] == [bad]
    w.add_app("guest", 1, 12, 4000, "root.guest")
    w.run(60)
    assert {Gpu(h, i) for h, _, n in NODES for i in range(n)} - set(w.occupied) == {bad}
    w.crash()
    w.run(80)
    assert bad not in w.occupied
    w.mark(bad.host)
    w.run(110)
    assert bad in w.occupied


def test_without_spare_cells_an_owner_uses_its_own_good_gpus_and_nobody_elses() -> None:
    w = world()
    w.add_app("a", 4, 1, 4000, "root.a")
    w.add_app("b", 2, 1, 4000, "root.b")
    w.run(10)
    bad = min(g for g, c in w.occupied.items() if w.containers[c].app_id == "a")
    w.mark(bad.host, bad.index)
    w.run(40)
    mine = {g for g, c in w.occupied.items() if w.containers[c].app_id == "a"}
    assert {g.index for g in mine if g.host == bad.host} == {0, 1, 2, 3} - {bad.index}
    assert len(mine) == guaranteed_gpus(w, "a") == 4
    assert guaranteed_gpus(w, "b") == 2
    assert ("revoke", "b") not in w.history


def test_a_crash_gives_the_same_cells_back() -> None:
    w = world()
    w.add_app("a", 4, 1, 4000, "root.a")
    w.add_app("b", 1, 8, 4000, "root.b")
    w.run(20)
    before = {g: (x.app_id, x.guaranteed) for g, x in w.arbiter.durable.leases.items()}
    w.crash()
    assert {g: (x.app_id, x.guaranteed) for g, x in w.arbiter.durable.leases.items()} == before
    assert isinstance(w.supply, CellSupply)
    groups = w.supply.inspect()["groups"]
    assert len(groups) == len({x.grant_id for x in w.arbiter.durable.leases.values()})
    w.run(6000)
    assert all(a.finished for a in w.agents.values())


@pytest.mark.parametrize("mode", [Mode.ON, Mode.OFF])
def test_what_runs_keeps_its_guarantee_while_no_machine_has_registered_again(mode: Mode) -> None:
    """After a restart of the ResourceManager, and in mode off."""
    m = mini()
    containers = [*m.start_app("a", 4, 1, "root.a"), *m.start_app("b", 4, 1, "root.b")]
    apps = tuple(m.a.cluster.apps.values())
    m.send(ClusterSnapshot(False, (), apps if mode is Mode.ON else (), (), (), switch=ModeSwitch(mode)))
    assert owned_gpus(m) == {"a": 4, "b": 4}
    m.send(m.snapshot(apps, containers))
    m.app("rival", 4, 2, "root.a")
    m.run(5)
    assert owned_gpus(m) == {"a": 4, "b": 4, "rival": 4}


def test_what_stays_on_a_drained_machine_keeps_its_guarantee_when_another_app_is_moved() -> None:
    m = mini()
    m.foreign("shell", 4, queue="root.a")
    m.run(3)
    (container,) = [m.up(place) for place in m.places()]
    other = m.app("other", 1, 1, "root.c")
    m.send(OperatorCommand("drain", container.gpus[0].host, "root"))
    m.send(AppUpdated(dataclasses.replace(other, queue="root.b")))
    assert owned_gpus(m)["shell"] == 4


def test_what_is_left_of_a_gang_on_a_drained_machine_keeps_its_guarantee() -> None:
    m = mini()
    m.foreign("shell", 2, 2, queue="root.a", tags=("isonomy.gang",))
    m.run(3)
    ended, _ = [m.up(place) for place in m.places()]
    m.send(AskChanged(Ask("shell_1", "shell", 0, 2, 0)))
    m.send(OperatorCommand("drain", ended.gpus[0].host, "root"))
    m.send(ContainerGone(ended.container_id))
    m.run(3)
    assert owned_gpus(m) == {"shell": 2}


def apply(w: World, text: str, until_s: float) -> None:
    """`cells apply`, and what follows."""
    w.arbiter.reconfigure(layout_of(text), w.now)
    w.submit(Tick())
    w.run(until_s)


def test_gpus_of_a_machine_that_only_the_changed_file_knows_are_not_idle() -> None:
    """They counted as healthy until the machine came and went, and were offered to borrowers."""
    w = world()
    w.run(10)
    apply(w, CELLS.replace("hosts: [n2]}", "hosts: [n2]}\n  - {type: big, hosts: [n9]}"), 20)
    assert dict(w.arbiter.supply.idle()) == {"n1": 4, "n2": 4, "n3": 2, "n4": 2}


def test_a_queue_that_lost_its_cells_and_has_them_again_owns_what_its_app_runs_on() -> None:
    """The cells were taken, and the leases stayed borrowed: no other app of the queue ever got them."""
    w = world(lease_s=60)
    w.add_app("greedy", 4, 2, 50_000, "root.a")
    w.run(10)
    apply(w, CELLS.replace("  root.a: {big: 1, small: 1, policy: themis}\n", ""), 20)
    assert guaranteed_gpus(w, "greedy") == 0
    apply(w, CELLS, 40)
    assert guaranteed_gpus(w, "greedy") == 4
    w.add_app("other", 2, 1, 100, "root.a")
    w.add_app("b", 4, 1, 50_000, "root.b")
    w.run(400)
    assert w.agents["other"].finished


@pytest.mark.parametrize("gpus", [4, 8])
def test_gpus_that_were_not_in_the_file_for_a_while_are_not_promised_to_others(gpus: int) -> None:
    """A group that lacks a host, or part of its GPUs, runs there all the same, and the right file names them again."""
    m = mini()
    m.start_app("a", gpus, 8 // gpus, "root.a", scope=Scope.CLUSTER)
    m.a.reconfigure(layout_of(NODES4.replace("n2", "n22")), m.now)
    m.send(Tick())
    m.a.reconfigure(layout_of(NODES4), m.now)
    m.send(Tick())
    assert m.a.supply.idle() == {"n3": 4}
    m.app("b", 4, 2, "root.b")
    m.run(20)
    assert owned_gpus(m) == {"a": 8 if gpus == 8 else 4, "b": 4}
    assert not list(m.a.durable.reservations.each())


@pytest.mark.parametrize("before", ["root.", ""])
def test_a_policy_remembers_a_virtual_cluster_with_and_without_root(before: str) -> None:
    m = mini(NODES4.replace("root.", before))
    m.start_app("a", 4, 2, "root.a")
    m.app("b", 4, 2, "root.a")
    m.run(20)
    memory = remembered(m.a.holdings, f"{before}a", m.policy.name)
    assert memory
    m.a.reconfigure(layout_of(NODES4.replace("root.", "" if before else "root.")), m.now)
    assert remembered(m.a.holdings, m.a.durable.apps["a"].vc, m.policy.name) == memory
    assert m.a.durable.apps["a"].vc != f"{before}a"
    m.a.clerk.record(PolicyMemory({"newer": 1}, m.a.durable.apps["a"].vc))
    m.a.reconfigure(layout_of(NODES4.replace("root.", before)), m.now)
    assert remembered(m.a.holdings, f"{before}a", m.policy.name) == {"newer": 1}, "not what it was before"


def test_the_unchanged_file_takes_no_guarantee() -> None:
    """One that an exchange's end took from a gang is not given back at the cost of a younger one's."""
    file = NODES4.replace("[n1, n2, n3]", "[n1, n2]").replace("root.a: {node: 2}", "root.z: {node: 1}")
    m = mini(file)
    lot, end_s = ("node", "node", 1), m.now + 20
    m.send(ExchangePosted("offer", "o", "root.b", lot, end_s))
    m.send(ExchangePosted("request", "r", "root.z", lot, end_s))
    (container,) = m.start_app("gone", 4, 1, "root.z")
    m.start_app("older", 4, 1, "root.z")
    m.send(AppRemoved("gone", "FINISHED"))
    m.send(ContainerGone(container.container_id))
    m.start_app("younger", 4, 1, "root.z")
    m.run(20)
    assert owned_gpus(m) == {"older": 0, "younger": 4}
    assert not m.a.reconfigure(layout_of(file), m.now)
    assert owned_gpus(m) == {"older": 0, "younger": 4}


def test_a_changed_assignment_keeps_running_gangs() -> None:
    w = world()
    w.add_app("b", 2, 2, 4000, "root.b")
    w.run(20)
    held = set(w.agents["b"].held)
    assert guaranteed_gpus(w, "b") == 4
    smaller = CELLS.replace("root.b: {pair: 1, small: 1", "root.b: {pair: 1")
    w.arbiter.reconfigure(layout_of(smaller), w.now)
    assert w.agents["b"].held == held
    assert guaranteed_gpus(w, "b") == 2, "what its queue does not own any more is borrowed"
    assert not [k for k, _ in w.history if k in ("kill", "preempt")]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    apps=mixes(),
    crash_s=SOMETIMES_S,
    lost_s=SOMETIMES_S,
    bad=BAD_GPUS,
    troubles=st.lists(st.tuples(st.floats(3, 150), st.sampled_from(TROUBLES)), max_size=4),
)
@example(  # the app with a reservation on the drained machine was not told, and waited for it forever
    seed=0,
    apps=[
        ("root.a", 1, 1, 67, 68),
        ("root.a", 1, 3, 133, 0),
        ("root.a", 2, 2, 265, 0),
        ("root.a", 2, 4, 169, 11),
        ("root.b", 1, 1, 20, 0),
    ],
    crash_s=None,
    lost_s=None,
    bad=[],
    troubles=[(135.0, "drain")],
)
@example(  # a machine is lost after a round began and before its GPUs are offered
    seed=0,
    apps=[("root.a", 1, 1, 20, 0), ("root.a", 1, 2, 51, 0), ("root.a", 1, 3, 52, 0), ("root.b", 4, 2, 73, 38)],
    crash_s=None,
    lost_s=56,
    bad=[],
    troubles=[],
)
def test_any_mix_of_tenants_finishes_and_all_cells_are_free_in_the_end(
    seed: int,
    apps: Mix,
    crash_s: int | None,
    lost_s: int | None,
    bad: list[tuple[int, str, int]],
    troubles: list[tuple[float, str]],
) -> None:
    w = world(seed, lease_s=30, f=0.5)
    plan(w, apps, crash_s, lost_s)
    w.troubles(troubles)
    w.marks(bad)
    w.run(4000)
    assert not [a.app_id for a in w.agents.values() if not a.finished], w.history[-40:]
    assert not w.arbiter.durable.leases
    assert isinstance(w.supply, CellSupply)
    assert not w.supply.inspect()["groups"]


@pytest.mark.parametrize(("queue", "vc"), [("root.a", "root.a"), ("a", "root.a"), ("root.x", "")])
def test_a_tenant_is_a_leaf_queue(queue: str, vc: str) -> None:
    assert world().supply.vc_of(queue) == vc  # type: ignore[union-attr]
