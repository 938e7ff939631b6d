"""Application priorities for policies that do not order apps, such as auctions.

Inside a virtual cluster YARN's application priority comes before a policy's order. The policy decides for one class of
priority after the other, from the highest, each time on what is left of the offer. New gangs of a class avoid GPUs on
which lower classes run, if there is other room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pycontrol.auction.placing import FreeIndex, take
from pycontrol.auction.round_limits import ending_gpus, rooms
from pycontrol.model.auction import BOOSTED, AppView, Bid, Gang, Plan, Snapshot, gang_gpus
from pycontrol.model.grouping import summed


def is_boosted(view: AppView) -> int:
    """1 if the app is boosted, else 0."""
    return int(view.priority >= BOOSTED)


def in_classes(
    decide: Callable[[Snapshot, Mapping[str, Bid]], Plan],
    snapshot: Snapshot,
    bids: Mapping[str, Bid],
    of: Callable[[AppView], int] = lambda view: view.priority,
) -> Plan:
    """The combined plan of all classes, the highest `of` first; `decide` is called once per class, with the memory of
    the plan for the class before and without the GPUs held for it.

    Statistics of solves are summed; other fields come from the plan of the lowest class.
    """
    classes = sorted({of(v) for v in snapshot.apps}, reverse=True)
    if len(classes) < 2:
        return decide(snapshot, bids)
    free, left_gpus, plans = dict(snapshot.free), rooms(snapshot.apps), list[Plan]()
    for priority in classes:
        views = tuple(_limited([v for v in snapshot.apps if of(v) == priority], left_gpus))
        here = {v.app_id: v.rooms for v in views}
        left = {host: n for host, n in free.items() if n > 0}
        plan = decide(
            replace(snapshot, free=left, apps=views), {a: _possible(b, left) for a, b in bids.items() if a in here}
        )
        homes = [gang for v in snapshot.apps if of(v) < priority for gang in v.ending_gangs]
        plan = _beside(homes, plan, views, snapshot, left)
        take(free, (hold.gang for hold in plan.holds))
        for award in plan.awards:
            take(free, award.gangs)
            for name in here[award.app_id]:
                left_gpus[name] -= sum(map(gang_gpus, award.gangs))
        snapshot = replace(snapshot, memory=plan.memory)
        plans.append(plan)
    return replace(
        plans[-1],
        awards=tuple(a for p in plans for a in p.awards),
        bids=tuple(b for p in plans for b in p.bids),
        objective_log=sum(p.objective_log for p in plans),
        proved_optimal=all(p.proved_optimal for p in plans),
        gap=max(p.gap for p in plans),
        solve_s=sum(p.solve_s for p in plans),
        why={a: why for p in plans for a, why in p.why.items()},
        holds=tuple(hold for p in plans for hold in p.holds),
    )


def _beside(
    homes: Sequence[Gang], plan: Plan, views: Sequence[AppView], snapshot: Snapshot, free: Mapping[str, int]
) -> Plan:
    """The plan with its new gangs moved off the `homes` of lower classes, if other GPUs are as close together."""
    spare = FreeIndex(free, snapshot.topology)
    for gang in (*(g for award in plan.awards for g in award.gangs), *(hold.gang for hold in plan.holds)):
        spare.take(gang)
    lost = [home for home in homes if not _taken(spare, home)]
    view_of = {v.app_id: v for v in views}
    awards = []
    for award in plan.awards:
        own, gangs = list(view_of[award.app_id].ending_gangs), list[Gang]()
        for gang in award.gangs:
            if gang in own:
                own.remove(gang)
            elif lost and (place := _as_good(gang, view_of[award.app_id], spare)) is not None:
                spare.take(place)
                spare.give(gang)
                lost = [home for home in lost if not _taken(spare, home)]
                gang = place
            gangs.append(gang)
        awards.append(replace(award, gangs=tuple(gangs)))
    return replace(plan, awards=tuple(awards))


def _taken(spare: FreeIndex, gang: Gang) -> bool:
    if not spare.holds(gang):
        return False
    spare.take(gang)
    return True


def _as_good(gang: Gang, view: AppView, spare: FreeIndex) -> Gang | None:
    """A place for the gang in `spare` of the same scope and GPU type; None if there is none, or it mixes types."""
    d, types = view.demand, {spare.topology.type_of(host) for host, _ in gang}
    if len(types) > 1:
        return None
    scope = spare.topology.scope_of(host for host, _ in gang)
    members = d.members if gang_gpus(gang) == d.gang_gpus else ()
    return spare.place(gang_gpus(gang), scope, next(iter(types)), members)


def _limited(views: list[AppView], left_gpus: Mapping[str, int]) -> Iterator[AppView]:
    """The views of a class, with what is left of the limits that they count for."""
    ending = summed((name, ending_gpus(v)) for v in views for name in v.rooms)
    for v in views:
        own = {name: left_gpus[name] - ending[name] + ending_gpus(v) for name in v.rooms}
        yield replace(v, rooms=own) if own else v


def _possible(bid: Bid, free: Mapping[str, int]) -> Bid:
    """The bid without rows that keep gangs on GPUs that went to a higher class."""
    rows = tuple(r for r in bid.rows if all(free.get(h, 0) >= n for gang in r.keep for h, n in gang))
    return replace(bid, rows=rows)
