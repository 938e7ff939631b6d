"""The last pass of every round: gives GPUs that the policy left free to apps of the round that can use them.

Policies leave GPUs for reasons that do not justify idle GPUs: payments that no app outside the auction can use, bids
without rows, rounding. GPUs held for a gang (`Plan.holds`) are not given away, but lent to gangs with leases that end
before the hold does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pycontrol.auction.handout import ByKey, Caps, KeptOut, Taker, gangs_of, hand_out, less, shape_of, taker
from pycontrol.auction.placing import FreeIndex
from pycontrol.model.auction import AppView, Award, Gang, Plan, Snapshot, gang_of
from pycontrol.model.grouping import grouped

LEAST_LOAN = 0.5
"""Shortest loan, in leases; for a shorter one a start is not worth its cost."""
WHY = "idle otherwise: no app before it could use these GPUs"


def last_pass(plan: Plan, s: Snapshot, kept_out: KeptOut) -> Plan:
    """The plan with its unused GPUs given to apps of the round that can use them.

    Apps are ordered by priority (highest first), then those that paid in an auction last, then by GPUs (fewest first),
    then by submission. An app keeps its own ending gangs before it gets new ones.
    """
    kept = {a.app_id: a.gangs for a in plan.awards}
    caps = Caps(s.apps, kept)
    wanting = [v for v in s.apps if caps.wanted(v) > 0]
    free = _left(plan, s) if wanting else {}
    if not any(free.values()):
        return plan
    room = FreeIndex(free, s.topology)
    able = _able(kept, s, wanting, room)
    if not able:
        return plan
    paid = {b.app_id for b in plan.bids if b.paid_gangs}
    held = {}
    for hold in plan.holds:
        gang = gang_of({h: min(n, room.left.get(h, 0)) for h, n in hold.gang})
        room.take(gang)
        held[hold] = FreeIndex(dict(gang), s.topology)
    given = _handed(able, room, caps, paid, kept_out)
    new = dict(given)
    awards = [replace(a, gangs=(*a.gangs, *new.pop(a.app_id, ()))) for a in plan.awards]
    awards += [Award(app_id, tuple(gangs), leftover=True) for app_id, gangs in new.items()]
    lent = list[Award]()
    for hold, gpus in held.items():
        if hold.until_s - s.now_s >= LEAST_LOAN * s.lease_s:
            others = [to for to in able if to.view.app_id != hold.app_id]
            loans = _handed(others, gpus, caps, paid, kept_out)
            lent += [Award(app_id, tuple(gangs), True, hold.until_s) for app_id, gangs in loans.items()]
    if not given and not lent:
        return plan
    told = {a.app_id: f"lent: {WHY}" for a in lent} | dict.fromkeys(given, WHY)
    why = {a: "; ".join(filter(None, (plan.why.get(a), said))) for a, said in told.items()}
    changed = replace(plan, awards=(*awards, *lent), why={**plan.why, **why})
    return replace(changed, unused_gpus={h: n for h, n in _left(changed, s).items() if n > 0})


def _handed(
    able: Iterable[Taker], room: FreeIndex, caps: Caps, paid: Collection[str], kept_out: KeptOut
) -> dict[str, list[Gang]]:
    """App -> the gangs that it gets of `room`."""

    def key(to: Taker) -> tuple[int, bool, int, float, str] | None:
        v = to.view
        in_turn = -v.priority, v.app_id in paid, caps.gpus(v), v.submitted_s, v.app_id
        return in_turn if caps.of(v) > 0 else None

    order: ByKey[Taker] = ByKey(able if room.gpus else (), key)
    given = hand_out(order, gangs_of(room, caps, kept_out), lambda: room.gpus > 0)
    return grouped((to.view.app_id, gang) for to, gang in given)


def _left(plan: Plan, s: Snapshot) -> dict[str, int]:
    """GPUs by host that no app was awarded."""
    free = {h: n for h, n in s.free.items() if n > 0}
    for award in plan.awards:
        for host, n in (pair for gang in award.gangs for pair in gang):
            free[host] = free.get(host, 0) - n
    return {h: max(0, n) for h, n in free.items()}


def _able(kept: Mapping[str, Sequence[Gang]], s: Snapshot, wanting: Iterable[AppView], room: FreeIndex) -> list[Taker]:
    """Those that may get some of `room`: one of their ending gangs is not renewed, or it has a place for a new one.

    What is left seldom has a place for anyone, so gangs alike are looked at once, and no app is looked at more.
    """
    places: dict[tuple[object, ...], bool] = {}
    able = []
    for v in wanting:
        d = v.demand
        alike = d.gang_gpus, d.scope, d.gpu_type, d.mixes, d.members
        if alike not in places:
            places[alike] = d.gang_gpus > 0 and room.has_place(*shape_of(v, s.topology))
        if places[alike] or (v.ending_gangs and less(v.ending_gangs, kept.get(v.app_id, ()))):
            able.append(taker(v, kept.get(v.app_id, ()), s.topology))
    return able
