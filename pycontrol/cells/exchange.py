"""Cell exchange (HiveD, 3.3): offers and requests on a bulletin board, matched by a policy, carried out on the cells.

A deal moves the right to cells of one level from one virtual cluster to another until a time. The number of cells of
each level that are owned in all never changes, so every assignment stays feasible and nobody else notices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from pycontrol.cells import preemption
from pycontrol.cells.core import Cells
from pycontrol.cells.geometry import Cell, overlaps
from pycontrol.cells.space import Space
from pycontrol.cells.values import CellsError, GroupState

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Lot:
    """So many cells of a type."""

    chain: str
    cell_type: str
    count: int


@dataclass(frozen=True, slots=True)
class ExchangeOffer:
    """A tenant lends cells until `end_s`; `price` per GPU-hour is the least it takes in an auction."""

    id: str
    tenant: str
    lot: Lot
    end_s: float
    price: float = 0.0


@dataclass(frozen=True, slots=True)
class ExchangeRequest:
    """A tenant wants cells until `end_s`. `in_return`: cells that it lends for the same time (spatial exchange).

    `price` per GPU-hour is what it bids in an auction. The request lapses at `expires_s`.
    """

    id: str
    tenant: str
    lot: Lot
    end_s: float
    in_return: Lot | None = None
    price: float = 0.0
    expires_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Deal:
    """A match: `owner` lends `lot` to `tenant` until `end_s` (and gets `in_return` for that time)."""

    id: str
    owner: str
    tenant: str
    lot: Lot
    end_s: float
    gpu_hours: float
    """What the tenant owes: its lot's GPU-hours less those that it lends in return."""
    in_return: Lot | None = None
    price: float = 0.0


@dataclass(slots=True)
class Board:
    """The bulletin board, and what each tenant has contributed and consumed."""

    offers: dict[str, ExchangeOffer] = field(default_factory=dict)
    requests: dict[str, ExchangeRequest] = field(default_factory=dict)
    surplus: dict[str, float] = field(default_factory=dict)
    """GPU-hours contributed less those consumed; negative is a deficit."""
    score: dict[str, float] = field(default_factory=dict)
    """GPU-hours ever contributed, the credit score."""
    paid: dict[str, float] = field(default_factory=dict)
    """Money received less money paid in auctions."""


@dataclass(frozen=True, slots=True)
class Match:
    """What a policy chose; `price` per GPU-hour."""

    request: ExchangeRequest
    offer: ExchangeOffer
    price: float = 0.0


class ExchangePolicy(Protocol):
    """Chooses the next match among those that can be carried out."""

    def choose(self, board: Board, qualified: Mapping[str, list[ExchangeOffer]]) -> Match | None:
        """`qualified`: request id -> offers that could serve it."""


