"""Carries out the changes of a round: records their facts, sends their effects, and reads the outcome off them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

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
    end_s,
    left,
    resolve,
)
from pycontrol.arbiter.state import State
from pycontrol.arbiter.supply.port import Placed, RoundPart
from pycontrol.model.auction import Award, Plan, gang_of
from pycontrol.model.events import HeldGrant, SendGrant
from pycontrol.model.reasons import Cause, EndReason, Pending, Reason
from pycontrol.model.receipt import Granted, Outcome, Revoked
from pycontrol.model.topology import Gpu
from pycontrol.words import utc


def commit(s: State, work: Work, plan: Plan, now_s: float) -> list[Change]:
    """Applies a plan to the present state; returns the changes that were made."""
    done: list[Change] = []
    for changes in resolve(s, work, plan, done, now_s):
        done += apply(s, work, changes, now_s)
    return done


def apply(s: State, work: Work, changes: Sequence[Change], now_s: float) -> list[Change]:
    """Carries changes out; returns those that were made: cells may have no place for a gang, or displace others."""
    leases.extend(s, ((x.end_s, gpus_in(x.leases)) for x in changes if isinstance(x, Renew)))
    done: list[Change] = []
    for change in changes:
        match change:
            case Renew():
                _renew(s, work, change)
            case Revoke():
                leases.revoke(s, change.leases, now_s, change.deadline_s, change.cause)
            case Lend():
                s.supply.downgrade(change.leases[0].grant_id)
                s.record(LeaseBorrowed(tuple(gpus_in(change.leases)), change.leases[0].grant_id))
            case Own():
                if not s.supply.own(change.leases[0].grant_id, work.part.vc, change.gang):
                    continue
                s.record(LeaseOwned(tuple(gpus_in(change.leases)), change.leases[0].grant_id))
            case Grant():
                done += _grant(s, work, change, now_s)
                continue
            case Refuse():
                pass
        done.append(change)
    return done


def _renew(s: State, work: Work, change: Renew) -> None:
    by_grant: dict[str, list[Gpu]] = {}
    for lease in change.leases:
        by_grant.setdefault(lease.grant_id, []).extend(lease.gpus)
    award = change.award
    for grant_id, gpus in by_grant.items():
        grant = HeldGrant(grant_id, tuple(gpus), change.end_s)
        s.emit(SendGrant(award.app_id, work.round_id, grant, renewal=True, leftover=award.leftover))


def _grant(s: State, work: Work, change: Grant, now_s: float) -> list[Change]:
    """Takes GPUs for a gang and grants them; returns the grant and what it displaced, or why there is no grant."""
    app_id, part, gang, grant_id = change.award.app_id, work.part, change.gang, change.grant_id
    lent = _lent(s, part, app_id, now_s) if part.guaranteed else {}
    placed = s.supply.place(grant_id, part.vc, part.guaranteed, gang, change.avoid, change.within, lent)
    if placed is None:
        return [change.otherwise]
    if not placed.gpus:
        back_s = max(lent[name] for name in placed.evicted)
        s.request_round(back_s)
        why = Reason(Pending.WAITING_FOR_REVOCATION, f"borrowers keep them until {utc(back_s)} (min_lend_s)")
        return [Refuse(app_id, f"{app_id}: {why.sentence}", why, lacks=False, gang=gang)]
    done = _evict(s, part, placed, now_s)
    gpus = placed.gpus
    if change.asks and not standin.assign(s, app_id, gpus, change.asks):
        s.supply.release(grant_id)
        return [*done, Refuse(app_id, f"{app_id}: none of its asks allows {dict(gang)}", lacks=False)]
    available_s = max(s.available_s(gpu, now_s) for gpu in gpus)
    from_s = max(available_s, now_s)
    until_s = end_s(s, change.award, from_s, gpus[0].host)
    after = tuple(gpu for gpu in gpus if gpu in s.durable.leases)
    s.record(LeaseGranted(gpus, app_id, grant_id, from_s, until_s, "", after, part.guaranteed))
    grant = HeldGrant(grant_id, tuple(sorted(gpus)), until_s, available_s)
    s.emit(SendGrant(app_id, work.round_id, grant, leftover=change.award.leftover))
    return [*done, dataclasses.replace(change, gpus=gpus)]


def _lent(s: State, part: RoundPart, app_id: str, now_s: float) -> dict[str, float]:
    """Grants of borrowers that keep their GPUs for the time that the virtual cluster grants them -> until when.

    Only what was lent before the app wanted GPUs is kept from it, so that it waits no longer than this time; and
    nothing of which it is not known when it was lent, because the journal was lost.
    """
    least_s = s.supply.terms(part.vc).min_lend_s
    since_s = s.agents.unmet_since_s.get(app_id, s.durable.apps[app_id].arrived_s)
    return {
        x.grant_id: x.granted_s + least_s
        for x in (s.durable.leases.each() if least_s else ())
        if not x.guaranteed and not x.gang and x.granted_s < since_s and now_s < x.granted_s + least_s
    }


def _evict(s: State, part: RoundPart, placed: Placed, now_s: float) -> list[Change]:
    """Takes back whole gangs of the borrowers in the way of a guaranteed one, and what is promised to them."""
    done: list[Change] = []
    if not placed.evicted:
        return done
    why = Cause(EndReason.GUARANTEE, f"the cells of {part.vc} need it")
    evicted = [x for x in s.durable.leases.each() if x.grant_id in placed.evicted and x.state != REVOKING]
    for gpu in gpus_in(evicted):
        lease = s.durable.leases.get(gpu)
        if lease is not None and lease.grant_id in placed.evicted and lease.state != REVOKING:  # else with its gang
            gang = s.gang_at(gpu)
            leases.revoke(s, gang, now_s, now_s + s.lead_s, why)
            done.append(Revoke(lease.app_id, tuple(gang), now_s + s.lead_s, why))
    promised = [x for x in s.durable.reservations.each() if x.grant_id in placed.evicted]
    leases.cancel_reservations(s, promised, now_s, why)
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
        revoked=tuple(Revoked(gpu, x.app_id, x.deadline_s) for x, gpu in lost),
        holds=tuple(dataclasses.replace(x, gang=gang_of(by_host(dict(x.gang)))) for x in plan.holds),
    )
