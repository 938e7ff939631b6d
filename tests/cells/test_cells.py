"""The promises of cells, one behaviour per test; the full state is recounted after each."""

from __future__ import annotations

import json
import math
import random
from itertools import product
from typing import Any

import pytest

from pycontrol.cells.geometry import hidden_fans
from pycontrol.cells.idle import max_min
from pycontrol.cells.inspect import summary, vc_cells
from pycontrol.cells.machines import groups_to_move, machines, room_within
from pycontrol.cells.recovery import adopt
from pycontrol.cells.values import CellsError
from pycontrol.config import ConfigError
from pycontrol.lab.hived import gang_fit
from pycontrol.lab.hived.groups import GroupCells, reconfigured
from pycontrol.lab.hived.preemption import PriorityRequest
from pycontrol.lab.hived.states import GroupState, PlacementOutcome
from pycontrol.lab.solve.kept_cells import dump, load
from tests.cells.files import layout_of
from tests.cells.invariants import check


def build(levels: dict[str, int], hosts: int, vcs: dict[str, Any], **more: Any) -> GroupCells:
    data = {"levels": levels, "hosts": [f"h{i}" for i in range(hosts)], "virtual_clusters": vcs, **more}
    return GroupCells(layout_of(data))


def ask(cells: GroupCells, group: str, vc: str, priority: int, *sizes: int, **more: Any) -> Any:
    decision = cells.request(PriorityRequest(group, vc, priority, tuple((1, s) for s in sizes), **more))
    check(cells)
    return decision


def hosts(decision: Any) -> set[str]:
    return {host for host, _ in decision.workers}


def leaf_states(cells: GroupCells) -> set[str]:
    return {cells.leaf_state(space, leaf) for space in cells.spaces for leaf in range(len(space.borrower))}


NODE4 = {"switch": 2, "node": 2}


def test_a_cancelled_preemption_leaves_its_victim_as_it_was() -> None:
    cells = build(NODE4, 1, {"a": {"node": 1}})
    ask(cells, "victim", "a", 0, 3, lazy=False)
    before = dump(cells)["groups"][0]
    assert ask(cells, "strong", "a", 5, 2).victims == ("victim",)
    assert cells.groups["victim"].state is GroupState.BEING_PREEMPTED
    assert cells.release("strong").restored == ("victim",)
    check(cells)
    after = dump(cells)["groups"][0]
    for side in (before, after):
        leaves = [leaf for _, _, (k, n), _ in side.pop("parts") for leaf in range(n << k, (n + 1) << k)]
        assert sorted(leaves) == sorted(set(leaves))
        assert len(leaves) == 3
    assert before == after
    assert ask(cells, "next", "a", 0, 1).outcome is PlacementOutcome.PLACED


@pytest.mark.parametrize("priority", [0, 7])
def test_gang_packing_is_complete(priority: int) -> None:
    cells = build(NODE4, 2, {"a": {"node": 2}})
    ask(cells, "one", "a", 0, 1)
    decision = ask(cells, "gang", "a", priority, 2, 2, 3)
    assert decision.outcome is PlacementOutcome.PLACED
    assert not decision.victims
    assert not decision.downgraded


def test_an_opportunistic_gang_is_packed_completely() -> None:
    cells = build({"node": 2}, 2, {"a": {"node": 2}})
    ask(cells, "one", "a", 0, 1)
    assert ask(cells, "gang", "a", -1, 1, 2).outcome is PlacementOutcome.PLACED


def test_cells_bound_to_one_host_serve_one_worker_together() -> None:
    cells = build(NODE4, 1, {"a": {"switch": 2}})
    ask(cells, "x", "a", 0, 1)
    ask(cells, "y", "a", 0, 2)
    ask(cells, "z", "a", 0, 1)
    cells.release("y")
    cells.release("z")
    ask(cells, "y", "a", 0, 1, 1)  # both switches of the host are bound, one GPU is left in one
    cells.release("x")
    cells.release("y")
    ask(cells, "p", "a", 0, 1)
    assert ask(cells, "q", "a", 0, 2).outcome is PlacementOutcome.PLACED
    cells.release("q")
    adopt(cells, PriorityRequest("q", "a", 0, ((1, 1),)), (("h0", (2,)),))
    check(cells)
    both = ask(cells, "both", "a", 0, 2)
    assert both.outcome is PlacementOutcome.PLACED
    assert hosts(both) == {"h0"}


