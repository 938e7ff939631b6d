"""YARN's CapacityScheduler as a policy: capacities, first come first served, packing, preemption at lease end.

The baseline of HiveD (OSDI '20, section 5) and of production clusters: a queue gets its capacity whenever its apps want
it, and may use more while other queues leave GPUs idle. Gangs within their queue's capacity stay; gangs beyond it stay
unless a queue below its capacity needs the GPUs. The queue with the lowest use of its capacity is next; in it, running
gangs come first, then the earliest submission. A gang that fits goes ahead of one that does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pycontrol.model.auction import AppView, gang_gpus
from pycontrol.policies.filling import Filling, Offered, runs
from pycontrol.policies.max_min import guaranteed_gpus, used_capacity


@dataclass(frozen=True)
class YarnCs(Filling):
    """Capacity queues, first come first served within each, tightly packed."""

    name: ClassVar[str] = "yarn_cs"
    by_progress: ClassVar[bool] = False
    by_queue: ClassVar[bool] = True

    def key(self, view: AppView, gpus: int, pool: Offered) -> float:
        """0 for a running gang, 1 for a new one; ties go to the earlier submission."""
        return float(not runs(view, gpus))

    def queue_key(self, view: AppView, gpus: int, used_gpus: int, pool: Offered) -> tuple[float, ...]:
        """Queues within their capacity first, then running gangs before new ones, then by use of capacity."""
        ran = runs(view, gpus)
        size = gang_gpus(view.ending_gangs[0]) if ran else view.demand.gang_gpus
        beyond = used_gpus + size > guaranteed_gpus(view, pool) + 1e-9
        return float(beyond), float(not ran), used_capacity(view, used_gpus, pool), used_gpus

    def why(self, view: AppView, pool: Offered) -> str:
        """Names its queue and whether it ran."""
        turn = "it ran already" if view.ending_gangs else "its turn came"
        return f"queue {view.queue}, capacity {guaranteed_gpus(view, pool):.0f} GPUs: {turn}"
