"""Where a plan's gangs go when their apps may not start everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from pycontrol.arbiter.round.commit import relocate
from pycontrol.model.auction import AppView, Award, Demand, Gang, Plan, gang_gpus
from pycontrol.model.topology import Machine, Scope, Topology

TOPOLOGY = Topology.of(
    [Machine("n1", "r", 4), Machine("n2", "r", 4), Machine("n3", "s", 2, "fast"), Machine("n4", "s", 4, "fast")]
)
FREE = {"n1": 4, "n2": 4, "n3": 2}


def view(
    app_id: str, gang_gpus: int, scope: Scope = Scope.CLUSTER, gpu_type: str = "", own: Sequence[Gang] = ()
) -> AppView:
    demand = Demand(gang_gpus, 8, scope=scope, gpu_type=gpu_type)
    return AppView(app_id, "root.q", None, demand, ending_gangs=tuple(own))


A4, B4, B2 = view("a", 4), view("b", 4), view("b", 2)
N1: Gang = (("n1", 4),)
N2: Gang = (("n2", 4),)


def test_an_app_whose_containers_cannot_move_keeps_its_gang_or_gets_those_that_it_asks_for() -> None:
    asks_for_one = replace(view("a", 4, own=[N1]), new_gangs_max=1)
    for gangs, kept in (([N1], [N1]), ([N2], [N2]), ([N1, N2], [N1, N2])):
        plan = Plan("r", (Award("a", tuple(gangs)),))
        assert [list(x.gangs) for x in relocate(plan, {"a": asks_for_one}, FREE, TOPOLOGY, {}).awards] == [kept]
    asks_for_none = replace(asks_for_one, new_gangs_max=0)
    for gangs, kept in (([N1], [N1]), ([N2], []), ([N1, N2], [N1])):
        plan = Plan("r", (Award("a", tuple(gangs)),))
        found = relocate(plan, {"a": asks_for_none}, FREE, TOPOLOGY, {})
        assert [g for x in found.awards for g in x.gangs] == kept


@pytest.mark.parametrize(
    ("views", "awards", "kept_out", "expected"),
    [
        ([A4], {"a": [N1]}, {}, {"a": [N1]}),
        ([A4], {"a": [N1]}, {"a": {"n2"}}, {"a": [N1]}),
        ([A4], {"a": [N1]}, {"a": {"n1"}}, {"a": [N2]}),
        ([A4, B4], {"a": [N1], "b": [N2]}, {"a": {"n1"}}, {"a": [N2], "b": [N1]}),
        ([A4, B4], {"b": [N2], "a": [N1]}, {"a": {"n1"}}, {"b": [N1], "a": [N2]}),
        ([A4, B2], {"a": [N1], "b": [(("n2", 2),)]}, {"a": {"n1"}}, {"a": [N2], "b": [(("n1", 2),)]}),
        ([A4], {"a": [N1]}, {"a": {"n1", "n2"}}, {}),
        ([view("a", 2, gpu_type="fast")], {"a": [(("n3", 2),)]}, {"a": {"n3"}}, {}),
        ([view("a", 4, own=[N1])], {"a": [N1]}, {"a": {"n1"}}, {"a": [N1]}),
        ([A4, view("b", 4, own=[N2])], {"a": [N1], "b": [N2]}, {"a": {"n1"}}, {"b": [N2]}),
        ([view("a", 2, own=[(("n2", 2),)])], {"a": [(("n3", 2),)]}, {"a": {"n3"}}, {"a": [(("n2", 2),)]}),
        ([view("a", 6)], {"a": [(("n1", 4), ("n2", 2))]}, {"a": {"n1"}}, {"a": [(("n2", 4), ("n3", 2))]}),
        ([view("a", 6, Scope.RACK)], {"a": [(("n1", 4), ("n2", 2))]}, {"a": {"n1"}}, {}),
    ],
    ids=[
        "nothing kept out",
        "not where it goes",
        "elsewhere",
        "change places",
        "in any order",
        "the other moves",
        "nowhere",
        "of its type",
        "what runs stays",
        "nobody who stays is moved",
        "what may not move there stays",
        "two machines",
        "in its rack",
    ],
)
def test_gangs_go_where_they_may(
    views: list[AppView], awards: Mapping[str, list[Gang]], kept_out: Mapping[str, set[str]], expected: object
) -> None:
    plan = Plan("r", tuple(Award(a, tuple(gangs)) for a, gangs in awards.items()))
    moved = relocate(plan, {v.app_id: v for v in views}, FREE, TOPOLOGY, kept_out)
    assert {a.app_id: list(a.gangs) for a in moved.awards} == expected
    lost = sum(map(len, awards.values())) - sum(len(a.gangs) for a in moved.awards)
    assert moved.note.count("may not start there") == lost
    used: dict[str, int] = {}
    for host, n in (pair for a in moved.awards for gang in a.gangs for pair in gang):
        used[host] = used.get(host, 0) + n
    assert all(n <= FREE[host] for host, n in used.items())
    assert all(gang_gpus(g) in {v.demand.gang_gpus for v in views} for a in moved.awards for g in a.gangs)
