"""Themis as a policy: who is offered, what a round gives, and its receipt."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.model.auction import AppView, Bid, BidRow, Demand, Gang, Snapshot, gang_gpus
from pycontrol.model.topology import Scope, Topology
from pycontrol.policies.port import Policy
from pycontrol.policies.themis import Themis
from tests.auction.brute import free_of, topology

TOP = topology([4, 4, 2, 2], ("a", "a", "b", "b"))


def view(app_id: str, rho: float | None = 1.0, gang: int = 1, gangs: int = 2, **more: object) -> AppView:
    """An app that could use so many gangs."""
    return replace(AppView(app_id, "root.q", rho, Demand(gang, gangs)), **more)  # type: ignore[arg-type]


def snapshot(*apps: AppView, f: float = 0.8, top: Topology = TOP) -> Snapshot:
    """All GPUs on offer."""
    return Snapshot("r1", 0.0, top, free_of(top), apps, f)


@pytest.mark.parametrize(("f", "n"), [(0.0, 10), (0.5, 5), (0.8, 2), (0.9, 1), (0.95, 1), (1.0, 1)])
def test_the_worst_part_is_offered_worst_first(f: float, n: int) -> None:
    offer = Themis().offer(snapshot(*(view(f"a{i}", float(i)) for i in range(10)), f=f))
    assert offer is not None
    assert offer.app_ids == tuple(f"a{i}" for i in range(9, 9 - n, -1))


def test_only_who_can_use_the_offer_is_asked() -> None:
    silent = view("silent", None)
    sated = view("sated", 9.0, kept_gpus=2)
    no_room = view("no_room", 9.0, gang=4, queue="root.small", queue_room_gpus=3)
    offer = Themis().offer(snapshot(silent, sated, no_room, view("first", 2.0), view("late", 2.0, submitted_s=5.0)))
    assert offer is not None
    assert offer.app_ids == ("first",)
    assert Themis().offer(snapshot(silent, sated)) is None


def test_who_waits_at_its_queues_limit_can_win_what_another_app_of_the_queue_held() -> None:
    home: Gang = (("n1", 4),)
    holder = view("holder", 0.5, 4, 1, ending_gangs=(home,), queue_room_gpus=4)
    waits = view("waits", 9.0, 4, 1, queue_room_gpus=0)
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
    """A few apps, some of which hold gangs on offer; those offered bid truthfully enough."""
    left = free_of(TOP)
    apps = []
    for i in range(draw(st.integers(1, 5))):
        size, gangs = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3))
        host = draw(st.sampled_from(sorted(left)))
        ending: tuple[Gang, ...] = ()
        if left[host] >= size and draw(st.booleans()):
            left[host] -= size
            ending = (((host, size),),)
        room = draw(st.sampled_from([1 << 30, 4]))
        queue = "root.big" if room > 4 else f"root.small{i}"
        rho = draw(st.none() | st.floats(0.1, 9))
        apps.append(view(f"a{i}", rho, size, gangs, ending_gangs=ending, queue=queue, queue_room_gpus=room))
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


@settings(max_examples=50, deadline=None)
@given(rounds(), st.integers(0, 1 << 20))
def test_any_round_is_feasible_whole_and_repeatable(drawn: tuple[Snapshot, dict[str, Bid]], seed: int) -> None:
    s, bids = drawn
    policy: Policy = Themis()
    plan = policy.decide(s, bids, random.Random(seed))
    assert replace(plan, solve_s=0.0) == replace(policy.decide(s, bids, random.Random(seed)), solve_s=0.0)
    left = dict(s.free)
    for award in plan.awards:
        v = next(v for v in s.apps if v.app_id == award.app_id)
        assert award.leftover == (v.app_id not in bids)
        assert all(gang_gpus(g) == v.demand.gang_gpus for g in award.gangs)
        assert sum(map(gang_gpus, award.gangs)) <= min(v.demand.gpus, v.queue_room_gpus)
        for gang in award.gangs:
            for host, n in gang:
                left[host] -= n
    assert min(left.values()) >= 0
    assert {h: n for h, n in left.items() if n} == dict(plan.unused_gpus)
    assert len({a.app_id for a in plan.awards}) == len(plan.awards)
    assert all(0 < r.c <= 1 for r in plan.bids)
