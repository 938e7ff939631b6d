"""Moves a plan's new gangs off machines where they may not start, or where a container would be split.

Policies know nothing of machines that refuse an app, of node labels or of locality constraints, and auctions know
nothing of the sizes of a gang's containers. If a plan puts a gang where it may not start, all new gangs of the round
are placed again: first those with such limits, then the others, each where the policy put it if that is still free.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pycontrol.auction.placing import FreeIndex, pack
from pycontrol.model.auction import AppView, Gang, Plan, gang_gpus
from pycontrol.model.topology import Topology

NOWHERE: Collection[str] = ()


@dataclass
class _New:
    award: int
    view: AppView
    gang: Gang
    kept_out: Collection[str]
    place: Gang | None = None


def relocate(
    plan: Plan,
    views: Mapping[str, AppView],
    offered: Mapping[str, int],
    topology: Topology,
    kept_out: Mapping[str, Collection[str]],
) -> Plan:
    """The plan with each new gang in an admissible place; the note names the gangs for which there is none.

    `kept_out`: app -> hosts where none of its new containers may start.
    """
    awards = plan.awards
    stay: list[list[Gang]] = []
    fresh: list[_New] = []
    for k, award in enumerate(awards):
        view = views[award.app_id]
        own, stay_here = list(view.ending_gangs), list[Gang]()
        for gang in award.gangs:
            if gang in own:
                own.remove(gang)
                stay_here.append(gang)
            else:
                fresh.append(_New(k, view, gang, kept_out.get(award.app_id, NOWHERE)))
        stay.append(stay_here)
    if all(map(_may_start, fresh)):
        return plan
    room = FreeIndex(offered, topology)
    for gang in (g for gangs in stay for g in gangs):
        if room.holds(gang):
            room.take(gang)
    for new in sorted(fresh, key=lambda n: not (n.kept_out or _members(n))):
        new.place = _place(new, room)
        if new.place is not None:
            room.take(new.place)
    result = []
    for k, award in enumerate(awards):
        gangs = (*stay[k], *(n.place for n in fresh if n.award == k and n.place is not None))
        if gangs:
            result.append(replace(award, gangs=gangs))
    lost = [f"{n.view.app_id}: its gang {dict(n.gang)} may not start there" for n in fresh if n.place is None]
    return replace(plan, awards=tuple(result), note="; ".join(filter(None, [plan.note, *lost])))


def _members(new: _New) -> Sequence[int]:
    demand = new.view.demand
    return demand.members if gang_gpus(new.gang) == demand.gang_gpus else ()


def _may_start(new: _New) -> bool:
    """Whether its app may start there, and no container of it would be split."""
    members = _members(new)
    return not any(host in new.kept_out for host, _ in new.gang) and (
        not members or pack(members, dict(new.gang)) is not None
    )


def _place(new: _New, room: FreeIndex) -> Gang | None:
    if room.holds(new.gang) and _may_start(new):
        return new.gang
    open_ = {h: n for h, n in room.left.items() if n > 0 and h not in new.kept_out}
    free = FreeIndex(open_, room.topology)
    demand, types = new.view.demand, {room.type_of(host) for host, _ in new.gang}
    wishes = [demand.gpu_type] if demand.gpu_type else [*(types if len(types) == 1 else ()), ""]
    return free.place_on(wishes, gang_gpus(new.gang), demand.scope, _members(new))
