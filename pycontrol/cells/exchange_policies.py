"""Exchange policies (HiveD, section 3.3): balanced exchange, credit score, second-price auction."""

from __future__ import annotations

from collections.abc import Mapping

from pycontrol.cells.exchange import Board, ExchangeOffer, Match


class Balanced:
    """Algorithm 2: the request of the tenant with the highest surplus, served by the offer of the lowest surplus."""

    def choose(self, board: Board, qualified: Mapping[str, list[ExchangeOffer]]) -> Match | None:
        for name in sorted(qualified, key=lambda n: -board.surplus.get(board.requests[n].tenant, 0.0)):
            offer = min(qualified[name], key=lambda o: board.surplus.get(o.tenant, 0.0))
            return Match(board.requests[name], offer)
        return None


class CreditScore:
    """Serves the tenant with the largest total contribution first; offers are taken in the order of posting."""

    def choose(self, board: Board, qualified: Mapping[str, list[ExchangeOffer]]) -> Match | None:
        for name in sorted(qualified, key=lambda n: -board.score.get(board.requests[n].tenant, 0.0)):
            return Match(board.requests[name], qualified[name][0])
        return None


class SecondPrice:
    """Each offer goes to the highest bid at the second-highest price, but at least at the owner's price.

    Bids below the owner's price do not count.
    """

    def choose(self, board: Board, qualified: Mapping[str, list[ExchangeOffer]]) -> Match | None:
        for offer in board.offers.values():
            bids = sorted(
                (board.requests[n] for n, offers in qualified.items() if offer in offers),
                key=lambda r: -r.price,
            )
            bids = [bid for bid in bids if bid.price >= offer.price]
            if bids:
                rivals = [bid.price for bid in bids[1:] if bid.tenant != bids[0].tenant]
                return Match(bids[0], offer, max([offer.price, *rivals]))
        return None


POLICIES: Mapping[str, type[Balanced] | type[CreditScore] | type[SecondPrice]] = {
    "balanced": Balanced, "credit": CreditScore, "auction": SecondPrice,
}  # fmt: skip
