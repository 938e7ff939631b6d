"""The cost of a round over all virtual clusters in the Arbiter: eleven tenants, each with waiting apps."""

from __future__ import annotations

import random
import time
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.arbiter.views.settings import Settings
from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Node, YarnApp
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.isonomy import Isonomy

TENANTS, APPS = 11, 4


def run(quick: bool) -> dict[str, Any]:
    """Processor seconds by GPUs of the cluster."""
    return {f"{nodes * 8} GPUs": _measure(nodes) for nodes in ((1024,) if quick else (1024, 8192))}


def _measure(nodes: int) -> dict[str, float]:
    hosts = [f"h{i:05d}" for i in range(nodes)]
    file = CellsFile.model_validate(
        {
            "levels": {"switch": 2, "socket": 2, "node": 2},
            "hosts": hosts,
            "virtual_clusters": {f"root.t{k}": {"node": nodes // TENANTS} for k in range(TENANTS)},
        }
    )
    policy = ByVirtualCluster(Isonomy())
    arbiter = Arbiter(Settings(recovery_s=0.0, round_retry_s=1e6), policy, supply=CellSupply(layout(file)))
    arbiter.handle(ev.ClusterSnapshot(True, tuple(Node(f"{h}:1", h, "r", 8) for h in hosts), (), (), ()), 0.0)
    arbiter.handle(ev.Tick(), 1.0)
    for k in range(TENANTS * APPS):
        name = f"a{k}"
        app = YarnApp(name, "u", f"root.t{k % TENANTS}", name, "SUBMARINE", 1.0, frozenset({"isonomy"}), f"{name}_1")
        arbiter.handle(ev.AppAdded(app), 1.0)
        arbiter.handle(ev.AgentUp(name, app.attempt_id, "single", Demand(8, 4, 8, 1e6, 1e6)), 1.0)
    begin_s, policy_s, rounds = time.process_time(), 0.0, 0
    waiting = arbiter.handle(ev.Tick(), 5.0)
    while waiting:
        effect = waiting.pop()
        if isinstance(effect, ev.Solve):
            before_s = time.process_time()
            plan = policy.decide(effect.snapshot, effect.bids, random.Random(effect.seed))
            policy_s += time.process_time() - before_s
            rounds += 1
            waiting += arbiter.handle(ev.Decided(effect.snapshot.round_id, plan), 5.0)
    total_s = time.process_time() - begin_s
    granted = len(arbiter.durable.leases)
    assert granted == TENANTS * APPS * 32, granted
    arbiter_s = total_s - policy_s
    return {"round_s": total_s, "policy_s": policy_s, "arbiter_s": arbiter_s, "lots": rounds, "granted": granted}
