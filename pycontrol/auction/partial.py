"""Partial allocation: hidden payments, unbiased rounding, leftovers (Themis, Pseudocode 1; Cole et al., EC'13)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pycontrol.auction.winners import Win, determine
from pycontrol.model.auction import AppView, Award, Bid, Gang, gang_gpus, gang_of
from pycontrol.model.topology import Scope, Topology


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole auction: what each bidder won (`wins`), its c, and the gangs that it keeps and pays."""

    wins: Mapping[str, Win]
    c: Mapping[str, float]
    kept: Mapping[str, tuple[Gang, ...]]
    paid: Mapping[str, tuple[Gang, ...]]
    objective_log: float
    proved_optimal: bool
    gap: float


def auction(
    bids: Sequence[Bid], free: Mapping[str, int], topology: Topology, rng: random.Random, budget_s: float = 2.0
) -> Outcome:
    """Proportionally fair winners, then each keeps the fraction c of what it won."""
    seed = rng.randrange(1 << 30)
    best = determine(bids, free, topology, seed, budget_s)
    c: dict[str, float] = {}
    proved, gap = best.proved_optimal, best.gap
    for bid in bids:
        if best.wins[bid.app_id].row is None:
            c[bid.app_id] = 1.0
            continue
        others = [b for b in bids if b.app_id != bid.app_id]
        without = determine(others, free, topology, seed, budget_s, pack=False)
        proved, gap = proved and without.proved_optimal, max(gap, without.gap)
        with_it = -sum(math.log(best.wins[b.app_id].rho) for b in others)
        c[bid.app_id] = math.exp(min(0.0, with_it - without.objective_log))
    kept, paid = {}, {}
    for bid in bids:
        win = best.wins[bid.app_id]
        kept[bid.app_id], paid[bid.app_id] = _pay(win, c[bid.app_id], rng)
    return Outcome(best.wins, c, kept, paid, best.objective_log, proved, gap)


def _pay(win: Win, c: float, rng: random.Random) -> tuple[tuple[Gang, ...], tuple[Gang, ...]]:
    """Unbiased rounding in gangs: of k gangs keep floor(c k), and one more with probability frac(c k).

    Gangs that it holds already, then the most compact ones, are kept first.
    """
    if win.row is None:
        return (), ()
    k = len(win.gangs)
    whole = math.floor(c * k + 1e-9)
    n = min(k, whole + (rng.random() < c * k - whole))
    held = len(win.row.keep)
    order = sorted(range(k), key=lambda i: (i >= held, len(win.gangs[i]), i))
    return tuple(win.gangs[i] for i in order[:n]), tuple(win.gangs[i] for i in order[n:])


def place_gang(size: int, widest: Scope, free: Mapping[str, int], topology: Topology) -> Gang | None:
    """One gang on free GPUs, as close together as they allow and as tight a fit as can be; None if none fits."""
    fits = [(n, h) for h, n in free.items() if n >= size]
    if fits:
        return gang_of({min(fits)[1]: size})
    if widest is Scope.MACHINE:
        return None
    racks: dict[str, dict[str, int]] = {}
    for host, n in free.items():
        racks.setdefault(topology.rack_of(host), {})[host] = n
    enough = [(sum(r.values()), name) for name, r in racks.items() if sum(r.values()) >= size]
    if enough:
        return _fill(size, racks[min(enough)[1]])
    if widest is Scope.CLUSTER and sum(free.values()) >= size:
        return _fill(size, free)
    return None


def _fill(size: int, free: Mapping[str, int]) -> Gang:
    gang, need = {}, size
    for host in sorted(free, key=lambda h: (-free[h], h)):
        gang[host] = min(need, free[host])
        need -= gang[host]
        if not need:
            break
    return gang_of(gang)


def take(free: dict[str, int], gangs: Iterable[Gang]) -> None:
    """Removes gangs from free GPUs, in place."""
    for gang in gangs:
        for host, n in gang:
            free[host] -= n


def leftovers(
    free: dict[str, int], outsiders: Sequence[AppView], topology: Topology, rng: random.Random
) -> list[Award]:
    """Gives free GPUs to apps outside the auction at random, gang by gang; changes `free`.

    An app that gets a gang keeps one of its own ending gangs in place first, if it is still free.
    """
    got: dict[str, list[Gang]] = {}
    own = {v.app_id: list(v.ending_gangs) for v in outsiders}
    room = {v.app_id: v.unmet_gpus for v in outsiders}
    open_ = [v for v in outsiders if room[v.app_id] > 0]
    while open_:
        view = rng.choice(open_)
        gang = next((g for g in own[view.app_id] if all(free.get(h, 0) >= n for h, n in g)), None)
        if gang is not None:
            own[view.app_id].remove(gang)
        elif view.demand.gang_gpus <= room[view.app_id]:
            gang = place_gang(view.demand.gang_gpus, view.demand.scope, free, topology)
        if gang is None or gang_gpus(gang) > room[view.app_id]:
            open_.remove(view)
            continue
        take(free, [gang])
        room[view.app_id] -= gang_gpus(gang)
        got.setdefault(view.app_id, []).append(gang)
        if room[view.app_id] <= 0:
            open_.remove(view)
    return [Award(app_id, tuple(gangs), leftover=True) for app_id, gangs in got.items()]
