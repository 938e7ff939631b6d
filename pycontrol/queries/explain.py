"""Explains an app's allocation: rho with its terms, its leases, and its rounds."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.supply.gpu_supply import deals_of
from pycontrol.fairness.bidding import mean_speed
from pycontrol.fairness.gang_rho import t_id
from pycontrol.model import tags
from pycontrol.model.auction import Award, BidReceipt, Demand
from pycontrol.model.events import JobProgress
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Scope
from pycontrol.queries import views
from pycontrol.queries.demands import Demands
from pycontrol.queries.lookup import find_app, names, picked, whole_number
from pycontrol.queries.pending_reasons import Reasons
from pycontrol.words import count, estimate, gang

ROUNDS_SHOWN, ROUNDS_MAX, OTHERS_TOLD = 5, 200, 5
JobsOf = Callable[[str], Sequence[JobProgress]]
"""App id -> what its Agent told of its jobs."""
ReasonsOf = Callable[[Arbiter, float], Reasons]


def explain(
    a: Arbiter, now_s: float, params: Mapping[str, str], jobs_of: JobsOf = lambda _: (), reasons_of: ReasonsOf = Reasons
) -> dict[str, Any]:
    """Everything about one app, with its newest `n` rounds; raises Refusal. `jobs_of`: of apps that have ended."""
    app_id = find_app(a, params)
    n = whole_number(params, "n", ROUNDS_SHOWN, 1, ROUNDS_MAX)
    reasons = reasons_of(a, now_s)
    code, sentence = reasons.told(app_id)
    agent, h = a.agents.get(app_id), a.holdings
    known = views.names_in(a, a.receipts) | {app_id: names(a)[app_id]}
    jobs = agent.jobs if agent is not None else jobs_of(app_id)
    return {
        "now_s": now_s,
        "app": views.app_row(a, app_id, reasons.demands),
        "reason": {"code": code, "sentence": sentence},
        "rho": rho_terms(a, app_id, now_s),
        "agent": agent and picked(agent, "connected attempt_id app_scheduler"),
        "controls": controls(a, app_id),
        "links": [] if agent is None else [{"label": label, "url": url} for label, url in agent.links],
        "leases": [
            *views.lease_rows(a, h.durable.leases.of(app_id)),
            *views.lease_rows(a, h.durable.reservations.of(app_id)),
        ],
        "jobs": [
            {**dataclasses.asdict(j), "configuration": dict(j.configuration), "restarts": max(0, j.launches - 1)}
            for j in jobs
        ],
        "lost": _lost(jobs),
        "rounds": [{**r, "text": _told(r, known)} for r in took_part(a, app_id, n)],
        "deals": deals_of(a.durable.exchange, a.durable.apps[app_id].vc) if app_id in a.durable.apps else [],
        "names": known,
    }


def line(found: Mapping[str, Any]) -> str:
    """One line on an app with an estimate: `jobs: 2 done, 3 running; 4 GPUs; ends in ~25 min (15 min to 60 min)`."""
    jobs, held, now_s = found["jobs"], found["app"]["gpus_held"], found["now_s"]
    states = ", ".join(f"{n} {state}" for state, n in sorted(Counter(j["state"] for j in jobs).items()))
    when = estimate(found["estimate"]["end_s" if held else "start_s"], now_s)
    note = next((f"{j['job_id']}: {j['note']}" for j in jobs if j["note"]), "")
    doing = count(held, "GPU") if held else f"waits: {found['reason']['sentence']}"
    return "; ".join(
        filter(None, [states and f"jobs: {states}", doing, when and f"{'ends' if held else 'starts'} in {when}", note])
    )


def controls(a: Arbiter, app_id: str) -> dict[str, Any]:
    """The user's options that limit which GPUs the app takes, and its YARN priority."""
    yarn, agent = a.cluster.apps.get(app_id), a.agents.get(app_id)
    demand = agent.demand if agent is not None else Demand(0, 0)
    return {
        "priority": yarn.priority if yarn is not None else 0,
        "boost": views.boost_row(a.holdings.boost_of(app_id)),
        "opportunistic": demand.opportunistic,
        "lazy_preemption": demand.lazy,
        "within": (not demand.members and demand.within)
        or ("" if demand.scope is Scope.CLUSTER else demand.scope.name.lower()),
        "segments": demand.parts if agent is not None else "",
        "pinned": demand.pinned,
        "declared": tags.declared(yarn) if a.holdings.is_unmanaged(app_id) else "",
        "unsaved": demand.unsaved,
    }


