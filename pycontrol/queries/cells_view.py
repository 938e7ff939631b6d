"""Cells, virtual clusters and their exchange as the REST resource shows them, and posting of offers, requests and
withdrawals."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.supply.cell_supply import ExchangeService
from pycontrol.model.events import ExchangePosted
from pycontrol.queries.demands import Demands
from pycontrol.queries.lookup import Refusal, number

PARAMS = frozenset({"vc", "cells", "for_s", "until_s", "in_return", "expires_in_s", "id"})
LOT = re.compile(r"^(?P<type>[^:@]+):(?P<count>\d+)(?:@(?P<chain>.+))?$")
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
VERB = {"exchange-offer": "offer", "exchange-request": "request", "exchange-withdraw": "withdraw"}


def cells(a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
    """All cells: affinity groups (one per grant), hosts with their GPUs, virtual clusters, and both binding tables.

    `tenants`: for each virtual cluster, the GPUs that it owns, lends, is lent, uses of its own and borrows, the GPUs
    that its apps still want, the number of its bad cells, and how long borrowers keep its GPUs before they are
    called back (`min_lend_s`).
    """
    state = a.supply.inspect()
    deals = a.supply.exchange.dump()["deals"]
    return {"now_s": now_s, "tenants": _tenants(a, now_s, state.get("virtual_clusters", {})), "deals": deals, **state}


def without_queue(a: Arbiter) -> list[str]:
    """Virtual clusters whose cells nobody can use, as YARN has no leaf queue of their names; empty before these are
    known."""
    known = {a.supply.vc_of(queue.path) for queue in a.cluster.queues.values() if queue.leaf}
    return sorted(set(a.supply.virtual_clusters()) - known) if a.cluster.queues else []


def _tenants(a: Arbiter, now_s: float, clusters: Mapping[str, Any]) -> list[dict[str, Any]]:
    if a.supply.whole:
        return []
    rows, demands = dict[str, dict[str, Any]](), Demands(a, now_s)
    for vc in (*a.supply.virtual_clusters(), ""):
        owns = {"name": vc, "gpus": a.supply.gpus_of(vc), "min_lend_s": a.supply.terms(vc).min_lend_s}
        rows[vc] = owns | dict.fromkeys(("lent", "got", "own", "borrowed", "apps", "wanted"), 0)
    for deal in a.supply.exchange.deals.values():
        for owner, tenant, lot in ((deal.owner, deal.tenant, deal.lot), (deal.tenant, deal.owner, deal.in_return)):
            gpus = a.supply.exchange.gpus(lot) if lot is not None else 0
            rows[owner]["lent"] += gpus
            rows[tenant]["got"] += gpus
    for lease in a.durable.leases.each():
        row = rows.get(a.durable.apps[lease.app_id].vc)
        if row is not None:
            row["own" if lease.guaranteed else "borrowed"] += len(lease.gpus)
    for app in a.durable.live.values():
        row = rows.get(app.vc)
        if row is not None:
            demand = demands.of(app.app_id)
            row["apps"] += 1
            row["wanted"] += max(0, demand.gpus - a.holdings.holding(app.app_id)) if demand is not None else 0
    for vc, row in rows.items():
        row["bad_cells"] = sum(not cell["healthy"] for cell in clusters.get(vc, {}).get("cells", ()))
    return [row for vc, row in rows.items() if vc or row["apps"]]


# ---- exchange


def exchange(a: Arbiter, now_s: float, params: Mapping[str, str]) -> dict[str, Any]:
    """The board, the present deals, and each virtual cluster's accounts (GPU-hours); times in Unix seconds."""
    state = a.supply.exchange.dump()
    board, supply = state["board"], a.supply
    posted = {what: list(board[what].values()) for what in ("offers", "requests")}
    books = []
    for vc in supply.virtual_clusters():
        surplus, lent = board["surplus"].get(vc, 0.0), board["score"].get(vc, 0.0)
        hours = {"surplus_gpu_hours": surplus, "contributed_gpu_hours": lent}
        books.append({"vc": vc, "gpus": supply.gpus_of(vc), **hours})
    return {"now_s": now_s, **posted, "deals": state["deals"], "books": books}


def deals(a: Arbiter) -> set[str]:
    """The ids of the present deals."""
    return set(a.supply.exchange.deals)


