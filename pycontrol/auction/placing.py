"""Places gangs on free GPUs: as close together as possible, by best fit."""

from __future__ import annotations

import bisect
import copy
import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Self

from pycontrol.model.auction import Demand, Gang, gang_gpus, gang_of
from pycontrol.model.grouping import summed
from pycontrol.model.topology import Scope, Topology
from pycontrol.model.value import value

NOBODY: Mapping[str, Sequence[Gang]] = {}
ELSE = " else "
"""Joins GPU types, the one to be tried first in front."""


@value
class Want:
    """`gangs` new gangs of `gang_gpus` GPUs for an app, each within `scope`; an empty `gpu_type` allows mixed ones."""

    app_id: str
    gangs: int
    gang_gpus: int
    scope: Scope
    gpu_type: str = ""


TRIES_MAX = 2_000
"""Limit of search steps to place the members of a gang."""


def place_gang(
    size: int, widest: Scope, free: Mapping[str, int], topology: Topology, members: Sequence[int] = ()
) -> Gang | None:
    """A place for one gang: on one machine, else in one rack, else in the cluster, up to `widest`; None if none fits.

    Of machines, the one that the gang fills best; of equals, one that is partly used. `members`: as in `Demand`.
    """
    return FreeIndex(free, topology).place(size, widest, members=members)


def divides(members: Sequence[int], gang: Gang, topology: Topology) -> bool:
    """Whether a gang can be divided into these members (as in `Demand`)."""
    return pack(members, dict(gang) if min(members) > 0 else _by_rack(dict(gang), topology)) is not None


def _by_rack(free: Mapping[str, int], topology: Topology) -> dict[str, int]:
    rack_of = topology.rack_by_host
    return summed((rack_of.get(host, host), n) for host, n in free.items())


