"""Limits in a round: the GPUs that the apps of one queue, group or user may win together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pycontrol.auction.instance import Limit
from pycontrol.model.auction import AppView, Bid, Snapshot, gang_gpus


def limits_of(snapshot: Snapshot) -> tuple[Limit, ...]:
    """One limit for each that an app of the snapshot counts for."""
    found = rooms(snapshot.apps)
    return tuple(
        Limit(frozenset(v.app_id for v in snapshot.apps if name in v.rooms), gpus) for name, gpus in found.items()
    )


def rooms(views: Iterable[AppView]) -> dict[str, int]:
    """Limit -> the GPUs that its apps may win together.

    GPUs with leases that end count for all of them, so that an app can win GPUs that another app at the limit held.
    """
    least, ending = dict[str, int](), dict[str, int]()
    for v in views:
        n = ending_gpus(v) if v.rooms and v.ending_gangs else 0
        for name, room in v.rooms.items():
            least[name] = min(least.get(name, room - n), room - n)
            ending[name] = ending.get(name, 0) + n
    return {name: max(0, room + ending[name]) for name, room in least.items()}


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
