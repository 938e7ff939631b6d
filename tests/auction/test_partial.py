"""Hidden payments, rounding, leftovers, and malformed bids."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.auction.bid_validation import ROWS_MAX, validate_bid
from pycontrol.auction.handout import Caps, Order, Taker, leftovers
from pycontrol.auction.instance import Instance
from pycontrol.auction.partial import auction
from pycontrol.auction.placing import FreeIndex
from pycontrol.lab.policies.variants import Rank, Ranking, RoundsDown
from pycontrol.model.auction import AppView, Bid, BidRow, Demand, Gang, Snapshot, gang_gpus
from pycontrol.model.topology import Scope, Topology
from tests.auction.brute import best_objective, choices, determine, free_of, markets, topology

Drawn = tuple[list[Bid], dict[str, int], Topology]


@settings(max_examples=60, deadline=None)
@given(markets(), st.integers(0, 1000))
def test_payments_equal_the_winners_cost_to_the_others(drawn: Drawn, seed: int) -> None:
    bids, free, top = drawn
    outcome = auction(bids, Instance(free, top), random.Random(seed))
    assert outcome.proved_optimal
    for i, bid in enumerate(bids):
        others = bids[:i] + bids[i + 1 :]
        with_it = -sum(math.log(outcome.wins[b.app_id].rho) for b in others)
        c = outcome.c[bid.app_id]
        assert 0 < c <= 1
        assert c == pytest.approx(math.exp(with_it - best_objective(others, free, top)), rel=1e-6)
        gangs = outcome.wins[bid.app_id].gangs
        kept, paid = outcome.kept[bid.app_id], outcome.paid[bid.app_id]
        assert sorted(kept + paid) == sorted(gangs)
        assert math.floor(c * len(gangs) + 1e-9) <= len(kept) <= math.ceil(c * len(gangs))
    assert outcome == auction(bids, Instance(free, top), random.Random(seed))


@settings(max_examples=40, deadline=None)
@given(markets())
def test_the_result_is_pareto_efficient(drawn: Drawn) -> None:
    """No feasible choice of rows is as good for all and better for one."""
    bids, free, top = drawn
    wins = determine(bids, Instance(free, top), 1).wins
    for choice in choices(bids, free, top):
        rho = [r.rho if r is not None else b.rho_nothing for b, r in zip(bids, choice, strict=True)]
        won = [wins[b.app_id].rho for b in bids]
        as_good = all(mine <= theirs + 1e-9 for mine, theirs in zip(rho, won, strict=True))
        assert not (as_good and any(mine < theirs - 1e-6 for mine, theirs in zip(rho, won, strict=True)))


@settings(max_examples=60, deadline=None)
@given(markets(), st.data())
def test_no_lie_pays_under_the_exact_lottery(drawn: Drawn, data: st.DataObject) -> None:
    """u = c V(G): truth is best whatever V is (Cole et al., EC'13)."""
    bids, free, top = drawn
    truth = bids[0]
    scale = st.floats(0.2, 5.0)
    lie = Bid(
        truth.app_id,
        truth.rho_nothing * data.draw(scale),
        tuple(replace(r, rho=r.rho * data.draw(scale)) for r in truth.rows),
    )

    def utility(reported: Bid) -> float:
        others = bids[1:]
        found = determine([reported, *others], Instance(free, top), 1)
        row = found.wins[truth.app_id].row
        with_it = -sum(math.log(found.wins[b.app_id].rho) for b in others)
        c = math.exp(with_it - determine(others, Instance(free, top), 1).objective_log)
        if row is None:
            return c / truth.rho_nothing
        worth = {(r.keep, r.new_gangs, r.gang_gpus, r.scope): r.rho * 1.0 for r in truth.rows[::-1]}
        for r in truth.rows:
            key = (r.keep, r.new_gangs, r.gang_gpus, r.scope)
            worth[key] = min(worth[key], r.rho)
        return c / worth[row.keep, row.new_gangs, row.gang_gpus, row.scope]

    assert utility(lie) <= utility(truth) * (1 + 1e-6)


def test_rounding_is_unbiased_and_drops_the_least_harmful_gangs() -> None:
    top = topology([2, 2, 2])
    home: Gang = (("n2", 2),)
    greedy = Bid("a", 3.0, (BidRow(0.5, (home,), 2, 2, Scope.CLUSTER),))
    rival = Bid("b", 0.9, (BidRow(0.7, (), 1, 2, Scope.MACHINE),))
    instance = Instance(free_of(top), top, (), {"a": (home,)})
    kept, draws = 0, 500
    for seed in range(draws):
        outcome = auction([greedy, rival], instance, random.Random(seed))
        assert outcome.c["a"] == pytest.approx(0.7 / 0.9)
        kept += len(outcome.kept["a"])
        assert len(outcome.kept["a"]) in (2, 3)
        assert home not in outcome.paid["a"], "what runs stays"
    assert kept / draws == pytest.approx(3 * 0.7 / 0.9, abs=0.06)


def ranking(seed: int, order: Rank = "random", now_s: float = 0.0) -> Callable[[Sequence[Taker], Caps], Order[Taker]]:
    """The order of apps for leftovers."""
    return Ranking(order, Snapshot("r", now_s, topology([4, 4, 4]), {}, ()), random.Random(seed)).order


def view(app_id: str, gang: int, gangs: int, ending: tuple[Gang, ...] = (), scope: Scope = Scope.CLUSTER) -> AppView:
    """An app that could use some gangs."""
    return AppView(app_id, "root.q", 1.0, Demand(gang, gangs, scope=scope), ending_gangs=ending)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.sampled_from(list(Scope))), max_size=4),
    st.integers(0, 6),
    st.integers(0, 1000),
    st.sampled_from(["random", "worst_first", "most_helped"]),
)
def test_no_leftover_that_an_outsider_can_use_is_wasted(
    gpus: list[int], apps: list[tuple[int, int, Scope]], limit: int, seed: int, order: Rank
) -> None:
    top = topology([4, 4, 4])
    room = FreeIndex({f"n{i + 1}": n for i, n in enumerate(gpus)}, top)
    views = [view(f"a{i}", size, gangs, scope=scope) for i, (size, gangs, scope) in enumerate(apps)]
    views = [replace(v, rooms={"queue root.small": limit}) if v.app_id in ("a0", "a1") else v for v in views]
    awards = leftovers(room, views, Caps(views), {}, ranking(seed, order))
    got = {a.app_id: sum(map(gang_gpus, a.gangs)) for a in awards}
    free = {"n1": 0, "n2": 0, "n3": 0, **room.left}
    assert sum(free.values()) + sum(got.values()) == sum(gpus)
    assert min(free.values()) >= 0
    assert got.get("a0", 0) + got.get("a1", 0) <= limit
    for v in views:
        size = v.demand.gang_gpus
        assert got.get(v.app_id, 0) % size == 0
        left = limit - got.get("a0", 0) - got.get("a1", 0) if v.app_id in ("a0", "a1") else 99
        if got.get(v.app_id, 0) + size <= v.demand.gpus and size <= left:
            fits = {Scope.MACHINE: max(free.values()), Scope.RACK: max(free["n1"] + free["n2"], free["n3"])}
            assert size > fits.get(v.demand.scope, sum(free.values()))