def two_chains() -> GroupCells:
    file = {
        "cell_types": {
            "old": {"child": "gpu", "count": 2, "node_level": True},
            "new": {"child": "gpu", "count": 2, "node_level": True},
        },
        "physical_cells": [
            {"type": "old", "hosts": ["o0"]},
            {"type": "old", "hosts": ["o1"]},
            {"type": "new", "hosts": ["n0"], "indices": {"n0": [5, 3]}},
        ],
        "virtual_clusters": {"a": {"old": 1, "new": 1}, "b": {"old": 1}},
    }
    return GroupCells(layout_of(file))


def test_a_gang_spans_chains_of_a_gpu_type_only_if_none_holds_it() -> None:
    cells = two_chains()
    wide = ask(cells, "wide", "a", 0, 2, 2)
    assert wide.outcome is PlacementOutcome.PLACED
    assert any(host == "n0" and sorted(gpus) == [3, 5] for host, gpus in wide.workers)
    cells.release("wide")
    assert len({h[0] for h in hosts(ask(cells, "narrow", "a", 0, 1, 1))}) == 1


def test_a_waiting_group_gets_the_reason() -> None:
    cells = build(NODE4, 2, {"a": {"node": 1}, "b": {"node": 1}})
    assert "needs 8 GPUs, but only 4" in ask(cells, "g", "a", 0, 4, 4).reason
    ask(cells, "x", "a", 0, 2)
    assert "do not fit" in ask(cells, "y", "b", 0, 3, 1, within="switch").reason


def test_five_lines_describe_a_uniform_cluster() -> None:
    assert ask(build({"node": 4}, 3, {"a": {"node": 1}, "b": {"gpu": 3}}), "g", "b", 0, 1, 1, 1).outcome == "placed"


