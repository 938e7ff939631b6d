"""The last pass of every round: gives GPUs that the policy left free to apps of the round that can use them.

Policies leave GPUs for reasons that do not justify idle GPUs: payments that no app outside the auction can use, bids
without rows, rounding. GPUs held for a gang (`Plan.holds`) are not given away, but lent to gangs with leases that end
before the hold does.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from pycontrol.auction.leftovers import Caps
from pycontrol.auction.limits import queue_limits
from pycontrol.auction.placing import FreeIndex, fitting
from pycontrol.model.auction import AppView, Award, Gang, Hold, Plan, Snapshot, gang_gpus

LEAST_LOAN = 0.5
"""Shortest loan, in leases; for a shorter one a start is not worth its cost."""
WHY = "idle otherwise: no app before it could use these GPUs"
KeptOut = Callable[[str], Collection[str]]
"""App -> hosts where none of its new containers may start."""


def last_pass(plan: Plan, s: Snapshot, kept_out: KeptOut) -> Plan:
    """The plan with its unused GPUs given to apps of the round that can use them.

    Apps are ordered by priority (highest first), then those that paid in an auction last, then by GPUs (fewest first),
    then by submission. An app keeps its own ending gangs before it gets new ones.
    """
    got = {a.app_id: sum(map(gang_gpus, a.gangs)) for a in plan.awards}
    wanting = [v for v in s.apps if v.demand.gpus > v.retained_gpus + got.get(v.app_id, 0)]
    free = _left(plan, s) if wanting else {}
    if not any(free.values()):
        return plan
    room = FreeIndex(free, s.topology)
    able = _able(plan, s, wanting, room)
    if not able:
        return plan
    givers = _Giver(plan, s, able, kept_out)
    held = {hold: _held(hold, free) for hold in plan.holds}
    for gpus in held.values():
        room.take(tuple(gpus.items()))
    awards = _with(plan.awards, _by_app(givers.give(room, able)))
    given, lent = set(givers.got), list[Award]()
    for hold, gpus in held.items():
        if hold.until_s - s.now_s >= LEAST_LOAN * s.lease_s:
            others = [v for v in able if v.app_id != hold.app_id]
            loans = _by_app(givers.give(FreeIndex(gpus, s.topology), others))
            lent += [Award(app_id, tuple(gangs), True, hold.until_s) for app_id, gangs in loans.items()]
    if not given and not lent:
        return plan
    told = {a.app_id: f"lent: {WHY}" for a in lent} | dict.fromkeys(given, WHY)
    why = {a: "; ".join(filter(None, (plan.why.get(a), said))) for a, said in told.items()}
    changed = replace(plan, awards=(*awards, *lent), why={**plan.why, **why})
    return replace(changed, unused_gpus={h: n for h, n in _left(changed, s).items() if n > 0})


def _left(plan: Plan, s: Snapshot) -> dict[str, int]:
    """GPUs by host that no app was awarded."""
    free = {h: n for h, n in s.free.items() if n > 0}
    for award in plan.awards:
        for host, n in (pair for gang in award.gangs for pair in gang):
            free[host] = free.get(host, 0) - n
    return {h: max(0, n) for h, n in free.items()}


def _able(plan: Plan, s: Snapshot, wanting: Iterable[AppView], room: FreeIndex) -> list[AppView]:
    """Those that may get some of `room`: one of their ending gangs is not renewed, or it has a place for a new one.

    What is left seldom has a place for anyone, so gangs alike are looked at once, and no app is looked at more.
    """
    kept = {a.app_id: a.gangs for a in plan.awards}
    places: dict[tuple[object, ...], bool] = {}
    able = []
    for v in wanting:
        d = v.demand
        shape = d.gang_gpus, d.scope, d.gpu_type, d.mixes, d.members
        if shape not in places:
            types = fitting(d, s.topology) if d.gang_gpus > 0 else ()
            places[shape] = any(room.has_place(d.gang_gpus, d.scope, kind, d.members) for kind in types)
        if places[shape] or (v.ending_gangs and _lost(v, kept.get(v.app_id, ()))):
            able.append(v)
    return able


def _lost(view: AppView, kept: Iterable[Gang]) -> list[Gang]:
    """The app's ending gangs that the plan does not renew."""
    lost = list(view.ending_gangs)
    for gang in kept:
        if gang in lost:
            lost.remove(gang)
    return lost


