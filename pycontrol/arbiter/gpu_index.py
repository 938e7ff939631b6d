"""What the leases and the cluster mean for each GPU: derived, and kept up to date GPU by GPU."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping

from pycontrol.arbiter.alarms import Alarms
from pycontrol.arbiter.lease import GRANTED, REVOKING, Lease
from pycontrol.arbiter.pool import Pool
from pycontrol.model.topology import Gpu, count_by_host


class GpuState(enum.StrEnum):
    """What a GPU is in: one of these at any time."""

    AWAY = "away"
    """No machine that is up has it, and nobody holds it."""
    BAD = "bad"
    """Out of order, and nobody holds it."""
    FREE = "free"
    """A round may grant it."""
    WITHHELD = "withheld"
    """Nobody holds it; its machine is drained or closed to new containers."""
    OCCUPIED = "occupied"
    """Nobody holds it, and a container is still there."""
    GRANTED = "granted"
    """Leased, and its app has said nothing of what runs there."""
    PLANNED = "planned"
    """Leased, and a worker waits to be placed."""
    PLACING = "placing"
    """Leased, and its worker's container is under way."""
    STARTING = "starting"
    """Leased; a container is there that was not launched yet, or is no longer the lease's."""
    ACTIVE = "active"
    """Leased, and its container was launched."""
    REVOKING = "revoking"
    """To be given back; a round may promise it."""
    RESERVED = "reserved"
    """To be given back, and its next owner is known."""


class GpuIndex:
    """Free and revoked GPUs, and when time touches a lease. `State.reindex` alone writes what `validate` checks."""

    def __init__(self, grant_timeout_s: float, lead_s: float) -> None:
        self._grant_timeout_s, self._lead_s = grant_timeout_s, lead_s
        self.free = Pool()
        self.revoking: set[Gpu] = set()
        """GPUs whose leases are being revoked."""
        self.open: set[Gpu] = set()
        """GPUs whose leases last until somebody else wants them."""
        self.alarms = Alarms()
        """When `leases.expire` must look at a GPU."""
        self.ends = Alarms()
        """The ends of leases that go on offer."""

    def copy(self) -> GpuIndex:
        """The same, apart."""
        other = GpuIndex(self._grant_timeout_s, self._lead_s)
        other.free, other.revoking, other.open = self.free.copy(), set(self.revoking), set(self.open)
        other.alarms, other.ends = self.alarms.copy(), self.ends.copy()
        return other

    def unleased(self, gpu: Gpu, free: bool) -> None:
        """Nobody holds the GPU; `free`: it can be leased."""
        self.revoking.discard(gpu)
        self.open.discard(gpu)
        if free:
            self.free.put(gpu)
        else:
            self.free.take(gpu)

    def leased(self, lease: Lease, renews_itself: bool) -> None:
        """The lease of a GPU; `renews_itself`: the stand-in's, which no round renews."""
        gpu = lease.gpu
        self.free.take(gpu)
        if lease.state == REVOKING:
            self.revoking.add(gpu)
            self.open.discard(gpu)
            self.alarms.put(lease.end_s, gpu)
            return
        self.revoking.discard(gpu)
        if lease.end_s == math.inf:
            self.open.add(gpu)
        else:
            self.open.discard(gpu)
            self.ends.put(lease.end_s, gpu)
        if lease.state == GRANTED and lease.unused_since_s is not None:
            self.alarms.put(lease.unused_since_s + self._grant_timeout_s, gpu)
        elif renews_itself:
            self.alarms.put(lease.end_s - self._lead_s, gpu)

    def validate(self, leases: Mapping[Gpu, Lease], free: set[Gpu]) -> Iterator[tuple[Gpu | None, str]]:
        """What is not as it follows from the leases and the GPUs that are free: (GPU, what is wrong)."""
        for name, mine, right in (
            ("free", set(self.free), free),
            ("being revoked", self.revoking, {g for g, x in leases.items() if x.state == REVOKING}),
            ("open", self.open, {g for g, x in leases.items() if x.end_s == math.inf and x.state != REVOKING}),
        ):
            for gpu in sorted(mine ^ right):
                yield gpu, f"it is {'not ' if gpu in mine else ''}{name}, and the index says otherwise"
        if (self.free.counts(), self.free.count) != (count_by_host(free), len(free)):
            yield None, "the counts of free GPUs are not those of the free GPUs"