@pytest.mark.parametrize(
    ("vcs", "says"),
    [
        (
            {"a": {"node": 2}, "b": {"gpu": 1}},
            "gpu cells: 1 are assigned (b 1) but only 0 are available: falls short by 1",
        ),
        ({"a": {"node": 3}}, "node cells: 3 are assigned (a 3) but only 2 are available: falls short by 1"),
        ({"a": {"rack": 1}}, "there is no cell type rack"),
    ],
)
def test_an_infeasible_assignment_is_refused_with_its_shortfall(vcs: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(NODE4, 2, vcs)
    assert says in str(error.value)


def test_opportunistic_groups_give_way_and_the_least_disturbed_cell_is_bound() -> None:
    cells = build(NODE4, 2, {"a": {"node": 1}, "b": {"node": 1}})
    ask(cells, "big", "b", -1, 4)
    small = ask(cells, "small", "b", -1, 1)
    decision = ask(cells, "g", "a", 0, 4)
    assert decision.victims == ("small",)
    assert hosts(decision) == hosts(small)
    assert cells.release("small").ready == ("g",)
    assert ask(cells, "g", "a", 0, 4).outcome is PlacementOutcome.PLACED


def test_a_reservation_is_taken_over_by_a_higher_priority() -> None:
    cells = build(NODE4, 1, {"a": {"node": 1}})
    ask(cells, "low", "a", 0, 4, lazy=False)
    ask(cells, "mid", "a", 1, 4)
    assert leaf_states(cells) == {"Reserving"}
    assert ask(cells, "high", "a", 2, 4).victims == ("low",)
    assert "mid" not in cells.groups
    assert cells.release("low").ready == ("high",)
    assert leaf_states(cells) == {"Reserved"}


def test_what_is_only_reserved_is_taken_before_preemption_may_start() -> None:
    cells = build(NODE4, 1, {"a": {"node": 1}})
    ask(cells, "gone", "a", 0, 2, lazy=False)
    ask(cells, "runs", "a", 0, 2, lazy=False)
    ask(cells, "mid", "a", 1, 4)
    cells.release("gone")
    before = dump(cells)
    wide = cells.request(PriorityRequest("wide", "a", 2, ((1, 4),)), preempt=False)
    assert (wide.outcome, wide.victims) == (PlacementOutcome.PREEMPT, ("runs",))
    assert dump(cells) == before
    high = cells.request(PriorityRequest("high", "a", 2, ((1, 2),)), preempt=False)
    check(cells)
    assert (high.outcome, high.victims) == (PlacementOutcome.PLACED, ())
    assert set(cells.groups) == {"runs", "high"}
    assert cells.groups["runs"].state is GroupState.ALLOCATED


def test_bindings_below_what_a_stronger_group_took_hold_no_gpu_twice() -> None:
    levels = {"switch": 2, "node": 2, "pod": 2}
    cells = build(levels, 4, {"a": {"pod": 1}, "b": {"node": 1, "switch": 2}})
    ask(cells, "pair", "b", 0, 2)
    ask(cells, "single", "b", 0, 1, lazy=False)
    ask(cells, "wide", "b", 1, 3, 2)
    ask(cells, "widest", "b", 2, 1, 1, 3)


def test_what_a_cancelled_reservation_leaves_is_enough() -> None:
    cells = build({"node": 2}, 1, {"a": {"node": 1}, "b": {}})
    ask(cells, "o", "b", -1, 2)
    ask(cells, "mid", "a", 0, 2)
    assert ask(cells, "high", "a", 1, 2).victims == ("o",)
    assert set(cells.groups) == {"o", "high"}


def test_a_lazy_victim_continues_where_there_is_room() -> None:
    cells = build(NODE4, 2, {"a": {"node": 1}})
    ask(cells, "low", "a", 0, 4)
    decision = ask(cells, "high", "a", 1, 4)
    assert (decision.outcome, decision.downgraded) == (PlacementOutcome.PLACED, ("low",))
    assert cells.groups["low"].lazily_preempted


def test_bad_hosts_are_hidden_as_long_as_there_are_others() -> None:
    cells = build(NODE4, 3, {"a": {"node": 2}})
    cells.set_health("h0", False)
    assert all(c["healthy"] for c in vc_cells(cells, "a"))
    assert hosts(ask(cells, "g", "a", 0, 4, 4)) == {"h1", "h2"}
    cells.release("g")
    cells.set_health("h1", False, [2])
    assert [c["healthy"] for c in vc_cells(cells, "a")] == [True, False]
    assert ask(cells, "g", "a", 0, 4, 4).outcome is PlacementOutcome.WAIT
    assert (
        ask(cells, "g", "a", 0, 4, 3).outcome is PlacementOutcome.PLACED
    )  # the other GPUs of a host with one bad GPU are usable
    cells.set_health("h1", True)
    check(cells)


def test_a_bad_host_affects_no_other_group() -> None:
    cells = build({"node": 2, "pod": 2}, 4, {"a": {"pod": 1}, "b": {"node": 1}})
    ask(cells, "b0", "b", 0, 2)
    cells.release("b0")
    cells.set_health("h0", False)
    assert ask(cells, "b1", "b", 0, 2).outcome is PlacementOutcome.PLACED
    assert hosts(ask(cells, "a1", "a", 0, 2, 2)).isdisjoint({"h0"})


def test_reconfiguration_keeps_running_groups() -> None:
    cells = build(NODE4, 3, {"a": {"node": 2}, "b": {"node": 1}})
    ask(cells, "keep", "a", 0, 4)
    ask(cells, "lose", "a", 0, 4)
    smaller = build(NODE4, 3, {"a": {"node": 1}, "b": {"node": 2}}).layout
    result = reconfigured(cells, smaller)
    check(result.cells)
    assert result.downgraded == ("lose",)
    assert result.cells.groups["lose"].workers == cells.groups["lose"].workers
    assert not result.cells.groups["keep"].lazily_preempted


def test_free_gpus_on_a_virtual_clusters_machines_are_granted() -> None:
    cells = build(NODE4, 3, {"a": {"node": 1, "gpu": 2}, "b": {"node": 1}})
    ask(cells, "opp", "b", -1, 4)
    ask(cells, "x", "a", 0, 1)
    free: dict[str, int] = {}
    for machine in machines(cells, "a"):
        free[machine.host] = free.get(machine.host, 0) + machine.free
    check(cells)
    assert sum(free.values()) == 5
    for number, (host, gpus) in enumerate((host, gpus) for host, gpus in free.items() if gpus):
        on = tuple((host, 1) for _ in range(gpus))
        decision = cells.request(PriorityRequest(f"u{number}", "a", 0, ((gpus, 1),), on=on))
        assert decision.outcome in (PlacementOutcome.PLACED, PlacementOutcome.PREEMPT)
        assert hosts(decision) == {host}
        check(cells)


@pytest.mark.parametrize(
    "request_",
    [
        PriorityRequest("g", "nobody", 0, ((1, 1),)),
        PriorityRequest("g", "a", 1001, ((1, 1),)),
        PriorityRequest("g", "a", 0, ((1, 9),)),
        PriorityRequest("g", "a", 0, ()),
        PriorityRequest("g", "a", 0, ((1, 1),), pinned="none"),
        PriorityRequest("g", "a", 0, ((1, 1),), gpu_type="tpu"),
        PriorityRequest("g", "a", 0, ((1, 1),), within="galaxy"),
    ],
)
def test_an_error_changes_nothing(request_: PriorityRequest) -> None:
    cells = build(NODE4, 1, {"a": {"node": 1}})
    before = dump(cells)
    with pytest.raises(CellsError):
        cells.request(request_)
    assert dump(cells) == before


def test_a_search_that_gives_up_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = build({"node": 8}, 2, {"a": {"node": 2}})
    for host, gpus in (("h0", 1), ("h1", 2)):
        ask(cells, host, "a", 9, gpus, hosts=frozenset({host}))
    ask(cells, "weak", "a", 0, 5)
    before = dump(cells)
    monkeypatch.setattr(gang_fit, "STEPS", 0)
    assert "too diverse" in ask(cells, "strong", "a", 5, 4, 3, 3, 3).reason
    assert dump(cells) == before


def test_static_binding_stays() -> None:
    cells = build(NODE4, 2, {"a": {"node": 1}, "b": {"node": 1}}, binding="static")
    home = hosts(ask(cells, "g", "a", 0, 4))
    cells.release("g")
    ask(cells, "opp", "b", -1, 1, hosts=frozenset(home))
    assert ask(cells, "g", "a", 0, 4).victims == ("opp",)


def test_static_binding_keeps_the_order_of_a_trees_cells() -> None:
    cells = build({"node": 2, "pod": 2}, 2, {"a": {"pod": 1}}, binding="static")
    second = PriorityRequest("g", "a", 0, ((1, 2),), inside=((0, 1, 1, 2),), strictly=True)
    assert adopt(cells, second, (("h0", (0, 1)),)).lazily_preempted  # the pod's second node is h1
    cells.set_health("h0", False, [1])
    cells.release("g")
    assert hosts(ask(cells, "x", "a", 0, 2)) == {"h1"}
    assert hosts(ask(cells, "y", "a", 0, 1)) == {"h0"}


def fits(frees: list[int], sizes: list[int]) -> bool:
    return any(
        all(sum(s for s, at in zip(sizes, places, strict=True) if at == b) <= free for b, free in enumerate(frees))
        for places in product(range(len(frees)), repeat=len(sizes))
    )


@pytest.mark.parametrize("seed", range(12))
def test_every_request_that_a_private_cluster_would_grant_is_granted(seed: int) -> None:
    """Sharing safety against brute force on the virtual cluster's own use, for any behaviour of the others."""
    rng = random.Random(seed)
    owned = {"a": {"pod": 1, "switch": 1}, "b": {"node": 1, "gpu": 2}, "c": {"node": 1}}
    alone = {vc: build({"switch": 2, "node": 2, "pod": 2}, 6, {vc: mine}) for vc, mine in owned.items()}
    cells = build({"switch": 2, "node": 2, "pod": 2}, 6, owned)
    space = cells.spaces[0]
    for number in range(120):
        vc, priority = rng.choice("abc"), rng.choice([-1, 0, 0])
        sizes = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
        frees = []
        for root, key in space.holder.items():
            if key[0] == vc:
                used = {
                    leaf
                    for g in cells.groups.values()
                    for h in g.held
                    if not h.borrowed
                    for leaf in space.chain.leaves(h.cell)
                }
                for bin_cell in range(max(1, space.sizes[root[0]] // 4)):
                    leaves = list(space.chain.leaves(root))[bin_cell * 4 : bin_cell * 4 + 4]
                    frees.append(sum(leaf not in used for leaf in leaves))
        request = PriorityRequest(f"g{number}", vc, priority, tuple((1, s) for s in sizes), lazy=False)
        decision = cells.request(request)
        for victim in decision.victims:
            assert cells.groups[victim].priority == -1
            cells.release(victim)
        if decision.outcome is PlacementOutcome.PREEMPT:
            decision = cells.request(request)
        check(cells)
        if priority >= 0:
            assert (decision.outcome is PlacementOutcome.PLACED) >= fits(frees, sizes)
            assert alone[vc].request(request).outcome is decision.outcome
        for name in rng.sample(sorted(cells.groups), min(len(cells.groups), rng.randint(0, 2))):
            group = cells.groups[name]
            cells.release(name)
            if group.request.priority >= 0:
                alone[group.request.vc].release(name)


def test_a_crash_loses_nothing() -> None:
    cells = build(NODE4, 2, {"a": {"node": 1}, "b": {"switch": 1}})
    ask(cells, "o", "b", -1, 3)
    ask(cells, "v", "a", 0, 3, lazy=False)
    ask(cells, "p", "a", 3, 2)
    again = load(cells.layout, json.loads(json.dumps(dump(cells))))
    check(again)
    assert dump(again) == dump(cells)
    assert summary(again)["groups"] == summary(cells)["groups"]


def test_idle_gpus_are_shared_by_weight() -> None:
    assert max_min(12, {"a": 12, "b": 20, "c": 1}, {"a": 1.0, "b": 2.0, "c": 1.0}) == {"a": 4, "b": 7, "c": 1}
    assert max_min(5, {"a": 1, "b": 9}, {}) == {"a": 1, "b": 4}


def test_who_waits_next_is_told_by_what_the_next_gpu_would_make_its_share() -> None:
    assert max_min(3, {"a": 9, "b": 9}, {"a": 2.0, "b": 1.0}) == {"a": 2, "b": 1}
    assert max_min(3, {"a": 9, "b": 9}, {"a": 0.5}) == {"a": 1, "b": 2}, "a weight that is not named is 1"


def test_a_wide_fan_is_the_product_of_its_hidden_levels() -> None:
    assert [fan for fan in range(1, 200) if math.prod(hidden_fans(fan)) != fan] == []


def test_fans_above_hosts_alone_have_hidden_levels() -> None:
    (chain,) = build({"node": 64, "rack": 64}, 64, {"a": {"rack": 1}}).layout.chains
    assert (chain.names, chain.fans) == (("gpu", "node", "", "rack"), (1, 64, 32, 2))


def test_the_room_of_each_cell_of_a_type_is_known() -> None:
    cells = build(NODE4, 2, {"a": {"node": 1}})
    ask(cells, "g", "a", 0, 1)
    assert list(room_within(cells, "a", "switch").values()) == [((1, 2), 2)]


def test_a_bad_gpu_is_hidden_once_its_tree_is_free_and_no_earlier() -> None:
    cells = build(NODE4, 2, {"a": {"node": 1}})
    both = ask(cells, "x", "a", 0, 1).workers + ask(cells, "y", "a", 0, 1).workers
    ((host, _), _) = both
    bad = min({0, 1, 2, 3}.difference(*(gpus for _, gpus in both)))
    cells.set_health(host, False, [bad])
    assert hosts(ask(cells, "z", "a", 0, 1)) == {host}
    for name in "xyz":
        assert cells.spaces[0].marks, "the others run there"
        cells.release(name)
        check(cells)
    assert not cells.spaces[0].marks
    assert hosts(ask(cells, "whole", "a", 0, 4)) == {"h0", "h1"} - {host}


def test_a_gang_on_whole_hosts_takes_over_those_with_borrowers() -> None:
    cells = build({"node": 2, "pod": 2}, 2, {"a": {"pod": 1}})
    ask(cells, "low", "a", -1, 1)
    gang = ask(cells, "gang", "a", 0, 2, 2, within="pod")
    assert (gang.victims, hosts(gang)) == (("low",), {"h0", "h1"})


def test_a_cell_that_has_to_be_split_is_better_than_one_with_a_bad_gpu() -> None:
    cells = build({"node": 2, "pod": 2}, 4, {"a": {"node": 2}})
    first = ask(cells, "g1", "a", 0, 2)
    ((host, _),) = first.workers
    beside = {"h0": "h1", "h1": "h0", "h2": "h3", "h3": "h2"}[host]
    cells.set_health(beside, False, [0])
    ((other, _),) = ask(cells, "g2", "a", 0, 1).workers
    assert other != beside


def test_only_groups_of_that_virtual_cluster_are_to_move() -> None:
    cells = build({"node": 2}, 4, {"a": {"node": 1}, "b": {"node": 1}})
    ((host, _),) = ask(cells, "mine", "a", 0, 2).workers
    ask(cells, "other", "b", 0, 2)
    cells.set_health(host, False, [0])
    assert groups_to_move(cells, "a") == [["mine"]]
    assert groups_to_move(cells, "b") == []
