"""From a plan to leases: moves gangs to where they may start, carries changes out, and reads the outcome off them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from pycontrol.arbiter import leases
from pycontrol.arbiter.ledger.facts import LeaseBorrowed, LeaseGranted, LeaseOwned
from pycontrol.arbiter.ledger.lease import REVOKING, gpus_in
from pycontrol.arbiter.round import standin
from pycontrol.arbiter.round.resolve import (
    Change,
    Grant,
    Lend,
    Own,
    Refuse,
    Renew,
    Revoke,
    Work,
    borrowed_gangs,
    end_s,
    left,
    resolve,
)
from pycontrol.arbiter.state import Clerk, Holdings
from pycontrol.arbiter.supply.gpu_supply import RoundPart
from pycontrol.auction.handout import ByKey, Taker, gangs_of, hand_out, less
from pycontrol.auction.placing import ELSE, FreeIndex, divides
from pycontrol.cells.values import Placed
from pycontrol.model.auction import AppView, Award, Gang, HeldGrant, Plan, gang_gpus, gang_of
from pycontrol.model.events import SendGrant
from pycontrol.model.grouping import grouped, summed
from pycontrol.model.reasons import Cause, EndReason, Pending, Reason
from pycontrol.model.receipt import Granted, Outcome, Revoked
from pycontrol.model.topology import Topology
from pycontrol.words import utc


def commit(s: Holdings, clerk: Clerk, work: Work, plan: Plan, now_s: float) -> list[Change]:
    """Applies a plan to the present state; returns the changes that were made."""
    done: list[Change] = []
    for changes in resolve(s, work, plan, done, now_s):
        done += apply(s, clerk, work, changes, now_s)
    return done


def apply(s: Holdings, clerk: Clerk, work: Work, changes: Sequence[Change], now_s: float) -> list[Change]:
    """Carries changes out; returns those that were made: cells may have no place for a gang, or displace others."""
    leases.extend(s, clerk, ((x.end_s, gpus_in(x.leases)) for x in changes if isinstance(x, Renew)))
    done: list[Change] = []
    for change in changes:
        match change:
            case Renew():
                _renew(s, clerk, work, change)
            case Revoke():
                leases.revoke(s, clerk, change.leases, now_s, change.deadline_s, change.cause)
            case Lend():
                s.supply.downgrade(change.leases[0].grant_id)
                clerk.record(LeaseBorrowed(tuple(gpus_in(change.leases)), change.leases[0].grant_id))
            case Own():
                if not s.supply.own(change.leases[0].grant_id, work.part.vc, change.gang):
                    continue
                clerk.record(LeaseOwned(tuple(gpus_in(change.leases)), change.leases[0].grant_id))
            case Grant():
                done += _grant(s, clerk, work, change, now_s)
                continue
        done.append(change)
    return done


def _renew(s: Holdings, clerk: Clerk, work: Work, change: Renew) -> None:
    award = change.award
    for grant_id, gpus in grouped((x.grant_id, gpu) for x in change.leases for gpu in x.gpus).items():
        grant = HeldGrant(grant_id, tuple(gpus), change.end_s)
        clerk.emit(SendGrant(award.app_id, work.round_id, grant, renewal=True, leftover=award.leftover))


def _grant(s: Holdings, clerk: Clerk, work: Work, change: Grant, now_s: float) -> list[Change]:
    """Takes GPUs for a gang and grants them; returns the grant and what it displaced, or why there is no grant."""
    app_id, part, gang, grant_id = change.award.app_id, work.part, change.gang, change.grant_id
    lent = _lent(s, part, app_id, now_s) if part.guaranteed else {}
    own = {g[0].grant_id: g for g in borrowed_gangs(s, app_id)} if part.guaranteed and s.borrowing(app_id) else {}
    place = partial(s.supply.place, grant_id, part.vc, part.guaranteed, change.parts, change.avoid, change.within)
    placed = place({**own, **lent})
    if placed is not None and not placed.gpus and not lent.keys() & placed.evicted:
        if owned := apply(s, clerk, work, [Own(tuple(own[name]), gang) for name in placed.evicted[:1]], now_s):
            clerk.request_round(now_s + s.settings.settle_s)  # for the gang that it was to get besides
            return owned
        placed = place(lent)
    if placed is None:
        return [change.otherwise]
    if not placed.gpus:
        back_s = max(lent[name] for name in placed.evicted if name in lent)
        clerk.request_round(back_s)
        why = Reason(Pending.WAITING_FOR_REVOCATION, f"borrowers keep them until {utc(back_s)} (min_lend_s)")
        return [Refuse(app_id, f"{app_id}: {why.sentence}", why, lacks=False, gang=gang)]
    done = _evict(s, clerk, part, placed, now_s)
    gpus = placed.gpus
    if change.asks and not standin.assign(s, clerk, app_id, gpus, change.asks):
        s.supply.release(grant_id)
        return [*done, Refuse(app_id, f"{app_id}: none of its asks allows {dict(gang)}", lacks=False)]
    available_s = max(s.available_s(gpu, now_s) for gpu in gpus)
    from_s = max(available_s, now_s)
    until_s = end_s(s, change.award, from_s, gpus[0].host)
    after = tuple(gpu for gpu in gpus if gpu in s.durable.leases)
    clerk.record(LeaseGranted(gpus, app_id, grant_id, from_s, until_s, "", after, part.guaranteed))
    grant = HeldGrant(grant_id, tuple(sorted(gpus)), until_s, available_s)
    clerk.emit(SendGrant(app_id, work.round_id, grant, leftover=change.award.leftover))
    return [*done, dataclasses.replace(change, gpus=gpus)]


def _lent(s: Holdings, part: RoundPart, app_id: str, now_s: float) -> dict[str, float]:
    """Grants of borrowers that keep their GPUs for the time that the virtual cluster grants them -> until when.

    Only what was lent before the app wanted GPUs is kept from it, so that it waits no longer than this time; and
    nothing of which it is not known when it was lent, because the journal was lost.
    """
    least_s = s.supply.terms(part.vc).min_lend_s
    wanting_since_s = s.agents.unmet_since_s if app_id in s.agents else s.cluster.asks.since_s
    since_s = wanting_since_s.get(app_id, s.durable.apps[app_id].arrived_s)
    return {
        x.grant_id: x.granted_s + least_s
        for x in (s.durable.leases.each() if least_s else ())
        if not x.guaranteed and not x.gang and x.granted_s < since_s and now_s < x.granted_s + least_s
    }


def _evict(s: Holdings, clerk: Clerk, part: RoundPart, placed: Placed, now_s: float) -> list[Change]:
    """Takes back whole gangs of the borrowers in the way of a guaranteed one, and what is promised to them."""
    if not placed.evicted:
        return []
    done, why = list[Change](), Cause(EndReason.GUARANTEE, f"the cells of {part.vc} need it")
    ours = (x for gpu, x in s.durable.leases.items() if x.grant_id in placed.evicted and x.gpus[0] == gpu)
    evicted = [x for x in ours if x.state != REVOKING]
    for gpu in gpus_in(evicted):
        lease = s.durable.leases.get(gpu)
        if lease is not None and lease.grant_id in placed.evicted and lease.state != REVOKING:  # else with its gang
            gang = s.gang_at(gpu)
            done.append(Revoke(lease.app_id, tuple(gang), now_s + s.lead_s, why, s.unsaved_gpu_s(gang)))
            leases.revoke(s, clerk, gang, now_s, now_s + s.lead_s, why)
    if any(s.durable.apps[x.app_id].vc not in ("", part.vc) for x in evicted):
        clerk.request_round(now_s + s.settings.settle_s)  # an owner of other cells, kept for it while it borrowed
    promised = [x for x in s.durable.reservations.each() if x.grant_id in placed.evicted]
    leases.cancel_reservations(s, clerk, promised, now_s, why)
    return done


# ---- what a round's changes say


def refused(done: Iterable[Change]) -> list[Refuse]:
    """The refusals."""
    return [x for x in done if isinstance(x, Refuse)]


def note_of(plan: Plan, done: Iterable[Change]) -> str:
    """The note for the receipt."""
    return "; ".join(filter(None, [plan.note, *(x.note for x in refused(done))]))


def outcome_of(part: RoundPart, plan: Plan, done: Sequence[Change]) -> Outcome:
    """The outcome for the receipt: what the policy decided, and what was carried out."""
    by_host = part.by_host
    awards = (Award(a.app_id, tuple(gang_of(by_host(dict(g))) for g in a.gangs), a.leftover) for a in plan.awards)
    lost = [(x, gpu) for x in done if isinstance(x, Revoke) for gpu in gpus_in(x.leases)]
    return Outcome(
        bids=tuple(dataclasses.replace(b, won=by_host(b.won)) for b in plan.bids),
        awards=tuple(awards),
        owned=tuple(gpu for x in done if isinstance(x, Own) for gpu in gpus_in(x.leases)),
        lent=tuple(gpu for x in done if isinstance(x, Lend) for gpu in gpus_in(x.leases)),
        refused=tuple(sorted({x.app_id for x in refused(done) if x.lacks})),
        leftover_gpus=by_host(plan.leftover_gpus),
        unused_gpus=by_host(left(part.free, done)),
        objective_log=plan.objective_log,
        proved_optimal=plan.proved_optimal,
        gap=plan.gap,
        solve_s=plan.solve_s,
        seed=plan.seed,
        why=dict(plan.why),
        renewed=tuple(gpu for x in done if isinstance(x, Renew) for gpu in gpus_in(x.leases)),
        granted=tuple(Granted(gpu, x.award.app_id) for x in done if isinstance(x, Grant) for gpu in x.gpus),
        revoked=tuple(Revoked(gpu, x.app_id, x.deadline_s, x.cause.text) for x, gpu in lost),
        unsaved_gpu_s=summed((x.app_id, x.unsaved_gpu_s) for x in done if isinstance(x, Revoke) and x.unsaved_gpu_s),
        holds=tuple(dataclasses.replace(x, gang=gang_of(by_host(dict(x.gang)))) for x in plan.holds),
    )


def naming(outcome: Outcome, ended: list[tuple[Revoked, float]]) -> Outcome:
    """The outcome with what ended without a plan (`RoundParts.ended`), which is named now."""
    unsaved = summed((*outcome.unsaved_gpu_s.items(), *((x.app_id, lost_s) for x, lost_s in ended if lost_s)))
    revoked = *outcome.revoked, *(x for x, _ in ended)
    ended.clear()
    return dataclasses.replace(outcome, revoked=revoked, unsaved_gpu_s=unsaved)


NOWHERE: Collection[str] = ()


def relocate(
    plan: Plan,
    views: Mapping[str, AppView],
    offered: Mapping[str, int],
    topology: Topology,
    kept_out: Mapping[str, Collection[str]],
) -> Plan:
    """The plan with each new gang in an admissible place; the note names the gangs for which there is none.

    Policies know nothing of machines that refuse an app, of node labels or of locality constraints, and auctions know
    nothing of the sizes of a gang's containers. If a plan puts a gang where it may not start, all new gangs of the
    round are placed again: first those with such limits, then the others, each where the policy put it if that is free.

    `kept_out`: app -> hosts where none of its new containers may start.
    """
    plan = _startable(plan, views)
    fresh = [less(award.gangs, views[award.app_id].ending_gangs) for award in plan.awards]
    takers = [
        [_taker(views[award.app_id], gang, kept_out, topology) for gang in new]
        for award, new in zip(plan.awards, fresh, strict=True)
    ]
    each = [to for own in takers for to in own]
    if all(to.own for to in each):
        return plan
    for award, own in zip(plan.awards, takers, strict=True):  # a gang that may not move there stays, if it still can
        homes = less(views[award.app_id].ending_gangs, award.gangs)
        for to in own:
            to.own = to.own or [home for home in homes if gang_gpus(home) == to.shape[0]]
    room = FreeIndex(offered, topology)
    stay = [less(reversed(award.gangs), new)[::-1] for award, new in zip(plan.awards, fresh, strict=True)]
    for gang in (gang for gangs in stay for gang in gangs):
        if room.holds(gang):
            room.take(gang)
    order = ByKey(each, lambda to: None if to.got else not (kept_out.get(to.view.app_id) or to.shape[3]))
    for _ in hand_out(order, gangs_of(room, kept_out=lambda app_id: kept_out.get(app_id, NOWHERE))):
        pass
    awards = [
        dataclasses.replace(award, gangs=(*kept, *(gang for to in own for gang in to.got)))
        for award, kept, own in zip(plan.awards, stay, takers, strict=True)
        if kept or any(to.got for to in own)
    ]
    lost = [
        f"{to.view.app_id}: its gang {dict(gang)} may not start there"
        for to, gang in zip(each, (gang for new in fresh for gang in new), strict=True)
        if not to.got
    ]
    return dataclasses.replace(plan, awards=tuple(awards), note="; ".join(filter(None, [plan.note, *lost])))


def _startable(plan: Plan, views: Mapping[str, AppView]) -> Plan:
    """The plan without new gangs that their apps cannot start: others may have these GPUs."""
    awards = [
        (a, less(a.gangs, views[a.app_id].ending_gangs)[max(0, views[a.app_id].new_gangs_max) :]) for a in plan.awards
    ]
    if not any(over for _, over in awards):
        return plan
    kept = [dataclasses.replace(a, gangs=tuple(less(a.gangs, over))) for a, over in awards]
    return dataclasses.replace(plan, awards=tuple(a for a in kept if a.gangs))


def _taker(view: AppView, gang: Gang, kept_out: Mapping[str, Collection[str]], topology: Topology) -> Taker:
    """Takes the gang itself, if its app may start there and no container of it would be split; else one like it."""
    demand, gpus = view.demand, gang_gpus(gang)
    members = demand.members if gpus == demand.gang_gpus else ()
    closed = kept_out.get(view.app_id, NOWHERE)
    may_start = not any(host in closed for host, _ in gang) and (not members or divides(members, gang, topology))
    types = {topology.type_of(host) for host, _ in gang}
    wishes = [demand.gpu_type] if demand.gpu_type else [*(types if len(types) == 1 else ()), ""]
    return Taker(view, (gpus, demand.scope, ELSE.join(wishes), members), [gang] if may_start else [])
