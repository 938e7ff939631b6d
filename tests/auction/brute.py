"""Brute force over the bid language, and bids for Hypothesis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from pycontrol.auction import reference
from pycontrol.auction.instance import Instance, Win
from pycontrol.auction.winners import solve, winners
from pycontrol.model.auction import Bid, BidRow, Gang, gang_of
from pycontrol.model.topology import Machine, Scope, Topology

HOSTS = (("n1", "a"), ("n2", "a"), ("n3", "b"))


def topology(gpus: Sequence[int], racks: Sequence[str] = ("a", "a", "b")) -> Topology:
    """Machines n1, n2, ... with these numbers of GPUs."""
    return Topology.of(Machine(f"n{i + 1}", racks[i % len(racks)], n) for i, n in enumerate(gpus))


@dataclass(frozen=True)
class Winners:
    """A solution of the winner determination; `gap`: a bound on optimum - objective_log, 0 if proved optimal."""

    wins: Mapping[str, Win]
    objective_log: float
    proved_optimal: bool
    gap: float


def determine(bids: Sequence[Bid], instance: Instance, seed: int, budget_s: float = 2.0, engine: str = "") -> Winners:
    """The feasible rows, at most one per bidder, with the largest sum of -log rho, and their gangs' places."""
    found = solve(bids, instance, seed, budget_s, False, engine)
    wins = winners(found, bids, instance)
    return Winners(wins, reference.objective_log(bids, found.rows), found.gap == 0.0, found.gap)


def free_of(top: Topology) -> dict[str, int]:
    """All GPUs of the topology."""
    return {h: m.gpus for h, m in top.machines.items()}


def placements(size: int, scope: Scope, free: Mapping[str, int], top: Topology) -> Iterator[Gang]:
    """Every way to place one gang."""
    hosts = sorted(free)
    for counts in itertools.product(*(range(min(size, free[h]) + 1) for h in hosts)):
        if sum(counts) == size:
            gang = gang_of(dict(zip(hosts, counts, strict=True)))
            if top.scope_of(h for h, _ in gang) <= scope:
                yield gang


def feasible(gangs: Sequence[tuple[int, Scope]], free: dict[str, int], top: Topology) -> bool:
    """Whether all gangs fit, by trying everything."""
    if any(n < 0 for n in free.values()):
        return False
    if not gangs:
        return True
    size, scope = gangs[0]
    for gang in placements(size, scope, free, top):
        rest = dict(free)
        for host, n in gang:
            rest[host] -= n
        if feasible(gangs[1:], rest, top):
            return True
    return False


def best_objective(bids: Sequence[Bid], free: Mapping[str, int], top: Topology) -> float:
    """The largest sum of -log rho over all feasible choices of rows."""
    best = -math.inf
    for choice in itertools.product(*([None, *b.rows] for b in bids)):
        rho = [r.rho if r is not None else b.rho_nothing for b, r in zip(bids, choice, strict=True)]
        objective = -sum(map(math.log, rho))
        if objective <= best + 1e-12:
            continue
        if rows_fit(choice, free, top):
            best = objective
    return best


def choices(bids: Sequence[Bid], free: Mapping[str, int], top: Topology) -> Iterator[tuple[BidRow | None, ...]]:
    """All feasible choices of rows."""
    for choice in itertools.product(*([None, *b.rows] for b in bids)):
        if rows_fit(choice, free, top):
            yield choice


def rows_fit(choice: Sequence[BidRow | None], free: Mapping[str, int], top: Topology) -> bool:
    """Whether these rows fit together."""
    left = dict(free)
    for row in filter(None, choice):
        for host, n in itertools.chain.from_iterable(row.keep):
            left[host] = left.get(host, 0) - n
    gangs = [(r.gang_gpus, r.scope) for r in choice if r is not None for _ in range(r.new_gangs)]
    return feasible(sorted(gangs, key=lambda g: (g[1], -g[0])), left, top)


@st.composite
def markets(draw: st.DrawFn, bidders: int = 3) -> tuple[list[Bid], dict[str, int], Topology]:
    """A few bidders on three machines; each bidder may hold one gang on offer."""
    top = topology(draw(st.lists(st.integers(1, 4), min_size=3, max_size=3)))
    free, left = free_of(top), free_of(top)
    bids = []
    for i in range(draw(st.integers(1, bidders))):
        size = draw(st.sampled_from([1, 1, 2, 3]))
        host = draw(st.sampled_from(sorted(free)))
        home: tuple[Gang, ...] = ()
        if left[host] >= size and draw(st.booleans()):
            left[host] -= size
            home = (((host, size),),)
        rho = st.floats(0.05, 8.0)
        rows = draw(
            st.lists(
                st.builds(
                    BidRow,
                    rho,
                    st.sampled_from([(), home]),
                    st.integers(0, 2),
                    st.just(size),
                    st.sampled_from(list(Scope)),
                ).filter(lambda r: r.gpus > 0),
                max_size=4,
            )
        )
        bids.append(Bid(f"app{i}", draw(rho), tuple(rows)))
    return bids, free, top
