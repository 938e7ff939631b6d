"""What a run came to: every app's fairness, the rounds, and how long things took. From the journal alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pycontrol.arbiter.facts import AllocationChanged, AppRecord, Durable, Fact, RoundHeld
from pycontrol.arbiter.journal import read_facts


def spread(values: Iterable[float]) -> dict[str, float | int | None]:
    """Median, 95th percentile and count."""
    ordered = sorted(values)
    if not ordered:
        return {"median": None, "p95": None, "n": 0}
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return {"median": statistics.median(ordered), "p95": p95, "n": len(ordered)}


def app_line(app: AppRecord, cluster_gpus: int) -> dict[str, Any]:
    """T_sh = finish - submission; T_id = completed serial GPU-seconds / min(R_C, demand) x N_avg; rho their ratio."""
    kind = app.kind if app.kind in ("job", "foreign") else "hyperband"
    work = app.attained_gpu_s if app.kind == "foreign" else app.work_done_gpu_s
    t_sh = app.finished_s - app.submitted_s if app.finished_s is not None else None
    t_id = None
    if work > 0 and app.demand_gpus and app.n_avg:
        t_id = work / min(cluster_gpus, app.demand_gpus) * app.n_avg
    return {
        "name": app.name,
        "id": app.app_id,
        "queue": app.queue,
        "kind": kind,
        "final_state": app.final_state,
        "rho": t_sh / t_id if t_sh is not None and t_id else None,
        "T_sh_s": t_sh,
        "T_id_s": t_id,
        "leases": app.leases,
        "renewals": app.renewals,
        "revocations": app.revocations,
        "restarts": app.restarts,
        "best": app.best,
    }


def build(facts: Iterable[Fact], cluster_gpus: int, audit: dict[str, Any] | None = None) -> dict[str, Any]:
    """The report of all apps in the journal."""
    state, receipts, changes = Durable(), [], []
    for fact in facts:
        state.apply(fact)
        if isinstance(fact, RoundHeld):
            receipts.append(fact.receipt)
        elif isinstance(fact, AllocationChanged):
            changes.append(fact.seconds)
    bids = [s for r in receipts for s in r.get("bid_s", {}).values() if s > 0]
    auctions = [r["solve_s"] for r in receipts if r.get("bids")]
    return {
        "apps": [app_line(a, cluster_gpus) for a in state.apps.values()],
        "rounds": len(receipts),
        "auctions": {
            "bidders_max": max((len(r.get("bids", ())) for r in receipts), default=0),
            "with_payment": sum(any(b["c"] < 1 for b in r.get("bids", ())) for r in receipts),
        },
        "bid_s": spread(bids),
        "auction_solve_s": spread(auctions),
        "allocation_change_s": spread(changes),
        "audit": audit,
    }


def of_journal(path: Path, cluster_gpus: int, audit: dict[str, Any] | None = None) -> dict[str, Any]:
    """The report of a journal file."""
    return build((fact for _, _, fact in read_facts(path)), cluster_gpus, audit)