def posting(a: Arbiter, now_s: float, path: str, params: Mapping[str, str]) -> ExchangePosted:
    """The posting in a caller's parameters; checks their syntax and that names exist. Raises Refusal."""
    verb, name = VERB[path], params.get("id", "")
    exchange_service = _exchange_service(a)
    if verb == "withdraw":
        if not name:
            raise Refusal(400, "id: is missing; `isonomy exchange list` shows offers and requests")
        return ExchangePosted(verb, name, exchange_service.exchange.posted.get(name, ""))
    name = name or f"{verb}-{secrets.token_hex(3)}"
    if not NAME.fullmatch(name) or name.startswith("deal"):
        what = "letters, digits, . _ -, at most 64, and not begin with deal"
        raise Refusal(400, f"id: must be {what} (got {name})")
    if verb == "offer" and params.keys() & {"in_return", "expires_in_s"}:
        raise Refusal(400, "in_return, expires_in_s: are for requests")
    vc, lapse_s = _vc(exchange_service, params), number(params, "expires_in_s")
    lot, end_s = _lot(exchange_service, "cells", params.get("cells", "")), _end_s(params, now_s)
    back = params.get("in_return")
    in_return = _lot(exchange_service, "in_return", back) if back else None
    lapses_s = None if lapse_s is None else now_s + lapse_s
    return ExchangePosted(verb, name, vc, lot, end_s, in_return, lapses_s)


def check(a: Arbiter, now_s: float, posted: ExchangePosted) -> None:
    """Raise Refusal if the exchange would refuse the posting."""
    why = _exchange_service(a).refusal(posted, now_s)
    if why:
        status = 404 if posted.verb == "withdraw" and not posted.vc else 409
        raise Refusal(status, f"exchange: {why}; `isonomy exchange list` and `isonomy cells status` show what there is")


def outcome(a: Arbiter, posted: ExchangePosted) -> dict[str, Any]:
    """The result of a posting: the deals made, and one sentence."""
    state = _exchange_service(a).exchange
    name = posted.posting_id
    made = [d for d in state.deals.values() if name in (d.offer, d.request)]
    if posted.verb == "withdraw":
        text = f"{name} is off the board"
    elif made:
        parties = ", ".join(f"{d.owner} lends {d.lot.count} x {d.lot.cell_type} to {d.tenant} ({d.id})" for d in made)
        text = f"{name}: {parties}"
    else:
        text = f"{name} is on the board, and waits for a match"
    return {"ok": True, "verb": posted.verb, "id": name, "deals": [d.id for d in made], "text": text}


def _exchange_service(a: Arbiter) -> ExchangeService:
    if a.supply.layout is None:
        raise Refusal(409, "exchange: there are no virtual clusters; name a cells file in isonomy.yaml and start again")
    if not a.cluster.ready:
        raise Refusal(503, "exchange: the control plane is recovering; try again")
    return a.exchange_service


def _vc(exchange_service: ExchangeService, params: Mapping[str, str]) -> str:
    named = params.get("vc", "")
    vc = exchange_service.supply.vc_of(named) if named else ""
    if not vc:
        known = ", ".join(exchange_service.supply.virtual_clusters())
        raise Refusal(404 if named else 400, f"vc: no virtual cluster {named or 'is named'}; there are {known}")
    return vc


def _lot(exchange_service: ExchangeService, key: str, text: str) -> tuple[str, str, int]:
    match = LOT.match(text)
    if match is None:
        raise Refusal(400, f"{key}: must be TYPE:COUNT or TYPE:COUNT@CHAIN, such as node:2 (got {text or 'nothing'})")
    chains = [c for c in exchange_service.exchange.cells.layout.chains if c.level_of(match["type"]) is not None]
    if not chains:
        known = ", ".join(sorted({n for c in exchange_service.exchange.cells.layout.chains for n in c.names if n}))
        raise Refusal(400, f"{key}: there is no cell type {match['type']}; known are {known}")
    found = [c.name for c in chains if match["chain"] in (None, c.name)]
    if len(found) != 1:
        names = ", ".join(c.name for c in chains)
        raise Refusal(400, f"{key}: {match['type']} is in the chains {names}; write {match['type']}:COUNT@CHAIN")
    return found[0], match["type"], int(match["count"])


def _end_s(params: Mapping[str, str], now_s: float) -> float:
    for_s, until_s = number(params, "for_s"), number(params, "until_s")
    if (for_s is None) == (until_s is None):
        raise Refusal(400, "for_s, until_s: give one of them: how long, or until when (Unix seconds)")
    return until_s if until_s is not None else now_s + (for_s or 0.0)
