"""Isonomy: who would be done first if everybody had an equal share of the cluster goes first.

A clock runs as fast as one app's equal share: a second of it is a second of the whole cluster for each app that is
there. An app declares its work once, at its submission; its turn is `patience` times as long after that, on this
clock, as its work takes. GPUs go to the earliest turn, gang by gang, as many as it can use. So small apps go before
large ones, but nobody who came after an app's turn goes before it. With patience 1, the turn of an app that can use
the whole cluster is where its rho reaches 1: the order of the Fair Sojourn Protocol (Friedman and Henderson,
SIGMETRICS '03), but for a clock that counts the apps that are there, and not those that equal sharing would have.

Nothing that an app says after its submission moves its turn. Service is measured by YARN, and what goes beyond the
declared work counts four times, so declaring too little puts the turn off, as declaring too much does. An app that can
use only part of the cluster is taken for one that can use a geometric mean of that part and the whole, the part
counted three times: it could not have been faster alone, but its work comes cheap to the others.

docs/policy.md has the reasoning and the figures.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from pycontrol.model.auction import AppView, Bid, Plan, Snapshot
from pycontrol.model.topology import Scope
from pycontrol.policies.filling import Filling, Offered
from pycontrol.policies.gandiva import Gandiva

PART = 0.75
"""Weight, in a geometric mean with the whole cluster, of the GPUs that an app can use."""


@dataclass(frozen=True)
class Isonomy(Filling):
    """Earliest turn first, by declared work and measured service."""

    patience: Annotated[float, Field(gt=0)] = 2.0
    """How many times its work an equal share gives an app until its turn. More favours small apps, less early ones."""
    overrun: Annotated[float, Field(ge=1)] = 4.0
    """How much service beyond the declared work counts; 1 would make it pay to declare less."""
    restart_s: Annotated[float, Field(ge=0)] = 40.0
    """What it costs to move a badly placed gang at its lease's end; it must be regained within a lease."""

    name: ClassVar[str] = "isonomy"
    migrates: ClassVar[bool] = True
    measure: ClassVar[tuple[str, str]] = ("virtual finish time", "s")

    def prepared(self, snapshot: Snapshot) -> Snapshot:
        """With the apps that are new."""
        return replace(snapshot, memory=ledger(snapshot))

    def standing(self, view: AppView, pool: Offered) -> float:
        """Seconds until its turn, if the number of apps stays; below 0 where it is over."""
        return (self.key(view, 0, pool) - equal_share_s(pool.snapshot)) * float(pool.snapshot.memory["clock"][2])

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """Takes note of new apps, then fills the pool by turn."""
        seen = self.prepared(snapshot)
        return replace(super().decide(seen, bids, rng), memory=seen.memory)

    def key(self, view: AppView, gpus: int, pool: Offered) -> float:
        """Its turn, in seconds of the equal share's clock."""
        begin_s, declared_gpu_s, wide_gpus = pool.snapshot.memory["apps"][view.app_id]
        over_gpu_s = max(0.0, view.attained_gpu_s - declared_gpu_s)
        return float(begin_s + self.patience * (declared_gpu_s + self.overrun * over_gpu_s) / wide_gpus)

    def moves(self, view: AppView, old: Scope, new: Scope, lease_s: float) -> bool:
        """As gandiva does."""
        return Gandiva(restart_s=self.restart_s).moves(view, old, new, lease_s)

    def why(self, view: AppView, pool: Offered) -> str:
        """What it declared, and when its turn is if the number of apps stays."""
        memory = pool.snapshot.memory
        declared_gpu_s, apps = memory["apps"][view.app_id][1], memory["clock"][2]
        due_s = self.standing(view, pool)
        turn = f"in {due_s:.0f} s" if due_s > 0 else f"{-due_s:.0f} s ago"
        over_gpu_s = view.attained_gpu_s - declared_gpu_s
        more = f" and used {over_gpu_s:.0f} more, which count {self.overrun:g} times" if over_gpu_s > 0 else ""
        return f"its turn, {turn}, is the earliest: it declared {declared_gpu_s:.0f} GPU-s{more}; {apps} apps share"


def equal_share_s(snapshot: Snapshot) -> float:
    """The clock: seconds of the whole cluster that an app would have had that was there from the beginning."""
    at_s, share_s, apps = snapshot.memory.get("clock", (snapshot.now_s, 0.0, 1))
    return float(share_s + (snapshot.now_s - at_s) / apps)


def ledger(snapshot: Snapshot) -> dict[str, Any]:
    """What is remembered; it changes only when apps come or go.

    clock: when the number of apps last changed, what the clock read then, and the number. By app: the clock at
    its submission, its work in serial GPU-seconds, and how many GPUs it is taken to use.
    """
    old: Mapping[str, list[float]] = snapshot.memory.get("apps", {})
    present = snapshot.present.union(v.app_id for v in snapshot.apps)
    share_s, n = equal_share_s(snapshot), max(1, len(present))
    apps = {a: entry for a, entry in old.items() if a in present}
    cluster_gpus = max(1, snapshot.topology.gpus)
    for v in snapshot.apps:
        if v.app_id not in apps:
            waited_s = max(0.0, snapshot.now_s - v.submitted_s)
            wide_gpus = cluster_gpus ** (1 - PART) * max(1, min(cluster_gpus, v.demand.gpus)) ** PART
            apps[v.app_id] = [share_s - waited_s / n, v.demand.work_total_gpu_s, wide_gpus]
    clock = snapshot.memory.get("clock")
    if clock is None or clock[2] != n:
        clock = [snapshot.now_s, share_s, n]
    return {"clock": clock, "apps": apps}
