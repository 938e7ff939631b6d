"""Exchange: the matching, the cells that move, and their return."""

from __future__ import annotations

import pytest

from pycontrol.cells.exchange import POSTED_KEPT, Exchange, Lot, balanced
from pycontrol.cells.values import CellsError
from pycontrol.lab.hived.exchange_policies import SecondPrice, credit_score, exchange_by
from pycontrol.lab.hived.states import PlacementOutcome
from tests.cells.invariants import check
from tests.cells.test_cells import ask, build

HOUR_S = 3600.0
NODE = Lot("node", "node", 1)


def market(policy=None) -> Exchange:
    cells = build({"switch": 2, "node": 2}, 4, {"a": {"node": 2}, "b": {"node": 1}, "c": {"switch": 2}})
    return exchange_by(policy or balanced)(cells)


def test_cells_are_lent_and_come_back_without_a_kill() -> None:
    exchange = market()
    cells = exchange.cells
    exchange.offer("offer1", "a", NODE, 10 * HOUR_S)
    exchange.request("request1", "b", NODE, 5 * HOUR_S)
    deals, _ = exchange.step(0.0)
    assert [(d.owner, d.tenant, d.gpu_hours) for d in deals] == [("a", "b", 20.0)]
    assert exchange.board.surplus == {"a": 20.0, "b": -20.0}
    assert ask(cells, "two", "b", 0, 4, 4).outcome is PlacementOutcome.PLACED
    assert ask(cells, "too much", "a", 0, 4, 4).outcome is PlacementOutcome.WAIT
    _, downgraded = exchange.step(5 * HOUR_S)
    assert downgraded == ["two"]
    assert "two" in cells.groups
    check(cells)
    back = ask(cells, "own", "a", 0, 4, 4)
    assert back.outcome in (PlacementOutcome.PLACED, PlacementOutcome.PREEMPT)


def test_one_large_cell_for_many_small_ones() -> None:
    exchange = market()
    exchange.offer("offer1", "c", Lot("node", "switch", 2), HOUR_S)
    exchange.request("request1", "b", Lot("node", "switch", 2), HOUR_S, in_return=NODE)
    (deal,), _ = exchange.step(0.0)
    assert deal.gpu_hours == 0.0
    assert ask(exchange.cells, "large", "c", 0, 4).outcome is PlacementOutcome.PLACED
    assert ask(exchange.cells, "small", "b", 0, 2, 2).outcome is PlacementOutcome.PLACED
    assert ask(exchange.cells, "none", "b", 0, 4).outcome is PlacementOutcome.WAIT
    check(exchange.cells)


def test_balanced_serves_the_highest_surplus_from_the_lowest() -> None:
    exchange = market()
    exchange.board.surplus.update(a=-5.0, b=3.0, c=8.0)
    for owner in ("b", "a"):
        exchange.offer(owner, owner, NODE, HOUR_S)
    exchange.request("request1", "c", NODE, HOUR_S)
    (deal,), _ = exchange.step(0.0)
    assert (deal.owner, deal.tenant) == ("a", "c")


@pytest.mark.parametrize(
    ("policy", "winner"), [(SecondPrice({"o": 1.0, "rb": 7.0, "rc": 3.0}), "b"), (credit_score, "c")]
)
def test_policies_choose_among_rivals(policy, winner: str) -> None:
    exchange = market(policy)
    exchange.board.score.update(c=9.0)
    exchange.offer("o", "a", NODE, HOUR_S)
    for vc in "bc":
        exchange.request(f"r{vc}", vc, NODE, HOUR_S)
    (deal,), _ = exchange.step(0.0)
    assert deal.tenant == winner
    assert getattr(policy, "paid", {"rb": 3.0}) == {"rb": 3.0}, "the second price"


def test_only_owned_cells_can_be_offered_and_used_cells_do_not_move() -> None:
    exchange = market()
    with pytest.raises(CellsError):
        exchange.offer("offer1", "c", NODE, HOUR_S)
    exchange.offer("offer1", "b", NODE, HOUR_S)
    exchange.request("request1", "c", NODE, HOUR_S)
    ask(exchange.cells, "busy", "b", 0, 1)
    assert exchange.step(0.0) == ([], [])
    exchange.cells.release("busy")
    assert len(exchange.step(1.0)[0]) == 1
    assert exchange.step(HOUR_S + 1)[0] == []
    assert not exchange.board.offers


@pytest.mark.parametrize("first", ["offer", "request"])
@pytest.mark.parametrize("second", ["offer", "request"])
def test_a_name_is_posted_once_and_not_again_after_its_withdrawal(first: str, second: str) -> None:
    exchange = market()
    getattr(exchange, first)("x", "a", NODE, HOUR_S)
    for _ in range(2):
        with pytest.raises(CellsError, match="x was posted already"):
            getattr(exchange, second)("x", "b", NODE, HOUR_S)
        exchange.withdraw("x")


def test_only_names_that_are_off_the_board_are_forgotten() -> None:
    exchange = market()
    exchange.offer("stays", "a", NODE, HOUR_S)
    for at in range(POSTED_KEPT + 10):
        exchange.request(f"r{at}", "b", NODE, HOUR_S)
        exchange.withdraw(f"r{at}")
    assert exchange.posted["stays"] == "a"
    assert "r0" not in exchange.posted
    assert len(exchange.posted) == POSTED_KEPT + 1


def test_the_state_of_an_earlier_versions_exchange_is_loaded() -> None:
    before = market()
    again = Exchange.load(before.cells, {"deals": []})
    assert again.dump() == market().dump()
    before.offer("offer1", "a", NODE, HOUR_S)
    then = before.dump()
    then["board"]["offers"]["offer1"]["price"] = 1.0
    then["board"]["paid"] = {"a": 2.0}
    assert Exchange.load(before.cells, then).dump() == before.dump(), "prices were of auctions"
