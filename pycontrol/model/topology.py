"""The cluster as policies see it: machines with GPUs, in racks."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from pycontrol.model.grouping import summed
from pycontrol.model.value import value


class Gpu(NamedTuple):
    """One GPU: the host it sits in and its index there (what CUDA_VISIBLE_DEVICES names)."""

    host: str
    index: int  # type: ignore[assignment]  # shadows tuple.index, which no GPU needs

    def __str__(self) -> str:
        return f"{self.host}:{self.index}"

    @classmethod
    def parse(cls, name: str) -> Gpu:
        """The inverse of str(); raises ValueError."""
        host, _, index = name.rpartition(":")
        return cls(host, int(index))


class Scope(enum.IntEnum):
    """The distance of the GPUs of one gang; a larger value is a slower interconnect (Themis, section 4.3)."""

    MACHINE = 1
    RACK = 2
    CLUSTER = 3


@value
class Machine:
    """A machine of the cluster."""

    host: str
    rack: str
    gpus: int
    gpu_type: str = "gpu"
    virtual: bool = False
    slot_gpus: int = 0
    """GPUs of a slot: consecutive indices, from 0, with a faster interconnect (an NVLink pair: 2); 0: none."""
    partition: str = ""
    """YARN's node label; empty: the default partition."""


@dataclass(frozen=True)
class Topology:
    """All machines, by host name."""

    machines: Mapping[str, Machine] = field(default_factory=dict)

    @classmethod
    def of(cls, machines: Iterable[Machine]) -> Topology:
        """A topology of these machines, sorted by host."""
        return cls({m.host: m for m in sorted(machines, key=lambda m: m.host)})

    @cached_property
    def gpus(self) -> int:
        """GPUs of the whole cluster (R_C)."""
        return sum(m.gpus for m in self.machines.values())

    @cached_property
    def gpus_in(self) -> Mapping[str, int]:
        """Partition -> its GPUs."""
        return summed((m.partition, m.gpus) for m in self.machines.values())

    @cached_property
    def largest_gpus(self) -> int:
        """The GPUs of the largest machine."""
        return max((m.gpus for m in self.machines.values()), default=0)

    @cached_property
    def racks(self) -> Mapping[str, tuple[str, ...]]:
        """Rack -> its hosts."""
        by_rack: dict[str, list[str]] = {}
        for machine in self.machines.values():
            by_rack.setdefault(machine.rack, []).append(machine.host)
        return {rack: tuple(hosts) for rack, hosts in by_rack.items()}

    @cached_property
    def rack_by_host(self) -> Mapping[str, str]:
        """Host -> its rack."""
        return {host: m.rack for host, m in self.machines.items()}

    @cached_property
    def gpus_by_host(self) -> Mapping[str, int]:
        """Host -> its number of GPUs."""
        return {host: m.gpus for host, m in self.machines.items()}

    @cached_property
    def types(self) -> tuple[str, ...]:
        """GPU types, sorted by name."""
        return tuple(sorted({m.gpu_type for m in self.machines.values()}))

    def type_of(self, host: str) -> str:
        """The GPU type of a host; empty if the host is not known."""
        machine = self.machines.get(host)
        return machine.gpu_type if machine else ""

    def rack_of(self, host: str) -> str:
        """The rack of a host; an unknown host is a rack of its own."""
        machine = self.machines.get(host)
        return machine.rack if machine else host

    def scope_of(self, hosts: Iterable[str]) -> Scope:
        """The narrowest scope that holds all these hosts."""
        distinct = set(hosts)
        if len(distinct) <= 1:
            return Scope.MACHINE
        return Scope.RACK if len({self.rack_of(h) for h in distinct}) == 1 else Scope.CLUSTER


def count_by_host(gpus: Iterable[Gpu]) -> dict[str, int]:
    """Host -> how many of these GPUs it has."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        counts[gpu.host] = counts.get(gpu.host, 0) + 1
    return counts
