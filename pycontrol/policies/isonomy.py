"""Isonomy: apps are served in the order in which hierarchical equal sharing would finish them.

GPUs go to the earliest virtual finish time in an ideal cluster on which work splits freely (`fluid`), gang by gang, as
many as the app can use. Nothing that an app reports after submission changes its virtual finish time, unless it began
with one gang and asks for more. YARN measures service, and overrun counts several times. docs/policy.md has the
reasoning and the figures.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field

from pycontrol.fairness.bidding import speed_of
from pycontrol.model.accounts import UNLIMITED, Account, Limits
from pycontrol.model.auction import AppView, Bid, Gang, Plan, Snapshot
from pycontrol.policies.filling import Filling, Offered, runs
from pycontrol.policies.fluid import Fluid, joined
from pycontrol.policies.gandiva import Gandiva
from pycontrol.policies.hierarchy import VirtualApp, Weights
from pycontrol.policies.past_use import PastUse

CANNOT_WAIT_S = 1e9
"""By how much the key of an app that cannot wait is earlier."""
ALIKE = 0.95
"""A gang whose time changes by less is as fast: figures of its speed are measured, and differ a little each time."""
STAYS_LEASES = 6.0
"""The most that work without a checkpoint counts, in leases: what hiding checkpoints could gain (docs/policy.md)."""


@dataclass(frozen=True)
class Isonomy(Filling):
    """Earliest virtual finish time first: shares of groups and queues, then users, then apps."""

    overrun: Annotated[float, Field(ge=1)] = 4.0
    """Factor by which service beyond the declared work counts; with 1, declaring too little would pay off."""
    restart_s: Annotated[float, Field(ge=0)] = 40.0
    """Seconds that a restart costs. At its lease's end a gang moves where its work left ends earlier nevertheless, and
    for each revoked GPU the same number of GPU-seconds does not count as overrun; if it is more, what launches on new
    grants were measured to take here does not."""

    loss: Annotated[float, Field(ge=0)] = 10.0
    """For how many seconds of virtual finish time a second counts that a gang would train again, or that its restart
    takes; 0: who loses GPUs does not depend on it."""
    half_life_s: Annotated[float, Field(ge=0)] = 0.0
    """Time in which past use of an account loses half of its effect on its weight (`past_use`); 0: use has none."""

    name: ClassVar[str] = "isonomy"
    by_progress: ClassVar[bool] = False
    by_unsaved: ClassVar[bool] = True
    migrates: ClassVar[bool] = True
    one_type: ClassVar[bool] = True
    measure: ClassVar[tuple[str, str]] = ("virtual finish time", "s")

    def prepared(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the present ideal in its memory, and as `kept` the ideal to be remembered."""
        use = self.past_use(snapshot)
        kept, ideal = self.ideal(snapshot, use)
        return replace(snapshot, memory={"kept": kept, "ideal": ideal, "use": use})

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """The plan: updates the ideal by arrivals and ends, then fills the pool by virtual finish time."""
        seen = self.prepared(snapshot)
        memory = seen.memory["kept"].to_json()
        if seen.memory["use"] is not None:
            memory["use"] = seen.memory["use"].dump()
        return replace(super().decide(seen, bids, rng), memory=memory)

    def key(self, view: AppView, gpus: int, pool: Offered) -> float:
        """The app's virtual finish time, Unix seconds; earlier if a restart would cost work, and if it cannot wait.

        Inside a virtual cluster the cost of a restart does not count: it depends on what was borrowed, and a tenant's
        own GPUs are to be shared as on its private cluster.
        """
        first_s = CANNOT_WAIT_S if self.cannot_wait(view, pool) else 0.0
        stays_s = self.stays_s(view, pool.lease_s) if runs(view, gpus) and not pool.snapshot.private else 0.0
        return pool.snapshot.now_s + self.standing(view, pool) - first_s - stays_s

    def standing(self, view: AppView, pool: Offered) -> float:
        """Seconds until the app's virtual finish time; negative if that has passed."""
        ideal: Fluid = pool.snapshot.memory["ideal"]
        return ideal.finish_s(view.app_id) - pool.snapshot.now_s

    def cannot_wait(self, view: AppView, pool: Offered) -> bool:
        """Whether the app would end after its virtual finish time, on all GPUs that it can use, if it waited a lease.

        So the long jobs of an app whose share is all that it can use never wait. Work beyond the declaration may wait.
        """
        ideal: Fluid = pool.snapshot.memory["ideal"]
        app = ideal.apps[view.app_id]
        left_gpu_s = -self._beyond_gpu_s(view, app.declared_gpu_s)
        slack_s = self.standing(view, pool) - left_gpu_s / app.width_gpus
        return left_gpu_s > 0 and not view.demand.guessed and slack_s < pool.lease_s

    def moves(self, view: AppView, old: Gang, new: Gang, pool: Offered) -> bool:
        """Whether a gang's declared work left ends earlier there, with a restart and what it would train again if it
        does not save at a stop; if what is left is not known, whether it does more in a lease, as in `Gandiva.moves`.

        Either way it is faster there by its app's figures. So no gang moves back, and no two go on changing places.
        """
        slow, fast = (pool.slowdown_in(gang, view.demand) for gang in (old, new))
        left_s = self._left_s(view, old, pool) * slow
        if left_s <= 0:
            return Gandiva(restart_s=self.restart_s).moves(view, old, new, pool)
        unsaved_s = dict(zip(view.ending_gangs, view.unsaved_s, strict=False)) if view.demand.unsaved else {}
        return fast < ALIKE * slow and left_s > self.restart_s + (left_s + unsaved_s.get(old, 0.0)) * fast / slow

    def _left_s(self, view: AppView, gang: Gang, pool: Offered) -> float:
        """Seconds of declared work left for a gang at full speed, if its app had all GPUs that it can use and attained
        all on this gang's type, perhaps too few; 0 or less: not known.
        """
        app, d = pool.snapshot.memory["ideal"].apps[view.app_id], view.demand
        speed = speed_of(d.speedups, (host for host, _ in gang), pool.snapshot.topology)
        left_gpu_s = -self._beyond_gpu_s(view, app.declared_gpu_s) - (speed - 1) * view.attained_gpu_s
        return 0.0 if d.guessed else left_gpu_s / app.width_gpus

    def stays_s(self, view: AppView, lease_s: float) -> float:
        """The app's gangs that run give way only to apps whose virtual finish time is earlier by more than this."""
        lost_s = max(view.unsaved_s, default=0.0) + self.restart_s
        return min(self.loss * lost_s, STAYS_LEASES * lease_s)

    def why(self, view: AppView, pool: Offered) -> str:
        """Names its declared work, its share until that is served, and when equal sharing would finish it."""
        ideal: Fluid = pool.snapshot.memory["ideal"]
        declared_gpu_s = ideal.apps[view.app_id].declared_gpu_s
        in_s = self.standing(view, pool)
        when = f"finish it in {in_s:.0f} s" if in_s > 0 else f"have finished it {abs(in_s):.0f} s ago"
        over_gpu_s = self.over_gpu_s(view, declared_gpu_s)
        more = f" and used {over_gpu_s:.0f} more, which count {self.overrun:g} times" if over_gpu_s > 0 else ""
        gpus = ideal.rate(view.app_id)
        now = "; it would end later if it waited a lease" if self.cannot_wait(view, pool) else ""
        share = f"; its share is {gpus:.1f} GPUs of {pool.cluster_gpus}" if gpus is not None else ""
        if share and pool.snapshot.accounts.groups:
            share += f" (as {'/'.join(ideal.weights.path(ideal.apps[view.app_id]))})"
        return f"equal sharing would {when}: it declared {declared_gpu_s:.0f} GPU-s{more}{share}{now}"

    def past_use(self, snapshot: Snapshot) -> PastUse | None:
        """What accounts used before; None if it has no effect."""
        if not self.half_life_s:
            return None
        return PastUse.load(snapshot.memory.get("use"), snapshot.now_s).seen(snapshot, self.half_life_s)

    def weights(self, snapshot: Snapshot, use: PastUse | None = None) -> Weights:
        """Weights and limits of the accounts in the snapshot's virtual cluster; queues have their capacities, and with
        node labels those of all partitions.
        """
        gpus, queues = max(1, snapshot.cluster_gpus), dict[str, Account]()
        for q in snapshot.queues.values():
            weight, most = q.fractions(snapshot.topology.gpus_in)
            queues[q.path] = Account(weight, Limits(most * gpus) if 0 < most < 1 else UNLIMITED)
        root = snapshot.accounts.tree(queues)
        if use is not None:
            root = use.weighed(root, snapshot.accounts, gpus, self.half_life_s)
        return Weights(gpus, root, snapshot.accounts)

    def ideal(self, snapshot: Snapshot, use: PastUse | None = None) -> tuple[Fluid, Fluid]:
        """(ideal to be remembered, ideal now).

        The remembered one changes only if an app arrived, ended, became wider or used more than it declared. Until then
        the present ideal can be computed from it, so the journal does not have to record it in each round.
        """
        now_s, weights = snapshot.now_s, self.weights(snapshot, use)
        kept = Fluid.from_json(snapshot.memory, weights) or Fluid(now_s, weights)
        new = self._newcomers(snapshot, kept)
        now = joined(kept, new).at(now_s)
        present = snapshot.present.union(v.app_id for v in snapshot.apps)
        changes: dict[str, VirtualApp] = {}
        for app_id in [a for a in now.apps if a not in present]:
            app = now.apps[app_id]
            if not app.gone:
                used_gpu_s = snapshot.ended.get(app_id, math.inf)
                changes[app_id] = replace(app, gone=True, need_gpu_s=min(app.need_gpu_s, used_gpu_s))
        for v in snapshot.apps:
            known = now.apps.get(v.app_id)
            if known is None:
                continue
            asked_gpus = min(weights.gpus, v.demand.gpus)
            grows = v.demand.guessed or known.width_gpus <= v.demand.gang_gpus  # as one that tried GPU types
            if grows and known.width_gpus < asked_gpus:
                known = changes[v.app_id] = replace(known, width_gpus=asked_gpus)
            if v.attained_gpu_s <= known.declared_gpu_s and not known.gone:
                continue
            declared_gpu_s = v.demand.work_total_gpu_s if v.demand.guessed else known.declared_gpu_s
            need_gpu_s = self._need_gpu_s(v, declared_gpu_s)
            if need_gpu_s > known.need_gpu_s or known.gone:  # gone: it moved back
                changes[v.app_id] = replace(
                    known, declared_gpu_s=declared_gpu_s, need_gpu_s=need_gpu_s, done_s=None, gone=False
                )
        changed = now.changed(changes) if changes else now
        back = self._newcomers(snapshot, changed)  # moved back after the ideal had served them
        if not new and not back and not changes:
            return kept, now
        now = joined(changed, back)
        return now, now

    def over_gpu_s(self, view: AppView, declared_gpu_s: float) -> float:
        """Its overrun, GPU-s, less what slow places, launches and revocations cost: it did not choose these."""
        return max(0.0, self._beyond_gpu_s(view, declared_gpu_s))

    def _beyond_gpu_s(self, view: AppView, declared_gpu_s: float) -> float:
        """The same, but negative while declared work is left."""
        excused_gpu_s = view.slowed_gpu_s + max(view.launching_gpu_s, self.restart_s * view.revoked_gpus)
        return view.attained_gpu_s - excused_gpu_s - declared_gpu_s

    def _need_gpu_s(self, view: AppView, declared_gpu_s: float) -> float:
        return declared_gpu_s + self.overrun * self.over_gpu_s(view, declared_gpu_s)

    def _newcomers(self, snapshot: Snapshot, known: Fluid) -> list[tuple[float, str, VirtualApp]]:
        """(arrival, id, app) for each app that the ideal does not have."""
        new = [v for v in snapshot.apps if v.app_id not in known.apps]
        return [(min(v.submitted_s, snapshot.now_s), v.app_id, self._newcomer(v, known.weights.gpus)) for v in new]

    def _newcomer(self, view: AppView, gpus: int) -> VirtualApp:
        declared_gpu_s = view.demand.work_total_gpu_s
        width_gpus = max(1, min(gpus, view.demand.gpus))
        need_gpu_s = self._need_gpu_s(view, declared_gpu_s)
        return VirtualApp(view.queue, view.user or view.app_id, declared_gpu_s, width_gpus, need_gpu_s)
