"""Winner determination: the bid rows that maximize the product of 1/rho, exactly (Themis, Pseudocode 1).

There are three engines: `compiled` (solver.c), `highs` (the compact form solved by HiGHS) and `reference` (a PuLP
model). If a faster engine cannot prove its answer, the reference solves with the time that is left. An engine says
which rows win and proves that their gangs have room; gangs are then packed tightly, which bids do not pay for.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from pycontrol.auction import highs, native, reference
from pycontrol.auction.handout import less
from pycontrol.auction.instance import Instance, Rooms, Solved, Win, scope_of, typed
from pycontrol.auction.placing import Want, fill, place_all, take
from pycontrol.model.auction import Bid, BidRow, Gang, gang_of, gangs_by_host
from pycontrol.model.grouping import grouped
from pycontrol.model.topology import Scope, Topology


class Engine(Protocol):
    """A deterministic solver: the winning rows, and with `payments` the optimum without each winner."""

    def __call__(self, bids: Sequence[Bid], instance: Instance, budget_s: float, payments: bool) -> Solved: ...


ENGINES: Mapping[str, Engine] = {
    "compiled": native.solve,
    "highs": highs.solve,
    "reference": reference.solve,
}


def engine_name(wanted: str = "") -> str:
    """The wanted engine, or the fastest that is available; raises ValueError for an unknown name."""
    if wanted and wanted not in ENGINES:
        raise ValueError(f"no engine {wanted!r}; there are {', '.join(ENGINES)}")
    return wanted or ("compiled" if native.available() else "highs")


def solve(
    bids: Sequence[Bid], instance: Instance, seed: int, budget_s: float, payments: bool, engine: str = ""
) -> Solved:
    """The winning rows, and with `payments` the optimum without each winner; only the seed breaks ties."""
    end_s = time.monotonic() + budget_s
    shuffled = random.Random(seed).sample([typed(b, instance) for b in bids], len(bids))  # so that no name is favored
    name = engine_name(engine)
    found = ENGINES[name](shuffled, instance, budget_s, payments)
    if not found.worst_gap or name == "reference":
        return found
    least_s = reference.building_s(shuffled, instance)
    if found.gap and (left_s := end_s - time.monotonic()) > least_s:
        again = reference.solve(shuffled, instance, left_s, payments)
        found = again if again.gap < found.gap else found
    unproved = [a for a, w in found.without.items() if w.gap]
    without = dict(found.without)
    for k, app_id in enumerate(unproved):
        share_s = (end_s - time.monotonic()) / (len(unproved) - k)
        if share_s > least_s:
            other = reference.solve_without(app_id, shuffled, instance, share_s)
            without[app_id] = min(without[app_id], other, key=lambda w: w.gap)
    return replace(found, without=without)


def winners(found: Solved, bids: Sequence[Bid], instance: Instance) -> dict[str, Win]:
    """What each bidder won, with the places of its gangs."""
    new = _place(found, bids, instance)
    wins = dict[str, Win]()
    for bid in bids:
        row = found.rows[bid.app_id]
        gangs = (*row.keep, *_whole(new.get(bid.app_id, ()), row, instance.topology)) if row is not None else ()
        wins[bid.app_id] = Win(row, row.rho if row is not None else bid.rho_nothing, gangs)
    return wins


def _whole(gangs: Sequence[Gang], row: BidRow, topology: Topology) -> Sequence[Gang]:
    """The new gangs of a row; joined, rack by rack, where the engine placed their members (`in_members`)."""
    n = len(row.members)
    if n < 2 or row.gang_gpus != abs(row.members[0]):
        return gangs
    near = sorted(gangs, key=lambda gang: [(topology.rack_of(h), h) for h, _ in gang])
    return [gang_of(gangs_by_host(near[k : k + n])) for k in range(0, len(near), n)]


def _place(found: Solved, bids: Sequence[Bid], instance: Instance) -> dict[str, list[Gang]]:
    """App id -> its new gangs: packed tightly, or where the engine found room if that fails."""
    chosen = {b.app_id: row for b in bids if (row := found.rows[b.app_id]) is not None}
    left = {h: n for h, n in sorted(instance.free.items()) if n > 0}
    for row in chosen.values():
        take(left, row.keep)
    wants = [Want(a, r.new_gangs, r.gang_gpus, scope_of(r), r.gpu_type) for a, r in chosen.items() if r.new_gangs]
    homes = {a: less(instance.homes.get(a, ()), r.keep) for a, r in chosen.items()}
    packed = place_all(wants, left, instance.topology, homes)
    return packed if packed is not None else _place_in(found.rooms, wants, left, instance)


def _place_in(rooms: Rooms, wants: Sequence[Want], left: dict[str, int], instance: Instance) -> dict[str, list[Gang]]:
    open_ = {size: list(places) for size, places in rooms.items()}
    racks = grouped((instance.topology.rack_of(host), host) for host in left)
    placed: dict[str, list[Gang]] = {w.app_id: [] for w in wants}
    order = sorted(wants, key=lambda w: (w.scope, not w.gpu_type))  # narrow ones first: the others fill the gaps
    for want in order:
        for _ in range(want.gangs):
            hosts = list(left)
            if want.scope is not Scope.CLUSTER:
                place = open_[want.gang_gpus, want.scope, want.gpu_type].pop()
                hosts = [place] if want.scope is Scope.MACHINE else racks[place]
            if want.gpu_type:
                hosts = [h for h in hosts if instance.topology.type_of(h) == want.gpu_type]
            gang = fill(want.gang_gpus, {h: left[h] for h in hosts})
            take(left, [gang])
            placed[want.app_id].append(gang)
    return placed
