"""Gangs on free GPUs: as close together as they allow, and as tight a fit as can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pycontrol.model.auction import Gang, gang_gpus, gang_of
from pycontrol.model.topology import Scope, Topology

NOBODY: Mapping[str, Sequence[Gang]] = {}


@dataclass(frozen=True, slots=True)
class Want:
    """`gangs` new gangs of `gang_gpus` GPUs for one app, each within `scope`."""

    app_id: str
    gangs: int
    gang_gpus: int
    scope: Scope


def place_gang(size: int, widest: Scope, free: Mapping[str, int], topology: Topology) -> Gang | None:
    """One gang on free GPUs, on one machine before one rack before the cluster; None if none fits.

    Among machines, the one that it fills best; among equals, one that is partly used already.
    """
    fits = [(n, _whole(h, n, topology), h) for h, n in free.items() if n >= size]
    if fits:
        return gang_of({min(fits)[2]: size})
    if widest is Scope.MACHINE:
        return None
    racks: dict[str, dict[str, int]] = {}
    for host, n in free.items():
        racks.setdefault(topology.rack_of(host), {})[host] = n
    enough = [(sum(r.values()), name) for name, r in racks.items() if sum(r.values()) >= size]
    if enough:
        return fill(size, racks[min(enough)[1]])
    if widest is Scope.CLUSTER and sum(free.values()) >= size:
        return fill(size, free)
    return None


def _whole(host: str, free: int, topology: Topology) -> bool:
    machine = topology.machines.get(host)
    return machine is not None and machine.gpus == free


def fill(size: int, free: Mapping[str, int]) -> Gang:
    """A gang over few machines: the largest until one can hold the rest, then the one that the rest fills best."""
    left, gang = {h: n for h, n in free.items() if n > 0}, {}
    while size:
        last = [(n, h) for h, n in left.items() if n >= size]
        host = min(last)[1] if last else min(left, key=lambda h: (-left[h], h))
        gang[host] = min(size, left.pop(host))
        size -= gang[host]
    return gang_of(gang)


def take(free: dict[str, int], gangs: Iterable[Gang]) -> None:
    """Removes gangs from free GPUs, in place."""
    for gang in gangs:
        for host, n in gang:
            free[host] -= n


def place_all(
    wants: Sequence[Want],
    free: Mapping[str, int],
    topology: Topology,
    homes: Mapping[str, Sequence[Gang]] = NOBODY,
) -> dict[str, list[Gang]] | None:
    """Places all gangs, hardest first, by best fit; None if that finds no room for one of them.

    `homes`: where apps run now; who can stay there stays, for a move is a restart.
    None does not mean that there is no room: best fit is not exact.
    """
    for where in (homes, NOBODY) if homes else (NOBODY,):
        for order in (_narrow_first, _large_first):
            placed = _in_order(sorted(wants, key=order), dict(free), topology, where)
            if placed is not None:
                return placed
    return None


def _narrow_first(want: Want) -> tuple[int, int]:
    return int(want.scope), -want.gang_gpus


def _large_first(want: Want) -> tuple[int, int]:
    return -want.gang_gpus, int(want.scope)


def _in_order(
    wants: Sequence[Want], free: dict[str, int], topology: Topology, homes: Mapping[str, Sequence[Gang]]
) -> dict[str, list[Gang]] | None:
    placed: dict[str, list[Gang]] = {}
    left: list[Want] = []
    for want in wants:
        stay = _stay(want, free, topology, homes.get(want.app_id, ()))
        placed[want.app_id] = stay
        left.append(replace(want, gangs=want.gangs - len(stay)))
    for want in left:
        for _ in range(want.gangs):
            gang = place_gang(want.gang_gpus, want.scope, free, topology)
            if gang is None:
                return None
            take(free, [gang])
            placed[want.app_id].append(gang)
    return placed


def _stay(want: Want, free: dict[str, int], topology: Topology, homes: Sequence[Gang]) -> list[Gang]:
    stay: list[Gang] = []
    for gang in homes:
        alike = gang_gpus(gang) == want.gang_gpus and topology.scope_of(h for h, _ in gang) <= want.scope
        if alike and len(stay) < want.gangs and all(free.get(h, 0) >= n for h, n in gang):
            take(free, [gang])
            stay.append(gang)
    return stay
