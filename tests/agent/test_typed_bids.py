"""Bids by GPU type: rho by the measured speed, a row for each type, and no mixture unless the app allows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pycontrol.fairness.bidding import Bidder, OwnGang, app_work, mean_speed, speed_of
from pycontrol.fairness.gang_rho import PhaseWork
from pycontrol.model.auction import BidRow
from pycontrol.model.topology import Machine, Scope, Topology
from pycontrol.rpc.agent_messages import bid_received
from submarine_patch.agent.bids import message

TOP = Topology.of([Machine("k1", "a", 4, "K80"), Machine("k2", "a", 4, "K80"), Machine("v1", "b", 4, "V100")])
FREE = {"k1": 4, "k2": 4, "v1": 4}
SPEEDS = {"K80": 1.0, "V100": 4.0}


def bidder(gang: int = 4, jobs: int = 2, speedups: dict[str, float] | None = None, mixes: bool = False) -> Bidder:
    work = app_work((PhaseWork((4000.0,) * jobs),), gang, jobs, TOP.gpus, 1.0, 60.0, 0.0)
    s = dict(zip(Scope, (1.0, 1.1, 1.3), strict=True))
    return Bidder(work, (), (), FREE, jobs, s, TOP, 10.0, 600.0, SPEEDS if speedups is None else speedups, mixes)


def rows(b: Bidder) -> dict[tuple[str, int, Scope], BidRow]:
    return {(r.gpu_type, r.new_gangs, r.scope): r for r in b.bid("app").rows}


def test_the_rho_of_a_row_follows_the_speed_of_its_type() -> None:
    found = rows(bidder())
    slow, fast = (found[t, 1, Scope.MACHINE] for t in ("K80", "V100"))
    assert fast.rho < slow.rho
    assert {t for t, *_ in found} == {"K80", "V100"}
    assert ("V100", 2, Scope.MACHINE) not in found, "there are GPUs for one gang only"
    same = rows(bidder(speedups={}))
    assert same["K80", 1, Scope.MACHINE].rho == pytest.approx(same["V100", 1, Scope.MACHINE].rho)


def test_only_an_app_that_mixes_types_bids_for_a_mixture_at_its_slowest_speed() -> None:
    assert not any(r.mixes for r in bidder(gang=12, jobs=1).bid("app").rows)
    (row,) = bidder(gang=12, jobs=1, mixes=True).bid("app").rows
    assert (row.mixes, row.gpu_type, row.scope) == (True, "", Scope.CLUSTER)
    alike = bidder(gang=12, jobs=1, speedups={"K80": 1.0, "V100": 1.0}, mixes=True)
    assert row.rho == pytest.approx(alike.bid("app").rows[0].rho)


def test_single_gpus_may_be_more_than_one_type_has() -> None:
    found = rows(bidder(gang=1, jobs=10))
    assert found["", 10, Scope.CLUSTER].mixes is False
    assert max(n for t, n, _ in found if t == "V100") == 4


def test_a_retained_gang_counts_by_its_type() -> None:
    """Keeping the fast gang is worth more than keeping the slow one."""
    b = bidder()
    values = {}
    for host, kind in (("k1", "K80"), ("v1", "V100")):
        own = OwnGang(((host, 4),), 1.0 / speed_of(SPEEDS, [host], TOP))
        kept = Bidder(b.app, (), (own,), FREE, 2, b.slowdowns, TOP, 10.0, 600.0, SPEEDS)
        values[kind] = next(r.rho for r in kept.bid("app").rows if r.keep and not r.new_gangs)
    assert values["V100"] < values["K80"]


def test_the_ideal_counts_the_clusters_mix_of_types() -> None:
    assert mean_speed(SPEEDS, TOP) == pytest.approx((8 * 1 + 4 * 4) / 12)
    assert mean_speed({}, TOP) == 1.0
    plain, mixed = (app_work((PhaseWork((100.0,)),), 1, 1, 12, 1.0, 0.0, 0.0, v) for v in (1.0, 2.0))
    assert mixed.t_id_s == pytest.approx(plain.t_id_s / 2)


def test_the_types_of_a_bid_survive_the_wire() -> None:
    bid = bidder(mixes=True).bid("app")
    assert any(r.gpu_type for r in bid.rows)
    assert any(r.mixes for r in bid.rows)
    back = bid_received("app", message(bid, "r1"), set(TOP.machines)).bid
    assert back is not None
    assert [replace(r, rho=0.0) for r in back.rows] == [replace(r, rho=0.0) for r in bid.rows]
