"""A state machine over all operations on cells; the whole state is recounted after each step."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pycontrol.cells.exchange import Lot, balanced, with_deals
from pycontrol.cells.recovery import adopt_all
from pycontrol.cells.values import CellsError
from pycontrol.lab.hived.exchange_policies import SecondPrice, credit_score, exchange_by
from pycontrol.lab.hived.groups import GroupCells, reconfigured
from pycontrol.lab.hived.preemption import PriorityRequest
from pycontrol.lab.hived.states import GroupState, PlacementOutcome
from pycontrol.lab.solve.kept_cells import dump, load
from tests.cells.files import layout_of
from tests.cells.invariants import check
from tests.cells.test_cells import fits

CLUSTERS: list[dict[str, Any]] = [
    {
        "levels": {"switch": 2, "node": 2},
        "virtual_clusters": {"a": {"node": 1, "gpu": 1}, "b": {"node": 1, "switch": 1}},
    },
    {
        "levels": {"switch": 2, "node": 2, "pod": 2},
        "virtual_clusters": {"a": {"pod": 1}, "b": {"node": 1, "switch": 2}},
    },
    {"levels": {"node": 3}, "virtual_clusters": {"a": {"node": 2, "gpu": 1}, "b": {"node": 1, "gpu": 2}}},
]
POLICIES = [balanced, credit_score, SecondPrice()]


class Machine(RuleBasedStateMachine):
    @initialize(cluster=st.sampled_from(CLUSTERS), static=st.booleans(), policy=st.sampled_from(POLICIES))
    def start(self, cluster: dict[str, Any], static: bool, policy: Any) -> None:
        binding = "static" if static else "dynamic"
        self.file = {**cluster, "hosts": [f"h{i}" for i in range(4)], "binding": binding}
        self.cells = GroupCells(layout_of(self.file))
        self.exchange = exchange_by(policy)(self.cells)
        self.static = static
        self.number, self.now_s = 0, 0.0

    def frees(self, vc: str, priority: int) -> list[int]:
        """GPUs of each bin of a virtual cluster that no group of this or a higher priority has, from the groups alone,
        without the product's own counts."""
        space = self.cells.spaces[0]
        used = {
            leaf
            for g in self.cells.groups.values()
            if g.request.priority >= priority
            for h in [*g.held, *(h for some in self.cells.lost.get(g.name, {}).values() for h in some)]
            if not h.borrowed
            for leaf in space.chain.leaves(h.cell)
        }
        per_node = space.sizes[space.chain.node]
        found = []
        for root, key in space.holder.items():
            if key == (vc, None):
                leaves = list(space.chain.leaves(root))
                for first in range(0, len(leaves), per_node):
                    found.append(sum(leaf not in used for leaf in leaves[first : first + per_node]))
        return found

    @rule(
        vc=st.sampled_from("ab"),
        priority=st.sampled_from([-1, 0, 0, 1, 2]),
        lazy=st.booleans(),
        preempt=st.booleans(),
        sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        host=st.none() | st.integers(0, 3),
    )
    def request(self, vc: str, priority: int, lazy: bool, preempt: bool, sizes: list[int], host: int | None) -> None:
        self.number += 1
        hosts = None if host is None else frozenset({f"h{host}", f"h{(host + 1) % 4}"})
        members = tuple((1, size) for size in sizes)
        frees, before = self.frees(vc, priority), dump(self.cells)
        decision = self.cells.request(
            PriorityRequest(f"g{self.number}", vc, priority, members, lazy=lazy, hosts=hosts), preempt=preempt
        )
        for name in decision.victims:
            victim = self.cells.groups[name]
            assert victim.priority == -1 or (victim.request.vc == vc and victim.priority < priority)
        if decision.outcome is PlacementOutcome.PREEMPT and not preempt:
            assert dump(self.cells) == before
            assert all(self.cells.groups[name].state is not GroupState.PREEMPTING for name in decision.victims)
        if decision.outcome is PlacementOutcome.WAIT:
            assert decision.reason
            if priority >= 0 and hosts is None and not self.cells.spaces[0].bad:
                assert not fits(frees, sizes), "a legal request was not satisfied (Theorem 1)"

    def pick(self, data: Any, *states: GroupState) -> str | None:
        names = [g.name for g in self.cells.groups.values() if not states or g.state in states]
        return data.draw(st.sampled_from(names)) if names else None

    @rule(data=st.data())
    def end(self, data: Any) -> None:
        name = self.pick(data)
        if name:
            self.cells.release(name)

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        name = self.pick(data, GroupState.PREEMPTING)
        if name:
            for restored in self.cells.release(name).restored:
                assert self.cells.groups[restored].state is GroupState.ALLOCATED

    @rule(data=st.data())
    def victim_ends(self, data: Any) -> None:
        name = self.pick(data, GroupState.BEING_PREEMPTED)
        if name:
            for ready in self.cells.release(name).ready:
                if not any(h.bad for h in self.cells.groups[ready].held):
                    assert self.cells.request(self.cells.groups[ready].request).outcome is PlacementOutcome.PLACED

    @rule(host=st.integers(0, 3), gpu=st.none() | st.integers(0, 1))
    def fail(self, host: int, gpu: int | None) -> None:
        self.cells.set_health(f"h{host}", False, None if gpu is None else [gpu])

    @rule(host=st.integers(0, 3), gpu=st.none() | st.integers(0, 1))
    def heal(self, host: int, gpu: int | None) -> None:
        self.cells.set_health(f"h{host}", True, None if gpu is None else [gpu])

    @rule()
    def crash(self) -> None:
        state, market = dump(self.cells), self.exchange.dump()
        self.cells = load(self.cells.layout, json.loads(json.dumps(state)))
        self.exchange = type(self.exchange).load(self.cells, json.loads(json.dumps(market)))
        assert (dump(self.cells), self.exchange.dump()) == (state, market)

    @rule(more=st.sampled_from("ab"))
    def reconfigure(self, more: str) -> None:
        fewer = "b" if more == "a" else "a"
        vcs = {more: self.file["virtual_clusters"][more], fewer: {"gpu": 1}}
        for new in ({**self.file, "virtual_clusters": vcs}, self.file):
            before = {n: g for n, g in self.cells.groups.items() if g.state is not GroupState.PREEMPTING}
            file = layout_of(new)
            result = reconfigured(self.cells, self.exchange.rebase(file, self.now_s))
            assert sum(map(result.cells.layout.gpus, result.cells.layout.vcs)) == sum(map(file.gpus, file.vcs))
            assert abs(sum(self.exchange.board.surplus.values())) < 1e-9
            assert set(result.cells.groups) == set(before)
            assert not result.gone
            for name, group in result.cells.groups.items():
                gpus = {(h, i) for h, some in group.workers for i in some}
                assert gpus == {(h, i) for h, some in before[name].workers for i in some}
            self.cells = self.exchange.cells = result.cells
            check(self.cells)

    @rule()
    def forget_cells(self) -> None:
        """Rebuilds the cells from each group's GPUs: every guarantee must find its cells again."""
        running = list(self.cells.groups.values())
        if any(space.bad for space in self.cells.spaces) or any(g.state is not GroupState.ALLOCATED for g in running):
            return
        if self.static and self.exchange.number:
            return  # exchange changes bindings, which no layout describes: the control plane refuses it
        was = {g.name for g in running if g.guaranteed}
        held = [(g.request, g.workers) for g in running if g.guaranteed or g.request.priority < 0]
        owned, _ = with_deals(layout_of(self.file), self.exchange.deals.values())
        found = adopt_all(lambda: GroupCells(owned), held)
        assert not found.gone
        assert {g.name for g in found.cells.groups.values() if g.guaranteed} == was
        check(found.cells)

    @rule(vc=st.sampled_from("ab"), kind=st.integers(0, 2), hours=st.integers(1, 5))
    def offer(self, vc: str, kind: int, hours: int) -> None:
        chain = self.cells.spaces[0].chain
        names = [n for n in chain.names if n]
        lot = Lot(chain.name, names[kind % len(names)], 1)
        other = "b" if vc == "a" else "a"
        try:
            self.exchange.offer(f"offer{len(self.exchange.posted)}", vc, lot, self.now_s + hours * 3600)
        except CellsError:
            return
        self.exchange.request(f"request{len(self.exchange.posted)}", other, lot, self.now_s + hours * 1800)

    @rule(hours=st.integers(0, 3))
    def time_passes(self, hours: int) -> None:
        self.now_s += hours * 3600
        running = set(self.cells.groups)
        preempting = {g.name for g in self.cells.groups.values() if g.state is GroupState.PREEMPTING}
        self.exchange.step(self.now_s)
        assert running - set(self.cells.groups) <= preempting, "an exchange killed a group"
        assert abs(sum(self.exchange.board.surplus.values())) < 1e-9

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "cells"):
            check(self.cells)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
