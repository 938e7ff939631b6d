"""Rounds of virtual clusters: a tenant's own GPUs, what it may borrow, and what it gets back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pycontrol.arbiter.supply.cells import CellSupply
from pycontrol.arbiter.supply.port import GroupGpus, RoundPart, Supply
from pycontrol.arbiter.views.settings import Settings
from pycontrol.cells.config import CellsFile, layout
from pycontrol.cells.layout import Terms
from pycontrol.cells.machines import Room, VirtualMachine
from pycontrol.cells.values import Placed
from pycontrol.config import parse
from pycontrol.model.auction import Demand, Gang
from pycontrol.model.events import SendRevoke, Solve
from pycontrol.model.topology import Gpu, Machine, Topology
from pycontrol.policies.themis import Themis
from tests.arbiter.mini import CELLS, SETTINGS, Mini
from tests.arbiter.mixes import MIXES, SOMETIMES_S, Mix, plan
from tests.arbiter.world import NODES, World

OWNERS = {"n1": "root.a", "n2": "root.a", "n3": "root.b", "n4": "root.b"}


class Fixed(Supply):
    """Virtual clusters that own whole machines permanently: the simplest possible cells."""

    def __init__(self) -> None:
        super().__init__()
        self.up: dict[str, Collection[int]] = {}
        self.groups: dict[str, GroupGpus] = {}

    @property
    def whole(self) -> bool:
        return False

    def vc_of(self, queue: str) -> str:
        return queue if queue in OWNERS.values() else ""

    def gpus_of(self, vc: str) -> int:
        return sum(n for h, _, n in NODES if OWNERS[h] == vc)

    def terms(self, vc: str) -> Terms:
        return Terms()

    def virtual_clusters(self) -> Iterable[str]:
        return ["root.a", "root.b"]

    def _used(self, guaranteed_only: bool) -> dict[Gpu, str]:
        held = self.groups.values()
        return {g: x.group for x in held if x.guaranteed or not guaranteed_only for g in x.gpus}

    def _free(self, host: str, guaranteed_only: bool) -> list[Gpu]:
        used = self._used(guaranteed_only)
        return [g for i in self.up.get(host, ()) if (g := Gpu(host, i)) not in used]

    def machines(self, vc: str) -> Sequence[VirtualMachine]:
        mine = [h for h in sorted(self.up) if OWNERS[h] == vc]
        return [VirtualMachine(h, h, len(self.up[h]), len(self._free(h, True)), len(self.up[h])) for h in mine]

    def machine_of(self, gpu: Gpu) -> str:
        return gpu.host

    def groups_to_move(self, vc: str) -> Sequence[Sequence[str]]:
        return ()

    def own(self, group: str, vc: str, gang: Gang) -> bool:
        held = self.groups[group]
        if any(OWNERS[gpu.host] != vc for gpu in held.gpus):
            return False
        self.groups[group] = GroupGpus(group, vc, True, held.gpus)
        return True

    def idle(self) -> Mapping[str, int]:
        return {h: n for h in self.up if (n := len(self._free(h, False)))}

    def weights(self) -> Mapping[str, float]:
        return {"root.a": 1.0, "root.b": 1.0}

    def shares(self, wanted: Mapping[str, int], idle_gpus: int) -> Mapping[str, int]:
        left, shares = idle_gpus, dict.fromkeys(sorted(wanted), 0)
        while left > 0 and any(shares[v] < wanted[v] for v in shares):
            vc = min((v for v in shares if shares[v] < wanted[v]), key=lambda v: (shares[v], v))
            shares[vc] += 1
            left -= 1
        return shares

    def room_within(self, kind: str, vc: str | None, coming: Iterable[Gpu] = ()) -> Mapping[str, Room]:
        return {}

    def downgrade(self, group: str) -> bool:
        held = self.groups[group]
        self.groups[group] = GroupGpus(group, held.vc, False, held.gpus)
        return held.guaranteed

    def place(
        self,
        group: str,
        vc: str,
        guaranteed: bool,
        gang: Gang,
        avoid: Sequence[frozenset[str]] = (),
        within: str = "",
        spared: Collection[str] = (),
    ) -> Placed | None:
        assert group not in self.groups
        gpus: list[Gpu] = []
        for host, n in gang:
            assert not guaranteed or OWNERS[host] == vc, "a guaranteed lease on foreign cells"
            idle, free = self._free(host, False), self._free(host, guaranteed)
            gpus += [*idle, *(g for g in free if g not in idle)][:n]
        if len(gpus) < sum(n for _, n in gang):
            return None
        used = self._used(False)
        evicted = tuple(dict.fromkeys(used[g] for g in gpus if g in used))
        for name in evicted:
            del self.groups[name]
        self.groups[group] = GroupGpus(group, vc, guaranteed, tuple(gpus))
        return Placed(tuple(gpus), evicted)

    def release(self, group: str) -> None:
        self.groups.pop(group, None)

    def shrink(self, held: GroupGpus) -> bool:
        if held.group in self.groups:
            self.groups[held.group] = held
        return True

    def machines_changed(self, up: Mapping[str, Collection[int]]) -> None:
        self.up = dict(up)

    def machine_changed(self, host: str, up: Collection[int]) -> None:
        self.up[host] = up

    def recover(self, groups: Iterable[GroupGpus]) -> Mapping[str, bool]:
        self.groups = {x.group: x for x in groups}
        return {}

    def guarantees(self) -> Mapping[str, bool]:
        return {name: group.guaranteed for name, group in self.groups.items()}

    def inspect(self) -> Mapping[str, object]:
        return {}


def world(seed: int = 0, **changes: object) -> World:
    how = {"lease_s": 300, "lead_s": 6, "grant_timeout_s": 20, "recovery_s": 2, "round_retry_s": 3, "f": 0.0, **changes}
    return World(Themis(), seed, Settings(**how), Fixed())  # type: ignore[arg-type]


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


@settings(max_examples=20, deadline=None)
@example(  # a machine is lost after a round began and before its GPUs are offered
    seed=0,
    apps=[("root.a", 1, 1, 20, 0), ("root.a", 1, 2, 51, 0), ("root.a", 1, 3, 52, 0), ("root.b", 4, 2, 73, 38)],
    crash_s=None,
    lost_s=56,
)
@given(
    seed=st.integers(0, 10_000),
    apps=MIXES,
    crash_s=SOMETIMES_S,
    lost_s=SOMETIMES_S,
)
def test_any_mix_of_tenants_finishes(seed: int, apps: Mix, crash_s: int | None, lost_s: int | None) -> None:
    w = world(seed, lease_s=30, f=0.5)
    plan(w, apps, crash_s, lost_s)
    w.run(4000)
    assert not [a.app_id for a in w.agents.values() if not a.finished], w.history[-40:]
    assert not w.arbiter.durable.leases
    assert isinstance(w.supply, Fixed)
    assert not w.supply.groups
    assert not w.arbiter.durable.grants


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
    supply = CellSupply(layout(parse(CELLS, CellsFile, "cells.yaml")))
    return Mini(nodes=[("n1", 4), ("n2", 4)], supply=supply)


def test_what_a_tenant_keeps_of_its_loans_is_not_on_offer_again_with_the_rest() -> None:
    m = on_cells()
    m.app("small", 4, queue="root.b", work=1.0)
    m.run(2)
    m.start("small")
    held = m.held("small")
    m.app("large", 8, queue="root.b")  # it waits, so the rest is on offer to its queue
    m.run(2 * SETTINGS.lease_s, 1.0)
    assert not m.of(SendRevoke)
    assert max(n for e in m.of(Solve) for n in e.snapshot.free.values()) == 4, "no machine has more"
    assert m.held("small") == held


def test_nobody_returns_loans_beyond_its_share_for_an_app_that_could_not_use_them() -> None:
    m = on_cells()
    for name, gang, queue in (("owner", 4, "root.a"), ("one", 2, "root.q"), ("two", 2, "root.q")):
        m.app(name, gang, queue=queue)
        m.run(2)
        m.start(name)
    m.app("large", 6, queue="root.b")
    m.run(2 * SETTINGS.lease_s, 1.0)
    assert not m.of(SendRevoke)