class Exchange:
    """The Exchange Arbiter. Time is an argument; all state is in `dump`."""

    def __init__(self, cells: Cells, policy: ExchangePolicy) -> None:
        self.cells, self.policy = cells, policy
        self.board = Board()
        self.deals: dict[str, Deal] = {}
        self.number = 0

    def proxy(self, tenant: str) -> ExchangeProxy:
        """The Exchange Proxy of a tenant."""
        if self.cells.layout.vc(tenant) is None:
            raise CellsError(f"there is no virtual cluster {tenant}")
        return ExchangeProxy(self, tenant)

    def gpu_hours(self, lot: Lot, duration_s: float) -> float:
        """GPU-hours of a lot for that time."""
        space, level = place(self.cells, lot)
        return space.sizes[level] * lot.count * duration_s / HOUR_S

    def step(self, now_s: float) -> tuple[list[Deal], list[str]]:
        """Returns what is over, then matches what can be: (new deals, groups that became opportunistic)."""
        downgraded: list[str] = []
        for deal in [d for d in self.deals.values() if d.end_s <= now_s]:
            downgraded += move_back(self.cells, deal.lot, deal.tenant, deal.owner)
            if deal.in_return:
                downgraded += move_back(self.cells, deal.in_return, deal.owner, deal.tenant)
            del self.deals[deal.id]
        board = self.board
        board.offers = {k: o for k, o in board.offers.items() if o.end_s > now_s}
        board.requests = {k: r for k, r in board.requests.items() if r.end_s > now_s and r.expires_s > now_s}
        made: list[Deal] = []
        while True:
            qualified = {r.id: self._qualified(r) for r in board.requests.values()}
            match = self.policy.choose(board, {k: offers for k, offers in qualified.items() if offers})
            if match is None:
                return made, downgraded
            made.append(self._carry_out(match, now_s))

    def _qualified(self, request: ExchangeRequest) -> list[ExchangeOffer]:
        """Offers of the wanted cells, long enough, whose owner could hand them over now."""
        give = request.in_return
        if give and not self._may_lend(give, request.tenant):
            return []
        return [
            offer
            for offer in self.board.offers.values()
            if offer.tenant != request.tenant
            and (offer.lot.chain, offer.lot.cell_type) == (request.lot.chain, request.lot.cell_type)
            and offer.lot.count >= request.lot.count
            and offer.end_s >= request.end_s
            and self._may_lend(request.lot, offer.tenant)
        ]

    def _may_lend(self, lot: Lot, tenant: str) -> bool:
        """Whether a tenant has so many unused cells that are its own: what it borrowed must be there at the end."""
        space, level = place(self.cells, lot)
        held = sum(key == (tenant, None) and root[0] == level for root, key in space.holder.items())
        for deal in self.deals.values():
            for borrower, borrowed in ((deal.tenant, deal.lot), (deal.owner, deal.in_return)):
                if borrower == tenant and borrowed and place(self.cells, borrowed) == (space, level):
                    held -= borrowed.count
        return held >= lot.count and len(_free_roots(self.cells, lot, tenant)) >= lot.count

    def _carry_out(self, match: Match, now_s: float) -> Deal:
        request, offer, board = match.request, match.offer, self.board
        move(self.cells, request.lot, offer.tenant, request.tenant)
        duration_s = request.end_s - now_s
        hours = self.gpu_hours(request.lot, duration_s)
        if request.in_return:
            move(self.cells, request.in_return, request.tenant, offer.tenant)
            hours -= self.gpu_hours(request.in_return, duration_s)
        self.number += 1
        deal = Deal(
            f"deal{self.number}", offer.tenant, request.tenant, request.lot, request.end_s, hours,
            request.in_return, match.price,
        )  # fmt: skip
        self.deals[deal.id] = deal
        for book, amount in ((board.surplus, hours), (board.paid, hours * match.price)):
            book[offer.tenant] = book.get(offer.tenant, 0.0) + amount
            book[request.tenant] = book.get(request.tenant, 0.0) - amount
        lent_in_return = max(0.0, -hours)
        board.score[offer.tenant] = board.score.get(offer.tenant, 0.0) + max(0.0, hours)
        board.score[request.tenant] = board.score.get(request.tenant, 0.0) + lent_in_return
        del board.requests[request.id], board.offers[offer.id]
        left = offer.lot.count - request.lot.count
        if left:
            rest = Lot(offer.lot.chain, offer.lot.cell_type, left)
            board.offers[offer.id] = ExchangeOffer(offer.id, offer.tenant, rest, offer.end_s, offer.price)
        return deal

    def dump(self) -> dict[str, Any]:
        """The exchange's state as JSON values; who owns which cells is in the cells' own dump."""
        return {"board": asdict(self.board), "deals": [asdict(d) for d in self.deals.values()], "number": self.number}

    @classmethod
    def load(cls, cells: Cells, policy: ExchangePolicy, data: Mapping[str, Any]) -> Exchange:
        """The exchange as it was at `dump`."""
        exchange = cls(cells, policy)
        board = data["board"]
        exchange.board = Board(
            {k: ExchangeOffer(**{**o, "lot": Lot(**o["lot"])}) for k, o in board["offers"].items()},
            {k: ExchangeRequest(**_with_lots(r)) for k, r in board["requests"].items()},
            dict(board["surplus"]),
            dict(board["score"]),
            dict(board["paid"]),
        )
        exchange.deals = {d["id"]: Deal(**_with_lots(d)) for d in data["deals"]}
        exchange.number = data["number"]
        return exchange


def _with_lots(values: Mapping[str, Any]) -> dict[str, Any]:
    back = values["in_return"]
    return {**values, "lot": Lot(**values["lot"]), "in_return": Lot(**back) if back else None}


