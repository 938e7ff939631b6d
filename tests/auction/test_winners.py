"""Winner determination by each engine: exact, feasible, gangs whole, the same for the same seed."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.auction import native
from pycontrol.auction.instance import Instance, Limit, Win
from pycontrol.auction.placing import Want, place_all, place_gang
from pycontrol.model.auction import Bid, BidRow, gang_gpus
from pycontrol.model.topology import Machine, Scope, Topology
from tests.auction.brute import best_objective, determine, free_of, markets, topology

Drawn = tuple[list[Bid], dict[str, int], Topology]

needs_compiler = pytest.mark.skipif(not native.available(), reason="no C compiler when Isonomy was installed")
engines = pytest.mark.parametrize("engine", [pytest.param("compiled", marks=needs_compiler), "highs", "reference"])


def check(wins: Mapping[str, Win], free: Mapping[str, int], top: Topology) -> None:
    """Checks that no GPU is given twice and each winner has its row's gangs: whole, and within their scope."""
    used: Counter[str] = Counter()
    for win in wins.values():
        for gang in win.gangs:
            used.update(dict(gang))
        if win.row is None:
            assert not win.gangs
            continue
        kept, new = win.gangs[: len(win.row.keep)], win.gangs[len(win.row.keep) :]
        assert kept == win.row.keep
        assert len(new) == win.row.new_gangs
        for gang in new:
            assert gang_gpus(gang) == win.row.gang_gpus
            assert top.scope_of(h for h, _ in gang) <= win.row.scope
    assert all(n <= free[h] for h, n in used.items())


@engines
@settings(max_examples=100, deadline=None)
@given(markets())
def test_equals_brute_force(engine: str, drawn: Drawn) -> None:
    bids, free, top = drawn
    found = determine(bids, Instance(free, top), seed=1, engine=engine)
    check(found.wins, free, top)
    assert found.proved_optimal
    assert found.gap == 0
    assert found.objective_log == pytest.approx(best_objective(bids, free, top), abs=1e-6)


@engines
@settings(max_examples=40, deadline=None)
@given(markets(), st.integers(0, 99))
def test_the_result_depends_on_the_seed_and_not_on_the_order_of_bids(engine: str, drawn: Drawn, seed: int) -> None:
    bids, free, top = drawn
    first = determine(bids, Instance(free, top), seed, engine=engine)
    assert first == determine(bids, Instance(free, top), seed, engine=engine)
    again = determine(bids[::-1], Instance(free, top), seed, engine=engine)
    assert again.objective_log == pytest.approx(first.objective_log)


@engines
@settings(max_examples=40, deadline=None)
@given(markets(), st.integers(0, 2), st.integers(1, 3))
def test_more_gpus_never_lower_the_objective(engine: str, drawn: Drawn, host: int, more: int) -> None:
    bids, free, top = drawn
    larger = free | {f"n{host + 1}": free[f"n{host + 1}"] + more}
    before, after = (determine(bids, Instance(f, top), 3, engine=engine).objective_log for f in (free, larger))
    assert after >= before - 1e-9


@engines
def test_equal_bidders_win_equally_often(engine: str) -> None:
    top = topology([2], "a")
    bids = [Bid(f"app{i}", 9.0, (BidRow(1.0, (), 1, 2, Scope.MACHINE),)) for i in range(4)]
    wins: Counter[str] = Counter()
    for seed in range(120):
        found = determine(bids, Instance({"n1": 2}, top), seed, engine=engine)
        wins.update(a for a, w in found.wins.items() if w.row is not None)
    assert sum(wins.values()) == 120
    assert min(wins[f"app{i}"] for i in range(4)) >= 12


def vgg(app_id: str, gang: int = 4) -> Bid:
    """Four tasks, 1.289 times slower over two machines (Table 1)."""
    slower = 103.6 / 80.4
    return Bid(
        app_id,
        100.0,
        (BidRow(0.5, (), 1, gang, Scope.MACHINE), BidRow(0.5 * slower, (), 1, gang, Scope.CLUSTER)),
    )


@engines
def test_two_placement_sensitive_apps_get_a_machine_each(engine: str) -> None:
    top = topology([4, 4], "a")
    found = determine([vgg("a"), vgg("b")], Instance(free_of(top), top), 0, engine=engine)
    assert sorted(w.gangs for w in found.wins.values()) == [((("n1", 4),),), ((("n2", 4),),)]


@engines
def test_the_sensitive_app_gets_the_large_machine(engine: str) -> None:
    top = topology([4, 2, 2], "a")
    inception = Bid("inception", 100.0, (BidRow(0.5, (), 1, 4, Scope.CLUSTER),))
    found = determine([inception, vgg("vgg")], Instance(free_of(top), top), 0, engine=engine)
    assert found.wins["vgg"].gangs == ((("n1", 4),),)
    assert found.wins["inception"].gangs == ((("n2", 2), ("n3", 2)),)