def test_an_outsider_keeps_its_own_gang_in_place_first() -> None:
    top = topology([4, 4], "a")
    home: Gang = (("n1", 2),)
    views = [view("a", 2, 1, (home,))]
    awards = leftovers(FreeIndex({"n1": 4, "n2": 2}, top), views, Caps(views), {}, ranking(0))
    assert [a.gangs for a in awards] == [(home,)]


def test_an_app_with_two_gangs_alike_keeps_the_one_that_the_auction_did_not() -> None:
    home: Gang = (("n1", 2),)
    room = FreeIndex({"n1": 4, "n2": 2}, topology([6, 2], "a"))
    views, kept = [view("a", 2, 2, (home, home))], {"a": [home]}
    awards = leftovers(room, views, Caps(views, kept), kept, ranking(0))
    assert [a.gangs for a in awards] == [(home,)]


@pytest.mark.parametrize(("order", "gets"), [("worst_first", "bad"), ("most_helped", "short")])
def test_leftovers_go_where_the_option_says(order: Rank, gets: str) -> None:
    views = [
        AppView(
            "bad", "q", 9.0, Demand(2, 4, work_left_gpu_s=1e6), retained_gpus=4
        ),  # three gangs for two: a third less
        AppView("short", "q", 2.0, Demand(2, 4, work_left_gpu_s=1e6), retained_gpus=2),  # two for one: half
        AppView("silent", "q", None, Demand(2, 4, work_left_gpu_s=1e6), retained_gpus=6),
    ]
    awards = leftovers(FreeIndex({"n1": 2}, topology([4])), views, Caps(views), {}, ranking(0, order))
    assert [a.app_id for a in awards] == [gets]


def test_a_draw_of_one_never_rounds_up() -> None:
    top = topology([2])
    bids = [Bid("a", 3.0, (BidRow(0.5, (), 1, 2),)), Bid("b", 0.9, (BidRow(0.7, (), 1, 2),))]
    for seed in range(20):
        outcome = auction(bids, Instance(free_of(top), top), RoundsDown(seed))
        assert 0 < outcome.c["a"] < 1
        assert not outcome.kept["a"]


@pytest.mark.parametrize(
    ("bid", "says"),
    [
        (Bid("a", 1.0, (BidRow(0.5, (), 1, 2),)), ""),
        (Bid("a", 1.0, (BidRow(0.5, ((("n1", 2),),)),)), ""),
        (Bid("a", 1.0, (BidRow(0.5, (), 99, 2),)), ""),
        (Bid("b", 1.0), "in the name of b"),
        (Bid("a", math.nan), "rho_nothing is nan"),
        (Bid("a", 0.0), "rho_nothing is 0.0"),
        (Bid("a", 1.0, (BidRow(math.inf, (), 1, 2),)), "row 0: rho is inf"),
        (Bid("a", 1.0, (BidRow(0.5, (), 1, 2), BidRow(-1.0, (), 1, 2))), "row 1: rho is -1.0"),
        (Bid("a", 1.0, (BidRow(0.5),)), "asks for nothing"),
        (Bid("a", 1.0, (BidRow(0.5, (), -1, 2),)), "-1 gangs"),
        (Bid("a", 1.0, (BidRow(0.5, ((("n2", 2),),)),)), "not a gang of the app"),
        (Bid("a", 1.0, (BidRow(0.5, ((("n1", 2),), (("n1", 2),))),)), "not a gang of the app"),
        (Bid("a", 1.0, (BidRow(0.5, (), 1, 2),) * (ROWS_MAX + 1)), f"at most {ROWS_MAX}"),
    ],
)
def test_a_malformed_bid_is_named(bid: Bid, says: str) -> None:
    v = view("a", 2, 2, ((("n1", 2),),))
    problem = validate_bid(bid, Snapshot("r", 0.0, topology([4, 4]), {"n1": 4, "n2": 4}, (v,)), v)
    assert says in problem
    assert bool(problem) == bool(says)
