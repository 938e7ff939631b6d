"""Gangs in equal segments, each on one machine or in one rack: placing and auctions against brute force."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pytest

from pycontrol.auction.instance import Instance
from pycontrol.auction.partial import auction
from pycontrol.auction.placing import FreeIndex, divides, pack
from pycontrol.model.auction import Bid, BidRow, Demand, Gang, gang_gpus, gangs_by_host, segments
from pycontrol.model.topology import Machine, Scope, Topology
from tests.auction.brute import determine, placements

PLACES = (Scope.MACHINE, Scope.RACK)


def divided(members: Sequence[int], gang: Gang, top: Topology) -> bool:
    """Whether each member can lie on one machine of the gang, or (negative) in one rack: by trying everything."""
    rooms = Counter[str]()
    for host, n in gang:
        rooms[host if members[0] > 0 else top.rack_of(host)] += n
    each = itertools.product(sorted(rooms), repeat=len(members))
    return any(
        all(sum(abs(n) for n, at in zip(members, where, strict=True) if at == room) <= rooms[room] for room in rooms)
        for where in each
    )


def world(rng: random.Random) -> tuple[dict[str, int], Topology]:
    """Up to five machines in up to three racks, partly in use, of one or two types."""
    machines = [
        Machine(f"n{k}", f"r{rng.randint(0, 2)}", rng.randint(1, 4), rng.choice(["A", "B"]))
        for k in range(rng.randint(1, 5))
    ]
    return {m.host: rng.randint(0, m.gpus) for m in machines}, Topology.of(machines)


def shape(rng: random.Random) -> tuple[int, tuple[int, ...]]:
    """GPUs of a gang, and its members."""
    count, each = rng.choice([(1, 2), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 2), (2, 4)])
    return count * each, segments(count * each, count, rng.choice(PLACES))


def test_a_place_is_found_where_there_is_one() -> None:
    found = 0
    for seed in range(1_000):
        rng = random.Random(seed)
        free, top = world(rng)
        (size, members), scope, kind = shape(rng), rng.choice(list(Scope)), rng.choice(["", "A"])
        room = FreeIndex(free, top)
        gang = room.place(size, scope, kind, members)
        here = {h: n for h, n in free.items() if n > 0 and kind in ("", top.type_of(h))}
        able = [g for g in placements(size, scope, here, top) if divided(members, g, top)]
        assert (gang is not None) == bool(able) == room.has_place(size, scope, kind, members), seed
        assert gang is None or gang in able, seed
        assert all(divides(members, g, top) == divided(members, g, top) for g in placements(size, scope, here, top))
        found += gang is not None
    assert 200 < found < 800


def test_a_gang_of_thousands_of_containers_is_packed() -> None:
    assert pack([1] * 3_000, {f"n{k}": 8 for k in range(375)}) is not None
    assert pack([1] * 3_001, {f"n{k}": 8 for k in range(375)}) is None


def rows_of(rng: random.Random, size: int, members: tuple[int, ...]) -> tuple[BidRow, ...]:
    """Rows for gangs anywhere, and on one machine."""
    work = rng.uniform(1, 10)
    return tuple(
        BidRow(1 + work / new * slow, (), new, size, scope, members=members)
        for new in (1, 2)
        for scope, slow in ((Scope.MACHINE, 1.0), (Scope.CLUSTER, rng.uniform(1.1, 1.5)))
    )


def ways(row: BidRow | None, free: Mapping[str, int], top: Topology) -> Iterator[dict[str, int]]:
    """What is free after a row's gangs took each possible place."""
    if row is None or not row.new_gangs:
        yield dict(free)
        return
    for gang in placements(row.gang_gpus, row.scope, free, top):
        if row.members and not divided(row.members, gang, top):
            continue
        if not row.gpu_type and len({top.type_of(h) for h, _ in gang}) > 1:
            continue
        rest = dict(free)
        rest.update((h, rest[h] - n) for h, n in gang)
        yield from ways(
            BidRow(row.rho, (), row.new_gangs - 1, row.gang_gpus, row.scope, members=row.members), rest, top
        )


def fit(choice: Sequence[BidRow | None], free: Mapping[str, int], top: Topology) -> bool:
    """Whether these rows' gangs have room together."""
    return not choice or any(fit(choice[1:], left, top) for left in ways(choice[0], free, top))


def market(seed: int) -> tuple[list[Bid], Instance]:
    """Two or three bidders, most of them with segments, on few machines of one type."""
    rng = random.Random(seed)
    racks = [rng.choice("ab") for _ in range(3)]
    machines = [Machine(f"n{k}", rack, rng.randint(1, 4)) for k, rack in enumerate(racks)]
    bids = []
    for k in range(rng.randint(2, 3)):
        size, members = shape(rng)
        rows = rows_of(rng, size, members if rng.random() < 0.8 else ())
        bids.append(Bid(f"a{k}", max(r.rho for r in rows) * 1.5, rows))
    return bids, Instance({m.host: m.gpus for m in machines}, Topology.of(machines))


@pytest.mark.parametrize("engine", ["compiled", "highs"])
def test_an_auction_finds_the_optimum_that_trying_everything_finds(engine: str) -> None:
    served = 0
    for seed in range(250):
        bids, offer = market(seed)
        best = max(
            -sum(math.log(b.rho_nothing if r is None else r.rho) for b, r in zip(bids, choice, strict=True))
            for choice in itertools.product(*([None, *b.rows] for b in bids))
            if fit(choice, offer.free, offer.topology)
        )
        found = determine(bids, offer, seed, engine=engine)
        assert found.objective_log == pytest.approx(best, abs=1e-9), seed
        gangs = [(b, g) for b in bids for g in found.wins[b.app_id].gangs]
        used = gangs_by_host(g for _, g in gangs)
        assert all(n <= offer.free[h] for h, n in used.items()), seed
        for bid, gang in gangs:
            row = bid.rows[0]
            assert gang_gpus(gang) == row.gang_gpus, seed
            assert not row.members or divided(row.members, gang, offer.topology), seed
            served += bool(row.members) and len(gang) > 1
    assert served > 60


def test_payments_are_of_whole_gangs() -> None:
    paid = 0
    for seed in range(100):
        bids, offer = market(seed)
        outcome = auction(bids, offer, random.Random(seed))
        for bid in bids:
            gangs = (*outcome.kept[bid.app_id], *outcome.paid[bid.app_id])
            assert {gang_gpus(g) for g in gangs} <= {bid.rows[0].gang_gpus}, seed
            paid += len(outcome.paid[bid.app_id])
    assert paid > 10


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ((), ""),
        ((4, 4), "2 x 4 GPUs, each on one machine"),
        ((-36, -36), "2 x 36 GPUs, each in one rack"),
        ((4, 2, 2), "1 x 4 + 2 x 2 GPUs, each on one machine"),
    ],
)
def test_people_read_how_a_gang_is_divided(members: tuple[int, ...], said: str) -> None:
    assert Demand(max(1, sum(map(abs, members))), 1, members=members).parts == said