def _lost(jobs: Sequence[JobProgress]) -> str:
    """What the jobs train again, as launches ended without a checkpoint; empty if that is nothing."""
    steps, gpu_s = sum(j.lost_steps for j in jobs), sum(j.lost_gpu_s for j in jobs)
    return f"lost {count(steps, 'step')} = {gpu_s / 60:,.1f} GPU-min, trained again" if steps else ""


def rho_terms(a: Arbiter, app_id: str, now_s: float) -> dict[str, Any] | None:
    """rho = T_sh / T_id, T_id = B / min(R_C, demand) x N_avg (Themis, section 4.3); None without a known demand.

    R_C and N_avg are those of the app's virtual cluster, if there are virtual clusters. T_sh is not reported: it is
    computed as the reported rho times T_id. It counts the time since submission and the time that the work left
    takes on the GPUs held.
    """
    demands = Demands(a, now_s)
    record, demand = a.durable.apps.get(app_id), demands.of(app_id)
    if record is None or demand is None:
        return None
    most = max(record.demand_gpus, demand.gpus)
    cluster_gpus = a.holdings.gpus_of(record.vc)
    n_avg, rho = a.durable.n_avg(app_id, now_s), demands.rho_of(app_id)
    speed = mean_speed(demand.speedups, a.holdings.topology)
    ideal_s = t_id(demand.work_total_gpu_s / speed, cluster_gpus, most, n_avg)
    return {
        "rho": rho,
        "t_sh_s": rho * ideal_s if rho is not None else None,
        "t_id_s": ideal_s,
        **picked(demand, "work_total_gpu_s work_left_gpu_s gang_gpus gangs paced"),
        "cluster_gpus": cluster_gpus,
        "demand_gpus": most,
        "n_avg": n_avg,
        "elapsed_s": now_s - record.submitted_s,
        "by": "Agent" if app_id in a.agents else "stand-in",
    }


def took_part(a: Arbiter, app_id: str, n: int) -> list[dict[str, Any]]:
    """The newest `n` rounds that the app took part in, sat out, or lost GPUs in, newest first; those without bids told
    it why, or had its leases."""

    def lived(r: Receipt) -> bool:
        told = not r.asked and (app_id in r.done.why or app_id in r.ending)
        return app_id in r.rho or app_id in r.out or told or any(x.app_id == app_id for x in r.done.revoked)

    return [in_round(r, app_id) for r, _ in zip(filter(lived, reversed(a.receipts)), range(n), strict=False)]


def in_round(receipt: Receipt, app_id: str) -> dict[str, Any]:
    """One app's part in a round: its role, bid, awards, grants and revocations, and the other winners."""
    rhos = {k: v for k, v in receipt.rho.items() if v is not None}
    worst_first = sorted(rhos, key=lambda k: -rhos[k])
    done = receipt.done
    bid = next((b for b in done.bids if b.app_id == app_id), None)
    mine = [x for x in done.awards if x.app_id == app_id]
    return {
        **picked(receipt, "round_id at_s policy note"),
        "role": _role(receipt, app_id, bid, mine),
        "why": done.why.get(app_id, ""),
        "out": str(receipt.out[app_id]) if app_id in receipt.out else "",
        "offered": dict(receipt.offered),
        "rho": rhos.get(app_id),
        "corrected": receipt.corrected.get(app_id, ""),
        "boosted_by": receipt.boosted.get(app_id, ""),
        "rank": worst_first.index(app_id) + 1 if app_id in rhos else None,
        "of": len(worst_first),
        "bid": dataclasses.asdict(bid) if bid is not None else None,
        "got": [gang for x in mine for gang in x.gangs],
        "leftover": [gang for x in mine if x.leftover for gang in x.gangs],
        "granted": [str(x.gpu) for x in done.granted if x.app_id == app_id],
        "revoked": [str(x.gpu) for x in done.revoked if x.app_id == app_id],
        "revoked_why": "; ".join(dict.fromkeys(x.why for x in done.revoked if x.app_id == app_id and x.why)),
        "unsaved_gpu_s": done.unsaved_gpu_s.get(app_id, 0.0),
        "others": [_other(x, done.bids) for x in done.awards if x.app_id != app_id],
    }


