"""Other exchange policies that HiveD names (section 3.3): credit score, second-price auction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pycontrol.cells.exchange import Board, Exchange, ExchangeOffer, Match


def exchange_by(choose: Callable[[Board, Mapping[str, list[ExchangeOffer]]], Match | None]) -> type[Exchange]:
    """An exchange with another policy, which chooses the next match."""
    return type("ExchangeBy", (Exchange,), {"_choose": staticmethod(choose)})


def credit_score(board: Board, qualified: Mapping[str, list[ExchangeOffer]]) -> Match | None:
    """Serves the tenant with the largest total contribution first; offers are taken in the order of posting."""
    for name in sorted(qualified, key=lambda n: -board.score.get(board.requests[n].tenant, 0.0)):
        return board.requests[name], qualified[name][0]
    return None


@dataclass
class SecondPrice:
    """Each offer goes to the highest bid at the second-highest price, but at least at the owner's price.

    Bids below the owner's price do not count.
    """

    prices: Mapping[str, float] = field(default_factory=dict)
    """Posting -> per GPU-hour what an owner asks at least, or what a request bids; 0 if not named."""
    paid: dict[str, float] = field(default_factory=dict)
    """Request -> the price of its match."""

    def __call__(self, board: Board, qualified: Mapping[str, list[ExchangeOffer]]) -> Match | None:
        for offer in board.offers.values():
            least = self.prices.get(offer.id, 0.0)
            bids = [board.requests[n] for n, offers in qualified.items() if offer in offers]
            bids = sorted((b for b in bids if self._bid(b.id) >= least), key=lambda r: -self._bid(r.id))
            if bids:
                rivals = [self._bid(bid.id) for bid in bids[1:] if bid.tenant != bids[0].tenant]
                self.paid[bids[0].id] = max([least, *rivals])
                return bids[0], offer
        return None

    def _bid(self, request: str) -> float:
        return self.prices.get(request, 0.0)
