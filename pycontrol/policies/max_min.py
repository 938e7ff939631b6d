"""Max-min fairness in two levels: queues by their capacities, then the apps of a queue alike.

The queue with the fewest GPUs relative to its capacity is next, and in it the app with the fewest GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from pycontrol.model.auction import AppView
from pycontrol.model.cluster import Queue
from pycontrol.policies.filling import Filling, Offered

ANY = Queue("", 1.0)
"""Stands for a queue that YARN has not reported: capacity 1."""


def guaranteed_gpus(view: AppView, pool: Offered) -> float:
    """The GPUs of the capacity of the app's queue, in all partitions."""
    queue, gpus_in = pool.snapshot.queues.get(view.queue, ANY), pool.snapshot.topology.gpus_in
    return queue.across(gpus_in if any(gpus_in) else {"": pool.cluster_gpus})[0]


def used_capacity(view: AppView, used_gpus: int, pool: Offered) -> float:
    """GPUs used over the GPUs of the capacity of the app's queue; infinite for a queue of capacity 0."""
    guaranteed = guaranteed_gpus(view, pool)
    return used_gpus / guaranteed if guaranteed > 0 else math.inf


@dataclass(frozen=True)
class MaxMin(Filling):
    """Equal GPUs: first among queues, by capacity, then among the apps of each."""

    name: ClassVar[str] = "max_min"
    by_progress: ClassVar[bool] = False
    measure: ClassVar[tuple[str, str]] = ("GPUs", "")
    by_queue: ClassVar[bool] = True

    def key(self, view: AppView, gpus: int, pool: Offered) -> float:
        """The app's GPUs."""
        return gpus

    def queue_key(self, view: AppView, gpus: int, used_gpus: int, pool: Offered) -> tuple[float, ...]:
        """The queue's GPUs over those of its capacity, then its GPUs."""
        return used_capacity(view, used_gpus, pool), used_gpus

    def why(self, view: AppView, pool: Offered) -> str:
        """Names its GPUs before the round."""
        return f"the turn of queue {view.queue}, where it was among those with the fewest GPUs: {view.retained_gpus}"
