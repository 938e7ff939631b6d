"""Queue limits in a round: the GPUs that the apps of one queue may win together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pycontrol.auction.instance import Limit
from pycontrol.model.auction import AppView, Bid, Snapshot, gang_gpus

UNLIMITED_GPUS = 1 << 29


def queue_limits(snapshot: Snapshot) -> tuple[Limit, ...]:
    """One limit for each queue that has one."""
    rooms = queue_rooms(snapshot.apps)
    apps_of: dict[str, list[str]] = {queue: [] for queue in rooms}
    for view in snapshot.apps if rooms else ():
        if view.queue in apps_of:
            apps_of[view.queue].append(view.app_id)
    return tuple(Limit(frozenset(apps_of[queue]), gpus) for queue, gpus in rooms.items())


def queue_rooms(views: Iterable[AppView]) -> dict[str, int]:
    """Queue with a limit -> the GPUs that its apps may win together.

    GPUs with leases that end count for the whole queue, so that an app of a queue at its limit can win GPUs that
    another app of the queue held.
    """
    spare: dict[str, int] = {}
    ending: dict[str, int] = {}
    for view in views:
        if view.queue_room_gpus < UNLIMITED_GPUS:
            gpus = ending_gpus(view)
            room = view.queue_room_gpus - gpus
            spare[view.queue] = min(spare.get(view.queue, room), room)
            ending[view.queue] = ending.get(view.queue, 0) + gpus
    return {queue: max(0, gpus + ending[queue]) for queue, gpus in spare.items()}


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
