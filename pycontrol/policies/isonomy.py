"""Isonomy, the default: who would be done first if everybody had an equal share of the cluster goes first.

The cluster is imagined to be shared equally at every moment among the apps that are in it. Each app declares its
work once, when it is submitted; that fixes the moment at which the equal share would have finished it, its turn.
GPUs go to the earliest turn, gang by gang, as many as it can use. On one machine that never split its work, nobody
would finish later than under the equal share (the Fair Sojourn Protocol: Friedman and Henderson, SIGMETRICS '03).

A turn is where rho reaches 1: rho = T_sh / (T_cluster x N_avg), and the equal share gives T_cluster in N_avg times
as long. It never depends on what an app says of itself later on. Service is measured by YARN, and what goes beyond
the declared work counts double, so declaring less than the truth moves the turn back as much as declaring more.
docs/policy.md has the reasoning and the figures.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from pycontrol.model.auction import AppView, Bid, Plan, Snapshot
from pycontrol.policies.filling import Filling, Offered


@dataclass(frozen=True)
class Isonomy(Filling):
    """Earliest finish under an equal share first, by declared work and measured service."""

    overrun: Annotated[float, Field(ge=1)] = 2.0
    """How much service beyond the declared work counts; 1 would make it pay to declare less."""

    name: ClassVar[str] = "isonomy"

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """Takes note of new apps, then fills the pool by turn."""
        memory = ledger(snapshot)
        plan = super().decide(replace(snapshot, memory=memory), bids, rng)
        return replace(plan, memory=memory)

    def key(self, view: AppView, gpus: int, pool: Offered) -> float:
        """Its turn, on the clock of the equal share."""
        at_s, declared_gpu_s, wide = pool.snapshot.memory["apps"][view.app_id]
        return float(at_s + self._cost_gpu_s(view, declared_gpu_s) / wide)

    def _cost_gpu_s(self, view: AppView, declared_gpu_s: float) -> float:
        return declared_gpu_s + self.overrun * max(0.0, view.attained_gpu_s - declared_gpu_s)

    def why(self, view: AppView, pool: Offered) -> str:
        """What it needs, and what an equal share would have given it by now."""
        at_s, declared_gpu_s, wide = pool.snapshot.memory["apps"][view.app_id]
        needs_s = self._cost_gpu_s(view, declared_gpu_s) / wide
        owed_s = equal_share_s(pool.snapshot) - at_s
        over = view.attained_gpu_s - declared_gpu_s
        said = f"; {over:.0f} GPU-s beyond what it declared count {self.overrun:g} times" if over > 0 else ""
        return f"an equal share would have given it {owed_s:.0f} of the {needs_s:.0f} s that it needs alone{said}"


def equal_share_s(snapshot: Snapshot) -> float:
    """The clock of the equal share: seconds of the whole cluster that one app would have had, had it been there."""
    at_s, share_s, apps = snapshot.memory.get("clock", (snapshot.now_s, 0.0, 1))
    return float(share_s + (snapshot.now_s - at_s) / apps)


def ledger(snapshot: Snapshot) -> dict[str, Any]:
    """What is remembered: the clock since the number of apps last changed, and what each app declared at first.

    By app: the clock's reading at its submission, its work in serial GPU-seconds, and the GPUs it can use at once.
    """
    old: Mapping[str, list[float]] = snapshot.memory.get("apps", {})
    present = snapshot.present.union(v.app_id for v in snapshot.apps)
    share_s, n = equal_share_s(snapshot), max(1, len(present))
    apps = {a: entry for a, entry in old.items() if a in present}
    for v in snapshot.apps:
        if v.app_id not in apps:
            waited_s = max(0.0, snapshot.now_s - v.submitted_s)
            wide = max(1, min(snapshot.topology.gpus, v.demand.gpus))
            apps[v.app_id] = [share_s - waited_s / n, v.demand.work_total_gpu_s, wide]
    clock = snapshot.memory.get("clock")
    if clock is None or clock[2] != n:
        clock = [snapshot.now_s, share_s, n]
    return {"clock": clock, "apps": apps}
