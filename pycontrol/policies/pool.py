"""Free GPUs of a round, indexed: a gang finds its place without a look at every machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from pycontrol.auction.placing import fill
from pycontrol.model.auction import Gang, gang_of
from pycontrol.model.topology import Scope, Topology

Rank = tuple[int, str]
"""Which of two hosts with as many free GPUs is taken first; the host is its second part."""


class Pool:
    """GPUs by host. Places as `auction.placing.place_gang` does: best fit, narrow scopes first.

    With `order`, hosts in their order of preference, gangs are not packed: GPU by GPU from the first host on
    that has any, within the gang's scope.
    """

    def __init__(self, free: Mapping[str, int], topology: Topology, order: Mapping[str, int] | None = None) -> None:
        self.left = {h: n for h, n in free.items() if n > 0}
        self.topology = topology
        self.order = order
        self._indexes = {"": _Index(self, self.left)}
        """By GPU type; "" is all of them."""

    @property
    def gpus(self) -> int:
        """GPUs left."""
        return self._indexes[""].gpus

    def place(self, size: int, widest: Scope, gpu_type: str = "") -> Gang | None:
        """Where a gang of `size` GPUs of that type (empty: any) goes, or None. Takes nothing."""
        index = self._index(gpu_type)
        if size > index.gpus:
            return None
        if self.order is not None:
            return index.first_fit(size, widest)
        return index.best_fit(size, widest)

    def fits(self, size: int, widest: Scope, gpu_type: str = "") -> bool:
        """Whether `place` finds a place."""
        return self._index(gpu_type).fits(size, widest)

    def holds(self, gang: Gang) -> bool:
        """Whether all its GPUs are left."""
        return all(self.left.get(h, 0) >= n for h, n in gang)

    def take(self, gang: Gang) -> None:
        """Removes a gang; its GPUs must be there."""
        self._change(gang, -1)

    def give(self, gang: Gang) -> None:
        """Puts a gang back."""
        self._change(gang, 1)

    def _change(self, gang: Gang, sign: int) -> None:
        for host, n in gang:
            self.left[host] = self.left.get(host, 0) + sign * n
            self._indexes[""].change(host, sign * n)
            if len(self._indexes) > 1 and (index := self._indexes.get(self.type_of(host))):
                index.change(host, sign * n)

    def type_of(self, host: str) -> str:
        """Its GPU type; empty where the host is not known."""
        machine = self.topology.machines.get(host)
        return machine.gpu_type if machine else ""

    def _index(self, gpu_type: str) -> _Index:
        index = self._indexes.get(gpu_type)
        if index is None:
            hosts = {h: n for h, n in self.left.items() if self.type_of(h) == gpu_type}
            index = self._indexes[gpu_type] = _Index(self, hosts)
        return index


class _Index:
    """Hosts by free GPUs (heaps whose outdated entries go when they are met), racks by free GPUs."""

    def __init__(self, pool: Pool, hosts: Mapping[str, int]) -> None:
        self.pool = pool
        self.gpus = sum(hosts.values())
        self.hosts: dict[str, set[str]] = {}
        self.racks: dict[str, int] = {}
        self.heaps: dict[int, list[Rank]] = {}
        self.in_order: list[Rank] = []
        """Without packing: all hosts that have any, and some that had."""
        for host, n in hosts.items():
            rack = pool.topology.rack_of(host)
            self.hosts.setdefault(rack, set()).add(host)
            self.racks[rack] = self.racks.get(rack, 0) + n
            self.heaps.setdefault(n, []).append(self._rank(host, n))
        if pool.order is not None:
            self.in_order = [self._rank(h, n) for h, n in hosts.items()]
        for heap in (*self.heaps.values(), self.in_order):
            heapify(heap)

    def _rank(self, host: str, n: int) -> Rank:
        """Packed: machines that are partly used first. Else by the pool's order."""
        if self.pool.order is not None:
            return self.pool.order[host], host
        machine = self.pool.topology.machines.get(host)
        return int(machine is not None and machine.gpus == n), host

    def change(self, host: str, gpus: int) -> None:
        """After the pool's count of that host changed by `gpus`."""
        rack, n = self.pool.topology.rack_of(host), self.pool.left[host]
        self.gpus += gpus
        self.racks[rack] = self.racks.get(rack, 0) + gpus
        self.hosts.setdefault(rack, set()).add(host)
        if n > 0:
            heappush(self.heaps.setdefault(n, []), self._rank(host, n))
            if self.pool.order is not None and n == gpus:
                heappush(self.in_order, self._rank(host, n))

    def fits(self, size: int, widest: Scope) -> bool:
        """Whether there is room for a gang."""
        if widest is Scope.CLUSTER or size > self.gpus:
            return size <= self.gpus
        if widest is Scope.RACK and any(n >= size for n in self.racks.values()):
            return True
        return any(True for _ in self._tops(size))

    def _tops(self, size: int) -> Iterator[tuple[int, Rank]]:
        """The first host of each count of at least `size` GPUs."""
        for n, heap in self.heaps.items():
            if n >= size:
                while heap and self.pool.left[heap[0][1]] != n:
                    heappop(heap)
                if heap:
                    yield n, heap[0]

    def _counts(self, rack: str) -> dict[str, int]:
        return {h: self.pool.left[h] for h in self.hosts[rack] if self.pool.left[h] > 0}

    def best_fit(self, size: int, widest: Scope) -> Gang | None:
        """The machine that the gang fills best, then the rack, then anywhere."""
        top = min(self._tops(size), default=None)
        if top is not None:
            return ((top[1][1], size),)
        if widest is Scope.MACHINE:
            return None
        racks = [(n, rack) for rack, n in self.racks.items() if n >= size]
        if racks:
            return fill(size, self._counts(min(racks)[1]))
        if widest is Scope.CLUSTER:
            return fill(size, {h: n for rack in self.racks for h, n in self._counts(rack).items()})
        return None

    def first_fit(self, size: int, widest: Scope) -> Gang | None:
        """GPU by GPU from the first host of the order that has any; where the scope is narrow, within it."""
        if widest is Scope.MACHINE:
            host = min((rank for _, rank in self._tops(size)), default=None)
            return None if host is None else ((host[1], size),)
        gang: dict[str, int] = {}
        rack, seen = "", []
        while size and self.in_order:
            host = heappop(self.in_order)
            n = self.pool.left[host[1]]
            if n <= 0 or host[1] in gang:
                continue  # an outdated entry
            seen.append(host)
            here = self.pool.topology.rack_of(host[1])
            if widest is Scope.RACK and (here != rack if gang else self.racks[here] < size):
                continue
            rack, gang[host[1]] = here, min(size, n)
            size -= gang[host[1]]
        for host in seen:
            heappush(self.in_order, host)
        return None if size else gang_of(gang)
