"""The reason for a wait says whether the free GPUs have room."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from pycontrol.model.auction import Demand
from pycontrol.model.reasons import Pending, Reason
from pycontrol.model.topology import Gpu, Machine, Scope, Topology
from pycontrol.queries.waiting import Waiting


@dataclass
class Lease:
    app_id: str
    end_s: float


def cluster(free: dict[str, int], whole: bool = True) -> Any:
    """Two machines of 4 GPUs in one rack; what is not free `long` has until 1034 (a) or 1050 (b)."""
    topology = Topology.of([Machine("a", "r", 4), Machine("b", "r", 4)])
    gpus = [Gpu(host, i) for host in "ab" for i in range(4)]
    idle = {Gpu(host, i) for host, n in free.items() for i in range(n)}
    leases = {g: Lease("app1", 1034.0 if g.host == "a" else 1050.0) for g in gpus if g not in idle}
    durable = SimpleNamespace(leases=leases, apps={"app1": SimpleNamespace(name="long")})
    return SimpleNamespace(
        topology=topology, durable=durable, supply=SimpleNamespace(whole=whole), free_gpus=lambda: idle
    )


@pytest.mark.parametrize(("free", "scope", "sentence"), [
    ({"a": 2, "b": 2}, Scope.MACHINE,
     "no machine has 4 free GPUs; the first leases that can make room end in 34 s (long)"),
    ({"a": 1}, Scope.CLUSTER,
     "the cluster does not have 4 free GPUs; the first leases that can make room end in 34 s (long)"),
    ({"a": 2, "b": 2}, Scope.CLUSTER, "GPUs are free; a round is about to be held"),
    ({"b": 4}, Scope.MACHINE, "GPUs are free; a round is about to be held"),
])  # fmt: skip
def test_a_wait_for_a_round_is_said_only_if_it_can_help(free: dict[str, int], scope: Scope, sentence: str) -> None:
    demand = Demand(4, 1, scope=scope)
    code, text = Waiting(cluster(free), 1000.0).told(demand, Reason(Pending.WAITING_FOR_ROUND))
    assert text == sentence
    assert code == (Pending.WAITING_FOR_ROUND if text.startswith("GPUs") else Pending.NO_FREE_GPUS)


def test_who_was_outranked_learns_of_the_room_too() -> None:
    why = Reason(Pending.OUTRANKED, "isonomy, round r1.4")
    code, text = Waiting(cluster({"a": 3}), 1000.0).told(Demand(4, 1, scope=Scope.MACHINE), why)
    assert code == Pending.OUTRANKED
    assert text.startswith(f"{why.sentence}; no machine has 4 free GPUs")


def test_other_reasons_and_virtual_clusters_are_left_alone() -> None:
    demand = Demand(4, 1, scope=Scope.MACHINE)
    for a, why in ((cluster({}), Reason(Pending.PAUSED)), (cluster({}, False), Reason(Pending.WAITING_FOR_ROUND))):
        assert Waiting(a, 1000.0).told(demand, why) == (why.code, why.sentence)
