"""The free GPUs of a round: gangs are placed by GPU type, packed or not, and can be put back."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Self

from pycontrol.auction.placing import Room
from pycontrol.model.auction import Gang, gang_of
from pycontrol.model.topology import Scope, Topology

ELSE = " else "
"""Joins GPU types, the one to be tried first in front."""


class Pool:
    """Free GPUs by host. Gangs are placed as `auction.placing.place_gang` does: best fit, narrow scopes first.

    With `order` (host -> rank), gangs are not packed: they take the first free GPUs in this order of hosts, within
    their scope.
    """

    def __init__(self, free: Mapping[str, int], topology: Topology, order: Mapping[str, int] | None = None) -> None:
        self.topology = topology
        self.order = order
        some = min(free.values(), default=1) <= 0
        self._all = _Hosts({h: n for h, n in free.items() if n > 0} if some else dict(free), topology, order)
        self._of_type: dict[str, _Hosts] = {}

    def copy(self) -> Self:
        """An independent copy."""
        twin = copy.copy(self)
        twin._all, twin._of_type = self._all.copy(), {t: hosts.copy() for t, hosts in self._of_type.items()}
        return twin

    @property
    def left(self) -> Mapping[str, int]:
        """GPUs by host."""
        return self._all.free

    @property
    def gpus(self) -> int:
        """The number of free GPUs."""
        return self._all.gpus

    def place(self, size: int, widest: Scope, gpu_type: str = "", members: Sequence[int] = ()) -> Gang | None:
        """A place for a gang of `size` GPUs of a type (empty: any), or None. Takes nothing.

        `gpu_type`: or several, joined by `ELSE`: the first that has a place. `members`: GPUs of each container, if each
        needs one machine.
        """
        found = (self._hosts(each).place(size, widest, members) for each in gpu_type.split(ELSE))
        return next((gang for gang in found if gang is not None), None)

    def has_place(self, size: int, widest: Scope, gpu_type: str = "", members: Sequence[int] = ()) -> bool:
        """Whether `place` finds a place."""
        return any(self._hosts(each).has_place(size, widest, members) for each in gpu_type.split(ELSE))

    def holds(self, gang: Gang) -> bool:
        """Whether all GPUs of the gang are free."""
        return self._all.fits(gang)

    def take(self, gang: Gang) -> None:
        """Takes a gang's GPUs, which must be free."""
        self._all.take(gang)
        for gpu_type, hosts in self._of_type.items():
            hosts.take(tuple((h, n) for h, n in gang if self.type_of(h) == gpu_type))

    def give(self, gang: Gang) -> None:
        """Puts a gang's GPUs back."""
        self._all.give(gang)
        for gpu_type, hosts in self._of_type.items():
            hosts.give(tuple((h, n) for h, n in gang if self.type_of(h) == gpu_type))

    def type_of(self, host: str) -> str:
        """The GPU type of a host; empty if the host is not known."""
        machine = self.topology.machines.get(host)
        return machine.gpu_type if machine else ""

    def _hosts(self, gpu_type: str) -> _Hosts:
        if not gpu_type:
            return self._all
        if gpu_type not in self._of_type:
            free = {h: n for h, n in self.left.items() if self.type_of(h) == gpu_type}
            self._of_type[gpu_type] = _Hosts(free, self.topology, self.order)
        return self._of_type[gpu_type]


class _Hosts(Room):
    """The free GPUs on hosts of one GPU type, or on all hosts."""

    def __init__(self, free: dict[str, int], topology: Topology, order: Mapping[str, int] | None) -> None:
        super().__init__(free, topology)
        self.gpus = sum(free.values())
        self.order = order
        self.first: list[tuple[int, str]] = []
        """Without packing: a heap of (rank, host) with all hosts that have free GPUs, and outdated entries."""
        if order is not None:
            self.first = [(order[h], h) for h in free]
            heapify(self.first)

    def copy(self) -> Self:
        """An independent copy."""
        twin: Self = super().copy()
        twin.first = list(self.first)
        return twin

    def take(self, gang: Gang) -> None:
        """Takes a gang's GPUs."""
        super().take(gang)
        self.gpus -= sum(n for _, n in gang)

    def give(self, gang: Gang) -> None:
        """Puts a gang's GPUs back."""
        for host, n in gang:
            left = self.free[host] = self.free[host] + n
            self._changed(host, n)
            self.gpus += n
            self._enter(left, self._whole(host, left), host)
            if self.order is not None and left == n:
                heappush(self.first, (self.order[host], host))

    def has_place(self, size: int, widest: Scope, members: Sequence[int] = ()) -> bool:
        """Whether `place` finds a place."""
        if members:
            return super().place(size, widest, members) is not None
        if widest is Scope.CLUSTER or size > self.gpus:
            return size <= self.gpus
        if widest is Scope.RACK and any(n >= size for n in self.in_rack.values()):
            return True
        return super().place(size, Scope.MACHINE) is not None

    def place(self, size: int, widest: Scope, members: Sequence[int] = ()) -> Gang | None:
        """A place for a gang, or None; takes nothing."""
        if size > self.gpus:
            return None
        if self.order is None or members:
            return super().place(size, widest, members)
        return self._first_fit(size, widest)

    def _first_fit(self, size: int, widest: Scope) -> Gang | None:
        gang: dict[str, int] = {}
        rack, seen = "", []
        while size and self.first:
            entry = heappop(self.first)
            host, n = entry[1], self.free[entry[1]]
            if n <= 0 or host in gang:
                continue  # an outdated entry
            seen.append(entry)
            here = self.topology.rack_of(host)
            if widest is Scope.MACHINE and n < size:
                continue
            if widest is Scope.RACK and (here != rack if gang else self.in_rack[here] < size):
                continue
            rack, gang[host] = here, min(size, n)
            size -= gang[host]
        for entry in seen:
            heappush(self.first, entry)
        return None if size else gang_of(gang)
