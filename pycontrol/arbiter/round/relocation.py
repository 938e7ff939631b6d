"""Moves a plan's new gangs off machines where they may not start, or where a container would be split.

Policies know nothing of machines that refuse an app, of node labels or of locality constraints, and auctions know
nothing of the sizes of a gang's containers. If a plan puts a gang where it may not start, all new gangs of the round
are placed again: first those with such limits, then the others, each where the policy put it if that is still free.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from pycontrol.auction.handout import ByKey, Taker, gangs_of, hand_out, less
from pycontrol.auction.placing import ELSE, FreeIndex, pack
from pycontrol.model.auction import AppView, Gang, Plan, gang_gpus
from pycontrol.model.topology import Topology

NOWHERE: Collection[str] = ()


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
    fresh = [less(award.gangs, views[award.app_id].ending_gangs) for award in plan.awards]
    takers = [
        [_taker(views[award.app_id], gang, kept_out, topology) for gang in new]
        for award, new in zip(plan.awards, fresh, strict=True)
    ]
    each = [to for own in takers for to in own]
    if all(to.own for to in each):
        return plan
    room = FreeIndex(offered, topology)
    stay = [less(reversed(award.gangs), new)[::-1] for award, new in zip(plan.awards, fresh, strict=True)]
    for gang in (gang for gangs in stay for gang in gangs):
        if room.holds(gang):
            room.take(gang)
    order = ByKey(each, lambda to: None if to.got else not (kept_out.get(to.view.app_id) or to.shape[3]))
    for _ in hand_out(order, gangs_of(room, kept_out=lambda app_id: kept_out.get(app_id, NOWHERE))):
        pass
    awards = [
        replace(award, gangs=(*kept, *(gang for to in own for gang in to.got)))
        for award, kept, own in zip(plan.awards, stay, takers, strict=True)
        if kept or any(to.got for to in own)
    ]
    lost = [
        f"{to.view.app_id}: its gang {dict(gang)} may not start there"
        for to, gang in zip(each, (gang for new in fresh for gang in new), strict=True)
        if not to.got
    ]
    return replace(plan, awards=tuple(awards), note="; ".join(filter(None, [plan.note, *lost])))


def _taker(view: AppView, gang: Gang, kept_out: Mapping[str, Collection[str]], topology: Topology) -> Taker:
    """Takes the gang itself, if its app may start there and no container of it would be split; else one like it."""
    demand, gpus = view.demand, gang_gpus(gang)
    members = demand.members if gpus == demand.gang_gpus else ()
    closed = kept_out.get(view.app_id, NOWHERE)
    may_start = not any(host in closed for host, _ in gang) and (not members or pack(members, dict(gang)) is not None)
    types = {topology.type_of(host) for host, _ in gang}
    wishes = [demand.gpu_type] if demand.gpu_type else [*(types if len(types) == 1 else ()), ""]
    return Taker(view, (gpus, demand.scope, ELSE.join(wishes), members), [gang] if may_start else [])