@dataclass(frozen=True, slots=True)
class ExchangeProxy:
    """Posts and withdraws a tenant's offers and requests."""

    exchange: Exchange
    tenant: str

    def offer(self, lot: Lot, end_s: float, price: float = 0.0) -> str:
        """Offers cells that the tenant owns; the offer's id. CellsError if it owns fewer."""
        space, level = place(self.exchange.cells, lot)
        owned = sum(key == (self.tenant, None) and root[0] == level for root, key in space.holder.items())
        if lot.count < 1 or owned < lot.count:
            raise CellsError(f"{self.tenant} owns {owned} {lot.cell_type} cells, it cannot offer {lot.count}")
        self.exchange.number += 1
        name = f"offer{self.exchange.number}"
        self.exchange.board.offers[name] = ExchangeOffer(name, self.tenant, lot, end_s, price)
        return name

    def request(
        self, lot: Lot, end_s: float, in_return: Lot | None = None, price: float = 0.0, expires_s: float = float("inf")
    ) -> str:
        """Asks for cells; the request's id."""
        place(self.exchange.cells, lot)
        if in_return:
            place(self.exchange.cells, in_return)
        self.exchange.number += 1
        name = f"request{self.exchange.number}"
        wanted = ExchangeRequest(name, self.tenant, lot, end_s, in_return, price, expires_s)
        self.exchange.board.requests[name] = wanted
        return name

    def withdraw(self, name: str) -> None:
        """Takes an own offer or request off the board."""
        board = self.exchange.board
        posted = board.offers.get(name) or board.requests.get(name)
        if posted is None or posted.tenant != self.tenant:
            raise CellsError(f"{self.tenant} has no offer or request {name}")
        board.offers.pop(name, None)
        board.requests.pop(name, None)


def place(cells: Cells, lot: Lot) -> tuple[Space, int]:
    """The chain and level of a lot; CellsError if there are none."""
    for space in cells.spaces:
        level = space.chain.level_of(lot.cell_type)
        if space.chain.name == lot.chain and level is not None:
            return space, level
    raise CellsError(f"chain {lot.chain} has no cell type {lot.cell_type}")


def _free_roots(cells: Cells, lot: Lot, tenant: str) -> list[Cell]:
    """Trees of the lot's level that the tenant owns and does not use."""
    space, level = place(cells, lot)
    return [
        root
        for root, key in space.holder.items()
        if key == (tenant, None) and root[0] == level and space.forest.free[level][root[1]] == space.sizes[level]
        and not space.forest.covered(root)
    ]  # fmt: skip


def move(cells: Cells, lot: Lot, owner: str, tenant: str) -> None:
    """Hands unused cells over."""
    space, _ = place(cells, lot)
    roots = _free_roots(cells, lot, owner)[: lot.count]
    if len(roots) < lot.count:
        raise CellsError(f"{owner} uses all but {len(roots)} of its {lot.cell_type} cells")
    for root in roots:
        space.hand_over(root, (tenant, None))
        space.mark_root(root)


def move_back(cells: Cells, lot: Lot, tenant: str, owner: str) -> list[str]:
    """Returns cells at the end of a deal; groups for which the tenant has no others become opportunistic, not killed.

    Reservations there are cancelled; they can be asked for again.
    """
    space, level = place(cells, lot)
    downgraded: list[str] = []
    missing = lot.count - len(_free_roots(cells, lot, tenant))
    used = [root for root, key in space.holder.items() if key == (tenant, None) and root[0] == level]
    for root in reversed(used):
        if missing <= 0:
            break
        if root in _free_roots(cells, lot, tenant):
            continue
        downgraded += _vacate(cells, space, root)
        missing -= 1
    move(cells, lot, tenant, owner)
    return downgraded


def _vacate(cells: Cells, space: Space, root: Cell) -> list[str]:
    """Makes a tree free: its groups run on as opportunistic ones where they are."""
    key = space.holder[root]

    def inside() -> list[Any]:
        return [
            g
            for g in cells.by_key.get(key, {}).values()
            if any(p.space is space and p.virtual and overlaps(space.chain, p.virtual, root) for p in g.parts)
        ]

    here = inside()
    claims = {g.name for g in here if g.state is GroupState.PREEMPTING} | {p for g in here for p in g.preemptors}
    for name in sorted(claims & cells.groups.keys()):
        if cells.groups[name].state is GroupState.PREEMPTING:
            cells.release(name)
    names = []
    for group in inside():
        preemption.downgrade(cells, group)
        names.append(group.name)
    for leaf in list(space.root_marks.get(root, ())):
        space.unmark(leaf)
    return names
