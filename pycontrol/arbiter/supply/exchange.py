"""Cell exchange on a running control plane (HiveD, section 3.3): postings become deals, which end in time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pycontrol.arbiter.ledger.facts import ExchangeChanged, LeaseBorrowed, LeaseOwned
from pycontrol.arbiter.state import Clerk, Holdings
from pycontrol.arbiter.supply.port import TradingSupply
from pycontrol.cells.exchange import Exchange, Lot
from pycontrol.cells.values import CellsError
from pycontrol.model.events import ExchangePosted

RETRY_S = 5.0
"""How often postings are matched while there are offers and requests: no event tells when cells become free."""


class ExchangeService:
    """Runs the cell exchange in the Arbiter; records its whole state whenever it changes."""

    def __init__(self, s: Holdings, clerk: Clerk, supply: TradingSupply) -> None:
        self.s, self.clerk, self.supply = s, clerk, supply
        self._due_s = 0.0

    @property
    def exchange(self) -> Exchange:
        """The exchange: bulletin board, deals and books."""
        return self.supply.exchange

    def restore(self, now_s: float) -> None:
        """Loads the recorded exchange; deals without cells in the cells file end."""
        self.supply.restore(self.s.durable.exchange, now_s)
        self.save()
        self._due_s = now_s

    def posted(self, e: ExchangePosted, now_s: float) -> None:
        """Adds a posting to the board or withdraws it; ignores one that is refused."""
        if self.refusal(e, now_s):
            return
        if e.verb == "withdraw":
            self.exchange.board.offers.pop(e.posting_id, None)
            self.exchange.board.requests.pop(e.posting_id, None)
        elif e.posting_id not in self.exchange.posted:
            self._post(e)
        self.save()
        self._due_s = now_s

    def _post(self, e: ExchangePosted) -> None:
        proxy, lot = self.exchange.proxy(e.vc), Lot(*e.lot)
        if e.verb == "offer":
            proxy.offer(lot, e.end_s, e.posting_id)
        else:
            back = Lot(*e.in_return) if e.in_return else None
            expires_s = min(e.end_s, e.end_s if e.expires_s is None else e.expires_s)
            proxy.request(lot, e.end_s, back, expires_s, e.posting_id)

    def refusal(self, e: ExchangePosted, now_s: float) -> str:
        """Why a posting is refused; empty if it is accepted, or was before."""
        exchange = self.exchange
        owner = exchange.posted.get(e.posting_id)
        if e.verb == "withdraw":
            deals = [d.id for d in exchange.deals.values() if e.posting_id in (d.id, d.offer, d.request)]
            if deals and e.posting_id not in {**exchange.board.offers, **exchange.board.requests}:
                return f"{e.posting_id} was matched: {deals[0]} is in force until its end"
            return "" if owner else f"there is no offer or request {e.posting_id}"
        if owner is not None:
            return "" if owner == e.vc else f"the id {e.posting_id} is taken by {owner}"
        if exchange.cells.layout.static:
            return "cells that are bound for good (binding: static) cannot be exchanged"
        if e.end_s <= now_s:
            return "the end is in the past"
        if e.expires_s is not None and e.expires_s <= now_s:
            return "it would have lapsed already"
        try:
            proxy = exchange.proxy(e.vc)
            proxy.check(Lot(*e.lot), "offer" if e.verb == "offer" else "")
            if e.in_return:
                proxy.check(Lot(*e.in_return), "lend in return")
        except CellsError as error:
            return str(error)
        return ""

    def tick(self, now_s: float) -> None:
        """Ends deals that are due and makes the deals that are possible."""
        s = self.s
        if not s.cluster.ready or now_s < self._due_s:
            return
        before = set(self.exchange.deals)
        _, downgraded = self.supply.trade(now_s)
        downgrade(s, self.clerk, downgraded)
        self.save()
        if set(self.exchange.deals) != before:
            self.clerk.request_round(now_s + s.settings.settle_s)
        self._due_s = self._next_s(now_s)

    def _next_s(self, now_s: float) -> float:
        board = self.exchange.board
        if board.offers and board.requests:
            return now_s + RETRY_S
        ends = [d.end_s for d in self.exchange.deals.values()] + [o.end_s for o in board.offers.values()]
        return min([*ends, *(r.expires_s for r in board.requests.values())], default=math.inf)

    def next_wake_s(self) -> float | None:
        """When `tick` has something to do; None: not before the next event."""
        return self._due_s if self.s.cluster.ready and self._due_s < math.inf else None

    def save(self) -> None:
        """Records the exchange if it changed."""
        blank = Exchange(self.exchange.cells, self.exchange.policy).dump()
        now = self.exchange.dump()
        if now != (self.s.durable.exchange or blank):
            self.clerk.record(ExchangeChanged(now))


def downgrade(s: Holdings, clerk: Clerk, groups: Iterable[str]) -> None:
    """Records that the GPUs of these groups are borrowed from now on."""
    regrade(s, clerk, dict.fromkeys(groups, False))


def regrade(s: Holdings, clerk: Clerk, groups: Mapping[str, bool]) -> None:
    """Records whether the GPUs of these groups are guaranteed from now on."""
    for lease in s.durable.claims():
        gpus, grant_id = lease.gpus, lease.grant_id
        guaranteed = groups.get(grant_id, lease.guaranteed)
        if guaranteed != lease.guaranteed:
            clerk.record(LeaseOwned(gpus, grant_id) if guaranteed else LeaseBorrowed(gpus, grant_id))


def deals_of(exchange: Mapping[str, Any], vc: str | None = None) -> list[dict[str, Any]]:
    """The recorded deals of one virtual cluster, or of all (None), as JSON values."""
    deals: list[dict[str, Any]] = list(exchange.get("deals", ()))
    return [d for d in deals if vc is None or vc in (d["owner"], d["tenant"])]
