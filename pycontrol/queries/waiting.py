"""Why an app waits, in terms of the GPUs that are free now, where the list of reasons says less."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pycontrol.arbiter.core import Arbiter
from pycontrol.model.auction import Demand
from pycontrol.model.reasons import Pending, Reason
from pycontrol.model.topology import Scope, count_by_host
from pycontrol.words import count

VAGUE = frozenset({Pending.WAITING_FOR_ROUND, Pending.NO_FREE_GPUS, Pending.OUTRANKED})
"""Reasons that do not say whether the free GPUs have room for the app's gang."""
WHERE = {Scope.MACHINE: "no machine has", Scope.RACK: "no rack has"}


class Waiting:
    """Of one Arbiter at one moment; answers that are the same for several apps are computed once."""

    def __init__(self, a: Arbiter, now_s: float) -> None:
        self._a, self._now_s = a, now_s
        self._texts: dict[tuple[object, ...], str] = {}

    def told(self, demand: Demand | None, why: Reason) -> tuple[Pending, str]:
        """The code and the sentence for the user: that there is no room for a gang, and when the first leases end that
        could make room. Virtual clusters have reasons of their own."""
        if why.code not in VAGUE or demand is None or not self._a.supply.whole:
            return why.code, why.sentence
        alike = demand.gang_gpus, demand.scope, demand.gpu_type, demand.mixes
        if alike not in self._texts:
            self._texts[alike] = self._no_room(demand)
        text = self._texts[alike]
        if not text:
            return why.code, why.sentence
        if why.code is Pending.OUTRANKED:
            return why.code, f"{why.sentence}; {text}"
        return Pending.NO_FREE_GPUS, text

    def _no_room(self, demand: Demand) -> str:
        """That the free GPUs have no room for a gang; empty if they have."""
        a, gang_gpus = self._a, demand.gang_gpus
        free = count_by_host(a.free_gpus())
        places = list(_places(a, demand))
        if any(sum(free.get(host, 0) for host in hosts) >= gang_gpus for hosts in places):
            return ""
        ends: dict[str, list[tuple[float, str]]] = {}
        for gpu, lease in a.durable.leases.items():
            if lease.end_s < math.inf:
                ends.setdefault(gpu.host, []).append((lease.end_s, lease.app_id))
        what = WHERE.get(demand.scope, "the cluster does not have")
        text = f"{what} {count(gang_gpus, 'free GPU')}{f' of type {demand.gpu_type}' if demand.gpu_type else ''}"
        end_s, holder = min((_room(hosts, ends, free, gang_gpus) for hosts in places), default=NEVER)
        if end_s == math.inf:
            return text
        name = a.durable.apps[holder].name if holder in a.durable.apps else holder
        left_s = max(0.0, end_s - self._now_s)
        return f"{text}; the first leases that can make room end in {left_s:.0f} s ({name})"


NEVER = math.inf, ""


def _places(a: Arbiter, demand: Demand) -> Iterator[list[str]]:
    """The sets of hosts of which one must hold a whole gang: of one type, unless it mixes them."""
    topology = a.topology
    types = [demand.gpu_type] if demand.gpu_type else topology.types
    for kind in (None,) if demand.mixes else types:
        hosts = [host for host, m in topology.machines.items() if kind in (None, m.gpu_type)]
        if demand.scope is Scope.MACHINE:
            yield from ([host] for host in hosts)
        elif demand.scope is Scope.RACK:
            for rack in topology.racks:
                yield [host for host in hosts if topology.rack_of(host) == rack]
        else:
            yield hosts


def _room(
    hosts: list[str], ends: dict[str, list[tuple[float, str]]], free: dict[str, int], gang_gpus: int
) -> tuple[float, str]:
    """When so many leases have ended on these hosts that a gang has room, and the app of the last; NEVER if never."""
    missing = gang_gpus - sum(free.get(host, 0) for host in hosts)
    there = sorted(found for host in hosts for found in ends.get(host, ()))
    return there[missing - 1] if missing <= len(there) else NEVER
