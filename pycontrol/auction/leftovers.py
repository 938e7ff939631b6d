"""Leftovers: GPUs left after payments go to apps gang by gang, so that none stay idle (Themis, Pseudocode 1)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Literal

from pycontrol.auction.instance import Limit
from pycontrol.auction.placing import FreeIndex, fitting
from pycontrol.model.auction import AppView, Award, Demand, Gang, Snapshot, gang_gpus

Order = Literal["random", "worst_first", "most_helped"]


class Ranking:
    """Chooses the app that gets the next gang.

    rho is that of the snapshot, scaled to the app's present GPUs: with k gangs of g GPUs, T_sh is elapsed + work left /
    (k g) seconds; with none, the app waits one lease and then runs one gang.
    """

    def __init__(self, order: Order, snapshot: Snapshot, rng: random.Random) -> None:
        self.order, self.rng, self.snapshot = order, rng, snapshot

    def next(self, open_: Sequence[AppView], gpus: Mapping[str, int]) -> AppView:
        """The app that gets the next gang; `gpus`: app id -> its GPUs by now."""
        if self.order == "random":
            return self.rng.choice(open_)
        if self.order == "worst_first":
            return max(open_, key=lambda v: (self.rho(v, gpus[v.app_id]), -v.submitted_s, v.app_id))
        return max(open_, key=lambda v: (self.help(v, gpus[v.app_id]), -v.submitted_s, v.app_id))

    def rho(self, view: AppView, gpus: int) -> float:
        """The app's rho with `gpus` GPUs; -1 if its rho is not known, so that it comes last."""
        if view.rho is None:
            return -1.0
        return view.rho * self._left_s(view, gpus) / self._left_s(view, view.retained_gpus)

    def help(self, view: AppView, gpus: int) -> float:
        """The decrease of log rho by one more gang."""
        return math.log(self._left_s(view, gpus) / self._left_s(view, gpus + view.demand.gang_gpus))

    def _left_s(self, view: AppView, gpus: int) -> float:
        lease_s, gang = self.snapshot.lease_s, max(1, view.demand.gang_gpus)
        work = view.demand.work_left_gpu_s or max(view.attained_gpu_s, lease_s * gang)
        wait_s = 0.0 if gpus else lease_s
        return max(0.0, self.snapshot.now_s - view.submitted_s) + wait_s + work / max(gpus, gang)


def leftovers(
    room: FreeIndex,
    apps: Sequence[AppView],
    limits: Sequence[Limit],
    kept: Mapping[str, Sequence[Gang]],
    ranking: Ranking,
) -> list[Award]:
    """Gives free GPUs to apps, gang by gang; returns the awards and takes their GPUs from `room`.

    An app keeps its own ending gangs in place, as far as they are free, before it gets new ones. No app gets more than
    it can use, or than its queue's limit leaves after the gangs that the auction gave (`kept`).
    """
    views = sorted(apps, key=lambda v: v.app_id)
    caps = Caps(views, limits, kept)
    gpus = {v.app_id: v.retained_gpus + sum(map(gang_gpus, kept.get(v.app_id, ()))) for v in views}
    own = {v.app_id: [g for g in v.ending_gangs if g not in kept.get(v.app_id, ())] for v in views}
    got: dict[str, list[Gang]] = {}
    open_ = [v for v in views if caps.of(v.app_id) > 0]
    while open_:
        view = ranking.next(open_, gpus)
        gang = next_gang(view.demand, own[view.app_id], caps.of(view.app_id), room)
        if gang is None:  # final, since free GPUs and caps only shrink
            open_.remove(view)
            continue
        room.take(gang)
        caps.use(view.app_id, gang_gpus(gang))
        gpus[view.app_id] += gang_gpus(gang)
        got.setdefault(view.app_id, []).append(gang)
    return [Award(app_id, tuple(gangs), leftover=True) for app_id, gangs in got.items()]


def next_gang(demand: Demand, own: list[Gang], cap_gpus: int, room: FreeIndex) -> Gang | None:
    """One of the app's `own` gangs that is still free, which is removed from the list, else a new one; None if none
    fits."""
    for gang in own:
        wrong = demand.gpu_type and any(room.topology.type_of(h) != demand.gpu_type for h, _ in gang)
        if not wrong and gang_gpus(gang) <= cap_gpus and room.holds(gang):
            own.remove(gang)
            return gang
    if not 0 < demand.gang_gpus <= cap_gpus:
        return None
    return room.place_on(fitting(demand, room.topology), demand.gang_gpus, demand.scope, demand.members)


class Caps:
    """The GPUs that each app may still get, by its demand and the limits that it shares."""

    def __init__(self, views: Sequence[AppView], limits: Sequence[Limit], kept: Mapping[str, Sequence[Gang]]) -> None:
        won = {a: sum(map(gang_gpus, gangs)) for a, gangs in kept.items()}
        self.app = {v.app_id: v.demand.gpus - v.retained_gpus - won.get(v.app_id, 0) for v in views}
        self.limits = limits
        self.left = [x.gpus - sum(won.get(a, 0) for a in x.app_ids) for x in limits]

    def of(self, app_id: str) -> int:
        """GPUs that an app may still get."""
        shared = [n for x, n in zip(self.limits, self.left, strict=True) if app_id in x.app_ids]
        return max(0, min([self.app[app_id], *shared]))

    def use(self, app_id: str, gpus: int) -> None:
        """Counts GPUs that an app got."""
        self.app[app_id] -= gpus
        self.left = [n - gpus * (app_id in x.app_ids) for x, n in zip(self.limits, self.left, strict=True)]