def _held(hold: Hold, free: dict[str, int]) -> dict[str, int]:
    """Removes a hold's GPUs from `free` and returns those that were there."""
    kept = {}
    for host, n in hold.gang:
        kept[host] = min(n, free.get(host, 0))
        free[host] = free.get(host, 0) - kept[host]
    return {h: n for h, n in kept.items() if n}


def _by_app(given: Iterable[tuple[str, Gang]]) -> dict[str, list[Gang]]:
    found: dict[str, list[Gang]] = {}
    for app_id, gang in given:
        found.setdefault(app_id, []).append(gang)
    return found


def _with(awards: Sequence[Award], more: dict[str, list[Gang]]) -> list[Award]:
    """The awards with more gangs: at most one award per app."""
    joined = [replace(a, gangs=(*a.gangs, *more.pop(a.app_id, ()))) for a in awards]
    return [*joined, *(Award(app_id, tuple(gangs), leftover=True) for app_id, gangs in more.items())]


class _Giver:
    """Gives free GPUs to apps within their demands and queue limits."""

    def __init__(self, plan: Plan, s: Snapshot, apps: Sequence[AppView], kept_out: KeptOut) -> None:
        self.s, self.kept_out = s, functools.cache(lambda app_id: frozenset(kept_out(app_id)))
        kept = {a.app_id: a.gangs for a in plan.awards}
        self.caps = Caps(apps, queue_limits(s), kept)
        self.gpus = {v.app_id: v.retained_gpus + sum(map(gang_gpus, kept.get(v.app_id, ()))) for v in apps}
        self.paid = {b.app_id for b in plan.bids if b.paid_gangs}
        self.own = {v.app_id: _lost(v, kept.get(v.app_id, ())) for v in apps}
        """App -> its ending gangs that the plan does not renew."""
        self.got: set[str] = set()

    def give(self, room: FreeIndex, apps: Sequence[AppView]) -> Iterator[tuple[str, Gang]]:
        """Yields (app, gang) until no app can use what is left in `room`, and takes the gangs from it."""
        full: set[object] = set()
        heap = [self._entry(v) for v in apps if self.caps.of(v.app_id) > 0] if room.gpus else []
        by_id = {v.app_id: v for v in apps}
        heapq.heapify(heap)
        while heap and room.gpus:
            view = by_id[heap[0][-1]]
            gang = self._next(view, room, full)
            if gang is None:  # final, since room and caps only shrink
                heapq.heappop(heap)
                continue
            room.take(gang)
            self.caps.use(view.app_id, gang_gpus(gang))
            self.gpus[view.app_id] += gang_gpus(gang)
            self.got.add(view.app_id)
            yield view.app_id, gang
            heapq.heapreplace(heap, self._entry(view))

    def _entry(self, view: AppView) -> tuple[int, bool, int, float, str]:
        app_id = view.app_id
        return -view.priority, app_id in self.paid, self.gpus[app_id], view.submitted_s, app_id

    def _next(self, view: AppView, room: FreeIndex, full: set[object]) -> Gang | None:
        demand, cap = view.demand, self.caps.of(view.app_id)
        for gang in self.own[view.app_id]:
            right = not demand.gpu_type or all(room.type_of(h) == demand.gpu_type for h, _ in gang)
            if gang_gpus(gang) <= cap and right and room.holds(gang):
                self.own[view.app_id].remove(gang)
                return gang
        if not 0 < demand.gang_gpus <= min(cap, room.gpus):
            return None
        closed = self.kept_out(view.app_id)
        shape = demand.gang_gpus, demand.scope, demand.gpu_type, demand.mixes, demand.members, closed
        if shape in full:
            return None
        open_ = room
        if closed.intersection(h for h, n in room.left.items() if n > 0):
            open_ = FreeIndex({h: n for h, n in room.left.items() if h not in closed}, room.topology)
        types = fitting(demand, self.s.topology)
        found = open_.place_on(types, demand.gang_gpus, demand.scope, demand.members)
        if found is None:
            full.add(shape)
        return found
