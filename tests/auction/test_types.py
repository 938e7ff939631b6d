"""Auctions with GPU types: every engine equals brute force, payments too; rows of type-blind apps do not change."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.auction import native
from pycontrol.auction.bid_validation import validate_bid
from pycontrol.auction.handout import Caps, leftovers
from pycontrol.auction.instance import Instance
from pycontrol.auction.partial import auction
from pycontrol.auction.placing import FreeIndex
from pycontrol.auction.winners import ENGINES, Engine
from pycontrol.lab.conformance.snapshots import app, snapshot
from pycontrol.lab.policies.variants import Ranking
from pycontrol.model.auction import Bid, BidRow, Gang, gang_gpus
from pycontrol.model.topology import Machine, Scope, Topology
from tests.auction.brute import determine, placements
from tests.auction.test_engines import FAST, drawn, proved

Drawn = tuple[list[Bid], Instance]
every_engine = pytest.mark.parametrize(
    "engine",
    [
        pytest.param(e, marks=pytest.mark.skipif(e == "compiled" and not native.available(), reason="no C compiler"))
        for e in ENGINES
    ],
)


@st.composite
def markets(draw: st.DrawFn) -> Drawn:
    """Up to three bidders on four machines of two types in two racks, one of which has both."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=4, max_size=4))
    kinds = draw(st.sampled_from([("K", "V", "V", "K"), ("K", "V", "V", "V"), ("K", "K", "V", "V")]))
    top = Topology.of(Machine(f"n{i}", "aabb"[i], max(1, n), kinds[i]) for i, n in enumerate(sizes))
    free = {f"n{i}": n for i, n in enumerate(sizes)}
    left, bids, homes = dict(free), [], dict[str, Sequence[Gang]]()
    for i in range(draw(st.integers(1, 3))):
        size = draw(st.sampled_from([1, 2, 2, 3, 4]))
        host = draw(st.sampled_from(sorted(free)))
        home: tuple[Gang, ...] = ()
        if left[host] >= size and draw(st.booleans()):
            left[host] -= size
            home = (((host, size),),)
        rows = []
        for _ in range(draw(st.integers(0, 4))):
            mixes = draw(st.sampled_from([False, False, True]))
            row = BidRow(
                draw(st.floats(0.05, 8.0)),
                draw(st.sampled_from([(), home])),
                draw(st.integers(0, 2)),
                size,
                Scope.CLUSTER if mixes else draw(st.sampled_from(list(Scope))),
                "" if mixes else draw(st.sampled_from(["", "K", "V", "V", "T"])),
                mixes,
            )
            if row.gpus:
                rows.append(row)
        bids.append(Bid(f"app{i}", draw(st.floats(0.05, 8.0)), tuple(rows)))
        homes[f"app{i}"] = home
    return bids, Instance(free, top, (), homes)


def kinds_of(row: BidRow, instance: Instance) -> list[str | None]:
    """The types that all new gangs of a row may have; None: each gang has its own mix."""
    if not row.new_gangs or row.mixes or (row.gang_gpus == 1 and not row.gpu_type):
        return [None]
    return [row.gpu_type] if row.gpu_type else list(instance.topology.types)


def room(gangs: Sequence[tuple[int, Scope, str | None]], free: dict[str, int], top: Topology) -> bool:
    """Whether all gangs fit, by trying everything."""
    if any(n < 0 for n in free.values()):
        return False
    if not gangs:
        return True
    (size, scope, kind), *others = gangs
    for gang in placements(size, scope, free, top):
        if kind is None or all(top.type_of(h) == kind for h, _ in gang):
            rest = dict(free)
            for host, n in gang:
                rest[host] -= n
            if room(others, rest, top):
                return True
    return False


def fits(choice: Sequence[BidRow | None], instance: Instance) -> bool:
    rows = [r for r in choice if r is not None]
    left = dict(instance.free)
    for host, n in itertools.chain.from_iterable(g for r in rows for g in r.keep):
        left[host] = left.get(host, 0) - n
    for kinds in itertools.product(*(kinds_of(r, instance) for r in rows)):
        gangs = [(r.gang_gpus, r.scope, t) for r, t in zip(rows, kinds, strict=True) for _ in range(r.new_gangs)]
        if room(sorted(gangs, key=lambda g: (g[1], -g[0], g[2] is None)), left, instance.topology):
            return True
    return False