def _role(receipt: Receipt, app_id: str, bid: BidReceipt | None, mine: Sequence[Award]) -> str:
    if app_id in receipt.out:
        return "sat out"
    if not (mine or app_id in receipt.rho or app_id in receipt.ending or app_id in receipt.participants):
        return "gave way"
    if not receipt.asked:
        return "served" if mine else "outranked" if receipt.done.awards else "nobody"
    if bid is not None:
        return "won" if mine else "lost"
    if app_id in receipt.participants:
        return "offered"
    return "leftovers" if mine else "not offered"


def _other(award: Award, bids: Sequence[BidReceipt]) -> dict[str, Any]:
    bid = next((b for b in bids if b.app_id == award.app_id), None)
    gpus = sum(n for gang in award.gangs for _, n in gang)
    rho, c = (bid.rho_won, bid.c) if bid else (None, None)
    return {"app_id": award.app_id, "gpus": gpus, "leftover": award.leftover, "rho_won": rho, "c": c}


def _told(r: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """An app's part in a round, in a sentence."""
    head = f"{count(sum(r['offered'].values()), 'GPU')} free or ending; "
    rank = f"rho {_rho(r['rho'])}, rank {r['rank']} of {r['of']}" if r["rank"] else "rho unknown"
    text = head + {
        "sat out": f"took no part: {r['out']}",
        "not offered": f"{rank}: not offered, "
        + ("it could use no more GPUs" if r["rank"] == 1 else "others are worse off, or it could use no more"),
        "leftovers": f"{rank}: not offered; leftovers: {'; '.join(map(gang, r['leftover']))}",
        "offered": f"{rank}: offered, but no auction was held",
        "served": f"{r['why'] or r['policy']}; got {'; '.join(map(gang, r['got']))}",
        "outranked": f"others came first by {r['policy']}",
        "gave way": "it took no part and gave way",
        "nobody": "nobody got any: there was none to use, or a limit held them",
    }.get(r["role"], "")
    if r["bid"] is not None and r["role"] in ("won", "lost"):
        text += f"{rank}; " + _own_bid(r)
    if r["boosted_by"]:
        text += f"; boosted by {r['boosted_by']}"
    if r["corrected"]:
        text += f"; its Agent's report was corrected: {r['corrected']}"
    if r["revoked"]:
        text += f"; lost {', '.join(r['revoked'])}" + (f" ({r['revoked_why']})" if r["revoked_why"] else "")
        unsaved_gpu_s = r["unsaved_gpu_s"]
        text += f", {unsaved_gpu_s / 60:,.1f} GPU-min after its newest checkpoint" if unsaved_gpu_s else ""
    others = [
        f"{names.get(o['app_id'], o['app_id'])} {count(o['gpus'], 'GPU')}"
        + (" left over" if o["leftover"] else f" (rho {_rho(o['rho_won'])}, c {o['c']:.3f})" if o["c"] else "")
        for o in r["others"][:OTHERS_TOLD]
    ]
    others += [f"{more} more"] if (more := len(r["others"]) - OTHERS_TOLD) > 0 else []
    return text + (f"; to others: {', '.join(others)}" if others else "") + (f"; {r['note']}" if r["note"] else "")


def _own_bid(r: Mapping[str, Any]) -> str:
    b = r["bid"]
    won = sum(b["won"].values())
    if not won:
        return f"bid {count(b['rows'], 'row')} and won nothing" + ("; got leftovers" if r["leftover"] else "")
    text = (
        f"bid {count(b['rows'], 'row')}, won {count(won, 'GPU')} (rho {_rho(b['rho_nothing'])} -> {_rho(b['rho_won'])})"
    )
    text += f", keeps c = {b['c']:.3f}: {count(b['kept_gangs'], 'gang')} kept, {b['paid_gangs']} paid"
    return text + (f"; got {'; '.join(map(gang, r['got']))}" if r["got"] else "")


def _rho(rho: float | None) -> str:
    return "-" if rho is None else f"{rho:.2f}"
