"""Themis as a policy: the offer, the awards of a round, and its receipt."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.lab.policies.variants import ThemisVariant
from pycontrol.model.auction import AppView, Bid, BidRow, Demand, Gang, Offer, Snapshot, gang_gpus
from pycontrol.model.topology import Scope, Topology
from pycontrol.policies.themis import Themis
from tests.auction.brute import free_of, topology

TOP = topology([4, 4, 2, 2], ("a", "a", "b", "b"))


def view(app_id: str, rho: float | None = 1.0, gang: int = 1, gangs: int = 2, **more: object) -> AppView:
    """An app that could use some gangs."""
    return replace(AppView(app_id, "root.q", rho, Demand(gang, gangs)), **more)  # type: ignore[arg-type]


def snapshot(*apps: AppView, f: float = 0.8, top: Topology = TOP) -> Snapshot:
    """A snapshot with all GPUs on offer."""
    return Snapshot("r1", 0.0, top, free_of(top), apps, f)


@pytest.mark.parametrize(("f", "n"), [(0.0, 10), (0.5, 5), (0.8, 2), (0.9, 1), (0.95, 1), (1.0, 1)])
def test_the_offer_goes_to_the_worst_part_worst_first(f: float, n: int) -> None:
    offer = Themis().offer(snapshot(*(view(f"a{i}", float(i)) for i in range(10)), f=f))
    assert offer is not None
    assert offer.app_ids == tuple(f"a{i}" for i in range(9, 9 - n, -1))


def test_only_apps_that_can_use_the_offer_are_asked() -> None:
    silent = view("silent", None)
    sated = view("sated", 9.0, retained_gpus=2)
    no_room = view("no_room", 9.0, gang=4, rooms={"queue root.small": 3})
    offer = Themis().offer(snapshot(silent, sated, no_room, view("first", 2.0), view("late", 2.0, submitted_s=5.0)))
    assert offer is not None
    assert offer.app_ids == ("first",)
    assert Themis().offer(snapshot(silent, sated)) is None


def test_an_app_at_its_queues_limit_can_win_the_ending_gpus_of_its_queue() -> None:
    home: Gang = (("n1", 4),)
    holder = view("holder", 0.5, 4, 1, ending_gangs=(home,), rooms={"queue root.q": 4})
    waits = view("waits", 9.0, 4, 1, rooms={"queue root.q": 0})
    s = snapshot(holder, waits)
    offer = Themis().offer(s)
    assert offer is not None
    assert offer.app_ids == ("waits",)
    bid = Bid("waits", 9.0, (BidRow(1.0, (), 1, 4, Scope.MACHINE),))
    plan = Themis().decide(s, {"waits": bid}, random.Random(0))
    assert [(a.app_id, sum(map(gang_gpus, a.gangs))) for a in plan.awards] == [("waits", 4)], "not one GPU more"


def test_a_receipt_explains_the_round() -> None:
    bids = {
        "a": Bid("a", 5.0, (BidRow(1.0, (), 2, 4, Scope.MACHINE),)),
        "b": Bid("b", 2.0, (BidRow(1.5, (), 1, 4, Scope.MACHINE),)),
    }
    s = snapshot(view("a", 5.0, 4), view("b", 2.0, 4), view("out", 1.0, 1, 99))
    plan = Themis().decide(s, bids, random.Random(7))
    receipts = {r.app_id: r for r in plan.bids}
    assert receipts["a"].won == {"n1": 4, "n2": 4}
    assert (receipts["a"].rho_won, receipts["b"].rho_won) == (1.0, None)
    assert receipts["a"].c == pytest.approx(1.5 / 2.0)
    assert receipts["b"].c == 1
    assert receipts["a"].kept_gangs + receipts["a"].paid_gangs == 2
    assert receipts["a"].rows == 1
    out = next(a for a in plan.awards if a.app_id == "out")
    assert out.leftover
    assert sum(map(gang_gpus, out.gangs)) == sum(plan.leftover_gpus.values())
    assert not plan.unused_gpus
    assert plan.proved_optimal


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Snapshot, dict[str, Bid]]:
    """A few apps, some of which hold gangs on offer; the asked ones bid nearly truthfully."""
    left = free_of(TOP)
    apps = []
    for i in range(draw(st.integers(1, 5))):
        size, gangs = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3))
        host = draw(st.sampled_from(sorted(left)))
        ending: tuple[Gang, ...] = ()
        if left[host] >= size and draw(st.booleans()):
            left[host] -= size
            ending = (((host, size),),)
        room = draw(st.sampled_from([{}, {f"user u{i}": 4}]))
        rho = draw(st.none() | st.floats(0.1, 9))
        apps.append(view(f"a{i}", rho, size, gangs, ending_gangs=ending, rooms=room))
    s = snapshot(*apps, f=draw(st.sampled_from([0.0, 0.5, 0.8])))
    offer = Themis().offer(s)
    bids = {}
    for v in s.apps:
        if offer is None or v.app_id not in offer.app_ids:
            continue
        rows = [
            BidRow((v.rho or 1.0) / (1 + q + k) * (1 + 0.1 * scope), v.ending_gangs[:k], q, v.demand.gang_gpus, scope)
            for k in range(len(v.ending_gangs) + 1)
            for q in range(v.demand.gangs - k + 1)
            for scope in Scope
            if k + q
        ]
        bids[v.app_id] = Bid(v.app_id, (v.rho or 1.0) * 1.5, tuple(rows))
    return s, bids


OPTIONS = (
    Themis(),
    ThemisVariant(leftovers="worst_first", participants=True),
    ThemisVariant(leftovers="most_helped", rounding="floor", rho_nothing="twice_worst"),
    ThemisVariant(rho_nothing="huge", cached_tables=True, ties="random"),
    Themis(engine="highs"),
)


@settings(max_examples=60, deadline=None)
@given(rounds(), st.integers(0, 1 << 20), st.sampled_from(OPTIONS))
def test_any_round_is_feasible_whole_and_repeatable(
    drawn: tuple[Snapshot, dict[str, Bid]], seed: int, policy: Themis
) -> None:
    s, bids = drawn
    plan = policy.decide(s, bids, random.Random(seed))
    assert replace(plan, solve_s=0.0) == replace(policy.decide(s, bids, random.Random(seed)), solve_s=0.0)
    left = dict(s.free)
    for award in plan.awards:
        v = next(v for v in s.apps if v.app_id == award.app_id)
        assert award.leftover == (v.app_id not in bids) or getattr(policy, "participants", False)
        assert all(gang_gpus(g) == v.demand.gang_gpus for g in award.gangs)
        assert sum(map(gang_gpus, award.gangs)) <= min([v.demand.gpus, *v.rooms.values()])
        for gang in award.gangs:
            for host, n in gang:
                left[host] -= n
    assert min(left.values()) >= 0
    assert {h: n for h, n in left.items() if n} == dict(plan.unused_gpus)
    assert len({a.app_id for a in plan.awards}) == len(plan.awards)
    assert all(0 < r.c <= 1 for r in plan.bids)
    open_ = [v for v in s.apps if v.app_id not in bids or getattr(policy, "participants", False)]
    got = {a.app_id: sum(map(gang_gpus, a.gangs)) for a in plan.awards}
    for v in open_:  # work-conserving: no app outside the auction could use the unused GPUs
        more = got.get(v.app_id, 0) + v.demand.gang_gpus
        if more <= min([v.demand.gpus, *v.rooms.values()]):
            assert sum(left.values()) < v.demand.gang_gpus


# Two counter-examples to DRF and LAS (section 3 of the paper), with the slowdown of VGG16 in Table 1.
VGG = (1.0, 103.6 / 80.4, 103.6 / 80.4)
INCEPTION = (1.0, 1.0, 1.0)


def trains(app_id: str, slowdown: tuple[float, float, float]) -> Bid:
    """One gang of four tasks."""
    rows = (BidRow(0.5 * s, (), 1, 4, scope) for scope, s in zip(Scope, slowdown, strict=True))
    return Bid(app_id, 100.0, tuple(rows))


@pytest.mark.parametrize("engine", ["", "highs", "reference"])
@pytest.mark.parametrize(
    ("gpus", "apps", "wins"),
    [
        ((4, 4), {"vgg1": VGG, "vgg2": VGG}, [((("n1", 4),),), ((("n2", 4),),)]),
        ((4, 2, 2), {"inception": INCEPTION, "vgg": VGG}, [((("n1", 4),),), ((("n2", 2), ("n3", 2)),)]),
    ],
    ids=["two VGG16 on two machines of 4", "Inception-v3 and VGG16 on 4 + 2 + 2"],
)
def test_themis_avoids_drf_and_las_failures(
    engine: Literal["", "highs", "reference"],
    gpus: list[int],
    apps: dict[str, tuple[float, float, float]],
    wins: list[tuple[Gang, ...]],
) -> None:
    top = topology(gpus, ("a",))
    s = snapshot(*(view(a, 100.0, 4, 1) for a in apps), f=0.0, top=top)
    plan = Themis(engine=engine).decide(s, {a: trains(a, slow) for a, slow in apps.items()}, random.Random(1))
    won = {b.app_id: tuple(b.won.items()) for b in plan.bids}
    assert sorted((w,) for w in won.values()) == wins
    if "vgg" in won:
        assert won["vgg"] == (("n1", 4),)
    for receipt in plan.bids:
        assert receipt.c == pytest.approx(1), "nobody is in another's way, so nobody pays"
        assert receipt.kept_gangs == 1


def test_the_rho_of_an_app_with_nothing_is_an_option() -> None:
    bids = {
        "a": Bid("a", 5.0, (BidRow(1.0, (), 1, 4),)),
        "b": Bid("b", 2.0, (BidRow(1.5, (), 1, 4),)),
        "holds": Bid("holds", 3.0, (BidRow(2.5, (), 1, 4),)),
    }
    s = snapshot(*(view(a, 5.0, 4, retained_gpus=4 * (a == "holds")) for a in bids))
    nothing = {
        option: {
            r.app_id: r.rho_nothing for r in ThemisVariant(rho_nothing=option).decide(s, bids, random.Random(0)).bids
        }
        for option in ("projected", "twice_worst", "huge")
    }
    assert nothing["projected"] == {"a": 5.0, "b": 2.0, "holds": 3.0}
    assert nothing["twice_worst"] == {"a": 6.0, "b": 6.0, "holds": 3.0}
    assert nothing["huge"] == {"a": 3e6, "b": 3e6, "holds": 3.0}


def test_cached_tables_decide_the_next_offer() -> None:
    policy = ThemisVariant(cached_tables=True)
    apps = (view("a", 3.0, 4), view("b", 2.0, 4))
    bid = Bid("a", 3.0, (BidRow(1.0, (), 1, 4, Scope.MACHINE),))
    plan = policy.decide(snapshot(*apps), {"a": bid}, random.Random(0))
    assert plan.memory == {"tables": {"a": [[0, 3.0], [4, 1.0]]}}
    liar = view("a", 99.0, 4, retained_gpus=4)  # reports that it is still badly off with its winnings
    later = replace(snapshot(liar, apps[1]), memory=plan.memory)
    assert policy.offer(later) == Offer(("b",))
    assert Themis().offer(later) == Offer(("a",))
    gone = policy.decide(replace(later, apps=apps[1:]), {}, random.Random(0))
    assert gone.memory == {"tables": {}}, "an app that ended is forgotten"


def test_ties_can_be_random_but_are_repeatable_for_a_round() -> None:
    apps = [view(f"a{i}", 1.0) for i in range(10)]
    first = {ThemisVariant(ties="random").offer(replace(snapshot(*apps), round_id=f"r{i}")) for i in range(8)}
    assert len(first) > 3
    assert len({ThemisVariant(ties="random").offer(snapshot(*apps)) for _ in range(3)}) == 1
    assert Themis().offer(snapshot(*apps)) == Offer(("a0", "a1"))


def test_participants_may_get_their_payment_back() -> None:
    bids = {a: Bid(a, 5.0, (BidRow(1.0, (), 2, 4),)) for a in ("a", "b")}
    s = snapshot(*(view(a, 5.0, 4, 2) for a in bids))
    for seed in range(5):
        strict = ThemisVariant(rounding="floor").decide(s, bids, random.Random(seed))
        kind = ThemisVariant(rounding="floor", participants=True).decide(s, bids, random.Random(seed))
        assert sum(strict.unused_gpus.values()) >= 8
        assert sum(kind.unused_gpus.values()) < 4
        assert len({a.app_id for a in kind.awards}) == len(kind.awards)