def choices(bids: Sequence[Bid]) -> Iterator[tuple[float, tuple[BidRow | None, ...]]]:
    for choice in itertools.product(*([None, *b.rows] for b in bids)):
        rhos = (r.rho if r is not None else b.rho_nothing for b, r in zip(bids, choice, strict=True))
        yield -sum(map(math.log, rhos)), choice


def best(bids: Sequence[Bid], instance: Instance) -> float:
    """The largest sum of -log rho over all feasible choices."""
    ordered = sorted(choices(bids), key=lambda c: -c[0])
    return next(value for value, choice in ordered if fits(choice, instance))


@every_engine
@settings(max_examples=60, deadline=None)
@given(case=markets())
def test_equals_brute_force(engine: str, case: Drawn) -> None:
    bids, instance = case
    found = determine(bids, instance, 1, 20.0, engine=engine)
    assert found.proved_optimal
    assert found.objective_log == pytest.approx(best(bids, instance), abs=1e-6)
    left = dict(instance.free)
    for bid in bids:
        win = found.wins[bid.app_id]
        if win.row is None:
            continue
        gangs = list(win.gangs)
        for kept in win.row.keep:
            gangs.remove(kept)
        assert [gang_gpus(g) for g in gangs] == [win.row.gang_gpus] * win.row.new_gangs
        for gang in win.gangs:
            for host, n in gang:
                left[host] -= n
        for gang in gangs:
            types = {instance.topology.type_of(h) for h, _ in gang}
            assert win.row.mixes or len(types) == 1
            assert not win.row.gpu_type or types == {win.row.gpu_type}
            assert instance.topology.scope_of(h for h, _ in gang) <= (
                Scope.CLUSTER if win.row.gang_gpus == 1 else win.row.scope
            )
    assert min(left.values()) >= 0


@every_engine
@settings(max_examples=25, deadline=None)
@given(case=markets(), seed=st.integers(0, 99))
def test_typed_payments_equal_the_winners_cost_to_the_others(engine: str, case: Drawn, seed: int) -> None:
    bids, instance = case
    outcome = auction(bids, instance, random.Random(seed), 20.0, engine)
    for bid in bids:
        others = [b for b in bids if b.app_id != bid.app_id]
        if outcome.wins[bid.app_id].row is None:
            assert outcome.c[bid.app_id] == 1.0
            continue
        with_it = outcome.objective_log + math.log(outcome.wins[bid.app_id].rho)
        without = best(others, instance) if others else 0.0
        assert outcome.c[bid.app_id] == pytest.approx(math.exp(min(0.0, with_it - without)), rel=1e-6)


@every_engine
@settings(max_examples=20, deadline=None)
@given(case=markets())
def test_a_single_type_changes_nothing(engine: str, case: Drawn) -> None:
    """The auction gives the same result with and without the only type's name in the rows."""
    bids, instance = case
    alike = Topology.of(replace(m, gpu_type="V") for m in instance.topology.machines.values())
    one = replace(instance, topology=alike)
    named, plain = (
        [replace(b, rows=tuple(replace(r, gpu_type="" if r.mixes else t) for r in b.rows)) for b in bids]
        for t in ("V", "")
    )
    found = [determine(x, one, 1, 20.0, engine=engine) for x in (named, plain)]
    assert found[0].objective_log == pytest.approx(found[1].objective_log, abs=1e-9)


TWO = Topology.of([Machine("a-slow", "r", 4, "K80"), Machine("b-fast", "r", 4, "V100")])


