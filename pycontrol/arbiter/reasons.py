"""Why an app waits: a closed list that separates *your error* from *wait*."""

from __future__ import annotations

from typing import Any

from pycontrol.arbiter import standin
from pycontrol.arbiter.cellreasons import cell_reason
from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.durable import REVOKING
from pycontrol.model.value import value

REASONS = {
    "Running": "it has all the GPUs that it can use",
    "Idle": "it has no GPUs and wants none at present",
    "Finished": "it has ended",
    "Unknown": "it asked for no GPUs yet",
    "ExceedsClusterSize": "its gang is larger than the cluster (your error)",
    "NoMachineLargeEnough": "one container asks for more GPUs than any machine has (your error)",
    "QueueLimit": "its queue is at its limit",
    "Paused": "an operator paused the rounds",
    "RecoveryInProgress": "the cluster or the control plane is recovering",
    "AgentAway": "its Agent is not connected",
    "LateRho": "its Agent did not report rho in time",
    "LateBid": "its Agent did not bid in time",
    "BadBid": "its bid was malformed",
    "BadReport": "the policy fails with the numbers that its Agent reports",
    "WaitingForRevocation": "its GPUs are still held by the app that lost them",
    "Starting": "its containers are being started",
    "Refused": "machines with room refuse its containers",
    "NotAllowedThere": "its asks or its node label keep it off the machines with room",
    "CellsTooSmall": "no cells of its virtual cluster can hold such a gang: it can only borrow",
    "CellsLent": "cells of its virtual cluster are lent to another",
    "CellsBad": "cells of its virtual cluster are on machines or GPUs that are out of order",
    "CellsInUse": "apps of its own virtual cluster use its cells",
    "NoCells": "its queue owns no cells: it lives on GPUs that nobody else uses",
    "HiddenPayment": "it won, and gave these GPUs up as its payment",
    "BidNothing": "none of the GPUs on offer are worth a start to it",
    "LostAuction": "others gained more from the GPUs",
    "NotOffered": "others are worse off and were offered the GPUs",
    "Outranked": "other apps came before it under its queue's policy",
    "NoFreeGpus": "no GPUs came free since it asked",
    "WaitingForRound": "GPUs are free; a round is about to be held",
}


BY_ORDER = frozenset({"Outranked", "NotOffered"})
"""That others come first says less than who has the cells."""


@value
class Reason:
    """A code of REASONS and a sentence that fills it in."""

    code: str
    sentence: str


def _reason(code: str, detail: str = "") -> Reason:
    return Reason(code, f"{REASONS[code]}: {detail}" if detail else REASONS[code])


def reason(a: Arbiter, app_id: str, now_s: float) -> Reason:
    """Why this app does not have more GPUs now."""
    record = a.durable.apps.get(app_id)
    if record is None:
        app = a.yarn_apps.get(app_id)
        starting = app is not None and not app.attempt_id
        return _reason("Unknown", "its application master is starting" if starting else "")
    if record.finished_s is not None:
        return _reason("Finished", record.final_state)
    for rung in (_your_error, _cluster, _starting, _cells, _last_round):
        found = rung(a, app_id, now_s)
        if found is not None:
            return found
    return _reason("WaitingForRound" if a.free.count else "NoFreeGpus")


def _demand(a: Arbiter, app_id: str, now_s: float) -> Any:
    agent = a.agents.get(app_id)
    return agent.demand if agent is not None else standin.demand(a, app_id, now_s)


def _your_error(a: Arbiter, app_id: str, now_s: float) -> Reason | None:
    demand = _demand(a, app_id, now_s)
    gang, largest = demand.gang_gpus, a.topology.largest_gpus
    if a.ready and gang > a.topology.gpus:
        bad = len(a.bad_gpus)
        more = f" and {bad} bad ones" if bad else ""
        return _reason("ExceedsClusterSize", f"{gang} GPUs in one gang, the cluster has {a.topology.gpus}{more}")
    if a.ready and a.is_foreign(app_id) and gang > largest:
        return _reason("NoMachineLargeEnough", f"{gang} GPUs in one container, at most {largest} on a machine")
    return None


