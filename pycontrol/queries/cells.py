"""The cells and virtual clusters, as the REST resource shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.supply.port import deals_of


def cells(a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
    """All cells: affinity groups (one per grant), hosts with their GPUs, virtual clusters, and both binding tables.

    `tenants`: for each virtual cluster, the GPUs that it owns, lends, is lent, uses of its own and borrows, the GPUs
    that its apps still want, the number of its bad cells, and how long borrowers keep its GPUs before they are
    called back (`min_lend_s`).
    """
    state = a.supply.inspect()
    return {"now_s": now_s, "tenants": _tenants(a, state.get("virtual_clusters", {})),
            "deals": deals_of({} if a.supply.whole else a.durable.exchange), **state}  # fmt: skip


def without_queue(a: Arbiter) -> list[str]:
    """Virtual clusters whose cells nobody can use, as YARN has no leaf queue of their names; empty before these are
    known."""
    known = {a.supply.vc_of(queue.path) for queue in a.cluster.queues.values() if queue.leaf}
    return sorted(set(a.supply.virtual_clusters()) - known) if a.cluster.queues else []


def _tenants(a: Arbiter, clusters: Mapping[str, Any]) -> list[dict[str, Any]]:
    if a.supply.whole:
        return []
    rows: dict[str, dict[str, Any]] = {
        vc: {"name": vc, "gpus": a.supply.gpus_of(vc), "min_lend_s": a.supply.terms(vc).min_lend_s, "lent": 0, "got": 0,
             "own": 0, "borrowed": 0, "apps": 0, "wanted": 0}
        for vc in (*a.supply.virtual_clusters(), "")
    }  # fmt: skip
    for deal in a.exchange_service.exchange.deals.values() if a.exchange_service is not None else ():
        for owner, tenant, lot in ((deal.owner, deal.tenant, deal.lot), (deal.tenant, deal.owner, deal.in_return)):
            gpus = a.exchange_service.exchange.gpus(lot) if a.exchange_service is not None and lot is not None else 0
            rows[owner]["lent"] += gpus
            rows[tenant]["got"] += gpus
    for lease in a.durable.leases.each():
        row = rows.get(a.durable.apps[lease.app_id].vc)
        if row is not None:
            row["own" if lease.guaranteed else "borrowed"] += len(lease.gpus)
    for app in a.durable.live.values():
        row = rows.get(app.vc)
        if row is not None:
            agent = a.agents.get(app.app_id)
            row["apps"] += 1
            row["wanted"] += max(0, agent.demand.gpus - a.holdings.holding(app.app_id)) if agent is not None else 0
    for vc, row in rows.items():
        row["bad_cells"] = sum(not cell["healthy"] for cell in clusters.get(vc, {}).get("cells", ()))
    return [row for vc, row in rows.items() if vc or row["apps"]]
