"""Cell exchange (HiveD, section 3.3): offers and requests on a bulletin board, matched by a policy.

A deal moves cells of one level from one virtual cluster to another until a time. The total number of owned cells of
each level never changes, so every assignment stays feasible and other virtual clusters are not affected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pycontrol.cells.cluster_cells import Cells
from pycontrol.cells.geometry import Cell
from pycontrol.cells.layout import Layout, LayoutError
from pycontrol.cells.space import Space
from pycontrol.cells.values import CellsError
from pycontrol.model.grouping import summed
from pycontrol.model.value import value

HOUR_S = 3600.0
POSTED_KEPT = 1000
"""How many ids of postings off the board are remembered, so that a repeated one is carried out once."""


@value
class Lot:
    """A number of cells of one type."""

    chain: str
    cell_type: str
    count: int


@value
class ExchangeOffer:
    """A tenant lends cells until `end_s`."""

    id: str
    tenant: str
    lot: Lot
    end_s: float


@value
class ExchangeRequest:
    """A tenant wants cells until `end_s`. `in_return`: cells that it lends for the same time (spatial exchange).

    The request lapses at `expires_s`.
    """

    id: str
    tenant: str
    lot: Lot
    end_s: float
    in_return: Lot | None = None
    expires_s: float = math.inf


@value
class Deal:
    """A match: `owner` lends `lot` to `tenant` until `end_s` (and gets `in_return` for that time)."""

    id: str
    owner: str
    tenant: str
    lot: Lot
    end_s: float
    gpu_hours: float
    """What the tenant owes: the lot's GPU-hours less those that it lends in return."""
    in_return: Lot | None = None
    start_s: float = 0.0
    offer: str = ""
    request: str = ""
    """The id of the matched request; `offer` is that of the offer."""


@dataclass(slots=True)
class Board:
    """The bulletin board, and the books of contributions and consumption."""

    offers: dict[str, ExchangeOffer] = field(default_factory=dict)
    requests: dict[str, ExchangeRequest] = field(default_factory=dict)
    surplus: dict[str, float] = field(default_factory=dict)
    """Tenant -> GPU-hours contributed less those consumed; negative: a deficit."""
    score: dict[str, float] = field(default_factory=dict)
    """Tenant -> GPU-hours ever contributed, the credit score."""


Match = tuple[ExchangeRequest, ExchangeOffer]
"""A request and the offer that serves it."""


def balanced(board: Board, qualified: Mapping[str, list[ExchangeOffer]]) -> Match | None:
    """Algorithm 2: the request of the tenant with the highest surplus, served by the offer of the lowest surplus.

    `qualified`: request id -> offers that can serve it now. None if there are none.
    """
    if not qualified:
        return None
    name = min(qualified, key=lambda n: -board.surplus.get(board.requests[n].tenant, 0.0))
    return board.requests[name], min(qualified[name], key=lambda o: board.surplus.get(o.tenant, 0.0))


