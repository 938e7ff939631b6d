"""Automatic exchange (HiveD, section 3.3): posts offers and requests of cells for virtual clusters."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from pycontrol.cells.exchange import Exchange, ExchangeOffer, ExchangeRequest, Lot, free_roots
from pycontrol.model.value import value

PREFIX = "auto-"
"""Prefix of the ids of automatic postings."""


@value
class Rules:
    """When cells are offered, and for how long; all in seconds."""

    idle_s: float = 600.0
    """How long a virtual cluster's use of cells is watched before cells are offered."""
    forecast_s: float = 3600.0
    """A virtual cluster's forecast use of cells is its peak over this time."""
    lend_s: float = 3600.0
    """How long cells are offered; an offer that is not taken is renewed after half this time."""


class Automatic:
    """Watches each virtual cluster's use of cells and posts for it; its observations are lost with the process."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._peaks: dict[tuple[str, Lot], deque[tuple[float, int]]] = {}
        """(virtual cluster, lot of one cell) -> (time, cells in use), descending in cells; the first is the peak of the
        window."""
        self._since_s: dict[tuple[str, Lot], float] = {}
        self._short: dict[str, int] = {}

    def post(self, exchange: Exchange, waiting: Mapping[str, int], now_s: float) -> None:
        """Updates the automatic postings; `waiting`: virtual cluster -> GPUs that its apps wait for."""
        short = {vc: gpus for vc, n in waiting.items() if (gpus := n - self._free_gpus(exchange, vc)) > 0}
        for vc, kind in self._kinds(exchange):
            self._offer(exchange, vc, kind, 0 if vc in short else self._spare(exchange, vc, kind, now_s), now_s)
        for vc in short.keys() & self._short.keys():  # a round has had time to serve them
            self._request(exchange, vc, min(short[vc], self._short[vc]), now_s)
        self._short = short

    def forget_requests(self, exchange: Exchange) -> None:
        """Removes automatic requests that were not matched; the next `post` makes new ones."""
        board = exchange.board
        board.requests = {k: r for k, r in board.requests.items() if not k.startswith(PREFIX)}

    def _kinds(self, exchange: Exchange) -> list[tuple[str, Lot]]:
        """(virtual cluster, lot of one cell) for each type of cells that it holds."""
        found: dict[tuple[str, Lot], None] = {}
        for space in exchange.cells.spaces:
            for (level, _), (vc, pinned) in space.holder.items():
                name = space.chain.names[level]
                if pinned is None and name:
                    found[(vc, Lot(space.chain.name, name, 1))] = None
        return list(found)

    def _free_gpus(self, exchange: Exchange, vc: str) -> int:
        pools = (space.pools.get((vc, None)) for space in exchange.cells.spaces)
        return sum(pool.free_gpus for pool in pools if pool is not None)

    def _spare(self, exchange: Exchange, vc: str, kind: Lot, now_s: float) -> int:
        """The number of own cells that the forecast leaves idle; 0 until the process has watched for `idle_s`."""
        owned, free = exchange.owned(kind, vc), len(free_roots(exchange.cells, kind, vc))
        used, peaks = exchange.held(kind, vc) - free, self._peaks.setdefault((vc, kind), deque())
        while peaks and peaks[-1][1] <= used:
            peaks.pop()
        peaks.append((now_s, used))
        while peaks[0][0] < now_s - self.rules.forecast_s:
            peaks.popleft()
        if now_s - self._since_s.setdefault((vc, kind), now_s) < self.rules.idle_s:
            return 0
        return max(0, min(owned - peaks[0][1], free))

    def _offer(self, exchange: Exchange, vc: str, kind: Lot, count: int, now_s: float) -> None:
        name = f"{PREFIX}{vc}-{kind.chain}-{kind.cell_type}"
        offers = exchange.board.offers
        known = offers.get(name)
        if not count:
            offers.pop(name, None)
        elif known is None or known.lot.count != count or known.end_s - now_s < self.rules.lend_s / 2:
            offers[name] = ExchangeOffer(name, vc, replace(kind, count=count), now_s + self.rules.lend_s)

    def _request(self, exchange: Exchange, vc: str, gpus: int, now_s: float) -> None:
        """Requests cells that others offer, the smallest first, until `gpus` GPUs are covered."""
        offers = [(exchange.gpus(replace(o.lot, count=1)), o) for o in exchange.board.offers.values()]
        for size, offer in sorted(offers, key=lambda found: found[0]):
            if gpus > 0 and offer.tenant != vc:
                lot = replace(offer.lot, count=min(offer.lot.count, -(-gpus // size)))
                end_s = min(offer.end_s, now_s + self.rules.lend_s)
                name = f"{PREFIX}{vc}-for-{offer.id}"
                exchange.board.requests[name] = ExchangeRequest(name, vc, lot, end_s, expires_s=end_s)
                gpus -= size * lot.count
