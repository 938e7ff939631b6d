"""Queue limits in a round: the GPUs that the apps of one queue may win together."""

from __future__ import annotations

from collections.abc import Mapping

from pycontrol.auction.instance import Limit
from pycontrol.model.auction import AppView, Bid, Snapshot, gang_gpus

UNLIMITED_GPUS = 1 << 29


def queue_limits(snapshot: Snapshot) -> tuple[Limit, ...]:
    """One limit for each queue that has one.

    GPUs with leases that end count for the whole queue, so that an app of a queue at its limit can win GPUs that
    another app of the queue held.
    """
    queues: dict[str, list[AppView]] = {}
    spare: dict[str, int] = {}
    ending: dict[str, int] = {}
    for view in snapshot.apps:
        gpus = ending_gpus(view) if view.ending_gangs else 0
        room = view.queue_room_gpus - gpus
        if view.queue not in queues:
            queues[view.queue], spare[view.queue], ending[view.queue] = [view], room, gpus
            continue
        queues[view.queue].append(view)
        ending[view.queue] += gpus
        if room < spare[view.queue]:
            spare[view.queue] = room
    return tuple(
        Limit(frozenset(v.app_id for v in views), max(0, spare[queue] + ending[queue]))
        for queue, views in queues.items()
        if spare[queue] < UNLIMITED_GPUS
    )


def ending_gpus(view: AppView) -> int:
    """The app's GPUs on offer."""
    return sum(gang_gpus(g) for g in view.ending_gangs)


def room_gpus(snapshot: Snapshot, limits: tuple[Limit, ...]) -> Mapping[str, int]:
    """App id -> GPUs that it could win in this round; 0 if its smallest gang has no room."""
    result = {}
    for view in snapshot.apps:
        shared = [limit.gpus for limit in limits if view.app_id in limit.app_ids]
        room = max(0, min([view.demand.gpus - view.retained_gpus, *shared]))
        smallest = min([view.demand.gang_gpus, *(gang_gpus(g) for g in view.ending_gangs)])
        result[view.app_id] = room if room >= smallest else 0
    return result


def within(bid: Bid, gpus: int) -> Bid:
    """The bid without rows for more than `gpus` GPUs, which cannot win."""
    return Bid(bid.app_id, bid.rho_nothing, tuple(r for r in bid.rows if r.gpus <= gpus), bid.restart_s)