def pack(members: Sequence[int], free: Mapping[str, int]) -> list[str] | None:
    """A host for each member, the largest first, none of them split; None if none is found in `TRIES_MAX` steps.

    The host that a member fills best is tried first; if each size divides the next larger one, the first try is right.
    `members` of racks are negative: then `free` is by rack, and a rack is found for each.
    """
    size = abs(members[0]) if members else 0
    if size and members[-1] == members[0]:
        found = [h for n, h in sorted((n, h) for h, n in free.items()) for _ in range(n // size)]
        return found[: len(members)] if len(found) >= len(members) else None
    left = {h: n for h, n in free.items() if n > 0}
    chosen: list[str] = []
    tries = 0

    def place(k: int) -> bool:
        nonlocal tries
        if k == len(members):
            return True
        need = members[k]
        for n in sorted({n for n in left.values() if n >= need}):
            tries += 1
            if tries > TRIES_MAX:
                return False
            host = min(h for h, m in left.items() if m == n)
            left[host] -= need
            chosen.append(host)
            if place(k + 1):
                return True
            chosen.pop()
            left[host] += need
        return False

    return chosen if sum(members) <= sum(left.values()) and place(0) else None


def fitting(demand: Demand, topology: Topology) -> Sequence[str]:
    """GPU types that a new gang of the app may have, the fastest first; "" stands for any type, also mixed."""
    if demand.gpu_type:
        return (demand.gpu_type,)
    if len(topology.types) < 2:
        return ("",)
    types = sorted(topology.types, key=lambda t: (-demand.speedups.get(t, 1.0), t))
    return (*types, "") if demand.mixes else types


class FreeIndex:
    """The free GPUs of a round, or of what is left of it: gangs are placed by GPU type, and put back.

    They are placed by best fit, narrow scopes first.
    """

    def __init__(self, free: Mapping[str, int], topology: Topology) -> None:
        self.topology = topology
        some = min(free.values(), default=1) <= 0
        self._all = _Hosts({h: n for h, n in free.items() if n > 0} if some else dict(free), topology)
        self._of_type: dict[str, _Hosts] = {}

    def copy(self) -> Self:
        """An independent copy."""
        twin = copy.copy(self)
        twin._all, twin._of_type = self._all.copy(), {t: hosts.copy() for t, hosts in self._of_type.items()}
        return twin

    def without(self, closed: Collection[str]) -> FreeIndex:
        """The index without these hosts: itself if no GPU is free there, else another one."""
        if not any(self.left.get(host, 0) > 0 for host in closed):
            return self
        return FreeIndex({h: n for h, n in self.left.items() if h not in closed}, self.topology)

    @property
    def left(self) -> Mapping[str, int]:
        """GPUs by host."""
        return self._all.free

    @property
    def unused(self) -> dict[str, int]:
        """GPUs by host that has any."""
        return {h: n for h, n in self.left.items() if n > 0}

    @property
    def gpus(self) -> int:
        """The number of free GPUs."""
        return self._all.gpus

    def place(self, size: int, widest: Scope, gpu_type: str = "", members: Sequence[int] = ()) -> Gang | None:
        """A place for a gang of `size` GPUs of a type (empty: any), or None. Takes nothing.

        `gpu_type`: or several, joined by `ELSE`: the first that has a place. `members`: as in `Demand`.
        """
        if ELSE not in gpu_type:  # as most often
            return self._hosts(gpu_type).place(size, widest, members)
        found = (self._hosts(each).place(size, widest, members) for each in gpu_type.split(ELSE))
        return next((gang for gang in found if gang is not None), None)

    def has_place(self, size: int, widest: Scope, gpu_type: str = "", members: Sequence[int] = ()) -> bool:
        """Whether `place` finds a place."""
        return any(self._hosts(each).has_place(size, widest, members) for each in gpu_type.split(ELSE))

    def holds(self, gang: Gang) -> bool:
        """Whether all GPUs of the gang are free."""
        return all(self.left.get(h, 0) >= n for h, n in gang)

    def take(self, gang: Gang) -> None:
        """Takes a gang's GPUs, which must be free."""
        for hosts, part in self._parts(gang):
            hosts.take(part)

    def give(self, gang: Gang) -> None:
        """Puts a gang's GPUs back."""
        for hosts, part in self._parts(gang):
            hosts.give(part)

    def _parts(self, gang: Gang) -> Iterator[tuple[_Hosts, Gang]]:
        yield self._all, gang
        for gpu_type, hosts in self._of_type.items():
            yield hosts, tuple((h, n) for h, n in gang if self.topology.type_of(h) == gpu_type)

    def _hosts(self, gpu_type: str) -> _Hosts:
        if not gpu_type:
            return self._all
        if gpu_type not in self._of_type:
            free = {h: n for h, n in self.left.items() if self.topology.type_of(h) == gpu_type}
            self._of_type[gpu_type] = _Hosts(free, self.topology)
        return self._of_type[gpu_type]


class _Hosts:
    """The free GPUs on hosts of one GPU type, or on all hosts.

    All indexes but `counts` are made when they are first read: most rounds place one gang on one machine.
    """

    def __init__(self, free: dict[str, int], topology: Topology) -> None:
        self.free, self.topology = free, topology
        self.gpus = sum(free.values())
        self.counts = sorted(set(free.values()))
        self.alike: dict[int, list[tuple[bool, str]]] = {}
        """Number of free GPUs -> a heap of (whether the host is unused, host); outdated entries are dropped later."""
        self._in_rack: dict[str, int] | None = None

    def copy(self) -> Self:
        """An independent copy."""
        twin = copy.copy(self)
        twin.free, twin.counts = dict(self.free), list(self.counts)
        twin.alike = {n: list(heap) for n, heap in self.alike.items()}
        twin._in_rack = dict(self._in_rack) if self._in_rack is not None else None
        return twin

    @property
    def in_rack(self) -> dict[str, int]:
        """Free GPUs by rack."""
        if self._in_rack is None:
            self._in_rack = _by_rack(self.free, self.topology)
        return self._in_rack

    def _rack_of(self, host: str) -> str:
        return self.topology.rack_by_host.get(host, host)

    def _on_rack(self, rack: str) -> dict[str, int]:
        """Free GPUs by host of a rack."""
        return {h: n for h, n in self.free.items() if self._rack_of(h) == rack}

    def _with(self, n: int) -> list[tuple[bool, str]]:
        """The heap of the hosts with n free GPUs."""
        if n not in self.alike:
            whole = self.topology.gpus_by_host
            self.alike[n] = [(whole.get(h) == n, h) for h, m in self.free.items() if m == n]
            heapq.heapify(self.alike[n])
        return self.alike[n]

    def take(self, gang: Gang) -> None:
        """Takes a gang's GPUs."""
        for host, n in gang:
            left = self.free[host] = self.free[host] - n
            self._changed(host, -n)
            self._enter(left, False, host)  # the host is partly used now

    def give(self, gang: Gang) -> None:
        """Puts a gang's GPUs back."""
        for host, n in gang:
            left = self.free[host] = self.free[host] + n
            self._changed(host, n)
            self._enter(left, self.topology.gpus_by_host.get(host) == left, host)

    def _changed(self, host: str, gpus: int) -> None:
        self.gpus += gpus
        if self._in_rack is not None:
            self._in_rack[self._rack_of(host)] += gpus

    def _enter(self, free: int, whole: bool, host: str) -> None:
        at = bisect.bisect_left(self.counts, free)
        if at == len(self.counts) or self.counts[at] != free:
            self.counts.insert(at, free)
        if free in self.alike:
            heapq.heappush(self.alike[free], (whole, host))

    def has_place(self, size: int, widest: Scope, members: Sequence[int] = ()) -> bool:
        """Whether `place` finds a place."""
        if members:
            return self._best_fit(size, widest, members) is not None
        if widest is Scope.CLUSTER or size > self.gpus:
            return size <= self.gpus
        if widest is Scope.RACK and any(n >= size for n in self.in_rack.values()):
            return True
        return self._best_fit(size, Scope.MACHINE, ()) is not None

    def place(self, size: int, widest: Scope, members: Sequence[int] = ()) -> Gang | None:
        """A place for a gang, or None; takes nothing."""
        return None if size > self.gpus else self._best_fit(size, widest, members)

    def _best_fit(self, size: int, widest: Scope, members: Sequence[int]) -> Gang | None:
        for n in self.counts[bisect.bisect_left(self.counts, size) :]:
            heap = self._with(n)
            while heap and self.free[heap[0][1]] != n:
                heapq.heappop(heap)
            if heap:
                return ((heap[0][1], size),)
        if widest is Scope.MACHINE:
            return None
        enough = [(n, rack) for rack, n in self.in_rack.items() if n >= size]
        if members and members[0] > 0:
            rooms = [self._on_rack(rack) for _, rack in sorted(enough)]
            return _members_in([*rooms, self.free] if widest is Scope.CLUSTER else rooms, members)
        if enough:
            return fill(size, self._on_rack(min(enough)[1]))
        if widest is not Scope.CLUSTER or self.gpus < size:
            return None
        return self._in_racks(members) if members else fill(size, self.free)

    def _in_racks(self, members: Sequence[int]) -> Gang | None:
        """A gang of members that lie in one rack each; None if racks are too full."""
        gang: dict[str, int] = {}
        for rack, part in itertools.groupby(pack(members, self.in_rack) or ()):
            left = self._on_rack(rack)
            for _ in part:
                member = fill(-members[0], left)
                take(left, [member])
                gang.update((h, gang.get(h, 0) + n) for h, n in member)
        return gang_of(gang) if gang else None


def _members_in(rooms: Iterable[Mapping[str, int]], members: Sequence[int]) -> Gang | None:
    """A gang of these members in the first of the rooms that holds them all; None if none does."""
    for room in rooms:
        hosts = pack(members, room)
        if hosts is not None:
            gang = dict.fromkeys(hosts, 0)
            for host, n in zip(hosts, members, strict=True):
                gang[host] += n
            return gang_of(gang)
    return None


def fill(size: int, free: Mapping[str, int]) -> Gang:
    """A gang on few machines: the largest ones until one can hold the rest, then the one that the rest fills best."""
    left, gang = {h: n for h, n in free.items() if n > 0}, {}
    while size:
        last = [(n, h) for h, n in left.items() if n >= size]
        host = min(last)[1] if last else min(left, key=lambda h: (-left[h], h))
        gang[host] = min(size, left.pop(host))
        size -= gang[host]
    return gang_of(gang)


def take(free: dict[str, int], gangs: Iterable[Gang]) -> None:
    """Removes the gangs' GPUs from `free`, in place."""
    for gang in gangs:
        for host, n in gang:
            free[host] -= n


def place_all(
    wants: Sequence[Want],
    free: Mapping[str, int],
    topology: Topology,
    homes: Mapping[str, Sequence[Gang]] = NOBODY,
) -> dict[str, list[Gang]] | None:
    """App id -> its gangs: places all of them, the hardest first, by best fit; None if one finds no room.

    `homes`: app id -> gangs on which it runs; these are kept if possible, as a move is a restart.
    None does not prove that there is no room, as best fit is not exact.
    """
    for where in (homes, NOBODY) if homes else (NOBODY,):
        narrow_first = sorted(wants, key=lambda want: (want.scope, -want.gang_gpus))
        for ordered in (narrow_first, sorted(wants, key=lambda want: (-want.gang_gpus, want.scope))):
            placed = _in_order(ordered, FreeIndex(free, topology), where)
            if placed is not None:
                return placed
    return None


def _in_order(
    wants: Sequence[Want], room: FreeIndex, homes: Mapping[str, Sequence[Gang]]
) -> dict[str, list[Gang]] | None:
    placed = dict[str, list[Gang]]()
    for alike in ([w for w in wants if w.gpu_type], [w for w in wants if not w.gpu_type]):  # of any type: on the rest
        placed.update((want.app_id, _stay(want, room, homes.get(want.app_id, ()))) for want in alike)
        for want in alike:
            mine = placed[want.app_id]
            for _ in range(want.gangs - len(mine)):
                gang = room.place(want.gang_gpus, want.scope, want.gpu_type)
                if gang is None:
                    return None
                room.take(gang)
                mine.append(gang)
    return placed


def _stay(want: Want, room: FreeIndex, homes: Sequence[Gang]) -> list[Gang]:
    stay: list[Gang] = []
    for gang in homes:
        alike = gang_gpus(gang) == want.gang_gpus and room.topology.scope_of(h for h, _ in gang) <= want.scope
        if want.gpu_type:
            alike = alike and all(room.topology.type_of(h) == want.gpu_type for h, _ in gang)
        if alike and len(stay) < want.gangs and room.holds(gang):
            room.take(gang)
            stay.append(gang)
    return stay
