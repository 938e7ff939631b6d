"""Worst rho first, gang by gang: which apps are asked, which one gets the next gang, and when it ends."""

from __future__ import annotations

import random

from pycontrol.lab.policies.worst_first import WorstFirst
from pycontrol.model.auction import Bid, BidRow, Gang, gang_gpus
from pycontrol.model.topology import Scope
from tests.auction.brute import topology
from tests.policies.test_themis import snapshot, view


def bid(app_id: str, nothing: float, work: float, gangs: int = 3, size: int = 1, own: tuple[Gang, ...] = ()) -> Bid:
    """A bid with rho = 1 + work / gangs; kept gangs are as good as new ones."""
    rows = [
        BidRow(1 + work / (kept + new), own[:kept], new, size)
        for kept in range(len(own) + 1)
        for new in range(gangs - kept + 1)
        if kept + new
    ]
    return Bid(app_id, nothing, tuple(rows))


def got(plan_awards: object) -> dict[str, int]:
    """GPUs by app."""
    return {a.app_id: sum(map(gang_gpus, a.gangs)) for a in plan_awards}  # type: ignore[attr-defined]


def test_every_app_that_could_use_the_offer_is_asked() -> None:
    s = snapshot(view("a", 1.0), view("b", 3.0), view("silent", None), view("sated", 9.0, retained_gpus=2))
    offer = WorstFirst().offer(s)
    assert offer is not None
    assert offer.app_ids == ("b", "a")


def test_each_gang_goes_to_the_worst_rho_by_then() -> None:
    top = topology([3], ("a",))
    s = snapshot(view("a", 9.0, 1, 3), view("b", 8.0, 1, 3), top=top)
    plan = WorstFirst().decide(s, {"a": bid("a", 9.0, 7.0), "b": bid("b", 8.0, 3.0)}, random.Random(0))
    assert got(plan.awards) == {"a": 2, "b": 1}, "9 -> 8 for a; 8 -> 4 for b, as a came no earlier; 8 -> 4.5 for a"
    assert {r.app_id: r.rho_won for r in plan.bids} == {"a": 4.5, "b": 4.0}


def test_a_running_gang_is_kept_and_no_app_takes_useless_gpus() -> None:
    home: Gang = (("n3", 2),)
    s = snapshot(view("a", 9.0, 2, 5, ending_gangs=(home,)))
    plan = WorstFirst().decide(s, {"a": bid("a", 9.0, 4.0, 2, 2, (home,))}, random.Random(0))
    assert got(plan.awards) == {"a": 4}
    assert home in plan.awards[0].gangs
    assert sum(plan.unused_gpus.values()) == 8


def test_rho_is_interpolated_between_rows_and_large_gangs_count_by_their_size() -> None:
    top = topology([2, 1, 1], ("a",))
    rows = (BidRow(1.0, (), 2, 2, Scope.MACHINE), BidRow(3.0, (), 2, 2, Scope.RACK), BidRow(4.0, (), 1, 2, Scope.RACK))
    s = snapshot(view("a", 9.0, 2, 2), top=top)
    plan = WorstFirst().decide(s, {"a": Bid("a", 9.0, rows)}, random.Random(0))
    assert got(plan.awards) == {"a": 4}
    assert plan.bids[0].rho_won == 3.0


def test_gpus_that_bidders_leave_go_to_the_others() -> None:
    s = snapshot(view("a", 9.0, 1, 1), view("late", None, 2, 3))
    plan = WorstFirst().decide(s, {"a": bid("a", 9.0, 1.0, 1)}, random.Random(0))
    assert got(plan.awards) == {"a": 1, "late": 6}
    assert [a.leftover for a in plan.awards] == [False, True]