@every_engine
def test_the_app_that_gains_most_by_the_fast_machine_gets_it(engine: str) -> None:
    """One app is five times faster there, the other 1.2 times: the result is the same for all names and seeds."""
    for seed, (first, second) in itertools.product(range(5), itertools.permutations(("a", "b"))):
        bids = [
            Bid(
                first, 9.0, tuple(BidRow(5.0 / v, (), 1, 4, Scope.MACHINE, t) for t, v in (("K80", 1.0), ("V100", 5.0)))
            ),
            Bid(
                second,
                9.0,
                tuple(BidRow(5.0 / v, (), 1, 4, Scope.MACHINE, t) for t, v in (("K80", 1.0), ("V100", 1.2))),
            ),
        ]
        wins = determine(bids, Instance({"a-slow": 4, "b-fast": 4}, TWO), seed, engine=engine).wins
        assert wins[first].gangs == ((("b-fast", 4),),)
        assert wins[second].gangs == ((("a-slow", 4),),)


def test_leftovers_mix_no_types_and_take_the_faster_first() -> None:
    instance = Instance({"a-slow": 2, "b-fast": 2}, TWO)
    for mixes in (False, True):
        view = app("x", 4, 1, mixes=mixes)
        ranking = Ranking("random", snapshot(view, top=TWO), random.Random(0)).order
        assert bool(leftovers(FreeIndex(instance.free, instance.topology), [view], Caps([view]), {}, ranking)) is mixes
    view = app("y", 2, 1, speedups={"K80": 1.0, "V100": 2.0})
    ranking = Ranking("random", snapshot(view, top=TWO), random.Random(0)).order
    assert leftovers(FreeIndex(instance.free, instance.topology), [view], Caps([view]), {}, ranking)[0].gangs == (
        (("b-fast", 2),),
    )


@every_engine
def test_a_gang_of_single_gpus_mixes_no_types_unless_its_app_says_so(engine: str) -> None:
    free, members = {"a-slow": 1, "b-fast": 1}, (1, 1)
    for mixes in (False, True):
        bid = Bid("x", 9.0, (BidRow(1.0, (), 1, 2, mixes=mixes, members=members),))
        assert bool(determine([bid], Instance(free, TWO), 0, engine=engine).wins["x"].gangs) is mixes
    bid = Bid("x", 9.0, (BidRow(1.0, (), 1, 2, members=members),))
    ((gang,),) = determine([bid], Instance({**free, "b-fast": 2}, TWO), 0, engine=engine).wins["x"].gangs
    assert gang == ("b-fast", 2)


@pytest.mark.parametrize(
    "row", [BidRow(1.0, (), 1, 4, Scope.RACK, "", True), BidRow(1.0, (), 1, 4, gpu_type="K80", mixes=True)]
)
def test_a_row_that_mixes_names_neither_type_nor_scope(row: BidRow) -> None:
    view = app("x", 4, 1)
    said = validate_bid(Bid("x", 2.0, (row,)), snapshot(view, top=TWO), view)
    assert "may mix GPU types" in said


def test_a_row_for_a_type_that_is_not_on_offer_is_ignored() -> None:
    bid = Bid("x", 9.0, (BidRow(1.0, (), 1, 2, gpu_type="A100"),))
    for free in ({"a-slow": 4}, {"a-slow": 4, "b-fast": 4}):
        assert determine([bid], Instance(free, TWO), 0).wins["x"].row is None


def drawn_typed(seed: int) -> Drawn:
    """The larger markets of test_engines, with types."""
    bids, instance = drawn(seed)
    rng = random.Random(seed)
    kinds = ["K", "V", "W"][: rng.randint(2, 3)]
    top = Topology.of(replace(m, gpu_type=rng.choice(kinds)) for m in instance.topology.machines.values())
    told = []
    for bid in bids:
        speed = {t: rng.uniform(0.5, 3.0) for t in kinds}
        rows = [
            replace(r, rho=r.rho / speed[t], gpu_type=t, mixes=False) if r.new_gangs else r
            for r in bid.rows
            for t in (kinds if r.new_gangs else kinds[:1])
        ]
        if rng.random() < 0.3:
            rows += [BidRow(rng.uniform(0.5, 8.0), (), q, bid.rows[-1].gang_gpus, mixes=True) for q in (1, 2)]
        told.append(replace(bid, rows=tuple(rows)))
    return told, replace(instance, topology=top)


@pytest.mark.parametrize("solve", FAST)
def test_larger_typed_auctions_equal_the_reference_engines(solve: Engine) -> None:
    assert proved(solve, map(drawn_typed, range(24))) > 18, "few need the reference"
