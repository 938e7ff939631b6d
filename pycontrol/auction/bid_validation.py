"""Validation of bids."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from pycontrol.model.auction import AppView, Bid, BidRow, Demand, Snapshot
from pycontrol.model.topology import Scope

ROWS_MAX = 512


def validate_bid(bid: Bid, snapshot: Snapshot, view: AppView) -> str:
    """What is wrong with the bid, in one phrase; empty if it is valid.

    A row for more than the offer, the app's demand or its queue's limit allows is valid, but never wins: an Agent does
    not know its queue's limit, and a job may end between two messages.
    """
    if bid.app_id != view.app_id:
        return f"it is in the name of {bid.app_id}"
    if len(bid.rows) > ROWS_MAX:
        return f"{len(bid.rows)} rows, at most {ROWS_MAX} are read"
    if not _positive(bid.rho_nothing):
        return f"rho_nothing is {bid.rho_nothing}, it must be a positive number"
    for k, row in enumerate(bid.rows):
        problem = _row_problem(row, snapshot, view)
        if problem:
            return f"row {k}: {problem}"
    return ""


def as_demanded(bid: Bid, demand: Demand) -> Bid:
    """The bid with the scope, members and GPU type of new gangs as demanded; other types' rows are dropped."""
    scope, kind = demand.scope, demand.gpu_type
    if demand.members:
        bid = replace(bid, rows=tuple(replace(r, members=demand.members) for r in bid.rows))
    if all(row.scope <= scope and (not kind or row.gpu_type == kind) for row in bid.rows):
        return bid
    rows = (replace(r, scope=min(r.scope, scope)) for r in bid.rows if not kind or r.gpu_type in ("", kind))
    return replace(bid, rows=tuple(replace(r, gpu_type=kind, mixes=False) if kind else r for r in rows))


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _row_problem(row: BidRow, snapshot: Snapshot, view: AppView) -> str:
    if not _positive(row.rho):
        return f"rho is {row.rho}, it must be a positive number"
    if row.new_gangs < 0 or row.gang_gpus < 1:
        return f"asks for {row.new_gangs} gangs of {row.gang_gpus} GPUs"
    if not row.gpus:
        return "asks for nothing"
    if row.mixes and (row.gpu_type or row.scope is not Scope.CLUSTER):
        return f"may mix GPU types, but names {row.gpu_type or 'a scope narrower than the cluster'}"
    extra = Counter(row.keep) - Counter(view.ending_gangs)
    if extra:
        return f"keeps {dict(next(iter(extra)))}, which is not a gang of the app on offer"
    away = next((h for gang in row.keep for h, n in gang if snapshot.free.get(h, 0) < n), None)
    return f"keeps GPUs of {away}, which are not on offer" if away else ""