class Exchange:
    """HiveD's Exchange Arbiter. Time is an argument; `dump` has all state."""

    _choose = staticmethod(balanced)

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.board = Board()
        self.deals: dict[str, Deal] = {}
        self.number = 0
        self.posted: dict[str, str] = {}
        """Posting id -> its tenant, for those on the board and the newest `POSTED_KEPT` others."""

    # ---- the board

    def offer(self, name: str, tenant: str, lot: Lot, end_s: float) -> None:
        """Offers cells that the tenant owns; raises CellsError if it owns too few, or the name is taken."""
        self.check(tenant, lot, "offer")
        self._post(name, tenant)
        self.board.offers[name] = ExchangeOffer(name, tenant, lot, end_s)

    def request(
        self, name: str, tenant: str, lot: Lot, end_s: float, in_return: Lot | None = None, expires_s: float = math.inf
    ) -> None:
        """Requests cells; raises CellsError if there are none, or the name is taken."""
        self.check(tenant, lot)
        if in_return:
            self.check(tenant, in_return, "lend in return")
        self._post(name, tenant)
        self.board.requests[name] = ExchangeRequest(name, tenant, lot, end_s, in_return, expires_s)

    def check(self, tenant: str, lot: Lot, give: str = "") -> None:
        """Raises CellsError if there is no such tenant or cell, or if the tenant owns too few to `give` them."""
        if self.cells.layout.vc(tenant) is None:
            raise CellsError(f"there is no virtual cluster {tenant}")
        place(self.cells, lot)
        if lot.count < 1:
            raise CellsError(f"{lot.count} cells: must be at least 1")
        if give:
            owned = self.owned(lot, tenant)
            if owned < lot.count:
                raise CellsError(f"{tenant} owns {owned} {lot.cell_type} cells now, it cannot {give} {lot.count}")

    def _post(self, name: str, tenant: str) -> None:
        if name in self.posted:
            raise CellsError(f"{name} was posted already")
        self.posted[name] = tenant
        on_board = self.board.offers.keys() | self.board.requests.keys()
        for old in [x for x in self.posted if x not in on_board][:-POSTED_KEPT]:
            del self.posted[old]

    def withdraw(self, name: str) -> None:
        """Takes an offer or a request off the board."""
        self.board.offers.pop(name, None)
        self.board.requests.pop(name, None)

    # ---- deals

    def gpus(self, lot: Lot) -> int:
        """GPUs of a lot."""
        space, level = place(self.cells, lot)
        return space.sizes[level] * lot.count

    def step(self, now_s: float) -> tuple[list[Deal], list[str]]:
        """Ends the deals that are due, then makes all possible deals; returns (new deals, groups that now borrow)."""
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
            match = self._choose(board, {k: offers for k, offers in qualified.items() if offers})
            if match is None:
                return made, downgraded
            made.append(self._carry_out(match, now_s))

    def _qualified(self, request: ExchangeRequest) -> list[ExchangeOffer]:
        """Offers that can serve the request: of the same cells, long enough, and with unused cells now."""
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
        """Whether a tenant owns and does not use enough cells; borrowed ones do not count, as it must return them."""
        return self.owned(lot, tenant) >= lot.count and len(free_roots(self.cells, lot, tenant)) >= lot.count

    def owned(self, lot: Lot, tenant: str) -> int:
        """Cells of the lot's type that a tenant owns and has not lent; borrowed ones do not count."""
        space, level = place(self.cells, lot)
        held = len(roots_of(space, level, tenant))
        for deal in self.deals.values():
            for borrower, borrowed in ((deal.tenant, deal.lot), (deal.owner, deal.in_return)):
                if borrower == tenant and borrowed and place(self.cells, borrowed) == (space, level):
                    held -= borrowed.count
        return held

    def _carry_out(self, match: Match, now_s: float) -> Deal:
        (request, offer), board = match, self.board
        move(self.cells, request.lot, offer.tenant, request.tenant)
        lot, back, end_s = request.lot, request.in_return, request.end_s
        gpus = self.gpus(lot)
        if back:
            move(self.cells, back, request.tenant, offer.tenant)
            gpus -= self.gpus(back)
        self.number += 1
        name, gpu_hours = f"deal{self.number}", gpus * (end_s - now_s) / HOUR_S
        deal = Deal(name, offer.tenant, request.tenant, lot, end_s, gpu_hours, back, now_s, offer.id, request.id)
        self.deals[deal.id] = deal
        self._book(deal, 1.0)
        del board.requests[request.id], board.offers[offer.id]
        left = offer.lot.count - lot.count
        if left:
            rest = Lot(offer.lot.chain, offer.lot.cell_type, left)
            board.offers[offer.id] = replace(offer, lot=rest)
        return deal

    def _book(self, deal: Deal, part: float) -> None:
        """Books a part of a deal (negative: reverses it); the surpluses sum to zero."""
        board, hours = self.board, deal.gpu_hours * part
        for tenant, amount in ((deal.owner, hours), (deal.tenant, -hours)):
            board.surplus[tenant] = board.surplus.get(tenant, 0.0) + amount
        lender = deal.owner if deal.gpu_hours >= 0 else deal.tenant
        board.score[lender] = board.score.get(lender, 0.0) + abs(deal.gpu_hours) * part

    def rebase(self, layout: Layout, now_s: float) -> Layout:
        """Moves the exchange to another assignment of cells; returns that with the deals in force applied.

        Deals without cells in it end now, and their remaining GPU-hours are returned. Postings that refer to unknown
        tenants or cells are removed. A queue stays one tenant, named with or without `root.`. The caller makes the
        cells and sets `cells`.
        """
        self._rename({vc.name.removeprefix("root."): vc.name for vc in layout.vcs})
        layout, unfit = with_deals(layout, self.deals.values())
        for deal in unfit:
            self._book(deal, -max(0.0, deal.end_s - now_s) / (deal.end_s - deal.start_s))
            del self.deals[deal.id]
        board = self.board
        board.offers = {k: o for k, o in board.offers.items() if _known(layout, o.tenant, o.lot)}
        board.requests = {k: r for k, r in board.requests.items() if _known(layout, r.tenant, r.lot, r.in_return)}
        return layout

    def _rename(self, names: Mapping[str, str]) -> None:
        """Calls tenants as the assignment does; `names`: queue without `root.` -> tenant."""

        def now(tenant: str) -> str:
            return names.get(tenant.removeprefix("root."), tenant)

        board = self.board
        board.offers = {k: replace(o, tenant=now(o.tenant)) for k, o in board.offers.items()}
        board.requests = {k: replace(r, tenant=now(r.tenant)) for k, r in board.requests.items()}
        board.surplus, board.score = (summed((now(t), n) for t, n in x.items()) for x in (board.surplus, board.score))
        self.deals = {k: replace(d, owner=now(d.owner), tenant=now(d.tenant)) for k, d in self.deals.items()}
        self.posted = {k: now(tenant) for k, tenant in self.posted.items()}

    def dump(self) -> dict[str, Any]:
        """The state of the exchange as JSON values; the cells' own dump has their holders."""
        return {
            "board": asdict(self.board),
            "deals": [asdict(d) for d in self.deals.values()],
            "number": self.number,
            "posted": dict(self.posted),
        }

    @classmethod
    def load(cls, cells: Cells, data: Mapping[str, Any]) -> Exchange:
        """The inverse of `dump`; of an earlier version's, what is missing is empty, and prices are ignored."""
        exchange = cls(cells)
        board = data.get("board", {})
        exchange.board = Board(
            {k: ExchangeOffer(**_with_lots(o)) for k, o in board.get("offers", {}).items()},
            {k: ExchangeRequest(**_with_lots(r)) for k, r in board.get("requests", {}).items()},
            dict(board.get("surplus", {})),
            dict(board.get("score", {})),
        )
        exchange.deals = {d["id"]: Deal(**_with_lots(d)) for d in data.get("deals", ())}
        exchange.number = data.get("number", 0)
        exchange.posted = dict(data.get("posted", {}))
        return exchange


