"""The engines agree: on whole auctions with payments, with kept gangs, racks, limits and any sizes of gangs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from pycontrol.auction import highs, native, reference
from pycontrol.auction.instance import Instance, Limit
from pycontrol.auction.partial import auction
from pycontrol.auction.winners import ENGINES, Engine, engine_name
from pycontrol.model.auction import Bid, BidRow, Gang, gang_of
from pycontrol.model.topology import Machine, Scope, Topology
from tests.bench.auction import instance as bench_market

FAST = [
    pytest.param(native.solve, marks=pytest.mark.skipif(not native.available(), reason="no C compiler"), id="compiled"),
    pytest.param(highs.solve, id="highs"),
]


def drawn(seed: int) -> tuple[list[Bid], Instance]:
    """Up to eight bidders on up to eight machines of three racks; in two of three cases sizes divide each other."""
    rng = random.Random(seed)
    hosts = [f"n{i}" for i in range(rng.randint(1, 8))]
    machines = [Machine(host, f"r{rng.randint(0, 2)}", rng.choice([1, 2, 3, 4, 8])) for host in hosts]
    free = {m.host: rng.randint(0, m.gpus) for m in machines}
    left, bids, homes = dict(free), [], {}
    for i in range(rng.randint(1, 8)):
        size = rng.choice([1, 2, 4, 8] if seed % 3 else [1, 2, 3, 4, 5])
        home: list[Gang] = []
        for _ in range(rng.randint(0, 2)):
            gang: dict[str, int] = {}
            for host in rng.sample(sorted(left), len(left)):
                gang[host] = min(left[host], size - sum(gang.values()))
            if sum(gang.values()) == size:
                for host, n in gang.items():
                    left[host] -= n
                home.append(gang_of(gang))
        work, rack, wide = rng.uniform(1, 10), rng.uniform(1, 1.5), rng.uniform(1.5, 2)
        rows = [
            BidRow(1 + work / (kept + new) * slow, tuple(home[:kept]), new, size, scope)
            for kept in range(len(home) + 1)
            for new in range(4)
            for scope, slow in zip(Scope, (1.0, rack, wide), strict=True)
            if kept + new
        ]
        bids.append(Bid(f"a{i}", 2 + work * 2, tuple(rows)))
        homes[f"a{i}"] = home
    limits = (Limit(frozenset(f"a{i}" for i in range(0, 8, 2)), rng.randint(0, 12)),) if rng.random() < 0.4 else ()
    return bids, Instance(free, Topology.of(machines), limits, homes)


def proved(solve: Engine, auctions: Iterable[tuple[Sequence[Bid], Instance]]) -> int:
    """How many of these the engine solves with a proof; all results are within their gaps of the reference's."""
    count = 0
    for seed, (bids, offer) in enumerate(auctions):
        found, exact = solve(bids, offer, 20.0, True), reference.solve(bids, offer, 20.0, False)
        objective, optimum = (reference.objective_log(bids, dict(x.rows)) for x in (found, exact))
        assert objective - 1e-6 <= optimum <= objective + found.gap + 1e-6, seed
        count += found.worst_gap == 0
        for app_id, without in found.without.items():
            best = reference.solve_without(app_id, bids, offer, 20.0).objective_log
            assert without.objective_log - 1e-6 <= best <= without.objective_log + without.gap + 1e-6, (seed, app_id)
    return count


@pytest.mark.parametrize("solve", FAST)
def test_a_proved_result_is_the_optimum_and_a_gap_is_a_bound(solve: Engine) -> None:
    assert proved(solve, map(drawn, range(60))) > 45, "few need the reference"


@pytest.mark.parametrize("engine", ["compiled", "highs"])
def test_payments_equal_the_reference_engines(engine: str) -> None:
    if engine == "compiled" and not native.available():
        pytest.skip("no C compiler")
    for seed in range(3):
        bids, offer = bench_market(seed, 24, 6, 0.7)
        fast, slow = (auction(bids, offer, random.Random(seed), 60.0, e) for e in (engine, "reference"))
        assert fast.proved_optimal
        assert fast.objective_log == pytest.approx(slow.objective_log, abs=1e-6)
        assert {a: w.rho for a, w in fast.wins.items()} == pytest.approx({a: w.rho for a, w in slow.wins.items()})
        assert fast.c == pytest.approx(slow.c, rel=1e-6)


def test_without_a_compiler_highs_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_library", lambda: None)
    assert engine_name() == "highs"
    with pytest.raises(RuntimeError, match="install a C compiler"):
        native.solve([Bid("a", 1.0)], Instance({"n1": 1}, Topology()), 1.0, False)
    with pytest.raises(ValueError, match=r"no engine 'gurobi'; there are .*highs"):
        engine_name("gurobi")


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_auction_is_solved(engine: str) -> None:
    if engine == "compiled" and not native.available():
        pytest.skip("no C compiler")
    top = Topology.of([Machine("n1", "r", 2)])
    for bids, free in (([], {"n1": 2}), ([Bid("a", 1.0)], {"n1": 2}), ([Bid("a", 2.0, (BidRow(1.0),))], {"n1": 0})):
        outcome = auction(bids, Instance(free, top), random.Random(0), engine=engine)
        assert outcome.proved_optimal
        assert all(w.row is None and outcome.c[a] == 1.0 for a, w in outcome.wins.items())