@engines
def test_a_gang_for_a_machine_and_one_for_a_rack_may_want_the_same_machine(engine: str) -> None:
    top = topology([1, 1, 3])
    bids = [Bid("a", 1.0, (BidRow(0.5, (), 1, 2, Scope.MACHINE),)), Bid("b", 2.0, (BidRow(1.0, (), 1, 3, Scope.RACK),))]
    found = determine(bids, Instance(free_of(top), top), 0, engine=engine)
    check(found.wins, free_of(top), top)
    assert sum(bool(w.gangs) for w in found.wins.values()) == 1
    assert found.proved_optimal


@engines
def test_gangs_are_packed_tightly(engine: str) -> None:
    top = topology([4, 4, 2], "a")
    bids = [Bid("a", 9.0, (BidRow(1.0, (), 1, 2, Scope.CLUSTER),)), Bid("b", 9.0, (BidRow(1.0, (), 1, 1),))]
    found = determine(bids, Instance({"n1": 4, "n2": 1, "n3": 2}, top), 0, engine=engine)
    assert found.wins["a"].gangs == ((("n3", 2),),)
    assert found.wins["b"].gangs == ((("n2", 1),),), "n1 stays whole"
    assert place_gang(2, Scope.MACHINE, {"n1": 2, "n3": 2}, top) == (("n1", 2),), "a machine partly used first"
    assert place_gang(5, Scope.CLUSTER, {"n1": 4, "n2": 4, "n3": 1}, top) == (("n1", 4), ("n3", 1))


@engines
def test_a_winner_stays_where_it_runs(engine: str) -> None:
    top = topology([4, 4], "a")
    bid = Bid("a", 9.0, (BidRow(1.0, (), 1, 2, Scope.MACHINE),))
    home = (("n2", 2),)
    assert determine([bid], Instance(free_of(top), top, (), {"a": (home,)}), 0, engine=engine).wins["a"].gangs == (
        home,
    )


@engines
def test_if_best_fit_fails_the_models_own_placement_is_used(engine: str) -> None:
    top = topology([8, 7], "a")
    wants = [Want("a", 3, 3, Scope.MACHINE), Want("b", 1, 5, Scope.MACHINE)]  # 3 + 5 and 3 + 3
    assert place_all(wants, free_of(top), top) is None
    bids = [Bid(w.app_id, 9.0, (BidRow(1.0, (), w.gangs, w.gang_gpus, w.scope),)) for w in wants]
    found = determine(bids, Instance(free_of(top), top), 0, engine=engine)
    check(found.wins, free_of(top), top)
    assert all(w.row is not None for w in found.wins.values())


@engines
def test_a_queues_limit_holds_for_its_apps_together(engine: str) -> None:
    top = topology([4, 4], "a")
    bids = [Bid(a, 9.0, (BidRow(1.0, (), 1, 2), BidRow(0.5, (), 2, 2))) for a in ("a", "b", "c")]
    found = determine(bids, Instance(free_of(top), top, (Limit(frozenset("ab"), 4),)), 0)
    won = {a: sum(map(gang_gpus, w.gangs)) for a, w in found.wins.items()}
    assert won["a"] + won["b"] == 4
    assert won["c"] == 4
    assert found.objective_log == pytest.approx(-math.log(1.0 * 1.0 * 0.5))


@engines
def test_a_solve_that_runs_out_of_time_reports_its_gap(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycontrol.auction.reference.LEAST_BUDGET_S", 1e-4)
    rng = random.Random(5)
    top = Topology.of(Machine(f"n{i}", f"r{i % 5}", 4) for i in range(80))
    bids = []
    for i in range(150):
        size = rng.choice([1, 2, 3, 4, 6])
        work, slow, rows = rng.uniform(1, 9), rng.uniform(1, 1.5), []
        for q in range(1, 9):
            rows += [BidRow(work / q**0.7 * slow**scope, (), q, size, scope) for scope in Scope]
        bids.append(Bid(f"a{i}", work * 2, tuple(rows)))
    started_s = time.monotonic()
    found = determine(bids, Instance(free_of(top), top), 0, budget_s=0.0, engine=engine)
    assert time.monotonic() - started_s < 20
    check(found.wins, free_of(top), top)
    assert not found.proved_optimal
    assert 0 < found.gap < math.inf
    assert found.objective_log + found.gap >= determine(bids, Instance(free_of(top), top), 0, 30.0).objective_log