def _with_lots(values: Mapping[str, Any]) -> dict[str, Any]:
    lots = {key: Lot(**lot) for key in ("lot", "in_return") if (lot := values.get(key))}
    return {key: value for key, value in values.items() if key != "price"} | lots


def with_deals(layout: Layout, deals: Iterable[Deal]) -> tuple[Layout, list[Deal]]:
    """(the assignment with the deals applied, deals for which it has no cells)."""
    unfit = []
    for deal in deals:
        if not (_known(layout, deal.owner, deal.lot) and _known(layout, deal.tenant, deal.in_return)):
            unfit.append(deal)
            continue
        moves = _moves(layout, deal.lot, deal.owner, deal.tenant)
        if deal.in_return:
            moves += _moves(layout, deal.in_return, deal.tenant, deal.owner)
        try:
            layout = layout.with_more(moves)
        except LayoutError:
            unfit.append(deal)
    return layout, unfit


def _moves(layout: Layout, lot: Lot, owner: str, tenant: str) -> list[tuple[str, int, int, int]]:
    ((at, level),) = _places(layout, lot)
    return [(owner, at, level, -lot.count), (tenant, at, level, lot.count)]


def _places(layout: Layout, lot: Lot) -> list[tuple[int, int]]:
    """(chain, level) of a lot; empty if there is none."""
    return [
        (at, level)
        for at, chain in enumerate(layout.chains)
        if chain.name == lot.chain and (level := chain.level_of(lot.cell_type)) is not None
    ]


def _known(layout: Layout, tenant: str, *lots: Lot | None) -> bool:
    return layout.vc(tenant) is not None and all(_places(layout, lot) for lot in lots if lot)


def place(cells: Cells, lot: Lot) -> tuple[Space, int]:
    """The chain and level of a lot; raises CellsError if there are none."""
    for at, level in _places(cells.layout, lot):
        return cells.spaces[at], level
    raise CellsError(f"chain {lot.chain} has no cell type {lot.cell_type}")


def roots_of(space: Space, level: int, tenant: str) -> list[Cell]:
    """The trees of a level that the tenant has now, with borrowed ones and without pinned ones."""
    return [r for r, key in space.holder.items() if key == (tenant, None) and r[0] == level and r not in space.pins]


def free_roots(cells: Cells, lot: Lot, tenant: str) -> list[Cell]:
    """Those of the lot's level that the tenant does not use."""
    space, level = place(cells, lot)
    free = space.forest.free[level]
    roots = roots_of(space, level, tenant)
    return [r for r in roots if free[r[1]] == space.sizes[level] and not space.forest.covered(r)]


def move(cells: Cells, lot: Lot, owner: str, tenant: str) -> None:
    """Moves unused cells to another tenant; raises CellsError if there are too few."""
    space, _ = place(cells, lot)
    roots = free_roots(cells, lot, owner)[: lot.count]
    if len(roots) < lot.count:
        raise CellsError(f"{owner} uses all but {len(roots)} of its {lot.cell_type} cells")
    for root in roots:
        space.assign_root(root, (tenant, None))
        space.mark_root(root)


def move_back(cells: Cells, lot: Lot, tenant: str, owner: str) -> list[str]:
    """Returns cells at the end of a deal; returns the groups that became opportunistic.

    If too few of the tenant's cells are unused, its groups on some of them continue as opportunistic ones.
    """
    space, level = place(cells, lot)
    downgraded: list[str] = []
    missing = lot.count - len(free_roots(cells, lot, tenant))
    for root in reversed(roots_of(space, level, tenant)):
        if missing <= 0:
            break
        if root in free_roots(cells, lot, tenant):
            continue
        downgraded += cells.vacate(space, root)
        missing -= 1
    move(cells, lot, tenant, owner)
    return downgraded