def _cluster(a: Arbiter, app_id: str, now_s: float) -> Reason | None:
    if a.paused:
        return _reason("Paused")
    if not a.ready or now_s < a.recovering_until_s:
        return _reason("RecoveryInProgress")
    agent = a.agents.get(app_id)
    record = a.durable.apps[app_id]
    if record.kind != "foreign" and (agent is None or not agent.connected):
        return _reason("AgentAway")
    if _demand(a, app_id, now_s).gpus <= a.holding(app_id) and not _unplaced(a, app_id):
        return _reason("Running" if a.leases_of(app_id) or a.next_of(app_id) else "Idle")
    if a.queue_room(record.queue) <= 0:
        return _reason("QueueLimit", record.queue)
    return None


def _unplaced(a: Arbiter, app_id: str) -> list[str]:
    return [w.problem for w in a.workers.of(app_id) if not w.container_id]


def _starting(a: Arbiter, app_id: str, now_s: float) -> Reason | None:
    coming = a.next_of(app_id)
    if coming:
        last_s = max(x.granted_s for x in coming)
        return _reason("WaitingForRevocation", f"{len(coming)} GPUs, free in {max(0.0, last_s - now_s):.0f} s")
    waiting = _unplaced(a, app_id)
    if waiting:
        return _reason("Starting", next(filter(None, waiting), ""))
    return None


def _cells(a: Arbiter, app_id: str, now_s: float) -> Reason | None:
    """What the cells of its virtual cluster cannot hold now, and why."""
    if a.supply is None:
        return None
    found = cell_reason(a, a.supply, app_id, _demand(a, app_id, now_s), now_s)
    if found is None:
        return None
    decided = _last_round(a, app_id, now_s) if found[0] == "CellsInUse" else None
    return decided if decided is not None and decided.code not in BY_ORDER else _reason(*found)


def _last_round(a: Arbiter, app_id: str, now_s: float) -> Reason | None:
    """The newest round of its virtual cluster that this app lived through decides."""
    app = a.durable.apps[app_id]
    r = next((r for r in reversed(a.receipts) if r.get("vc", "") == app.vc), None)
    if r is None or r["at_s"] < app.arrived_s:
        return None
    if app_id in r["out"]:
        code, _, detail = r["out"][app_id].partition(": ")
        return _reason(code if code in REASONS else "BadBid", detail)
    if app_id in r["participants"]:
        return _bidder(r, app_id, a.lease_s_of(app.vc))
    if not r["asked"] and any(a["app_id"] != app_id for a in r.get("awards", ())):
        return _reason("Outranked", f"{r['policy']}, round {r['round_id']}")
    if app_id in r["rho"]:
        rhos = sorted(((v, k) for k, v in r["rho"].items() if v is not None), reverse=True)
        rank = next((i for i, (_, k) in enumerate(rhos, 1) if k == app_id), len(rhos))
        n = len(r["participants"])
        detail = f"rank {rank} of {len(rhos)} by rho, the worst {n} were offered {sum(r['offered'].values())} GPUs"
        return _reason("NotOffered", f"{detail} in round {r['round_id']}")
    return None


def _bidder(r: dict[str, Any], app_id: str, lease_s: float) -> Reason | None:
    mine = next((b for b in r.get("bids", ()) if b["app_id"] == app_id), None)
    if mine is None:
        return None
    if mine["paid_gangs"]:
        detail = f"{mine['paid_gangs']} gangs (c = {mine['c']:.3f}) in round {r['round_id']}"
        return _reason("HiddenPayment", detail)
    if not mine["rows"]:
        restart_s = r.get("restart_s", {}).get(app_id, 0.0)
        costs = f"a start would cost it {restart_s:.0f} s, the lease is {lease_s:g} s"
        return _reason("BidNothing", f"{costs} (round {r['round_id']})")
    winners = [b["app_id"] for b in r["bids"] if b["won"] and b["app_id"] != app_id]
    detail = f"round {r['round_id']}, rho {mine['rho_nothing']:.2f}" + (
        f", GPUs went to {', '.join(winners)}" if winners else ""
    )
    return _reason("LostAuction", detail)


def losing(a: Arbiter, app_id: str) -> int:
    """GPUs that are being revoked from it."""
    return sum(x.state == REVOKING for x in a.leases_of(app_id))
